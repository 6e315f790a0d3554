"""What a training run is told: everything that decides its result, and where it is saved."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from nestlab import paths
from nestlab.data.criteo_conventions import DEFAULT
from nestlab.data.loader import SHUFFLES
from nestlab.data.registry import resolve
from nestlab.data.reorder import MODES
from nestlab.embedding import Tiers
from nestlab.errors import UserError
from nestlab.exchange import LinkModel
from nestlab.techniques import Techniques
from nestlab.training.checkpoint import FULL_EVERY
from nestlab.training.choices import MODELS, OWN, Choice, choice, taking
from nestlab.training.fit import FitConfig

EXECUTORS = ("auto", "inline", "lanes", "shuffled")


@dataclass(frozen=True)
class TrainOptions:
    """One training run, fully resolved: everything that decides its result. `of` fills in a model's own defaults.

    How many ranks there are is no option: the environment says it (see `nestlab.launch.environment`), and the batches
    do not depend on it.

    Args:
        dataset, data_root, rows: what is trained on (see `nestlab.data.open_dataset`).
        batch_size: samples a step, over all ranks; of a retrieval model windows of users' events.
        epochs, max_steps, evaluations: see `FitConfig`.
        optimizer, lr: row optimizer of the tables (sgd, adagrad, rowwise_adagrad, lazy_adam) and its learning rate.
        dense_lr: learning rate of Adam on the dense part.
        clip_norm: all gradients of a batch are scaled down to this norm where theirs is above it; 0: never.
        dim: width of the embedding vectors.
        seed: of initial values, of the order of samples and of negatives.
        shuffle: the order of samples: `full`, or `window`, within windows of consecutive ones; see `Loader`.
        data_seed: of a synthetic twin. Apart from `seed`, so that runs of several seeds see the same rows.
        reorder: ids in an order that suits tensor-train tables: communities, frequency or none (ascending); see
            `nestlab.data.reorder`. Empty: ids as they are.
        techniques: the flags, as `name=value,…`.
        executor: `inline`, `lanes` (a thread a lane), `shuffled` (a random order that the schedule allows); `auto` is
            lanes where more than one batch or micro-batch is in flight.
        link: an emulated link between host and device, as `latency,bandwidth` (`10us,100gbit`); empty: none.
        network: the same between ranks.
        timeout: seconds after which a rank that waits for another gives up.
        trace_batches: how many batches, from the fifth on, leave events.
        model: one of `nestlab.training.choices.MODELS`.
        convention: how raw values become inputs, by the name under which results are published; see
            `nestlab.data.criteo_conventions`. Empty: as the data set does it by itself.
        history: events of a sample, at most; negatives: of a window; blocks: layers of an encoder. 0 where the model
            takes none.
    """

    dataset: str = "criteo"
    data_root: str = "datasets"
    rows: int | None = None
    batch_size: int = 512
    epochs: int = 1
    max_steps: int | None = None
    evaluations: int = 4
    optimizer: str = "adagrad"
    lr: float = 0.02
    dense_lr: float = 0.001
    clip_norm: float = 0.0
    dim: int = 16
    seed: int = 0
    shuffle: str = "full"
    data_seed: int = 0
    reorder: str = ""
    device: str = "auto"
    techniques: str = ""
    executor: Literal["auto", "inline", "lanes", "shuffled"] = "auto"
    link: str = ""
    network: str = ""
    timeout: float = 60.0
    trace_batches: int = 32
    model: str = "dlrm"
    convention: str = ""
    history: int = 0
    negatives: int = 0
    blocks: int = 0

    @classmethod
    def of(cls, model: str = "dlrm", **given: Any) -> TrainOptions:
        """With the model's own defaults for what is not given, or None.

        Raises:
            UserError: see `TrainOptions`.
        """
        return cls(**{**choice(model).defaults, **_not_none(given), "model": model})

    def __post_init__(self) -> None:
        """Raises UserError: a value out of range, or an option that the model does not take."""
        for name in ("batch_size", "epochs", "evaluations", "dim", *self.own):
            if getattr(self, name) < 1:
                raise UserError(f"train: {name}={getattr(self, name)}: it must be at least 1")
        for name in ("max_steps", "rows"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"train: {name}={value}: it must be at least 1, or left out")
        for name in ("lr", "dense_lr"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UserError(f"train: {name}={getattr(self, name)}: give a learning rate above 0")
        for name in ("seed", "data_seed"):
            if not 0 <= getattr(self, name) < 1 << 63:
                raise UserError(f"train: {name}={getattr(self, name)}: give a number from 0 to 2**63 - 1")
        if self.executor not in EXECUTORS:
            raise UserError(f"train: executor={self.executor}: it must be one of {', '.join(EXECUTORS)}")
        if self.shuffle not in SHUFFLES:
            raise UserError(f"train: shuffle={self.shuffle}: it must be one of {', '.join(SHUFFLES)}")
        if self.reorder and self.reorder not in MODES:
            raise UserError(f"train: reorder={self.reorder}: it must be one of {', '.join(MODES)}, or left out")
        if not 0 <= self.clip_norm < float("inf"):
            raise UserError(f"train: clip_norm={self.clip_norm}: give a norm above 0, or 0 for no clipping")
        if not 0 < self.timeout < float("inf"):
            raise UserError(f"train: timeout={self.timeout}: give seconds above 0")
        techniques = Techniques.parse(self.techniques)
        Tiers.of(techniques)  # an error is the user's to see before anything is opened
        _check_taken(self, techniques)
        for name in ("link", "network"):
            if given := getattr(self, name):
                _check_link(name, given)

    @property
    def choice(self) -> Choice:
        return choice(self.model)

    @property
    def own(self) -> tuple[str, ...]:
        """The options of OWN that the model takes."""
        return tuple(name for name in OWN if name in self.choice.defaults)

    @property
    def parameters(self) -> dict[str, Any]:
        """What a run was made with: every option that the model takes; the convention where it is not the default."""
        # Named or not, the default is one protocol: its runs compare.
        left_out = {*OWN} - {*self.own} | ({"convention"} if not self.named_convention else set())
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    @property
    def named_convention(self) -> str:
        """The convention; empty where it is what the data set does by itself."""
        return "" if self.convention == DEFAULT else self.convention

    @property
    def fit(self) -> FitConfig:
        return FitConfig(self.epochs, self.max_steps, self.evaluations)

    @property
    def how(self) -> str:
        """How figures of such a run are obtained, in the words of the run store."""
        return "emulated link" if self.link or self.network else "measured"


@dataclass(frozen=True)
class SaveOptions:
    """Where a training is saved, and whether it goes on from there. None of it decides a result.

    Args:
        folder: one that all ranks see.
        every, full_every: see `Checkpoints`.
        restart: go on from the checkpoint in `folder` if there is one.
        run: the run that is filed meanwhile.
    """

    folder: Path
    every: int = 100
    full_every: int = FULL_EVERY
    restart: bool = False
    run: str = ""

    def __post_init__(self) -> None:
        for name in ("every", "full_every"):
            if getattr(self, name) < 1:
                raise UserError(f"train: checkpoint_{name}={getattr(self, name)}: it must be at least 1")


def check_data(options: TrainOptions) -> None:
    """Whether the data set, by its name alone, can feed the model: asked before it is opened, which may take long.

    Raises:
        UserError: it has no histories of users or no such convention, or there is no such data set.
    """
    source = resolve(options.dataset, paths.data_root(options.data_root))
    if options.choice.reads_histories and not source.histories:
        others = [name for name, each in MODELS.items() if not each.reads_histories]
        raise UserError(
            f"train: model={options.model} reads histories of users, and '{source.name}' has none; "
            f"give --dataset kuairand, or --model {' or '.join(others)}"
        )
    if options.convention and options.convention not in source.conventions:
        remedy = (
            f"choose one of {', '.join(source.conventions)}"
            if source.conventions
            else "leave it out, or give --dataset criteo"
        )
        has = "has no such convention" if source.conventions else "has no conventions to choose from"
        raise UserError(f"train: convention={options.convention}: '{source.name}' {has}; {remedy}")


def _check_taken(options: TrainOptions, techniques: Techniques) -> None:
    """An option without effect is refused and not ignored."""
    model, family = options.model, options.choice.family
    for name in OWN:
        if name not in options.own and getattr(options, name):
            raise UserError(
                f"train: {name}={getattr(options, name)}: model={model} takes none; leave it out, or choose a model "
                f"that does ({', '.join(taking(name))})"
            )
    if options.reorder and options.named_convention:
        raise UserError(
            f"train: reorder={options.reorder}: convention={options.convention} numbers ids in an order of its own; "
            "leave one of them out"
        )
    if options.reorder and family == "retrieval":
        raise UserError(f"train: reorder={options.reorder}: model={model} reads items as they are; leave it out")
    for name, value in (("admit", "show_click"), ("evict", "score")):
        if family != "clicks" and getattr(techniques, name) == value:
            raise UserError(
                f"train: techniques: {name}={value} counts clicks, which model={model} has not as labels; leave it out"
            )


def _check_link(name: str, given: str) -> None:
    try:
        LinkModel.parse(given)
    except UserError as error:
        raise UserError(f"train: --{name}: {str(error).removeprefix('link: ')}") from None


def _not_none(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}
