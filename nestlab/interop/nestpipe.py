"""torchrec's `progress(iterator)` over NestLab's pipelines, for models whose tables are ours.

Only to be imported where torchrec is (by way of `nestlab.interop.torchrec`). The manual is docs/torchrec.md.

A torchrec model keeps its forward. The pipeline fetches the rows of a batch beforehand, in whatever order the
techniques have; while the model's forward runs, its tiered collection takes them in place of looking up for itself
(`nestlab.interop.tiered_given`), and their gradients wait until the batch is through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor

from nestlab.batch import Batch
from nestlab.embedding import Embedded
from nestlab.errors import UserError
from nestlab.exchange import Channel, LocalTransport, Transport
from nestlab.interop.batch_form import BatchForm, Made, joined
from nestlab.interop.tiered import Tiered
from nestlab.interop.tiered_given import given
from nestlab.interop.torchrec import from_kjt
from nestlab.models import DenseOutput, RecModel
from nestlab.models.sequence.jagged import sums_of_runs
from nestlab.pipeline import Inline, Lanes, Pipeline
from nestlab.pipeline.executors import Executor
from nestlab.techniques import Techniques


class NestPipeTrainPipeline:
    """`progress(iterator)` as torchrec's train pipelines have it, with prefetch and frozen windows.

    Under torch.distributed (the default process group) rows are spread over the ranks by a hash of their key, the loss
    is the mean over the global batch, and every rank begins with the dense weights of rank 0. Without it this process
    is alone. Every rank makes the same calls; a rank whose iterator ends early goes on with empty batches until all are
    through, and gets None from them.

    Args:
        model: a module that holds one TieredEmbeddingBagCollection or TieredEmbeddingCollection and, as torchrec's
            pipelines ask for, returns (loss, output) for a batch; or a RecModel. A loss is one a sample [B], or their
            mean: with micro-batches it is asked for each of them. The module's tables are to be looked up with the
            batch's own KeyedJaggedTensor.
        optimizer: torch optimizer over the dense part's parameters. A fused optimizer of the tables may be in it.
        device: of the dense part.
        techniques: what is turned on; see `nestlab techniques`.
        executor: None: a thread a lane where there is something to overlap.
        transport: None: by the default process group.
        mean_over: a key of the KeyedJaggedTensor, if the loss is the mean over its ids (a sequence's positions) and not
            over samples: so it is then of the global batch, however many a micro-batch or rank has. A loss that is no
            mean is one an id [n].

    A batch is a KeyedJaggedTensor, or a tuple, list or dataclass of one and up to two tensors, in any order: of two the
    first has the dense values [B, D], the last the labels [B]. A RecModel takes `nestlab.Batch`es, too.

    Raises:
        UserError: the model is neither of the two, or the tables were made for other techniques.
    """

    def __init__(
        self,
        model: nn.Module | RecModel,
        optimizer: torch.optim.Optimizer,
        device: torch.device | str = "cpu",
        techniques: Techniques | None = None,
        *,
        executor: Executor | None = None,
        transport: Transport | None = None,
        mean_over: str | None = None,
    ) -> None:
        if mean_over is not None and isinstance(model, RecModel):
            raise UserError("mean_over: a RecModel's batches say by their weights what a sample counts; leave it out")
        techniques = techniques or Techniques()
        self._transport = transport or _by_process_group(techniques, torch.device(device))
        self._part: _Around | None = None
        self._tables: Tiered | None = None
        if not isinstance(model, RecModel):
            self._tables = _tables_of(model)
            self._tables.spread(self._transport.mesh)
            self._part = _Around(model, self._tables, mean_over)
            model = RecModel(self._tables.store, self._part)
        _equal_start(model.dense, self._transport)
        overlaps = techniques.pipeline_depth > 1 or techniques.micro_batches > 1
        self.pipeline = Pipeline(
            model,
            optimizer,
            techniques,
            executor=executor or (Lanes() if overlaps else Inline()),
            device=device,
            transport=self._transport,
        )
        self._convert = self._part.take if self._part is not None else _take
        self._source: tuple[Iterator, Iterator[Batch]] | None = None

    def progress(self, iterator: Iterator[Any]) -> Any:
        """Trains the next batch; what the model returned beside the loss, or a StepOutput for a RecModel.

        With micro-batches tensors [b, …] of the parts are joined and those without a dimension averaged as the loss is.
        With clustering samples come in another order, in all of them the same.

        Raises:
            StopIteration: the iterator is at its end, everything is trained, nothing is in flight. Another may follow.
            UserError: a batch that does not fit the model.
        """
        if self._source is None or self._source[0] is not iterator:
            self._source = iterator, map(self._convert, iterator)  # begins anew where its iterator does
        if self._tables is None:
            return self.pipeline.progress(self._source[1])
        self._tables.store.lr = self._tables.fused_optimizer.lr
        self.pipeline.progress(self._source[1])
        return self._part.collect()

    def drain(self) -> list[Any]:
        """Trains what is in flight without reading on: ahead of an evaluation, a state dict or a checkpoint."""
        if self._part is None:
            return self.pipeline.drain()
        parts = self.pipeline.techniques.micro_batches
        return [self._part.collect(parts) for _ in self.pipeline.drain()]  # empty batches come last

    def evaluate(self, iterator: Iterable[Any]) -> list[Any]:
        """What the model returns beside the loss for each of this rank's batches; nothing is trained.

        Raises:
            RuntimeError: batches are in flight; `drain()` first.
        """
        if self._part is None:
            raise UserError("evaluate: a RecModel is evaluated by `.pipeline.evaluate(batches)`")
        self.pipeline.evaluate(map(self._convert, iterator))
        return self._part.collect_each()

    def close(self) -> None:
        """Frees the process groups that were made here; the default one stays."""
        self.pipeline.give_way()
        self._transport.close()


class _Around(nn.Module):
    """A torchrec model as the dense part of one of ours, and what its forwards returned, in order."""

    def __init__(self, module: nn.Module, tables: Tiered, mean_over: str | None) -> None:
        super().__init__()
        self.module, self._mean_over = module, mean_over
        self._tables = [tables]  # part of `module`, and not to be counted twice
        self._form: BatchForm | None = None
        self._made: list[Made] = []

    def take(self, batch: Any) -> Batch:
        """A batch of the model's, as the pipeline has it."""
        form = BatchForm.of(batch)
        if self._form is not None and form != self._form:
            raise UserError(
                f"NestPipeTrainPipeline: a batch is {form} after others that were {self._form}; use one form"
            )
        self._form = form
        sparse, dense, labels = form.apart(batch)
        batch = _with(self._tables[0].batch_of(sparse), dense, labels)
        return batch if self._mean_over is None else replace(batch, weights=_counts(sparse, self._mean_over).float())

    def forward(self, batch: Batch, embedded: Embedded) -> DenseOutput:
        tables = self._tables[0]
        sparse = tables.features_of(batch)
        with given(tables, sparse, embedded):
            loss, output = self.module(self._form.together(sparse, batch.dense, batch.labels))
        self._made.append(Made(batch.size, batch.total_weight, output))
        counts = None if self._mean_over is None else _counts(sparse, self._mean_over)
        return DenseOutput(_a_sample(loss, batch.size, counts), batch.labels)

    def collect(self, parts: int | None = None) -> Any:
        """The output of the next whole batch, whose parts were made since the last call; None: there was no batch."""
        parts = len(self._made) if parts is None else parts
        made, self._made = self._made[:parts], self._made[parts:]
        return joined(made)

    def collect_each(self) -> list[Any]:
        """Every forward's own output."""
        made, self._made = self._made, []
        return [each.output for each in made]


def _tables_of(model: nn.Module) -> Tiered:
    found = {name: module for name, module in model.named_modules() if isinstance(module, Tiered)}
    if len(found) != 1:
        names = f" ({', '.join(found)})" if found else ""
        raise UserError(
            f"NestPipeTrainPipeline: the model has {len(found)} tiered collections{names}; give it one with all "
            "tables, a TieredEmbeddingBagCollection or TieredEmbeddingCollection"
        )
    return next(iter(found.values()))


def _take(batch: Any) -> Batch:
    """For a RecModel."""
    if isinstance(batch, Batch):
        return batch
    sparse, dense, labels = BatchForm.of(batch).apart(batch)
    return from_kjt(sparse, dense=dense, labels=labels)


def _with(sparse: Batch, dense: Tensor, labels: Tensor) -> Batch:
    if labels.ndim != 1 or len(labels) != sparse.size or len(dense) != sparse.size:
        raise UserError(
            f"NestPipeTrainPipeline: {sparse.size} bags a feature, dense values {list(dense.shape)} and labels "
            f"{list(labels.shape)}; give dense values [B, D] and labels [B]"
        )
    return replace(sparse, dense=dense, labels=labels)


def _counts(sparse: KeyedJaggedTensor, key: str) -> Tensor:
    """[B] int64: a sample's ids of a key.

    Raises:
        UserError: there is no such key.
    """
    keys = sparse.keys()
    if key not in keys:
        raise UserError(f"mean_over='{key}': the KeyedJaggedTensor has no such key; it has {', '.join(keys)}")
    return sparse[key].lengths().to(torch.int64)


def _a_sample(loss: Tensor, size: int, counts: Tensor | None) -> Tensor:
    """[B] losses; a mean stands for each of its samples, so that the mean over the global batch comes out right.

    Args:
        counts: [B], of how many losses a sample's is the mean; None: of one.
    """
    if not loss.ndim:  # the mean of nothing is none, and would remain so times a weight of 0
        return loss.expand(size) if counts is None or counts.any() else torch.zeros(size, device=loss.device)
    wanted = size if counts is None else int(counts.sum())
    if loss.shape != (wanted,):
        each = "a sample" if counts is None else "an id of mean_over"
        raise UserError(
            f"NestPipeTrainPipeline: a loss of shape {list(loss.shape)}; return the mean, or one {each} [{wanted}]"
        )
    return loss if counts is None else sums_of_runs(loss[:, None], counts)[:, 0] / counts.clamp(min=1)


def _by_process_group(techniques: Techniques, device: torch.device) -> Transport:
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return LocalTransport()
    from nestlab.exchange.collective import CollectiveTransport

    return CollectiveTransport.connect(replicas=techniques.replica_groups, device=device)


@torch.no_grad()
def _equal_start(dense: nn.Module, transport: Transport) -> None:
    """Every rank gets the parameters and buffers of rank 0."""
    if transport.mesh.world_size > 1:
        for tensor in (*dense.parameters(), *dense.buffers()):
            tensor.copy_(transport.all_gather(Channel.DENSE, tensor)[0])
