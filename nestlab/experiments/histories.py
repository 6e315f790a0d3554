"""Data sets that know what each user did before: studies of histories refuse the others before a run is opened."""

from __future__ import annotations

from nestlab.data import Dataset
from nestlab.errors import UserError


def needs_histories(experiment: str, dataset: Dataset, why: str = "") -> None:
    """Refuses a data set without them.

    Args:
        why: what needs them, where not all of the experiment does, such as `model=hstu`.

    Raises:
        UserError: it has none; the remedy.
    """
    if not hasattr(dataset, "sequence_features"):
        wants = f", which {why} reads" if why else ""
        raise UserError(f"{experiment}: '{dataset.info.id}' has no histories of users{wants}; take a KuaiRand data set")
