"""Raw files → Parquet: nothing lost, nothing stale, whole or not at all, nothing written beside the raw data."""

import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap

import criteo_oracle as oracle
import pytest

import nestlab.data as data
from nestlab.data.criteo_format import COLUMNS
from nestlab.data.folders import build_folder
from nestlab.errors import UserError

NUMBERS = ("rows_in", "rows_out", "rows_short", "rows_rejected")


@pytest.fixture
def root(tmp_path):
    oracle.write_file(tmp_path / "raw" / "criteo-kaggle" / "train.txt", oracle.made_rows(300))
    return tmp_path / "raw"


@pytest.fixture
def prepared(tmp_path):
    return tmp_path / "prepared"


def rows_of(dataset):
    return [list(r) for r in zip(*(dataset.table.column(c).to_pylist() for c in COLUMNS), strict=True)]


def listing(folder):
    return sorted((str(p.relative_to(folder)), p.stat().st_mtime_ns) for p in folder.rglob("*"))


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def test_every_row_arrives_in_order_and_the_raw_folder_is_untouched(root, prepared):
    before = listing(root)
    dataset = data.open_dataset("criteo-kaggle", root, prepared=prepared)
    assert rows_of(dataset) == oracle.made_rows(300)
    assert listing(root) == before
    assert dataset.info.counts == dict(zip(NUMBERS, (300, 300, 0, 0), strict=True))
    assert dataset.info.title == "Criteo Kaggle (real, 300 rows)"
    assert (dataset.info.kind, dataset.info.convention) == ("real", "dlrm-log1p")
    nulls = {c: sum(r[i] is None for r in oracle.made_rows(300)) for i, c in enumerate(COLUMNS)}
    assert dataset.manifest["nulls"] == nulls


def test_days_are_read_in_order_of_the_day_plain_or_gzip(tmp_path, prepared):
    rows = oracle.made_rows(60)
    folder = tmp_path / "criteo-1tb"
    oracle.write_file(folder / "day_0", rows[:20])
    ten = oracle.write_file(folder / "day_10", rows[40:], end=b"\r\n")
    two = oracle.write_file(folder / "ten", rows[20:40])
    (folder / "day_2.gz").write_bytes(gzip.compress(two.read_bytes()))
    assert ten.exists()
    dataset = data.open_dataset("criteo", tmp_path, prepared=prepared)
    assert dataset.info.id == "criteo-1tb"
    assert rows_of(dataset) == rows
    first = data.open_dataset("criteo-1tb", tmp_path, rows=30, prepared=prepared)
    assert rows_of(first) == rows[:30]
    assert [i["lines"] for i in first.manifest["inputs"]] == [20, 10]


def test_broken_lines_are_counted_kept_and_named(root, prepared):
    path = root / "criteo-kaggle" / "train.txt"
    good = path.read_bytes().split(b"\n")[:4]
    path.write_bytes(b"\n".join([good[0], b"7" + good[1][1:], good[1], b"0\t\xff\t1", b"", b"0\t1", good[2]]))
    dataset = data.open_dataset("criteo-kaggle", root, prepared=prepared)
    manifest = dataset.manifest
    assert [manifest[n] for n in NUMBERS] == [7, 4, 1, 3]
    assert manifest["rejected"] == {"empty line": 1, "label not 0 or 1": 1, "undecodable bytes": 1}
    kept = (dataset.prepared.folder / "rejects.tsv").read_bytes().split(b"\n")
    assert kept[0] == b"train.txt\t2\tlabel not 0 or 1\tlabel\t7" + good[1][1:]
    assert kept[1] == b"train.txt\t4\tundecodable bytes\t\t0\t\xff\t1"
    assert kept[2] == b"train.txt\t5\tempty line\t\t"


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\r\n"])
def test_an_empty_file_is_refused(root, prepared, content):
    (root / "criteo-kaggle" / "train.txt").write_bytes(content)
    with pytest.raises(UserError, match="empty file") as error:
        data.open_dataset("criteo-kaggle", root, prepared=prepared)
    one_line(error)


def test_a_file_of_another_format_is_refused_and_leaves_nothing(root, prepared):
    (root / "criteo-kaggle" / "train.txt").write_bytes(b"user,item\n1,2\n" * 50)
    with pytest.raises(UserError, match="not the Criteo format") as error:
        data.open_dataset("criteo-kaggle", root, prepared=prepared)
    assert "train.txt line 1: fewer than 2 fields" in one_line(error)
    assert [p.name for p in prepared.iterdir()] == ["hashes"]


