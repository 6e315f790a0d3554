"""A package from outside: found by its entry points, tried by the suite's own exactness tests, refused where it errs.

The package lies in `tests/plugins/package`, with metadata as pip would write them. No test names what it offers: all
take it from the registry, as `nestlab techniques` does.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nestlab import plugins
from nestlab.embedding import Tiers
from nestlab.embedding.device.slot_map import SlotMap
from nestlab.errors import UserError
from nestlab.pipeline import Shape, build
from nestlab.techniques import Techniques, values

HERE = Path(__file__).parent
PACKAGE = HERE / "package"
MOST_LINES = 40


@pytest.fixture
def package(monkeypatch) -> None:
    """The package is installed, and the suite's exactness tests can be imported."""
    for folder in (HERE.parent / "embedding", HERE.parent / "pipeline", PACKAGE):
        monkeypatch.syspath_prepend(str(folder))


def added(flag: str) -> list[str]:
    found = [name for name in values(flag) if name in plugins.installed(flag)]
    assert found, f"the package offers nothing for {flag}"
    return found


def exactness(name: str):
    """A module of the suite's exactness tests, as it is with the package installed."""
    return importlib.import_module(name)


def added_settings() -> list[str]:
    names = {f"{flag}={name}" for flag in plugins.KINDS for name in added(flag)}
    return [text for text in exactness("test_registered").settings() if names & set(text.split(","))]


def test_each_kind_goes_through_the_tests_of_one_rank(package):
    texts = added_settings()
    assert len(texts) >= 3
    for text in texts:
        exactness("test_registered").check_alone(text)
    for name in added("clustering"):
        exactness("test_registered").check_order_of_samples(name)


@pytest.mark.dist
def test_each_kind_goes_through_the_tests_of_two_ranks(package, ranks):
    for text in added_settings():
        exactness("test_registered").check_ranks(ranks, text)
    for name in added("transport"):
        exactness("test_registered").check_transport(ranks, name)


@pytest.mark.parametrize("under", ["memory", "disk"])
@pytest.mark.parametrize("slots", ["400", "0.1"])
def test_a_policy_goes_through_the_tests_of_tiers(package, tmp_path, under, slots):
    tiers = exactness("test_tiers_equal")
    for name in added("cache_policy"):
        tier = f"device_tier=slot_cache,cache_slots={slots},cache_policy={name}"
        tiers.check(("adagrad", tier, under, "count", "age", 3, 1), tmp_path)


def test_the_exactness_tests_pick_up_what_is_installed():
    """Collected in a process of their own, with the package on the path and nothing else changed."""
    files = [
        "tests/embedding/test_tiers_equal.py",
        "tests/pipeline/test_prefetched.py",
        "tests/pipeline/test_registered.py",
    ]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    project = HERE.parents[1]
    done = subprocess.run(command, cwd=project, env=_with_package(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    points = re.findall(r"^(\w+) = ", (PACKAGE / "own_mechanisms-1.0.dist-info" / "entry_points.txt").read_text(), re.M)
    assert len(points) == len(plugins.KINDS)
    assert all(name in done.stdout for name in points)


def _with_package() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PACKAGE)}


def test_techniques_lists_what_is_installed():
    done = subprocess.run(
        [sys.executable, "-m", "nestlab.cli", "techniques", "--json"],
        env=_with_package(),
        capture_output=True,
        text=True,
    )
    rows = {row["flag"]: row["installed"] for row in json.loads(done.stdout)}
    assert rows.pop("cache_policy") == {"fifo": "own_mechanisms.policy:Fifo (own-mechanisms 1.0)"}
    assert {flag for flag, found in rows.items() if found} == set(plugins.KINDS) - {"cache_policy"}


def blocks() -> dict[str, str]:
    """The page's programs by file."""
    page = (HERE.parents[1] / "docs" / "extend.md").read_text()
    return dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", page, re.M | re.S))


def test_the_page_shows_the_package_as_it_is():
    """What the tests above run is what is printed; each kind in a few lines."""
    shown = blocks()
    files = sorted(path for path in (PACKAGE / "own_mechanisms").glob("*.py") if path.name != "__init__.py")
    assert sorted(shown) == [f"own_mechanisms/{path.name}" for path in files]
    for path in files:
        assert shown[f"own_mechanisms/{path.name}"] == path.read_text()
        assert len(path.read_text().splitlines()) <= MOST_LINES


