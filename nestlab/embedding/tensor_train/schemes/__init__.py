"""Three ways of computing the same rows and the same gradients of a tensor-train table (see docs/design.md 4.2)."""

from nestlab.embedding.tensor_train.schemes.ecorec import EcoRec
from nestlab.embedding.tensor_train.schemes.el_rec import ELRec
from nestlab.embedding.tensor_train.schemes.tt_rec import TTRec

SCHEMES = {"tt_rec": TTRec, "el_rec": ELRec, "ecorec": EcoRec}
