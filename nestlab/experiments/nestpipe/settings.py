"""How much each part of the study does, at the three scales."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nestlab.errors import UserError

POSITIONWISE = "positionwise"
ENCODERS = ("hstu", "fuxi", "sasrec")
_LONG, _LONG_TWIN = ("kuairand-1k", "kuairand-27k"), "kuairand-27k-synth"


@dataclass(frozen=True)
class Settings:
    """What every part and every rank is given.

    Attributes:
        dataset, data_root, seed, device, world_size: as the notebook's parameters.
        model: `positionwise` over the rows of the data set; `hstu`, `fuxi` or `sasrec` over users' histories.
        rows: of real data sets and twins, None: all.
        batch_size: samples a rank and step: rows, or windows of histories.
        history: events of a window, at most.
        dim, layers: of the tables, and of the dense part.
        micro_batches: N of the ablation.
        warm, steps, after: batches before the traced ones, traced, and behind them (so that the last one prefetches).
        rounds: how often the ablation's rows take turns.
        sweep: the N that are tried.
        dims, depths: what is varied of the model.
        lengths: windows' lengths that are tried, by sequence models.
        events: a rank and step at every length, at most.
        exchange, retrieval: what the emulated links are to need, of a step's computation: row and gradient exchange
            over the network, retrieval and write-back over the link between host and device.
        save_steps: of the training that is killed.
        clustered: batches, spread over the training split, on which clustering rules are compared.
        torchrec: its pipelines are in the table, where it is installed.
    """

    dataset: str = "kuairand"
    model: str = POSITIONWISE
    data_root: str = "datasets"
    seed: int = 0
    device: str = "cpu"
    world_size: int = 2
    rows: int | None = None
    batch_size: int = 2048
    history: int = 200
    dim: int = 128
    layers: int = 4
    micro_batches: int = 8
    warm: int = 3
    steps: int = 5
    after: int = 4
    rounds: int = 2
    sweep: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    dims: tuple[int, ...] = (64, 128, 256)
    depths: tuple[int, ...] = (2, 4, 8)
    lengths: tuple[int, ...] = (512, 1024, 2048)
    events: int = 8192
    exchange: float = 0.6
    retrieval: float = 0.9
    save_steps: int = 60
    clustered: int = 8
    torchrec: bool = True

    @property
    def batches(self) -> int:
        """Of one training."""
        return self.warm + self.steps + self.after

    @property
    def sequential(self) -> bool:
        """Whether a sample is a window of a user's history."""
        return self.model in ENCODERS

    def of_length(self, model: str, length: int) -> Settings:
        """As many events a batch whatever the windows' length. Pure's users have few: their twin of 27K has more."""
        samples = max(2, self.events // length)
        return replace(
            self,
            model=model,
            dataset=self.dataset if self.dataset in _LONG else _LONG_TWIN,
            history=length,
            batch_size=samples,
            micro_batches=min(self.micro_batches, samples),
            dim=min(self.dim, 64),
            layers=min(self.layers, 2),
        )


SCALES = {
    "smoke": Settings(
        rows=20_000,
        batch_size=256,
        dim=32,
        layers=2,
        micro_batches=4,
        warm=2,
        steps=5,
        after=3,
        rounds=1,
        sweep=(1, 4),
        dims=(16, 32),
        depths=(2, 4),
        lengths=(16, 32),
        events=256,
        save_steps=40,
        clustered=2,
    ),
    "quick": Settings(rows=200_000),
    "paper": Settings(
        batch_size=4096,
        dim=128,
        layers=8,
        steps=30,
        rounds=5,
        sweep=(1, 2, 4, 8, 16, 32, 64),
        dims=(512, 768, 1024),
        depths=(2, 4, 8),
        save_steps=200,
        clustered=16,
    ),
}


# A window has as many events as a few dozen rows; Pure's have few, so that `quick` takes more of them: each call of an
# encoder costs milliseconds, however few its samples, and a micro-batch has to be worth them.
OF_SEQUENCES = {
    "smoke": {"batch_size": 24, "history": 24},
    "quick": {
        "batch_size": 512,
        "micro_batches": 4,
        "dim": 64,
        "layers": 2,
        "dims": (32, 64, 128),
        "depths": (1, 2, 4),
    },
    "paper": {"batch_size": 512, "history": 1024},
}


def settings(scale: str, **changes) -> Settings:
    """The settings of a scale with some fields changed; those that are None or empty are not.

    Raises:
        UserError: no scale or model is called so, or there is no rank.
    """
    if scale not in SCALES:
        raise UserError(f"nestpipe: scale={scale}: it must be one of {', '.join(SCALES)}")
    if changes.get("world_size", 1) < 1:
        raise UserError(f"nestpipe: world_size={changes['world_size']}: it must be at least 1")
    given = {name: value for name, value in changes.items() if value not in (None, "", 0)}
    if (model := given.get("model", POSITIONWISE)) not in (POSITIONWISE, *ENCODERS):
        raise UserError(f"nestpipe: model={model}: it must be one of {', '.join((POSITIONWISE, *ENCODERS))}")
    return replace(SCALES[scale], **(OF_SEQUENCES[scale] if model in ENCODERS else {}) | given)
