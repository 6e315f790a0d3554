"""The same training on an accelerator: the code path stands here and is skipped where there is no device."""

from __future__ import annotations

import pytest
import torch
from tiny import make_batches, make_model, make_pipeline

from nestlab import device
from nestlab.errors import UserError
from nestlab.tracing import Recorder

needs_accelerator = pytest.mark.skipif(device.accelerator_type() is None, reason="this machine has no accelerator")


@pytest.mark.gpu
@needs_accelerator
def test_equals_the_cpu():
    """float64, 20 steps: dense part and pooling on the device, rows on the host; sums in another order, hence 1e-10."""
    batches = make_batches(20)
    models = []
    for where in ("cpu", device.accelerator_type()):
        model = make_model(dtype=torch.float64)
        pipeline = make_pipeline(model, device=where, recorder=Recorder())
        list(pipeline.run(batches))
        models.append(model)
    for name, value in models[0].dense.state_dict().items():
        torch.testing.assert_close(models[1].dense.state_dict()[name].cpu(), value, rtol=0, atol=1e-10)
    for table in ("people", "things"):
        ours, theirs = (model.embedding.export(table) for model in models)
        torch.testing.assert_close(ours["weight"], theirs["weight"], rtol=0, atol=1e-10)


@pytest.mark.gpu
@needs_accelerator
def test_a_batch_travels_from_pinned_memory():
    batch = make_batches(1)[0]
    moved = batch.pin_memory().to(device.accelerator_type(), non_blocking=True)
    moved.record_stream(torch.accelerator.current_stream())
    device.synchronise(moved.ids.device)
    assert torch.equal(moved.ids.cpu(), batch.ids)


@pytest.mark.core
def test_a_device_that_is_not_there_is_refused_in_one_line():
    assert device.resolve("auto").type == (device.accelerator_type() or "cpu")
    missing = "xpu" if device.accelerator_type() != "xpu" else "cuda"
    with pytest.raises(UserError, match=f"device '{missing}' cannot be used: this machine.*use device=auto"):
        device.resolve(missing)


@pytest.mark.core
def test_a_device_that_is_none_is_refused():
    with pytest.raises(UserError, match="device 'gpu' is not known"):
        device.resolve("gpu")
