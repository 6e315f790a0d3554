"""The two-tier study's part of the register: which claims that name the notebook it leaves open, and why."""

from __future__ import annotations

from nestlab.experiments.answering import Answering

NOTEBOOK = "notebooks/30_two_tier_cache.ipynb"
# Of the claims that name the notebook, those that it leaves open, and why.
OPEN = {
    "RS-C-021": "takes several ranks: with one, nothing is exchanged",
    "RS-C-022": "takes several ranks: with one, nothing is sharded",
}
ANSWERING = Answering(NOTEBOOK, OPEN, worded=False)
