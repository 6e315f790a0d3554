"""How the dense part computes: as torch does of itself (fp32), in tf32, or in bf16 under autocast; compiled or not.

The module stays as it is: autocast stands around its call, and what is compiled is a wrapper of its own. Losses and
predictions leave in float32 at least, so that what is summed over a batch is never summed in bf16. Weights, gradients,
optimizers and rows keep their dtype.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from nestlab.batch import Batch
from nestlab.embedding.pooling import Embedded
from nestlab.errors import UserError
from nestlab.models import DenseOutput
from nestlab.techniques import Techniques

BACKEND = "inductor"  # torch.compile's own default
# Graphs of one dense part in a process: a size that changes, sizes 0 and 1, training and evaluation, precisions.
GRAPHS = 64


class DenseArithmetic:
    """Calls a dense part, and its gradients, in the arithmetic of the flags.

    Args:
        dense: the module; nothing of it is changed.
        techniques: `dense_precision` and `compile_dense`.
        device: where it computes.
        rows: dtype of the embedding rows that it is given.

    Raises:
        UserError: this device, these dtypes or this machine do not have it.
    """

    def __init__(self, dense: nn.Module, techniques: Techniques, device: torch.device, rows: torch.dtype) -> None:
        self._precision, self._device = techniques.dense_precision, device
        if self._precision != "fp32":
            _check_dtypes(self._precision, [rows, *(p.dtype for p in dense.parameters())])
        if self._precision == "tf32":
            _check_tf32(device)
        self._compiled = techniques.compile_dense
        self._call = _compiled(dense, device) if self._compiled else dense

    def __call__(self, inputs: Batch, embedded: Embedded) -> DenseOutput:
        """Losses and predictions of a batch; float32 where the module made them narrower."""
        with self._precisely(), self._guarded():
            output = self._call(inputs, embedded)
        return output._replace(losses=_widened(output.losses), predictions=_widened(output.predictions))

    def backward(self, loss: Tensor) -> None:
        """Gradients in the arithmetic of the forward pass: autograd keeps bf16 by itself, tf32 is asked for again."""
        with _tf32() if self._precision == "tf32" else nullcontext():
            loss.backward()

    def _precisely(self) -> AbstractContextManager:
        if self._precision == "tf32":
            return _tf32()
        if self._precision == "bf16":
            # Without its cache: that belongs to the process while lanes are threads, and it would add up the gradients
            # of a weight that is used twice in bf16.
            return torch.autocast(self._device.type, torch.bfloat16, cache_enabled=False)
        return nullcontext()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Around a compiled call: an error in place of a graph that silently is not compiled any more.

        torch gives a module up after some graphs and runs it uncompiled, with other bits from then on: two runs of the
        same training would differ by what the process did before.
        """
        if not self._compiled:
            yield
            return
        from torch._dynamo import config, exc

        try:
            with config.patch(fail_on_recompile_limit_hit=True, recompile_limit=GRAPHS):
                yield
        except exc.FailOnRecompileLimitHit:
            raise UserError(
                f"compile_dense: the dense part needs more than {GRAPHS} graphs, one for each new size or value that "
                "its code depends on; let it depend on fewer, or leave compile_dense out"
            ) from None
        except exc.TorchDynamoException as error:
            why = str(error).strip().partition("\n")[0]
            raise UserError(
                f"compile_dense: the dense part cannot be compiled ({why}); leave compile_dense out"
            ) from error


def _widened(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def _check_dtypes(precision: str, dtypes: list[torch.dtype]) -> None:
    if torch.float64 in dtypes:
        raise UserError(
            f"dense_precision={precision}: the dense part or its rows are float64, which has no such arithmetic; "
            "make them float32, or leave dense_precision out"
        )


def _check_tf32(device: torch.device) -> None:
    # Refused rather than ignored: a result that says tf32 must have been computed so.
    if device.type != "cuda":
        raise UserError(
            f"dense_precision=tf32: only CUDA devices have it, and this is {device.type}; use fp32, or bf16"
        )
    if torch.cuda.get_device_capability(device) < (8, 0):
        raise UserError(f"dense_precision=tf32: {torch.cuda.get_device_name(device)} is older than tf32; use fp32")


@contextmanager
def _tf32() -> Iterator[None]:
    """torch's switch belongs to the process: it is on during the dense part's own calls alone, and put back."""
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    switch.fp32_precision = "tf32"
    try:
        yield
    finally:
        switch.fp32_precision = before


def _compiled(dense: nn.Module, device: torch.device) -> Callable[..., Any]:
    if BACKEND == "inductor":
        _check_compiler(device)

    def call(inputs: Batch, embedded: Embedded) -> DenseOutput:  # a module itself would get a mark of torch's
        return dense(inputs, embedded)

    return torch.compile(call, backend=BACKEND)


def _check_compiler(device: torch.device) -> None:
    if device.type != "cpu":
        from torch.utils._triton import has_triton

        if not has_triton():
            raise UserError("compile_dense=on: there is no triton for this device; install it, or leave the flag out")
        return
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    if not any(shutil.which(name) for name in names):
        raise UserError(
            f"compile_dense=on: there is no C++ compiler here ({', '.join(names)}); install one, set CXX, or leave "
            "the flag out"
        )
