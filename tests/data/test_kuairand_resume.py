"""A preparation of KuaiRand that is killed or interrupted: what is done is kept, and what comes of it is the same."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import kuairand_oracle as oracle
import numba
import pytest
from killed_writes import Killed
from kuairand_oracle import NOON, USER, event
from test_kuairand_tables import VIDEO

import nestlab.data as data
from nestlab.data import table_kernels, text_kernels
from nestlab.data.columns import ColumnWriter
from nestlab.data.journal import Journal
from nestlab.data.stages import Stages, told
from nestlab.errors import UserError

ROWS = 300


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Logs with ties, copies and broken lines; half of the users have features."""
    root = tmp_path_factory.mktemp("raw")
    rows = [oracle.line(row) for row in oracle.made_rows(ROWS, users=6)]
    oracle.write_log(root, [*rows[:150], "broken", rows[0], rows[7]], oracle.EARLY)
    oracle.write_log(root, [*rows[150:], rows[200], "1,2,3"])
    oracle.write_users(root, [USER.format(user) for user in (0, 2, 4)] + ["no row"])
    return root


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr("nestlab.data.kuairand_merge.PIECE", 40)


def prepare(raw, prepared, progress=lambda line: None, block_bytes=3000, **options):
    chosen = data.KuaiRandOptions(block_bytes=block_bytes, **options)
    return data.open_dataset("kuairand-pure", raw, prepared=prepared, options=chosen, progress=progress)


class Stop:
    """Interrupts at the nth report of a stage; remembers which stages reported."""

    def __init__(self, stage=None, at=0):
        self.stage, self.left, self.stages = stage, at, []

    def __call__(self, line):
        if not line.endswith("rows/s"):
            return
        self.stages.append(line.split()[1].rstrip(","))
        if self.stages[-1] == self.stage:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt


def listing(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.suffix not in (".json", "")
    }


def leave_half_written(prepared):
    """What a process that was killed in the middle of writing leaves behind what its journal knows."""
    for path in prepared.glob(".tmp-*/**/*"):
        if path.suffix in (".spool", ".tsv", ".npy") or (path.parent.name == "log" and path.suffix == ".values"):
            with open(path, "ab") as file:
                file.write(b"half a ro")


def test_no_stage_is_timed_with_the_compiler(raw, tmp_path, monkeypatch):
    """Whatever a stage calls a kernel with, a call before the first stage had. Seen to fail where `count_up` was warmed
    with another type of index, and where nothing was."""
    warm, later, started = set(), set(), []

    def recorded(kernel):
        def call(*args):
            (later if started else warm).add((kernel.__name__, tuple(map(numba.typeof, args))))
            return kernel(*args)

        return call

    of_tables = {name: recorded(getattr(table_kernels, name)) for name in ("table_lines", "word_hash")}
    monkeypatch.setattr("nestlab.data.table_reading.kernels", SimpleNamespace(**vars(table_kernels) | of_tables))
    for place in ("kuairand_format.integer_lines", "spool.radix_order", "kuairand_merge.count_up"):
        monkeypatch.setattr(f"nestlab.data.{place}", recorded(getattr(text_kernels, place.partition(".")[2])))
    measure = Stages.measure
    monkeypatch.setattr(Stages, "measure", lambda *given, **named: started.append(1) or measure(*given, **named))
    prepare(raw, tmp_path)
    assert {name for name, _ in later} >= {"table_lines", "integer_lines", "radix_order", "count_up", "word_hash"}
    assert later <= warm


@pytest.mark.parametrize("option", ["keep", "drop"])
def test_stopped_anywhere_and_resumed_it_is_what_it_would_have_been(raw, tmp_path, option):
    """Broken on purpose: `following` not replayed; the rejects file not cut; the log's columns not cut."""
    whole = prepare(raw, tmp_path / "whole", duplicates=option)
    stops = [("tables", 2), ("read", 1), ("read", 7), ("merge", 1), ("merge", 4), ("events", 1), ("events", 5)]
    for stage, at in stops:
        with pytest.raises(KeyboardInterrupt):
            prepare(raw, tmp_path / "stopped", Stop(stage, at), duplicates=option)
        leave_half_written(tmp_path / "stopped")
    assert len(list((tmp_path / "stopped").glob(".tmp-*"))) == 2  # one folder, one lock
    resumed = prepare(raw, tmp_path / "stopped", duplicates=option)
    assert resumed.prepared.content == whole.prepared.content
    assert listing(resumed.prepared.folder) == listing(whole.prepared.folder)
    assert not list((tmp_path / "stopped").glob(".tmp-*"))