def test_the_block_size_does_not_change_the_rows(root, prepared):
    small = data.open_dataset("criteo-kaggle", root, prepared=prepared, options=data.PrepareOptions(block_bytes=4000))
    assert rows_of(small) == oracle.made_rows(300)
    large = data.open_dataset("criteo-kaggle", root, prepared=prepared)
    assert large.info.fingerprint != small.info.fingerprint


def test_prepared_once_and_again_when_the_input_changes(root, prepared):
    path = root / "criteo-kaggle" / "train.txt"
    first = data.open_dataset("criteo-kaggle", root, prepared=prepared)
    created = (first.prepared.folder / "manifest.json").stat().st_mtime_ns
    again = data.open_dataset("criteo-kaggle", root, prepared=prepared)
    assert (again.prepared.folder / "manifest.json").stat().st_mtime_ns == created
    # The same size and the same mtime, one label turned.
    status, content = path.stat(), path.read_bytes()
    path.write_bytes((b"0" if content[:1] == b"1" else b"1") + content[1:])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    changed = data.open_dataset("criteo-kaggle", root, prepared=prepared)
    assert changed.info.fingerprint != first.info.fingerprint
    assert rows_of(changed)[0][0] == 1 - rows_of(first)[0][0]
    # The old content under another time: the hash decides, and the old folder serves.
    path.write_bytes(content)
    assert data.open_dataset("criteo-kaggle", root, prepared=prepared).info.fingerprint == first.info.fingerprint


@pytest.mark.parametrize("damage", ["no manifest", "half a manifest", "part cut", "part flipped", "part gone"])
def test_a_damaged_folder_is_rebuilt(root, prepared, damage):
    folder = data.open_dataset("criteo-kaggle", root, prepared=prepared).prepared.folder
    manifest, part = folder / "manifest.json", folder / "part-00000.parquet"
    content = part.read_bytes()
    if damage == "no manifest":
        manifest.unlink()
    elif damage == "half a manifest":
        manifest.write_text(manifest.read_text()[:100])
    elif damage == "part cut":
        part.write_bytes(content[:-10])
    elif damage == "part flipped":
        part.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    else:
        part.unlink()
    dataset = data.open_dataset("criteo-kaggle", root, prepared=prepared)
    assert rows_of(dataset) == oracle.made_rows(300)
    assert not list(prepared.glob(".tmp-*"))


def test_a_damaged_arrow_copy_is_made_again(root, prepared):
    dataset = data.open_dataset("criteo-kaggle", root, prepared=prepared)
    _ = dataset.table
    (copy,) = dataset.prepared.folder.rglob("*.arrow")
    copy.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2])
    again = data.open_dataset("criteo-kaggle", root, prepared=prepared)
    assert rows_of(again) == oracle.made_rows(300)


def test_killed_half_way_is_rebuilt_and_cleaned_up(root, prepared):
    program = f"""
        import os, signal
        import nestlab.data as data
        def die(message):
            if "rows read" in message:
                os.kill(os.getpid(), signal.SIGKILL)
        data.open_dataset("criteo-kaggle", {str(root)!r}, prepared={str(prepared)!r}, progress=die)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert list(prepared.glob(".tmp-*"))
    assert not list(prepared.glob("criteo-kaggle-*"))
    assert rows_of(data.open_dataset("criteo-kaggle", root, prepared=prepared)) == oracle.made_rows(300)
    assert not list(prepared.glob(".tmp-*"))


@pytest.mark.dist
def test_processes_that_prepare_at_once_both_end_well(root, prepared):
    program = f"""
        import sys
        import nestlab.data as data
        import datasets
        print("ready", flush=True)
        sys.stdin.readline()
        options = data.PrepareOptions(block_bytes=2000)
        dataset = data.open_dataset("criteo-kaggle", {str(root)!r}, prepared={str(prepared)!r}, options=options)
        print(dataset.table.num_rows, dataset.table.column("label").to_pylist())
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, **pipes) for _ in range(2)]
    assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * 2
    for worker in workers:  # both start now
        worker.stdin.write("go\n")
        worker.stdin.flush()
    said = [worker.communicate(timeout=60)[0].strip() for worker in workers]
    assert said == [f"300 {[row[0] for row in oracle.made_rows(300)]}"] * 2
    assert [worker.returncode for worker in workers] == [0, 0]
    assert len(list(prepared.glob("criteo-kaggle-*"))) == 1
    assert not list(prepared.glob(".tmp-*"))


