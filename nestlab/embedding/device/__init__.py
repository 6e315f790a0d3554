"""Above the host tier: where a batch's rows lie while it is trained."""

from __future__ import annotations

from nestlab.embedding.counters import Counters
from nestlab.embedding.device.direct import Direct
from nestlab.embedding.device.dual_buffer import DualBuffer
from nestlab.embedding.device.slot_cache import SlotCache
from nestlab.embedding.device.tier import DeviceTier
from nestlab.embedding.host.tier import HostTier
from nestlab.embedding.optimizers import RowOptimizer
from nestlab.embedding.tiers import Tiers

_TIERS = {tier.name: tier for tier in (Direct, DualBuffer, SlotCache)}


def make_tier(host: HostTier, optimizer: RowOptimizer, options: Tiers, counters: Counters) -> DeviceTier:
    """The device tier that the options ask for, over one group's host tier."""
    return _TIERS[options.device_tier](host, optimizer, options, counters)
