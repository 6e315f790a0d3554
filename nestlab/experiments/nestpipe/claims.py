"""The NestPipe study's part of the register: which claims that name the notebook it leaves open, and why."""

from __future__ import annotations

from nestlab.experiments.answering import Answering

NOTEBOOK = "notebooks/10_nestpipe.ipynb"
_CUDA = "takes an accelerator: there is no pinned memory and no copy to a device on the CPU"
# Of the claims that name the notebook, those that it leaves open, and why.
OPEN = {
    "NP-P-013": _CUDA,
    "NP-P-014": _CUDA,
    "NP-P-062": "the tables carry step time, samples a second, speed-up, exposed share and utilisation, and "
    "12_accuracy HR and NDCG; scaling efficiency is not there yet",
}
# What is obtained where the source states no value, and so no unit.
_UNITS = {
    "NP-P-026": "largest difference of a weight",
    "NP-P-027": "× the rows in time order",
    "NP-P-034": "largest difference of a weight",
    "NP-P-059": "× the plain speed, at least",
    "NP-P-060": "× the plain speed, at least",
    "NP-P-061": "× the plain speed, at least",
    "NP-A-014": "× the rows in time order",
    "RL-P-003": "× the drift without the division",
    "RL-P-004": "mean difference of a weight",
}
ANSWERING = Answering(NOTEBOOK, OPEN, _UNITS, "no real rows under data_root, one rank alone, or too small a scale")
