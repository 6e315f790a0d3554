"""Between ranks: who sends what to whom, over which link."""

from nestlab.exchange.link import Link, LinkCounters, LinkModel
from nestlab.exchange.transport import LocalTransport, Transport

__all__ = ["Link", "LinkCounters", "LinkModel", "LocalTransport", "Transport"]
