"""Rows of whole tables to the ranks whose samples they are, and gradients back to the tables' owners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from nestlab.exchange.codec import Codec
from nestlab.exchange.rows import Leaving
from nestlab.exchange.table_wise_routed import TableBags, TableRouted
from nestlab.exchange.table_wise_wire import Wire, joined
from nestlab.exchange.transport import Channel, Mesh, Transport


def exchange_pooled(
    transport: Transport,
    routed: TableRouted,
    group: int,
    outputs: Sequence[Tensor],
    codec: Codec | None = None,
    channel: Channel = Channel.TABLES,
) -> dict[str, Tensor]:
    """What the owners looked up for one group of tables, to the ranks whose samples it is. One All2All.

    With a codec all rows go through it, those that stay on this rank too. On one rank without a codec the results are
    views of the outputs. No gradient flows through: `exchange_pooled_grads` takes it back.

    Args:
        outputs: of each table in `routed.owned[group]`, [sum of its rows, dim] in the order of its bags, or with
            pooling `none` of its ids.
        channel: that of the calling lane.

    Returns:
        by feature, for all tables of the group: [B, dim], or with pooling `none` [its ids, dim]; views of what came, in
        which those of one table lie one behind the other in the order of its features.

    Raises:
        ValueError: outputs of another number, shape or dtype.
        RankFailed: see `Transport`.
    """
    wire, owned, world = Wire(routed, codec, channel), routed.owned[group], transport.mesh.world_size
    sent = [wire.encode(rows, bags.table, sum(bags.rows)) for rows, bags in zip(outputs, owned, strict=True)]
    tables = [t for own in routed.by_owner(group, world) for t in own]
    if world > 1:
        flat = wire.send(transport, _by_rank(sent, owned), *_counts(routed, group, transport.mesh, wire))
        sent = flat.split([_size(routed, t, wire) for t in tables])
    rows = {t: wire.decode(each, t) for each, t in zip(sent, tables, strict=True)}
    return {
        feature: part
        for t in routed.placement.groups[group]
        for feature, part in zip(routed.tables[t].features, rows[t].split(routed.rows[t]), strict=True)
    }


def exchange_pooled_grads(
    transport: Transport,
    routed: TableRouted,
    group: int,
    grads: Mapping[str, Tensor | None],
    codec: Codec | None = None,
    channel: Channel = Channel.TABLES,
) -> list[Tensor]:
    """Gradients of what `exchange_pooled` returned, back to the tables' owners. One All2All.

    Args:
        grads: by feature; one that is absent or None stands for zeros.

    Returns:
        of each table in `routed.owned[group]`: [sum of its rows, dim], in the order of its outputs.

    Otherwise as `exchange_pooled`.
    """
    wire, owned, world = Wire(routed, codec, channel), routed.owned[group], transport.mesh.world_size
    sent = [wire.encode_grads(grads, t) for own in routed.by_owner(group, world) for t in own]
    if world > 1:
        coming, going = _counts(routed, group, transport.mesh, wire)
        sent = _by_table(wire.send(transport, sent, going, coming), owned, wire)
    return [wire.decode(each, bags.table) for each, bags in zip(sent, owned, strict=True)]


def pooled_bytes_leaving(
    routed: TableRouted, group: int, mesh: Mesh, codec: Codec | None = None, backward: Codec | None = None
) -> Leaving:
    """Bytes of one group that leave this rank: pooled rows with `codec`, gradients with `backward`."""
    ways = []
    for each in (codec, backward):
        wire = Wire(routed, each)
        ways.append((wire, _counts(routed, group, mesh, wire)))
    (there, (going, _)), (back, (_, coming)) = ways
    own = mesh.rank
    return Leaving((sum(going) - going[own]) * there.itemsize, (sum(coming) - coming[own]) * back.itemsize)


def _counts(routed: TableRouted, group: int, mesh: Mesh, wire: Wire) -> tuple[list[int], list[int]]:
    """Elements [W] of the group's rows that go to each rank's samples, and that come from each owner."""
    owned = routed.owned[group]
    going = [sum(bags.rows[rank] * wire.width(bags.table) for bags in owned) for rank in range(mesh.world_size)]
    coming = [sum(_size(routed, t, wire) for t in own) for own in routed.by_owner(group, mesh.world_size)]
    return going, coming


def _size(routed: TableRouted, table: int, wire: Wire) -> int:
    """Elements of what comes of a table for this rank's own samples."""
    return sum(routed.rows[table]) * wire.width(table)


def _by_rank(sent: Sequence[Tensor], owned: Sequence[TableBags]) -> list[Tensor]:
    """The outputs of this rank's tables cut by rank and sorted by it; of one table as they are."""
    if len(owned) == 1:
        return list(sent)
    cut = [rows.split(bags.rows) for rows, bags in zip(sent, owned, strict=True)]
    return [piece.reshape(-1) for of_rank in zip(*cut, strict=True) for piece in of_rank]


def _by_table(flat: Tensor, owned: Sequence[TableBags], wire: Wire) -> list[Tensor]:
    """What came, sorted by rank, sorted by table; of one table as it came."""
    if len(owned) == 1:
        return [flat]
    of_ranks = zip(*(bags.rows for bags in owned), strict=True)
    sizes = [n * wire.width(bags.table) for rows in of_ranks for n, bags in zip(rows, owned, strict=True)]
    pieces = flat.split(sizes)
    return [joined(pieces[place :: len(owned)]) for place in range(len(owned))]