def test_a_module_of_ones_own_needs_no_package(tmp_path, monkeypatch):
    """The page's programs as files of a user's, named by module and not by entry point."""
    for name, code in blocks().items():
        (tmp_path / f"my_{Path(name).name}").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    flags = Techniques.parse("schedule=my_schedule:read_ahead,micro_batches=2,clustering=my_clustering:ByHottestKey")
    schedule = build(flags)
    assert schedule.name == "read ahead" and schedule.most_ahead == 1 and schedule.shape == Shape.of(flags)
    assert plugins.clustering(flags.clustering).order is not None
    assert Tiers("slot_cache", "my_policy:Fifo", cache_slots=9).cache_policy == "my_policy:Fifo"
    assert plugins.transport("my_transport:Gathering") is not None
    assert plugins.transport("collective") is None


def test_exactness_says_what_is_known(package):
    for flag in ("clustering", "schedule"):
        text = f"{flag}={added(flag)[0]}" + (",micro_batches=2" if flag == "clustering" else "")
        assert Techniques.parse(text).exactness().startswith("exact")
    text = f"transport={added('transport')[0]}"
    assert Techniques.parse(text).exactness().startswith("not checked: transport ")
    assert Techniques.parse(f"{text},quantise=int8").exactness().startswith("inexact: rows are rounded")
    assert Techniques.parse(f"{text},quantise=int8").exactness().endswith("is not the suite's own")


WRONG = """
from dataclasses import replace
import numpy as np
from nestlab.embedding.device.own_policy import VictimChooser
from nestlab.embedding.device.slot_policies import Policy
from nestlab.pipeline import Stage
from nestlab.pipeline.builders import plain

class Nothing: pass
class Half(Policy): pass
class Argued:
    def __init__(self, size): pass
class TakesInUse(VictimChooser):
    def choose(self, slots, count, plan): return np.flatnonzero(self.last_used == plan - 1)[:count]
class Few(VictimChooser):
    def choose(self, slots, count, plan): return slots[: count - 1]
class Twice(VictimChooser):
    def choose(self, slots, count, plan): return np.repeat(slots[0], count)
class Forgetful(VictimChooser):
    def choose(self, slots, count, plan): return slots[:count]
    def fill(self, rows, slots, misses, plan, swaps): return 0 * super().fill(rows, slots, misses, plan, swaps)
class Liar(VictimChooser):
    def choose(self, slots, count, plan): return slots[:count]
    def filled(self, slots, plan): self._places.row_of[slots] = self._places.row_of[slots[::-1]]
def text(shape): return "a schedule"
def unsafe(shape):
    made = plain(shape)
    return replace(made, edges=tuple(e for e in made.edges if Stage.EMB_EXCHANGE not in (e.source, e.target)))
def lazy(shape):
    made = plain(shape)
    edges = tuple(e for e in made.edges if Stage.RELEASE not in (e.source, e.target))
    return replace(made, entries=tuple(e for e in made.entries if e.stage is not Stage.RELEASE), edges=edges)
def connect(**options): return Nothing()
number = 3
"""


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    (tmp_path / "wrong_ones.py").write_text(WRONG)
    (tmp_path / "breaks_ones.py").write_text("1 / 0")
    (tmp_path / "needs_ones.py").write_text("import no_such_thing_at_all")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("policy no_module_here:Fifo", "no module 'no_module_here'; install it, or put the folder .* on PYTHONPATH"),
        ("policy wrong_ones:Forgetfull", "module wrong_ones has no 'Forgetfull'; did you mean 'Forgetful'"),
        ("policy breaks_ones:Fifo", "module breaks_ones cannot be imported: ZeroDivisionError: division by zero"),
        ("policy needs_ones:Fifo", "module needs_ones cannot be imported: No module named 'no_such_thing_at_all'"),
        ("policy wrong_ones:Nothing", r"it lacks fill\(rows, slots, misses, plan, swaps\), foresee"),
        (
            "policy wrong_ones:Half",
            r"no eviction policy.*: it lacks fill\(rows, slots, misses, plan, swaps\); see docs",
        ),
        ("policy wrong_ones:number", "it is a int; give a class"),
        ("clustering wrong_ones:Nothing", r"no clustering rule: it lacks order\(samples, parts\)"),
        ("clustering wrong_ones:Argued", "it cannot be made without arguments"),
        ("clustering wrong_ones:number", r"no clustering rule: it lacks order\(samples, parts\)"),
        ("schedule wrong_ones:number", r"it lacks __call__\(shape\)"),
        ("transport wrong_ones:number", "it is a int; give a function, or a class with connect"),
        ("policy fifi", "no installed package offers it in its entry points .nestlab.cache_policy.; there are"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(wrong, call, says):
    kind, _, name = call.partition(" ")
    with pytest.raises(UserError, match=says) as raised:
        getattr(plugins, kind)(name)
    assert "\n" not in str(raised.value)


def test_a_transport_is_checked_when_it_is_connected(wrong):
    with pytest.raises(UserError, match=r"no transport: it lacks mesh, all_to_all\(channel, send"):
        plugins.transport("wrong_ones:connect")(replicas=1)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("text", "it gave a str, not a nestlab.pipeline.Schedule"),
        ("unsafe", r"schedule=wrong_ones:unsafe: not safe: required edge missing: \S+ → \S+; required edge missing"),
        ("lazy", r"not safe: the step lacks RELEASE\(t\); see docs/extend.md"),
    ],
)
def test_a_schedule_that_is_not_safe_is_refused(wrong, name, says):
    with pytest.raises(UserError, match=says):
        build(Techniques.parse(f"schedule=wrong_ones:{name}"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("TakesInUse", "takes a slot that it or the plan before uses"),
        ("Few", "raised ValueError"),
        ("Twice", "takes a slot twice"),
        ("Forgetful", "does not name each row that leaves, with its slot"),
        ("Liar", "leaves a map in which a row or its last use is not what was swapped"),
    ],
)
def test_a_policy_that_breaks_the_rule_is_stopped_and_the_map_is_as_it_was(wrong, name, says):
    slots = SlotMap(6, f"wrong_ones:{name}", row_limit=100)
    plans = [slots.plan(np.array(rows, dtype=np.int64)) for rows in ([0, 1], [2, 3], [4, 5])] if name != "Liar" else []
    before = [array.tolist() for array in slots.rows_in()]
    with pytest.raises(UserError, match=f"cache_policy=wrong_ones:{name}: its plan {len(plans)} {says}"):
        slots.plan(np.array([6, 7], dtype=np.int64))
    assert [array.tolist() for array in slots.rows_in()] == before
    assert slots.slots_of(np.arange(8)).tolist()[: 2 * len(plans)] == list(range(2 * len(plans)))
    assert slots.slots_of(np.array([6, 7])).tolist() == [-1, -1] and slots.plans == len(plans)


