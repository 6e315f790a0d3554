"""Ranks started from a script or notebook: results, logs, errors, and nothing left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rank_functions
from ranks import free_port

from nestlab.errors import RankFailed, UserError
from nestlab.launch import environment, launch
from nestlab.launch.guards import caller_as_before

HERE = Path(__file__).parent


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture
def nothing_left():
    before = children()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert children() == before
    assert {number: signal.getsignal(number) for number in handlers} == handlers


@pytest.mark.dist
def test_results_come_by_rank_and_each_rank_has_a_log(tmp_path, nothing_left):
    results = launch(rank_functions.summed, (5,), {"second": 10}, world_size=2, log_dir=tmp_path / "logs", timeout_s=60)
    assert [result[:4] for result in results] == [(0, 20, 1, "1"), (1, 20, 1, "1")]
    assert results[0][4] != results[1][4]
    for rank in (0, 1):
        log = (tmp_path / "logs" / f"rank_{rank}.log").read_text()
        assert f"rank {rank} says hello" in log and "from below Python" in log
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["rank_0.log", "rank_1.log"]


def test_ranks_keep_freed_buffers_unless_the_user_has_told_the_allocator(monkeypatch, nothing_left):
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
    for name in (*names, "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    with caller_as_before(1):
        assert [os.environ[name] for name in names] == [str(1 << 30)] * 2
    assert not any(name in os.environ for name in names)
    monkeypatch.setenv(names[0], "1")
    with caller_as_before(1):
        assert os.environ[names[0]] == "1" and names[1] not in os.environ


@pytest.mark.dist
@pytest.mark.parametrize("server", ["launcher", "rank 0"])
def test_ranks_meet_again_whatever_came_before(server, nothing_left):
    """One after the other, after one that was alone, and after one that failed in the middle.

    Keys that a meeting shared with the one before would name addresses where nobody listens any more.
    """
    port = free_port() if server == "rank 0" else None
    zero, one = launch(rank_functions.meets_again, (port,), world_size=2, timeout_s=60)
    alone = zero.pop(2), one.pop(3)
    broken = zero.pop(-2), one.pop(-2)
    assert [total for total, _ in zero] == [total for total, _ in one] == [3] * 5
    assert [seconds < 5.5 for _, seconds in (*alone, *broken)] == [True] * 4, (alone, broken)  # of timeouts ≤ 1 s
    assert alone[0][0].startswith("RankFailed: no answer within 0.5 s while connecting; rank(s) 1 did not come")
    # where rank 0 serves the store, it may be gone by then, or still close it
    missing = ["; rank(s) 0 did not come"] + [": no answer from rank 0 at"] * (server == "rank 0")
    assert alone[1][0].startswith("RankFailed: ") and any(text in alone[1][0] for text in missing)
    assert broken[1][0] == "OSError: no memory"
    assert broken[0][0].startswith("RankFailed: ") and broken[0][0].endswith("; rank(s) 1 did not come")


@pytest.mark.dist
def test_the_rank_that_failed_is_named_with_its_log(nothing_left):
    begin = time.monotonic()
    with pytest.raises(RankFailed) as caught:
        launch(rank_functions.one_raises, world_size=2)
    text = str(caught.value)
    assert text.startswith("rank 1 failed: ValueError: no such row\n--- rank_1.log")
    assert "about to fail" in text and "Traceback" in text
    assert time.monotonic() - begin < 60


@pytest.mark.dist
def test_an_error_of_the_user_stays_one(nothing_left):
    with pytest.raises(UserError, match=r"^the bed is too short; take a longer one$"):
        launch(rank_functions.user_error, world_size=1)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("how", "world_size", "message"),
    [
        ("kill", 2, "rank 1 ended by SIGKILL without a result"),
        ("exit", 1, "rank 0 ended without a result"),
    ],
)
def test_a_rank_that_ends_ends_all(how, world_size, message, nothing_left):
    begin = time.monotonic()
    with pytest.raises(RankFailed, match=message):
        launch(rank_functions.ends, (how,), world_size=world_size)
    assert time.monotonic() - begin < 50  # the other sleeps for a minute


@pytest.mark.dist
def test_a_run_that_is_late_says_where_it_stood(tmp_path, nothing_left):
    with pytest.raises(RankFailed, match=r"no end within 1 s") as caught:
        launch(rank_functions.sleeps, (str(tmp_path),), world_size=1, timeout_s=1)
    assert "rank_functions.py" in str(caught.value) and "in sleeps" in str(caught.value)


@pytest.mark.dist
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupt_ends_the_ranks(tmp_path, number):
    code = (
        "import rank_functions, sys\n"
        "from nestlab.launch import launch\n"
        "launch(rank_functions.sleeps, (sys.argv[1],), world_size=1, log_dir=sys.argv[1])\n"
    )
    paths = os.pathsep.join([str(HERE), str(HERE.parent.parent)])
    script = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        limit = time.monotonic() + 60
        while not (found := list(tmp_path.glob("*.pid"))) and time.monotonic() < limit:
            time.sleep(0.05)
        script.send_signal(number)
        _, err = script.communicate(timeout=30)
    finally:
        script.kill()
    assert script.returncode == -number
    assert number == signal.SIGTERM or err.rstrip().endswith("KeyboardInterrupt")
    assert not Path(f"/proc/{found[0].stem}").exists()


def test_functions_that_no_process_can_find_are_refused():
    def nested():
        pass

    main = type(nested)(nested.__code__, {}, "cell")
    main.__module__, main.__qualname__ = "__main__", "cell"
    with pytest.raises(UserError, match=r"cell stands in a cell or script; move it to a module"):
        launch(main, world_size=2)
    for function in (nested, lambda: None):
        with pytest.raises(UserError, match="cannot be found by name; give a function at the top of a module"):
            launch(function, world_size=2)
    with pytest.raises(UserError, match="an argument cannot travel"):
        launch(rank_functions.sleeps, (lambda: None,), world_size=2)
    with pytest.raises(UserError, match="world_size 0"):
        launch(rank_functions.sleeps, world_size=0)


FULL = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host", "MASTER_PORT": "1234"}


def test_the_place_is_read_from_the_environment():
    assert environment({}) is None
    assert environment({"MASTER_ADDR": "host"}) is None
    place = environment({**FULL, "LOCAL_RANK": "3"})
    assert (place.rank, place.world_size, place.local_rank, place.master_addr, place.master_port) == (
        1,
        2,
        3,
        "host",
        1234,
    )
    assert not place.store_of_launcher and place.attempt == 0
    assert environment({**FULL, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}).attempt == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"MASTER_ADDR": None}, "RANK, WORLD_SIZE, MASTER_PORT set, but not MASTER_ADDR; start with torchrun, or set"),
        ({"RANK": None, "MASTER_PORT": None}, "WORLD_SIZE, MASTER_ADDR set, but not RANK, MASTER_PORT"),
        ({"RANK": "2"}, "RANK=2 in WORLD_SIZE=2: ranks are 0 … 1"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' is no whole number of 1 or more"),
        ({"RANK": "-1"}, "RANK='-1' is no whole number of 0 or more"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000: a port is 1 … 65535"),
    ],
)
def test_an_incomplete_environment_is_refused(changed, message):
    env = {name: value for name, value in {**FULL, **changed}.items() if value is not None}
    with pytest.raises(UserError) as caught:
        environment(env)
    assert message in str(caught.value)
