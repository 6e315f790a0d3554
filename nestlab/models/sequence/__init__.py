"""Sequence models over jagged histories: encoders, and the heads that train them."""

from nestlab.models.sequence.building import ENCODERS, sequence_model, sequence_tables
from nestlab.models.sequence.encoder import Encoder, Size
from nestlab.models.sequence.fuxi import FuXi
from nestlab.models.sequence.hstu import HSTU
from nestlab.models.sequence.jagged import batch_values
from nestlab.models.sequence.retrieval import Retrieval
from nestlab.models.sequence.sasrec import SASRec

__all__ = [
    "ENCODERS",
    "HSTU",
    "Encoder",
    "FuXi",
    "Retrieval",
    "SASRec",
    "Size",
    "batch_values",
    "sequence_model",
    "sequence_tables",
]
