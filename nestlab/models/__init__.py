"""Dense parts of models. What turns ids into rows is the embedding store; what joins the two is the pipeline."""

from nestlab.models.base import DenseOutput, RecModel
from nestlab.models.dlrm import DLRM

__all__ = ["DLRM", "DenseOutput", "RecModel"]
