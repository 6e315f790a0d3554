"""Where records live: what the flags say of the device tier, the host tier and the disk, checked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

import torch

from nestlab import plugins
from nestlab.embedding.features import FeatureRules
from nestlab.errors import UserError
from nestlab.techniques import Techniques

if TYPE_CHECKING:  # a layer beside this one
    from nestlab.exchange.link import Link

DeviceTierName = Literal["direct", "dual_buffer", "slot_cache"]
PolicyName = Literal["clock", "lru", "lfu", "oracle"]


MOST_SLOTS, MOST_AHEAD = 1 << 31, 1_000_000


@dataclass(frozen=True)
class Tiers:
    """The tiers of a store.

    Attributes:
        device_tier: `direct` (none), `dual_buffer` or `slot_cache`.
        cache_policy: how the slot cache chooses victims: one of `PolicyName`, or one from outside (`nestlab.plugins`).
        cache_slots: slots a group of tables: a number, or below 1 a share of the rows in use (the cache then grows
            with them, and is never smaller than the batches in flight need).
        look_ahead: batches that the oracle policy's queue of keys looks ahead.
        host_capacity: bytes of records in host memory over all groups; 0: as much as there is.
        host_rows: the same in rows, in place of bytes; 0: see `host_capacity`.
        disk: folder of the disk tier; empty: none.
        features: by which rules ids get and lose their rows.
        index_buckets, index_threads: the key index in so many parts, handled by so many threads.
        device: where slots and buffers lie; the rows handed out lie there too.
        link: between host and device, emulated; None: as fast as this machine is.

    Raises:
        UserError: a value without a meaning, or a pair that contradicts itself.
    """

    device_tier: DeviceTierName = "direct"
    cache_policy: PolicyName | str = "clock"
    cache_slots: float = 0
    look_ahead: int = 200
    host_capacity: int = 0
    host_rows: int = 0
    disk: str = ""
    features: FeatureRules = field(default_factory=FeatureRules)
    index_buckets: int = 1
    index_threads: int = 1
    device: torch.device | str = "cpu"
    link: Link | None = None

    def __post_init__(self) -> None:
        if self.device_tier not in get_args(DeviceTierName):
            raise UserError(
                f"unknown device_tier '{self.device_tier}'; use one of {', '.join(get_args(DeviceTierName))}"
            )
        if self.cache_policy not in get_args(PolicyName):
            if not plugins.accepts("cache_policy", self.cache_policy):
                known = f"{', '.join(get_args(PolicyName))}, or {plugins.FORM}"
                raise UserError(f"unknown cache_policy '{self.cache_policy}'; use one of {known}")
            plugins.policy(self.cache_policy)  # an error is the user's to see before anything is opened
        if self.device_tier == "slot_cache" and not self.cache_slots > 0:
            raise UserError("slot_cache needs cache_slots: a number of slots, or a share of the rows below 1")
        if not self.cache_slots < MOST_SLOTS or (self.cache_slots >= 1 and self.cache_slots != int(self.cache_slots)):
            raise UserError(f"cache_slots={self.cache_slots}: give a whole number below 2^31, or a share below 1")
        if self.look_ahead > MOST_AHEAD:
            raise UserError(f"look_ahead={self.look_ahead}: give at most {MOST_AHEAD:,} batches")
        for name in ("look_ahead", "index_buckets", "index_threads"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)}: it must be at least 1")
        for name, what in (("host_capacity", "bytes"), ("host_rows", "rows")):
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)}: give {what}, or 0 for no bound")
        if self.host_capacity and self.host_rows:
            raise UserError("host_capacity and host_rows both bound host memory; give one of the two")
        if self.disk and not (self.host_capacity or self.host_rows):
            raise UserError("a disk tier needs host_capacity or host_rows: what to keep of the records in host memory")

    @classmethod
    def of(cls, flags: Techniques, device: torch.device | str = "cpu", link: Link | None = None) -> Tiers:
        """What the flags of a training say of its tables."""
        features = FeatureRules(
            admit=flags.admit,
            admit_threshold=flags.admit_threshold,
            evict=flags.evict,
            evict_after=flags.evict_after,
            evict_share=flags.evict_share,
            evict_every=flags.evict_every,
            show_weight=flags.show_weight,
            click_weight=flags.click_weight,
            decay=flags.score_decay,
            sketch_bytes=flags.sketch_bytes,
            default_value=flags.default_value,
        )
        same = ("device_tier", "cache_policy", "cache_slots", "look_ahead", "host_capacity", "host_rows", "disk")
        same += ("index_buckets", "index_threads")
        return cls(features=features, device=device, link=link, **{name: getattr(flags, name) for name in same})

    @property
    def looks_ahead(self) -> int:
        """Batches of keys that have to be foreseen; 0 where nothing looks ahead."""
        return self.look_ahead if self.device_tier == "slot_cache" and self.cache_policy == "oracle" else 0
