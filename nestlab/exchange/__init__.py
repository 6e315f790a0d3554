"""Between ranks: who sends what to whom, over which link."""

from nestlab.exchange.transport import LocalTransport, Transport

__all__ = ["LocalTransport", "Transport"]