def test_the_second_to_publish_keeps_the_first_s_folder(tmp_path):
    """The race itself, made to happen: another process finishes while this one builds."""
    final = tmp_path / "final"

    def build(temporary):
        (temporary / "mine").touch()
        final.mkdir()
        (final / "theirs").touch()

    build_folder(final, build, lambda folder: (folder / "theirs").exists())
    assert [p.name for p in final.iterdir()] == ["theirs"]
    (final / "theirs").rename(final / "damaged")
    build_folder(final, lambda temporary: (temporary / "theirs").touch(), lambda folder: (folder / "theirs").exists())
    assert [p.name for p in final.iterdir()] == ["theirs"]
    assert [p.name for p in tmp_path.iterdir()] == ["final"]


def test_a_live_process_s_temporary_folder_is_left_alone(tmp_path):
    def build(temporary):
        build_folder(tmp_path / "other", lambda inner: (inner / "x").touch(), lambda folder: False)
        assert temporary.is_dir()
        (temporary / "x").touch()

    build_folder(tmp_path / "final", build, lambda folder: False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["final", "other"]


def test_no_network_no_pickle_no_progress_bar(root, prepared):
    program = f"""
        import pickle, socket
        def refuse(*a, **k): raise AssertionError("network or pickle used")
        socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
        import nestlab.data as data
        dataset = data.open_dataset("criteo-kaggle", {str(root)!r}, prepared={str(prepared)!r})
        pickle.load = pickle.loads = refuse
        assert dataset.table.num_rows == 300
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert not [p for p in prepared.rglob("*") if p.suffix in (".pkl", ".pickle", ".pt")]


def test_no_thread_is_left_behind(root, prepared):
    program = f"""
        import threading
        import nestlab.data as data
        dataset = data.open_dataset("criteo-kaggle", {str(root)!r}, prepared={str(prepared)!r})
        assert dataset.table.num_rows == 300
        import tqdm
        print(tqdm.tqdm.monitor_interval, [t.name for t in threading.enumerate() if t.name == "tqdm_monitor"])
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert ended.stdout == "10 []\n"


def test_a_place_that_cannot_be_written_is_one_line(root, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="NESTLAB_PREPARED") as error:
        data.open_dataset("criteo-kaggle", root, prepared=tmp_path / "file" / "below")
    one_line(error)


def test_the_place_follows_the_environment(root, tmp_path, monkeypatch):
    monkeypatch.setenv("NESTLAB_PREPARED", str(tmp_path / "elsewhere"))
    folder = data.open_dataset("criteo-kaggle", root).prepared.folder
    assert folder.parent == tmp_path / "elsewhere"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {"pyarrow", "nestlab", "python"} <= set(manifest["software"])


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "file", "rows", "short"),
    [
        ("criteo-1tb", "criteo-1tb/day_0", 5000, 0),
        ("criteo-kaggle", "criteo-kaggle/train.txt", 1000, 0),
        ("criteo-kaggle", "criteo-kaggle/train_ragged.txt", 1000, 498),
    ],
)
def test_real_files_against_the_oracle(real_data, prepared, name, file, rows, short):
    dataset = data.commands.prepare(name, real_data, file=file, prepared=prepared)
    assert dataset.info.counts == dict(zip(NUMBERS, (rows, rows, short, 0), strict=True))
    expected, expected_short, broken = oracle.read_file(real_data / file)
    assert (rows_of(dataset), short, []) == (expected, expected_short, broken)
    assert dataset.info.kind == "real"


@pytest.mark.data
def test_ragged_and_restored_copies_hold_the_same_rows(real_data, prepared):
    copies = [
        data.open_dataset("criteo-kaggle", real_data, file=real_data / "criteo-kaggle" / f, prepared=prepared)
        for f in ("train.txt", "train_ragged.txt")
    ]
    assert rows_of(copies[0]) == rows_of(copies[1])
