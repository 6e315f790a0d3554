"""Rows of whole tables on the wire: one flat buffer a group, since its tables may differ in dim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nestlab.exchange.codec import Codec
from nestlab.exchange.table_wise_routed import TableRouted
from nestlab.exchange.transport import Channel, Transport


class Wire:
    """How the rows of one routed batch look between ranks: elements of their dtype, or with a codec bytes."""

    def __init__(self, routed: TableRouted, codec: Codec | None, channel: Channel = Channel.TABLES) -> None:
        self._routed, self._codec, self._channel = routed, codec, channel
        self._kind = routed.dtype if codec is None else torch.uint8

    def width(self, table: int) -> int:
        """Elements of a row on the wire."""
        dim = self._routed.tables[table].dim
        return dim if self._codec is None else self._codec.width(dim, self._routed.dtype)

    @property
    def itemsize(self) -> int:
        """Bytes of an element on the wire."""
        return self._kind.itemsize

    def encode(self, rows: Tensor, table: int, count: int) -> Tensor:
        """[count, dim] → [count, width]; without a codec the rows themselves where they are contiguous."""
        config, routed = self._routed.tables[table], self._routed
        if rows.shape != (count, config.dim) or rows.dtype != routed.dtype:
            raise ValueError(
                f"table '{config.name}': {rows.dtype} rows of shape {list(rows.shape)}; "
                f"expected {routed.dtype} [{count}, {config.dim}]"
            )
        rows = rows.detach().contiguous()
        return rows if self._codec is None else self._codec.encode(rows)

    def encode_grads(self, grads: Mapping[str, Tensor | None], table: int) -> Tensor:
        """[rows, width] of the gradients of a table's features, one after the other; zeros where there is none."""
        config, routed = self._routed.tables[table], self._routed
        pieces = []
        for feature, count in zip(config.features, routed.rows[table], strict=True):
            grad = grads.get(feature)
            if grad is None:
                grad = torch.zeros(count, config.dim, dtype=routed.dtype, device=routed.device)
            elif grad.shape[0] != count:
                raise ValueError(f"feature '{feature}': {grad.shape[0]} gradients for {count} rows")
            pieces.append(grad)
        return self.encode(joined(pieces), table, sum(routed.rows[table]))

    def decode(self, data: Tensor, table: int) -> Tensor:
        """What came of a table, any shape → [n, dim]."""
        data = data.view(-1, self.width(table))
        dim = self._routed.tables[table].dim
        return data if self._codec is None else self._codec.decode(data, dim, self._routed.dtype)

    def send(
        self, transport: Transport, pieces: Sequence[Tensor], going: Sequence[int], coming: Sequence[int]
    ) -> Tensor:
        """Flat, what came of `coming` [W] elements from each rank; the pieces are sorted by receiving rank, which gets
        `going` [W] elements of them."""
        nothing = torch.empty(0, dtype=self._kind, device=self._routed.device)
        flat = joined([piece.reshape(-1) for piece in pieces]) if pieces else nothing
        return transport.all_to_all(self._channel, flat, going, coming)


def joined(pieces: Sequence[Tensor]) -> Tensor:
    """One behind the other; a single one is not copied."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
