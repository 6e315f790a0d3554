"""A save that is killed anywhere leaves the one before; a damaged file is refused before anything changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import checkpointed
import numpy as np
import pytest
from checkpointed import AGE, COUNTED, assert_equal, everything, make, saves_and_states, train
from killed_writes import Killed, killed_at

from nestlab.embedding.checkpoint import confirm, load, parts, publish, read_manifest, save, save_shard
from nestlab.embedding.checkpoint.manifest import FOLDER
from nestlab.errors import UserError

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 4000)


def names(folder: Path) -> list[str]:
    """What is there; of the folder of a shard, not the digest."""
    return sorted(FOLDER.sub(lambda m: m[0][:-13], path.name) for path in folder.iterdir())


@pytest.mark.parametrize(("incremental", "last"), [(True, 42), (False, 42), (False, 30)])
def test_a_save_killed_at_any_operation_leaves_the_previous_one(incremental, last, tmp_path):
    """With `last` 30 nothing happened since: the new save has the content of the one before.

    Broken on purpose: the folder never given its name; the manifest written in place instead of renamed; old folders
    removed before the manifest is replaced; leftovers not removed; numbers that do not count on. Each failed.
    """
    store, before = make(AGE), tmp_path / "before"
    train([store], 1, 20)
    save(store, before)
    train([store], 21, 30)
    save(store, before, incremental=last > 30)
    earlier, point = everything([store]), (store.save_point, [host.removed for host in store.hosts])
    train([store], 31, last)
    later = everything([store])
    whole = shutil.copytree(before, tmp_path / "whole")
    with killed_at(0) as operations:
        save(store, whole, incremental)
    assert len(operations) > 25 and set(operations) >= {"write", "fsync", "rename", "replace", "mkdir", "unlink"}
    outcomes = []
    for number in range(1, len(operations) + 1):
        folder = shutil.copytree(before, tmp_path / f"killed-{number}")
        store.save_point = point[0]
        for host, removed in zip(store.hosts, point[1], strict=True):
            host.removed = removed
        with killed_at(number), pytest.raises(Killed):
            save(store, folder, incremental)
        again = make(AGE)
        load(again, folder)
        outcomes.append(read_manifest(folder).last.number)
        assert_equal(everything([again]), later if outcomes[-1] == 3 else earlier)
        with killed_at(0):
            save(again, folder)  # the next one works, and leaves nothing of the killed one
        assert sorted(os.listdir(folder)) == [*read_manifest(folder).folders, "manifest.json"]
        shutil.rmtree(folder)
    published = operations.index("replace") + 1
    assert outcomes == [2] * published + [3] * (len(operations) - published)


def test_shards_killed_before_publishing(tmp_path):
    """What some shards wrote is of no effect, and gone after the next save, by another number of shards."""
    whole = make(AGE)
    train([whole], 1, 20)
    save(whole, tmp_path)
    shards = [make(AGE) for _ in range(3)]
    for i, shard in enumerate(shards):
        load(shard, tmp_path, i, 3)
    train(shards, 21, 25)
    written = [save_shard(shard, tmp_path, i, 3, incremental=True) for i, shard in enumerate(shards[:2])]
    with killed_at(9), pytest.raises(Killed):
        save_shard(shards[2], tmp_path, 2, 3, incremental=True)
    with pytest.raises(UserError, match=r"publish: \[0, 1\] given of 3 shards"):
        publish(tmp_path, written)
    again = make(AGE)
    load(again, tmp_path)
    assert_equal(everything([again]), everything([whole]))
    assert len(names(tmp_path)) == 5
    train([again], 21, 21)
    save(again, tmp_path, incremental=True)
    assert names(tmp_path) == ["000001.0-of-1", "000002.0-of-1", "manifest.json"]


def test_a_killed_process(tmp_path):
    """SIGKILL in the middle of saving for ever; what is there is one of the states that were saved."""
    folder = tmp_path / "checkpoint"
    command = [sys.executable, checkpointed.__file__, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        seen = [process.stdout.readline() for _ in range(4)]
        process.kill()
        process.wait()
    assert process.returncode == -9 and seen[0] == "1\n"
    states = {number: everything([store]) for number, store in saves_and_states(tmp_path / "reference")}
    last = read_manifest(folder).last
    again = make(AGE)
    load(again, folder)
    assert last.number >= int(seen[-1]) and last.step == 8 * ((last.number - 1) % 6 + 1)
    assert_equal(everything([again]), states[last.step // 8])


def damages(path: Path) -> Iterator[str]:
    """Damages a file in every way that is told apart, and repairs it each time."""
    good = path.read_bytes()
    for what, bad in (
        ("is damaged", good[:-1] + bytes([good[-1] ^ 1])),
        ("is damaged", good[:9] + bytes([good[9] ^ 128]) + good[10:]),
        ("bytes, not", good[: len(good) // 2]),
        ("bytes, not", b""),
        ("bytes, not", good + b"\0"),
    ):
        path.write_bytes(bad)
        yield what
    path.unlink()
    yield "is missing"
    path.mkdir()
    yield "bytes, not|cannot be read"
    path.rmdir()
    path.write_bytes(good)


def test_a_damaged_file_is_refused_by_name_before_anything_changes(tmp_path):
    """Broken on purpose: sizes alone compared; each file checked as it is loaded, the store was half full then."""
    store = make(COUNTED)
    train([store], 1, 30)
    save(store, tmp_path)
    train([store], 31, 50)
    save(store, tmp_path, incremental=True)
    files = [tmp_path / file.path for one in read_manifest(tmp_path).saves for file in one.files]
    assert {path.name.split("-")[1].split(".")[0] for path in files} == {"rows", "removed", "scores", "admission"}
    fresh, empty = make(COUNTED), everything([make(COUNTED)])
    for path in files:
        for what in damages(path):
            with pytest.raises(UserError, match=what) as error:
                load(fresh, tmp_path)
            assert str(path) in str(error.value) and "\n" not in str(error.value)
    assert_equal(everything([fresh]), empty)
    assert fresh.counters.batches == fresh.last_step == 0 and fresh.save_point is None
    load(fresh, tmp_path)
    assert_equal(everything([fresh]), everything([store]))


def test_a_damaged_manifest_is_refused(tmp_path):
    """Broken on purpose: no checksum of its own, another step was believed."""
    store = make()
    train([store], 1, 3)
    save(store, tmp_path)
    path = tmp_path / "manifest.json"
    good = path.read_bytes()
    places = np.random.default_rng(0).choice(len(good), 150, replace=False).tolist()
    spoilt = [good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :] for at in places for bit in (1, 128)]
    for content in [*spoilt, good[:-30], b"", b"[]", b"{}", b"null", b'{"format": 1, "checksum": ""}']:
        if content.strip() == good.strip():
            continue
        path.write_bytes(content)
        with pytest.raises(UserError, match="manifest"):
            load(make(), tmp_path)
        with pytest.raises(UserError, match="manifest"):
            save(store, tmp_path)
    path.write_bytes(good.replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(UserError, match="has format 2"):
        load(make(), tmp_path)
    path.write_bytes(good)
    load(make(), tmp_path)


def test_a_manifest_leads_nowhere_else(tmp_path):
    """A path out of the folder is refused, even under a right checksum."""
    from dataclasses import replace

    store = make()
    train([store], 1, 3)
    saved = save(store, tmp_path / "c")
    manifest = read_manifest(tmp_path / "c")
    for bad in ("../c/x", "/etc/passwd", "000001.0-of-1.0123456789ab/../../x", ""):
        files = (replace(saved.files[0], path=bad), *saved.files[1:])
        content = replace(manifest, saves=(replace(saved, files=files),)).to_bytes()
        (tmp_path / "c" / "manifest.json").write_bytes(content)
        with pytest.raises(UserError, match="is none of a part"):
            load(make(), tmp_path / "c")


def test_a_full_disk_is_one_line_and_the_store_goes_on(tmp_path, monkeypatch):
    """Broken on purpose: the save point moved before publishing, the next increment lacked what this one had."""
    store = make(AGE)
    train([store], 1, 10)
    save(store, tmp_path)
    train([store], 11, 20)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
            save(store, tmp_path, incremental=True)
    assert names(tmp_path) == ["000001.0-of-1", "manifest.json"]
    train([store], 21, 30)
    save(store, tmp_path, incremental=True)
    again = make(AGE)
    load(again, tmp_path)
    assert_equal(everything([again]), everything([store]))


def test_what_is_not_ours_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "000001").mkdir()
    (tmp_path / ".manifest.json.1-2.tmp").write_text("of a killed save")
    store = make()
    train([store], 1, 3)
    save(store, tmp_path)
    save(store, tmp_path)
    assert names(tmp_path) == ["000001", "000002.0-of-1", "manifest.json", "notes.txt"]
    confirm(store, tmp_path)
