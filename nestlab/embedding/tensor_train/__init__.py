"""Tensor-train tables: M × N weights as a few small cores (see docs/design.md 4.2)."""

from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.compress import Compressed, compress
from nestlab.embedding.tensor_train.config import TensorTrain
from nestlab.embedding.tensor_train.cores import Cores
from nestlab.embedding.tensor_train.shape import TTShape, suggest
from nestlab.embedding.tensor_train.table import LookUp, TTTable
from nestlab.embedding.tensor_train.work import Work

__all__ = ["Bags", "Compressed", "Cores", "LookUp", "TTShape", "TTTable", "TensorTrain", "Work", "compress", "suggest"]
