"""What every rank of the tests needs, imported once by the process from which they are forked; see ranks.py.

torch loads `_dynamo` with the first optimizer, which takes longer than everything else here; kernels are loaded from
numba's cache, or compiled: once, and not by both ranks at the same time.
"""

import torch
import torch._dynamo

import nestlab.exchange.warmup
import nestlab.pipeline
import nestlab.training
from nestlab.embedding.warmup import warm_up
from nestlab.exchange.collective import CollectiveTransport  # noqa: F401

torch.set_num_threads(1)
nestlab.exchange.warmup.warm_up()
for dtype in (torch.float32, torch.float64):
    warm_up(dtype)