def test_what_is_done_is_not_done_again(raw, tmp_path):
    """Broken on purpose: a journal that is emptied on opening."""
    first, last = Stop("merge", 3), Stop()
    with pytest.raises(KeyboardInterrupt):
        prepare(raw, tmp_path, first)
    dataset = prepare(raw, tmp_path, last)
    assert {"tables", "read"} <= set(first.stages)
    assert set(last.stages) == {"merge", "events", "hash"}
    stages = dataset.manifest["stages"]
    assert stages["read"]["rows"] == 0 < stages["merge"]["rows"] < dataset.info.rows == stages["events"]["rows"]
    said = [told(name, facts) for name, facts in stages.items()]
    assert said[:2] == ["tables: done before", "read: done before"]
    assert said[2].endswith(", the others before") and said[3].startswith(f"events: {dataset.info.rows} rows in ")


def test_a_killed_process_s_work_is_taken_over(raw, tmp_path):
    program = f"""
        import os, signal
        import nestlab.data as data
        from nestlab.data import kuairand_merge
        kuairand_merge.PIECE = 40
        def die(line):
            if ": merge" in line:
                os.kill(os.getpid(), signal.SIGKILL)
        options = data.KuaiRandOptions(block_bytes=3000)
        data.open_dataset("kuairand-pure", {str(raw)!r}, prepared={str(tmp_path)!r}, options=options, progress=die)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert ended.returncode == -signal.SIGKILL
    said = Stop()
    resumed = prepare(raw, tmp_path, said)
    assert "read" not in said.stages
    assert resumed.prepared.content == prepare(raw, tmp_path / "other").prepared.content


def test_the_content_hash_does_not_depend_on_the_hour(raw, tmp_path):
    """Broken on purpose: `created` left in the hash."""
    a = prepare(raw, tmp_path / "a")
    for path in (raw / "KuaiRand-Pure" / "data").iterdir():
        os.utime(path)
    manifest = a.prepared.folder / "manifest.json"
    earlier = json.loads(manifest.read_text()) | {"created": "2020-01-01T00:00:00+00:00", "stages": {}}
    manifest.write_text(json.dumps(earlier))
    b = prepare(raw, tmp_path / "b")
    assert prepare(raw, tmp_path / "a").prepared.content == b.prepared.content
    assert prepare(raw, tmp_path / "b", duplicates="drop").prepared.content != b.prepared.content


def test_another_preparation_of_the_same_data_set_clears_up_and_one_of_another_does_not(raw, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        prepare(raw, tmp_path, Stop("merge", 1))
    data.open_dataset("criteo-synth", raw, rows=50, prepared=tmp_path)
    assert len(list(tmp_path.glob(".tmp-kuairand-pure-*"))) == 2
    prepare(raw, tmp_path, duplicates="drop")
    assert not list(tmp_path.glob(".tmp-*"))


def test_an_input_that_changed_in_between_starts_from_nothing(tmp_path):
    oracle.write_log(tmp_path, oracle.made_rows(100))
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path, tmp_path / "prepared", Stop("merge", 1))
    path = oracle.write_log(tmp_path, oracle.made_rows(90, seed=1))
    dataset = prepare(tmp_path, tmp_path / "prepared")
    assert dataset.table.column("video_id").to_pylist() == [row["video_id"] for row in oracle.read_log(path)]


def test_a_journal_cut_in_its_last_line_and_one_of_another_boot(tmp_path, monkeypatch):
    with Journal(tmp_path) as journal:
        journal.add("run", number=1)
    (tmp_path / "spool").write_text("x")
    with open(tmp_path / "journal.jsonl", "a") as file:
        file.write('{"kind": "ru')
    with Journal(tmp_path) as journal:
        assert journal.found == [{"kind": "run", "number": 1}]
        journal.add("run", number=2)
    with Journal(tmp_path) as journal:
        assert [entry["number"] for entry in journal.of("run")] == [1, 2]
    assert (tmp_path / "spool").exists()
    monkeypatch.setattr("nestlab.data.journal._head", lambda: {"boot": "another"})
    with Journal(tmp_path) as journal:
        assert journal.found == []
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize("logs", ["standard", "both"])
def test_users_of_one_period_only_do_not_vanish(tmp_path, logs):
    """The trap of an inner join of the two periods, which others fell into."""
    oracle.write_log(tmp_path, [event(1, 10, NOON - 9), event(2, 11, NOON - 8)], oracle.EARLY)
    oracle.write_log(tmp_path, [event(2, 12, NOON), event(3, 13, NOON + 1)])
    oracle.write_log(tmp_path, [event(4, 14, NOON + 2, is_rand=1)], oracle.RANDOM)
    dataset = data.open_dataset(
        "kuairand-pure", tmp_path, prepared=tmp_path / "prepared", options=data.KuaiRandOptions(logs=logs)
    )
    users = [1, 2, 2, 3, 4][: 5 if logs == "both" else 4]
    assert dataset.table.column("user_id").to_pylist() == users
    assert dataset.info.counts["users"] == len(set(users))


BOUNDARIES = (
    *("table", "run", "file", "piece", "events"),
    *("manifest.json", "log.spool", "events.spool", "journal.jsonl", "published"),
)


class Boundary:
    """Kills at the first boundary of a run: before it happens, or after it. A boundary is an entry of the journal, the
    writing of the manifest (of which a process killed before it leaves half), and what is removed or renamed then.

    Attributes:
        passed: the boundaries that happened, over all runs.
    """

    def __init__(self, monkeypatch):
        self.passed, self.when = [], None
        monkeypatch.setattr(Journal, "add", self._at(Journal.add, lambda journal, kind, **facts: kind))
        monkeypatch.setattr(Path, "write_text", self._at(Path.write_text, lambda path, text, **_: path.name, half=True))
        monkeypatch.setattr(os, "unlink", self._at(os.unlink, lambda path, **_: Path(path).name))
        monkeypatch.setattr(os, "rename", self._at(os.rename, lambda path, to: "published"))

    def _at(self, real, name, half=False):
        def operation(*args, **kwargs):
            what = name(*args, **kwargs)
            of_an_opening = what == "journal.jsonl" and "manifest.json" not in self.passed
            if what not in BOUNDARIES or of_an_opening:
                return real(*args, **kwargs)
            if self.when == "before":
                if half:
                    real(args[0], args[1][: len(args[1]) // 2], **kwargs)
                raise Killed(what)
            done = real(*args, **kwargs)
            self.passed.append(what)
            if self.when == "after":
                raise Killed(what)
            return done

        return operation


def test_killed_at_every_boundary_nothing_is_done_twice(raw, tmp_path, monkeypatch):
    """Broken on purpose: the journal removed where the build ends; the spools before the manifest is whole; a manifest
    that is whole not gone on from; the journal written in place.
    """
    monkeypatch.setattr("nestlab.data.kuairand_merge.PIECE", 110)
    boundary = Boundary(monkeypatch)
    whole = prepare(raw, tmp_path / "whole", block_bytes=9000)
    expected, boundary.passed = boundary.passed, []
    first, *spools, journal, last = expected[-5:]
    assert (first, sorted(spools)) == ("manifest.json", ["events.spool", "log.spool"])
    assert (journal, last) == ("journal.jsonl", "published")
    for number in range(2 * len(expected)):
        boundary.when = ("before", "after")[number % 2]
        with pytest.raises(Killed):
            prepare(raw, tmp_path / "killed", block_bytes=9000)
        if "manifest.json" not in boundary.passed:
            leave_half_written(tmp_path / "killed")
    boundary.when = None
    resumed = prepare(raw, tmp_path / "killed", block_bytes=9000)
    assert boundary.passed == expected
    assert resumed.prepared.content == whole.prepared.content
    assert listing(resumed.prepared.folder) == listing(whole.prepared.folder)


def test_a_killed_hash_is_all_that_is_done_again(raw, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("nestlab.data.kuairand_prepare.describe_files", Mock(side_effect=Killed))
        prepare(raw, tmp_path)
    said = Stop()
    prepare(raw, tmp_path, said)
    assert set(said.stages) == {"hash"}


def test_a_full_disk_loses_nothing_and_a_lost_spool_does_not_end_in_a_loop(raw, tmp_path, monkeypatch):
    """Broken on purpose: the folder removed after any OSError; kept after any."""
    with monkeypatch.context() as patch:
        patch.setattr(ColumnWriter, "flush", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        with pytest.raises(UserError, match=r"No space left on device; .*kept in .*\.tmp-kuairand-pure-") as error:
            prepare(raw, tmp_path)
    assert "\n" not in str(error.value)
    said = Stop("merge", 2)
    with pytest.raises(KeyboardInterrupt):
        prepare(raw, tmp_path, said)
    assert "read" not in said.stages
    next(tmp_path.glob(".tmp-*/log.spool")).unlink()
    with pytest.raises(UserError, match=r"log\.spool: No such file or directory; .* removed: run it again"):
        prepare(raw, tmp_path)
    assert prepare(raw, tmp_path).info.rows > 0


def test_a_repeated_key_s_table_killed_while_it_is_replaced(tmp_path, monkeypatch):
    """Broken on purpose: what a killed process left of the folder not removed."""
    oracle.write_log(tmp_path, oracle.made_rows(20))
    oracle.write_videos(tmp_path, [VIDEO.format(video) for video in (0, 1, 1)])
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("nestlab.data.table_reading.open_columns", Mock(side_effect=Killed))
        prepare(tmp_path, tmp_path / "prepared")
    assert list((tmp_path / "prepared").glob(".tmp-*/*.whole"))
    assert prepare(tmp_path, tmp_path / "prepared").manifest["rejected_in_tables"] == {"repeated key": 1}
