"""The accuracy study's part of the register: which claims that name the notebook it leaves open, and why."""

from __future__ import annotations

from nestlab.experiments.answering import Answering

NOTEBOOK = "notebooks/12_accuracy.ipynb"
# Of the claims that name the notebook, those that a run may leave open.
OPEN = {
    "NP-P-056": "takes several ranks: one has no other to be a replica of",
    "RL-P-084": "takes real rows of KuaiRand-Pure under data_root",
}
ANSWERING = Answering(NOTEBOOK, OPEN)
