"""Two ranks never wait for ever: uneven data, a rank that fails anywhere, one that is killed, ranks that disagree.

Broken on purpose, each of these fails here: keys known ahead dropped by a drain, a new loader's batches loaded behind
an end of the old one's data, an interrupt told to nobody, a lane's echo of a failure raised in place of the failure,
an evaluation that keeps its error to itself.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from end_cases import (
    FAILS_AT,
    TIMEOUT_S,
    Failure,
    Journey,
    batches_of,
    begin_again,
    die,
    differ,
    end_badly,
    learn_anew,
    travel,
)
from rank_cases import Case, merged, same_bits
from ranks import RankEnded
from tt_cases import joined

from nestlab.exchange import LocalTransport
from nestlab.pipeline import Stage
from nestlab.pipeline.shape import BY_GROUP

pytestmark = pytest.mark.dist

ORACLE = "device_tier=slot_cache,cache_slots=1,cache_policy=oracle,look_ahead=3"
JOURNEY = Journey(
    first=("xxoxx", "xxxxoxoxx"),
    heldout=("xo", "xxx"),
    drained=("xoxxxxxxxxx", "xoxx"),
    drain_after=2,
    broken_off=("xx", "xxxx"),
    break_after=2,
    last=("", "xxxxxxxx"),
)
SHORT = Journey(("", "xx"), ("", "x"), ("xxxx", "xx"), 1, ("xxx", "x"), 1, ("o", "xo"))
NOTHING = Journey(("", ""), ("", ""), ("", "x"), 1, ("x", ""), 1, ("", "x"))
JOURNEYS = {"long": JOURNEY, "short": SHORT, "nothing": NOTHING}
USUAL = [
    ("", "inline", "long"),
    ("", "shuffled:1", "short"),
    ("nestpipe", "lanes", "long"),
    ("nestpipe", "shuffled:2", "nothing"),
    (ORACLE, "inline", "long"),
    (f"{ORACLE},pipeline_depth=4,micro_batches=2", "lanes", "long"),
    (f"{ORACLE},pipeline_depth=6", "shuffled:3", "short"),
    ("device_tier=dual_buffer,pipeline_depth=5,depth_schedule=ramp,ramp_over=9", "lanes", "short"),
]
MORE = [
    (text, executor, name)
    for text in (
        "",
        "nestpipe",
        ORACLE,
        f"{ORACLE},pipeline_depth=6",
        "micro_batches=3",
        "staleness=1,pipeline_depth=3",
    )
    for executor in ("inline", "lanes", "shuffled:0")
    for name in JOURNEYS
    if (text, executor, name) not in USUAL
]


@pytest.mark.parametrize(
    ("text", "executor", "name"), [*USUAL, *(pytest.param(*m, marks=pytest.mark.slow) for m in MORE)]
)
def test_uneven_data_are_trained_to_the_end(ranks, text, executor, name):
    """Float64: as the same samples on one rank, over passes, a drain and a loader left in the middle."""
    case = Case(text, executor, "lazy_adam", torch.float64)
    one, other = ranks.run(travel, case, JOURNEYS[name])
    counts = one.pop("counts")
    assert counts == other.pop("counts")
    found = merged([one, other])
    if "staleness" in text:  # inexact, and the same everywhere
        return
    expected = travel(LocalTransport(), Case("", "inline", "lazy_adam", torch.float64), JOURNEYS[name], counts)
    assert expected.pop("counts") == counts
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-10 if "predictions" not in key else 1e-6, msg=key)


@pytest.mark.parametrize("text", [ORACLE, f"{ORACLE},pipeline_depth=4", "nestpipe"])
@pytest.mark.parametrize("executor", ["inline", "lanes"])
def test_an_iterator_that_begins_again_loses_nothing(ranks, text, executor):
    """A drain in the second pass over it: seen to lose what was loaded, as if that pass had ended too."""
    found = merged(ranks.run(begin_again, Case(text, executor, "lazy_adam", torch.float64)))
    expected = begin_again(LocalTransport(), Case("", "inline", "lazy_adam", torch.float64))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-10, msg=key)


def test_what_the_journeys_hold():
    """One rank's batches hold the samples of both."""
    for seed, halves in enumerate(JOURNEY.passes):
        own = [batches_of(halves, rank, seed) for rank in (0, 1)]
        assert [len(each) for each in own] == [len(each) for each in halves]
        both = batches_of(halves, None, seed)
        assert sum(batch.size for each in own for batch in each) == sum(batch.size for batch in both)
    assert any(batch.size == 0 for batch in batches_of(JOURNEY.drained, None, 2))


