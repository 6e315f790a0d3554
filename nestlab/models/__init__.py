"""Dense parts of models. What turns ids into rows is the embedding store; what joins the two is the pipeline."""

from nestlab.models.base import DenseOutput, RecModel
from nestlab.models.dlrm import DLRM
from nestlab.models.ranking import DIN, DCNv2, MultiTask, ranking_batches, ranking_model
from nestlab.models.sequence import HSTU, FuXi, Retrieval, SASRec, sequence_model

__all__ = [
    "DIN",
    "DLRM",
    "HSTU",
    "DCNv2",
    "DenseOutput",
    "FuXi",
    "MultiTask",
    "RecModel",
    "Retrieval",
    "SASRec",
    "ranking_batches",
    "ranking_model",
    "sequence_model",
]
