"""The tensor-train benchmark at a tiny scale: its shape; and what its ids are."""

from __future__ import annotations

import json

from nestlab import benchmarks
from nestlab.benchmarks import tt, tt_inputs


def test_every_summary_key_is_there():
    assert "tt" in benchmarks.names()
    scale = tt.Scale(factor=12, ranks=(16,), batches=(64, 256), chunks=(64,), gemm=64, repeats=1, threads=1, pause=0.0)
    result = tt.run(scale)
    json.dumps(result)
    summary, rows = result["summary"], result["rows"]
    assert (result["bench"], result["how"]) == ("tt", "measured")
    assert {f"{ids}_vs_{than}" for ids in tt_inputs.IDS for than in ("tt_rec", "el_rec")} <= set(summary)
    assert {"memory_saving", "slices_time", "gflops_share"} <= set(summary)
    for batch in (64, 256):
        for ids in tt_inputs.IDS:
            own = {row["scheme"]: row for row in rows if (row["ids"], row["batch"]) == (ids, batch)}
            assert len(own) == (4 if batch == 64 else 6)  # memory is measured with the largest batch alone
            assert own["ecorec"]["gflop"] == own["ecorec, torch"]["gflop"] <= own["el_rec"]["gflop"]
            assert own["el_rec"]["gflop"] <= own["tt_rec"]["gflop"]
            assert 0 < own["ecorec"]["n_p/nnz"] <= own["ecorec"]["n_u/nnz"] <= 1
            assert all(row["milliseconds"] > 0 and row["prepare_ms"] > 0 for row in own.values())
            assert len(own["tt_rec"]["tried_ms"]) == 2  # batched and grouped


def test_ids_are_skewed_in_order_or_scattered():
    """The same draws ranked and hashed: equally often the same row, but prefixes are shared by the ranked alone."""
    rows, count = 20**3, 4000
    drawn = {ids: tt_inputs.draw(ids, rows, count) for ids in tt_inputs.IDS}
    assert all(each.numel() == count and set(each.tolist()) <= set(range(rows)) for each in drawn.values())
    unique = {ids: each.unique().numel() for ids, each in drawn.items()}
    prefixes = {ids: (each // 20).unique().numel() for ids, each in drawn.items()}
    assert unique["ranked"] == unique["hashed"] < unique["uniform"]
    assert prefixes["ranked"] < prefixes["hashed"] <= prefixes["uniform"] * 1.05
    assert int(drawn["ranked"].mode().values) == 0
    bags = tt_inputs.bags(drawn["uniform"], 16)
    assert bags.count == 250 and bags.offsets.diff().unique().tolist() == [16]