NESTED = Case("nestpipe,micro_batches=2", "lanes", clip=0.5)
SERIAL = Case("nestpipe,micro_batches=2", "inline", clip=0.5)
RANDOM = Case("nestpipe,micro_batches=2", "shuffled:4", clip=0.5)
TRAINS = Case("table_kind=tt,pipeline_depth=3", "lanes", clip=0.5)  # one rank has two of the three tables
TURNS = Case("table_kind=tt,table_groups=3,group_by=samples", "shuffled:5", clip=0.5)
ELSEWHERE = (Stage.POST, Stage.PLAN, Stage.RETRIEVE, Stage.EVICT, Stage.SYNC, Stage.CORE_REDUCE, *BY_GROUP)
STAGES = [stage.value for stage in Stage if stage not in ELSEWHERE]
QUICK = [
    (0, "loader", NESTED),
    (1, "ROUTE", NESTED),
    (0, "EMB_EXCHANGE", NESTED),
    (1, "model", NESTED),
    (0, "UPDATE", SERIAL),
    (1, "WRITEBACK", NESTED),
    (0, "interrupt", NESTED),
    (1, "interrupt in a lane", NESTED),
    (1, "features", RANDOM),
    (1, "evaluation", NESTED),
    (0, "TT_FORWARD", TRAINS),
    (1, "TT_GRAD_EXCHANGE", TRAINS),
]
THOROUGH = [
    (rank, where, case)
    for rank in (0, 1)
    for where in ("loader", "model", "features", "dense width", "interrupt", "interrupt in a lane", *STAGES)
    for case in (NESTED, SERIAL, RANDOM)
    if (rank, where, case) not in QUICK
] + [
    (rank, stage.value, case)
    for rank in (0, 1)
    for stage in BY_GROUP
    for case in (TRAINS, TURNS)
    if (rank, stage.value, case) not in QUICK
]
failures = [pytest.param(*f, id=f"{f[1]}, rank {f[0]}, {f[2].executor}") for f in QUICK] + [
    pytest.param(*f, id=f"{f[1]}, rank {f[0]}, {f[2].executor}", marks=pytest.mark.slow) for f in THOROUGH
]


@pytest.fixture(scope="module")
def afterwards(ranks):
    """What a training learns that nothing came before, by whether its tables are tensor trains."""
    trains = replace(TRAINS, techniques=TURNS.techniques, executor="inline")
    return {
        NESTED.techniques: merged(ranks.run(learn_anew, replace(NESTED, executor="inline"))),
        TRAINS.techniques: joined(ranks.run(learn_anew, replace(TRAINS, executor="inline"))),
        TURNS.techniques: joined(ranks.run(learn_anew, trains)),
    }


