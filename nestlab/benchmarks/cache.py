"""`cache`: planning swaps, gathering from slots, a step with a slot cache, and what each policy hits on a real log.

Predictions before the first run (docs/log.md has what came of them): planning with look-up 20 million keys a second
(memory latency: two scattered lines a hit beside the index's one); gathering 1.3 to 1.6 times as fast as twice
(bytes read and written: 4 for 6); a step 1.03 times as long; hit rates as in the trial that issue 4 quotes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from nestlab.benchmarks import cache_hits, cache_plans, cache_steps
from nestlab.embedding import warm_up


@dataclass(frozen=True)
class Scale:
    """How much is measured, by part."""

    plans: cache_plans.Scale = field(default_factory=cache_plans.Scale)
    gathers: cache_steps.GatherScale = field(default_factory=cache_steps.GatherScale)
    steps: cache_steps.StepScale = field(default_factory=cache_steps.StepScale)
    hits: cache_hits.Scale = field(default_factory=cache_hits.Scale)


def run(scale: Scale | None = None) -> dict:
    """Measures; about a minute and a half at the default scale. All on one thread, which the rows say."""
    scale = scale or Scale()
    warm_up()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        parts = [
            cache_plans.measure(scale.plans),
            cache_steps.measure_gathers(scale.gathers),
            cache_steps.measure_steps(scale.steps),
            cache_hits.measure(scale.hits),
        ]
    finally:
        torch.set_num_threads(threads)
    rows = [row for part_rows, _ in parts for row in part_rows]
    summary = {name: value for _, part_summary in parts for name, value in part_summary.items()}
    return {"bench": "cache", "how": "measured", "rows": rows, "summary": {**summary, "threads": 1}}
