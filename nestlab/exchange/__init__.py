"""Between ranks: who sends what to whom, over which link."""

from nestlab.exchange.link import Link, LinkCounters, LinkModel
from nestlab.exchange.routed import PartPlan, RoutedBatch
from nestlab.exchange.transport import Channel, LocalTransport, Mesh, Transport

__all__ = [
    "Channel",
    "Link",
    "LinkCounters",
    "LinkModel",
    "LocalTransport",
    "Mesh",
    "PartPlan",
    "RoutedBatch",
    "Transport",
]
