"""Between ranks: who sends what to whom, over which link."""

from nestlab.exchange.codec import Codec, codec, plain_width
from nestlab.exchange.collective import CollectiveTransport
from nestlab.exchange.link import Link, LinkCounters, LinkModel
from nestlab.exchange.linked import Linked
from nestlab.exchange.routed import PartPlan, RoutedBatch
from nestlab.exchange.routing import Router
from nestlab.exchange.rows import Leaving, accumulate, bytes_leaving, exchange_grads, exchange_rows
from nestlab.exchange.transport import Channel, LocalTransport, Mesh, Transport

__all__ = [
    "Channel",
    "Codec",
    "CollectiveTransport",
    "Leaving",
    "Link",
    "LinkCounters",
    "LinkModel",
    "Linked",
    "LocalTransport",
    "Mesh",
    "PartPlan",
    "RoutedBatch",
    "Router",
    "Transport",
    "accumulate",
    "bytes_leaving",
    "codec",
    "exchange_grads",
    "exchange_rows",
    "plain_width",
]
