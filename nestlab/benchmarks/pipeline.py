"""`pipeline`: the nested pipeline on several ranks of this machine. `--world N`, `--part one|two|all`.

Part one (`pipeline_link`): DBP and FWP under emulated links, against the law that N micro-batches expose 1/N. Part two
(`pipeline_torchrec`): our step beside torchrec's pipelines and beside the dense part alone, over loopback.
"""

from __future__ import annotations

import importlib
from typing import Any

from nestlab.errors import UserError

PARTS = {
    "one": ("nestlab.benchmarks.pipeline_link", "emulated link"),
    "two": ("nestlab.benchmarks.pipeline_torchrec", "measured, CPU, gloo"),
}


def run(world: int = 2, part: str = "all") -> dict[str, Any]:
    """Runs one part or both, one after the other; about five minutes each.

    Raises:
        UserError: a part that there is not, or fewer than two ranks.
    """
    if part not in (*PARTS, "all"):
        raise UserError(f"bench pipeline: no part '{part}'; there are {', '.join(PARTS)} and all")
    if world < 2:
        raise UserError(f"bench pipeline: --world {world}: nothing is exchanged by fewer than 2 ranks")
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {"ranks": world}
    for name in PARTS if part == "all" else [part]:
        module, how = PARTS[name]
        outcome = importlib.import_module(module).run(world)
        rows += [{"part": name, "how_obtained": how, **row} for row in outcome["rows"]]
        summary |= outcome["summary"]
    how = "; ".join(dict.fromkeys(row["how_obtained"] for row in rows))
    return {"bench": "pipeline", "how": how, "rows": rows, "summary": summary}
