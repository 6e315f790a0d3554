"""The stages of a pipeline as its article names them: what a timeline of a preset is labelled with."""

from __future__ import annotations

from collections.abc import Sequence

from nestlab.pipeline.schedule import Stage

# No article but EcoRec's has these.
_TABLE_WISE = (Stage.TT_FORWARD, Stage.TT_EXCHANGE, Stage.TT_GRAD_EXCHANGE, Stage.TT_BACKWARD, Stage.CORE_REDUCE)
_PREPARE = (Stage.PREPARE, Stage.POST, Stage.PLAN, Stage.RETRIEVE, Stage.EVICT)

# Preset → (the article's stage, our stages), in the article's order. Each of our stages stands in exactly one of them.
ARTICLE_STAGES: dict[str, list[tuple[str, tuple[Stage, ...]]]] = {
    # RecSDK's article names these six.
    "recsdk": [
        ("load", (Stage.LOAD, Stage.H2D)),
        ("All2All of keys", (Stage.ROUTE,)),
        ("CPU post-processing", (Stage.POST,)),
        ("swap computation", (Stage.PREPARE, Stage.PLAN, Stage.EVICT)),
        ("host look-up and swap-out", (Stage.RETRIEVE, Stage.COMMIT, Stage.WRITEBACK)),
        (
            "compute",
            (
                Stage.EMB_EXCHANGE,
                Stage.FORWARD,
                Stage.BACKWARD,
                Stage.GRAD_EXCHANGE,
                Stage.DENSE_REDUCE,
                Stage.CLIP,
                Stage.UPDATE,
                Stage.RELEASE,
                Stage.SYNC,
                *_TABLE_WISE,
            ),
        ),
    ],
    # JD's article says five and does not list them: our reading.
    "jd": [
        ("read and parse", (Stage.LOAD,)),
        ("dedup and routing", (Stage.ROUTE,)),
        ("host → device pull", (Stage.H2D, *_PREPARE, Stage.COMMIT)),
        (
            "forward, backward with exchange",
            (
                Stage.EMB_EXCHANGE,
                Stage.FORWARD,
                Stage.BACKWARD,
                Stage.GRAD_EXCHANGE,
                Stage.DENSE_REDUCE,
                *_TABLE_WISE,
            ),
        ),
        ("update and write-back", (Stage.CLIP, Stage.UPDATE, Stage.WRITEBACK, Stage.RELEASE, Stage.SYNC)),
    ],
}


def article_stage(preset: str) -> dict[Stage, str]:
    """Our stage → the article's, for a preset of `ARTICLE_STAGES`."""
    return {stage: name for name, stages in ARTICLE_STAGES[preset] for stage in stages}


def describe(preset: str, stages: Sequence[Stage]) -> list[tuple[str, tuple[Stage, ...]]]:
    """The article's stages with those of ours that a schedule has; one of which it has none is left out."""
    named = [(name, tuple(stage for stage in group if stage in stages)) for name, group in ARTICLE_STAGES[preset]]
    return [(name, group) for name, group in named if group]