def test_only_four_flags_take_a_value_from_outside(package):
    for flag in ("device_tier", "admit", "quantise", "dispatch"):
        with pytest.raises(UserError, match=f"{flag}=own_mechanisms.policy:Fifo: it must be one of"):
            Techniques.parse(f"{flag}=own_mechanisms.policy:Fifo")
    with pytest.raises(UserError, match="must be one of none, greedy, kmeans, module:Name"):
        Techniques.parse("micro_batches=2,clustering=fifo")  # another flag's


def test_naming_imports_nothing():
    """A name read from a file is a text: flags can be parsed, compared and written down without running its code."""
    text = "device_tier=slot_cache,cache_policy=no_module_here:Fifo,cache_slots=5.0"
    flags = Techniques.parse(text)
    assert flags.cache_policy == "no_module_here:Fifo" and "no_module_here" not in sys.modules
    with pytest.raises(UserError, match="no module 'no_module_here'"):
        Tiers.of(flags)


def test_two_packages_with_one_name_are_told_apart(tmp_path, monkeypatch):
    for number in (1, 2):
        folder = tmp_path / f"package{number}" / f"one{number}-1.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: one{number}\nVersion: {number}\n")
        (folder / "entry_points.txt").write_text(f"[nestlab.clustering]\nmine = one{number}:Rule\n")
        monkeypatch.syspath_prepend(str(folder.parent))
    with pytest.raises(UserError, match="clustering=mine: two installed packages use that name"):
        Techniques.parse("micro_batches=2,clustering=mine")


JOINS = """
from nestlab.exchange import LocalTransport, Mesh
def connect(replicas, device, timeout_s):
    made = LocalTransport()
    made.mesh, made.asked = Mesh(1, 4, replicas), (replicas, str(device), timeout_s)
    return made
"""


def test_a_training_connects_by_the_transport_of_its_flags(tmp_path, monkeypatch):
    """On every rank, as the suite's own is; on one rank a transport would have no effect, and is refused."""
    from nestlab.training import TrainOptions, recipe

    (tmp_path / "joins_ranks.py").write_text(JOINS)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "transport=joins_ranks:connect,replica_groups=2"
    options = TrainOptions("criteo-synth", techniques=text, timeout=7.0, device="cpu")
    monkeypatch.setattr(recipe, "environment", lambda: SimpleNamespace(world_size=4, rank=1))
    assert recipe.connect(options).asked == (2, "cpu", 7.0)
    monkeypatch.setattr(recipe, "environment", lambda: None)
    with pytest.raises(UserError, match="transport=joins_ranks:connect: one rank has none; start more with torchrun"):
        recipe.connect(replace(options, techniques="transport=joins_ranks:connect"))
