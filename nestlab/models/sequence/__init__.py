"""Sequence models over jagged histories: encoders, and the heads that train them."""

from nestlab.models.sequence.encoder import Size
from nestlab.models.sequence.fuxi import FuXi
from nestlab.models.sequence.hstu import HSTU
from nestlab.models.sequence.retrieval import Retrieval
from nestlab.models.sequence.sasrec import SASRec

ENCODERS = {"hstu": HSTU, "fuxi": FuXi, "sasrec": SASRec}

__all__ = ["ENCODERS", "HSTU", "FuXi", "Retrieval", "SASRec", "Size"]
