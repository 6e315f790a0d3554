"""The models that a training may have: what each is judged by, and its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from nestlab.errors import UserError


@dataclass(frozen=True)
class Choice:
    """One of MODELS.

    Attributes:
        family: by what a model is judged: `clicks`, `tasks` (several actions of a sample), `retrieval` (the next item).
        defaults: of options that are not given, where they differ from those of `TrainOptions`. Those of OWN that stand
            here are the ones that the model takes.
    """

    family: Literal["clicks", "tasks", "retrieval"]
    defaults: Mapping[str, Any]

    @property
    def reads_histories(self) -> bool:
        """Whether it needs the events of users."""
        return "history" in self.defaults


OWN = ("history", "negatives", "blocks")  # options that only some models take

_EVENTS = {"dataset": "kuairand", "history": 50}
# Chosen on a validation part of KuaiRand-Pure's training events: see `tuning` of the accuracy study.
_NEXT_ITEM = {
    **_EVENTS,
    "batch_size": 256,
    "epochs": 3,
    "optimizer": "rowwise_adagrad",
    "lr": 0.3,
    "dense_lr": 0.001,
    "dim": 64,
    "negatives": 128,
    "blocks": 2,
}

MODELS: Mapping[str, Choice] = MappingProxyType(
    {
        "dlrm": Choice("clicks", {}),
        "dcnv2": Choice("clicks", {}),
        "din": Choice("clicks", _EVENTS),
        "multitask": Choice("tasks", _EVENTS),
        "multitask_hstu": Choice("tasks", _EVENTS),
        "hstu": Choice("retrieval", _NEXT_ITEM),
        "fuxi": Choice("retrieval", _NEXT_ITEM),
        "sasrec": Choice("retrieval", _NEXT_ITEM),
    }
)


def choice(model: str) -> Choice:
    """Raises UserError where no model is called so."""
    if model not in MODELS:
        raise UserError(f"train: model={model}: it must be one of {', '.join(MODELS)}")
    return MODELS[model]


def taking(option: str) -> list[str]:
    """The models that take an option of OWN."""
    return [name for name, each in MODELS.items() if option in each.defaults]
