"""The EcoRec study's part of the register: which claims that name the notebook it leaves open, and why."""

from __future__ import annotations

from nestlab.experiments.answering import Answering

NOTEBOOK = "notebooks/40_ecorec.ipynb"
_SIMULATED = "takes the simulator of a cluster, which is not there yet"
# Of the claims that name the notebook, those that it leaves open, and why.
OPEN = {
    "ER-P-001": _SIMULATED,
    "ER-P-003": _SIMULATED,
    "ER-P-048": _SIMULATED,
    "ER-P-028": "takes both layouts of the baselines on ranks; the ladder has EcoRec's alone",
    "RL-P-015": "takes Criteo's published numbers of ids, and a training at each compression",
    "RL-P-016": "takes trainings on Criteo Kaggle, of which a sample of a thousand rows is here",
    "RL-P-017": "takes trainings on Criteo Kaggle, of which a sample of a thousand rows is here",
}
# What is obtained where the source states no value, and so no unit.
_UNITS = {
    "ER-A-002": "× the peak in one slice",
    "ER-A-003": "× the fullest slice by number",
    "ER-P-016": "prefixes a boundary",
    "ER-P-019": "fullest rank over the mean",
    "ER-P-020": "× the step in order",
    "ER-P-021": "× the step without reordering",
    "ER-P-029": "ms",
    "ER-P-046": "ms a step",
    "ER-P-050": "ms",
    "ER-P-055": "× the table as it is",
    "RL-P-026": "× the prefixes of hashed ids",
}
ANSWERING = Answering(NOTEBOOK, OPEN, _UNITS)