@pytest.mark.parametrize(("rank", "where", "case"), failures)
def test_a_rank_that_fails_ends_all(ranks, afterwards, rank, where, case):
    """Its own error there, RankFailed elsewhere, in good time; nothing is left, and both ranks can train anew."""
    failure = Failure(rank, where, case)
    answers = ranks.run(end_badly, failure)
    own, others = answers[rank][0], answers[1 - rank][0]
    expected = "KeyboardInterrupt" if "interrupt" in where else "Broke"
    if where in ("features", "dense width"):
        assert own.error not in ("", "RankFailed"), own
    else:
        assert own.error == expected, own
    assert others.error == "RankFailed", others
    if where == "evaluation":
        assert own.notes == (f"rank {rank}, in evaluation",)
        assert f"rank {rank} failed in evaluation: Broke: on purpose" in others.text, others
    elif failure.place:
        assert any(re.match(rf"rank {rank}, in {failure.place}\({FAILS_AT}\b", note) for note in own.notes), own
        said = (
            f"rank {rank} was interrupted"
            if "interrupt" in where
            else rf"rank {rank} failed in {failure.place}\({FAILS_AT}\b"
        )
        assert re.search(said, others.text), others
    else:
        notes = [f"rank {rank}, {'before batch' if case.executor == 'lanes' else 'in FORWARD'}"]
        assert [note[: len(notes[0])] for note in own.notes] == notes, own
        assert f"rank {rank} was interrupted" in others.text, others
    assert any(re.match(rf"rank {1 - rank}, in ", note) for note in others.notes), others
    for ending in (own, others):
        assert ending.seconds < TIMEOUT_S + 5 and ending.threads == () and ending.refused, ending
    together = joined if case in (TRAINS, TURNS) else merged
    assert same_bits(together([learnt for _, learnt in answers]), afterwards[case.techniques])


@pytest.mark.parametrize(
    ("rank", "stage", "case"),
    [
        (1, Stage.EMB_EXCHANGE, NESTED),
        (0, Stage.FORWARD, NESTED),
        *(
            pytest.param(rank, stage, case, marks=pytest.mark.slow)
            for rank in (0, 1)
            for stage in (Stage.LOAD, Stage.ROUTE, Stage.UPDATE)
            for case in (NESTED, SERIAL)
        ),
    ],
)
def test_a_rank_that_is_killed(ranks, rank, stage, case):
    """In the lane that communicates, and in the one that computes; rank 0 serves the meeting point."""
    outcomes = ranks.outcomes(die, rank, stage, case, timeout_s=TIMEOUT_S + 25)
    assert isinstance(outcomes[rank], RankEnded) and outcomes[rank].exit_status == -9
    left = outcomes[1 - rank]
    assert left.error == "RankFailed" and re.search(rf"rank {rank} ended", left.text), left
    assert any(re.match(rf"rank {1 - rank}, in [A-Z_]+\(\d", note) for note in left.notes), left
    assert left.seconds < TIMEOUT_S + 5 and left.threads == () and left.refused


DIFFERENCES = {
    "micro-batches": "rank 0 has micro_batches=1, rank 1 has micro_batches=2",
    "depth": "rank 0 has pipeline_depth=1, rank 1 has pipeline_depth=3",
    "ramp": "rank 0 has ramp_over=100, rank 1 has ramp_over=7",
    "dense width": r"rank 0 has dense parameter .* \[8, 3\] .*, rank 1 has dense parameter .* \[16, 3\]",
    "table width": "rank 0 has TableConfig.*dim=4.*, rank 1 has TableConfig.*dim=8",
    "rows' optimizer": "rank 0 has row optimizer adagrad.*, rank 1 has row optimizer sgd",
    "seed": "rank 0 has start weights of bottom",
    "learning rate": r"rank 0 has dense optimizer Adam.* lr=0\.01.* rank 1 has .* lr=0\.02",
    "clip": r"rank 0 has clipping at 1\.0, rank 1 has clipping at 0\.5",
    "executor": r"rank 0 has executor Shuffled\(seed=0.*, rank 1 has executor Shuffled\(seed=1",
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_ranks_that_disagree_are_told_so(ranks, what):
    """Before the first batch, on every rank, in the same words; the transport stays usable.

    Broken on purpose: without the question other micro-batches or start weights train on, and depths wait for ever.
    """
    one, other = ranks.run(differ, what)
    assert one.error == other.error == "RanksDisagree" and one.text == other.text
    assert re.match(f"ranks disagree: {DIFFERENCES[what]}", one.text), one.text
    assert "\n" not in one.text and one.refused and other.refused


def test_ranks_that_agree(ranks):
    assert [ending.error for ending in ranks.run(differ, "nothing")] == ["", ""]
