"""The disk tier: a buffer pool far smaller than its rows against a plain dict, and a disk that is full or fails."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.embedding.host import file_kernels, pool_kernels, record_file
from nestlab.embedding.host.pool import BufferPool, HostTooSmall
from nestlab.embedding.host.record_file import RecordFile
from nestlab.errors import UserError

pytestmark = pytest.mark.core

WIDTH = 3
KERNELS = ("demand", "pin_resident", "choose", "let_go", "move_in", "unpin", "give_back", "drop", "copy_resident")
ROWS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for files that grow in small steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_file, "_STEP", 1 << 12)
        yield tmp_path_factory.mktemp("disk")


def make(folder, frames: int, dtype: torch.dtype = torch.float32, width: int = WIDTH) -> BufferPool:
    return BufferPool(width, dtype, frames, RecordFile(folder, width * dtype.itemsize))


def rows_of(*rows: int) -> np.ndarray:
    return np.array(rows, dtype=np.int64)


def state(pool: BufferPool) -> list:
    """All that a pool holds, but for marks that only choose victims."""
    arrays = [pool._places[:ROWS], pool._owners, pool._pins, pool._flags, pool._free, pool._counts, pool.array]
    return [a.tobytes() for a in arrays] + [pool.file.rows, pool.promoted, pool.demoted, pool.dropped]


class Model:
    """What a pool promises, in plain Python: a dict of records, a list of pins, no frame, no file."""

    def __init__(self, pool: BufferPool, frames: int) -> None:
        self.pool, self.capacity, self.value, self.records, self.batches = pool, frames, 0.0, {}, []

    def pinned(self) -> set[int]:
        return {row for rows, _ in self.batches for row in rows.tolist()}

    def pin(self, rows: np.ndarray, new: np.ndarray) -> None:
        """Pins, checks what is there, and overwrites the records that `new` says are about to be."""
        needed = len(self.pinned() | set(rows.tolist()))
        if needed > self.capacity:
            before = state(self.pool)
            with pytest.raises(HostTooSmall) as caught:
                self.pool.pin(rows, ~new)
            assert caught.value.frames == needed and state(self.pool) == before
            return
        frames = self.pool.pin(rows, ~new)
        assert np.unique(frames).size == rows.size
        for frame, row, fresh in zip(frames, rows.tolist(), new, strict=True):
            if fresh:
                self.write(frame, row)
            assert self.pool.array[frame].tolist() == self.record(row)
        self.batches.append((rows, frames))

    def record(self, row: int) -> list[float]:
        return self.records.get(row, [0.0] * WIDTH)

    def write(self, frame: int, row: int) -> None:
        self.value += 1.0
        self.records[row] = [self.value, -self.value, self.value / 2]
        self.pool.array[frame] = self.records[row]

    def unpin(self, which: int, changed: bool) -> None:
        """Ends a batch; a changed one writes all of its records first, through the frames it was given."""
        if self.batches:
            rows, frames = self.batches.pop(which % len(self.batches))
            for frame, row in zip(frames, rows.tolist(), strict=True):
                assert self.pool.array[frame].tolist() == self.record(row)
                if changed:
                    self.write(frame, row)
            self.pool.unpin(frames, changed)

    def free(self, rows: np.ndarray) -> None:
        if pinned := self.pinned() & set(rows.tolist()):
            before = state(self.pool)
            with pytest.raises(ValueError, match="is pinned and cannot be freed"):
                self.pool.free(rows)
            assert pinned and state(self.pool) == before
            return
        self.pool.free(rows)
        for row in rows.tolist():
            self.records.pop(row, None)

    def check(self, rows: np.ndarray) -> None:
        before = state(self.pool)
        expected = [self.record(row) for row in rows.tolist()]
        assert self.pool.copy(rows).tolist() == expected
        assert self.pool.copy(rows, 2).tolist() == [record[:2] for record in expected]
        assert state(self.pool) == before


some_rows = st.lists(st.integers(0, ROWS - 1), unique=True, max_size=3).map(lambda r: np.array(r, dtype=np.int64))
calls = st.one_of(
    st.tuples(st.just("pin"), some_rows, st.integers(0, 7)),
    st.tuples(st.just("unpin"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("free"), some_rows),
    st.tuples(st.just("check"), st.lists(st.integers(0, ROWS - 1), max_size=8).map(lambda r: np.array(r, np.int64))),
)


def play(folder, frames: int, sequence: list) -> BufferPool:
    """The sequence of calls on a pool and on the model, and a look at every record at the end."""
    pool = make(folder, frames)
    model = Model(pool, frames)
    for name, *arguments in sequence:
        if name == "pin":
            rows, bits = arguments
            arguments = [rows, (bits >> np.arange(rows.size)) & 1 == 1]
        getattr(model, name)(*arguments)
    model.check(np.arange(ROWS))
    pool.file.close()
    return pool


@given(frames=st.integers(1, 4), sequence=st.lists(calls, min_size=10, max_size=60))
@settings(max_examples=100, deadline=None)
def test_a_pool_is_a_dict_of_records(folder, frames, sequence):
    """Broken on purpose, one at a time, this or the long runs below failed each time: dirty victims not written; a
    frame refilled before its victim was written; pinned frames taken; one frame given out twice; pins not counted; the
    room counted as a sum; changes forgotten at `unpin`, or for rows that are overwritten; `free` that leaves the place;
    void rows not zeroed; a clean victim's record in the file forgotten; holes between rows written over.
    """
    play(folder, frames, sequence)


def test_long_runs_reach_every_way_of_moving_a_record(folder):
    """The random runs above are short: this one is sure to bring up, write down and let go, and says that it did."""
    rng = np.random.default_rng(3)
    sequence = []
    for _ in range(600):
        rows = rng.permutation(ROWS)[: rng.integers(0, 5)].astype(np.int64)
        new = int(rng.integers(0, 16) & rng.integers(0, 16) & rng.integers(0, 16))
        sequence += [("pin", rows, new), ("unpin", int(rng.integers(0, 4)), rng.random() < 0.2)]
        if rng.random() < 0.05:
            sequence.append(("free", rng.permutation(ROWS)[:2].astype(np.int64)))
        if rng.random() < 0.1:
            sequence.append(("check", rng.integers(0, ROWS, 9)))
    pool = play(folder, 7, sequence)
    assert min(pool.promoted, pool.demoted, pool.dropped) > 100
    assert pool.bytes_read == pool.promoted * 12 and pool.bytes_written == pool.demoted * 12


def test_nothing_compiles_once_a_pool_is_made(folder):
    play(folder, 3, [("pin", rows_of(0, 1), 1), ("unpin", 0, True), ("pin", rows_of(2, 3), 0), ("free", rows_of(0))])
    compiled = [file_kernels.read_records, file_kernels.write_records]
    compiled += [getattr(pool_kernels, name) for name in KERNELS]
    assert {kernel.py_func.__name__: len(kernel.signatures) for kernel in compiled if len(kernel.signatures) != 1} == {}


def test_the_clock_passes_by_what_was_used_and_takes_the_rest(folder):
    """Second chance: after a sweep that cleared all marks, the row that was used again outlives the others."""
    pool = make(folder, 4)
    for row in range(4):
        pool.unpin(pool.pin(rows_of(row)), True)
    pool.unpin(pool.pin(rows_of(4)), True)  # clears every mark, takes the frame of row 0
    pool.unpin(pool.pin(rows_of(1)), False)
    pool.unpin(pool.pin(rows_of(5)), False)  # row 1 has its mark again: row 2 goes
    resident = [row for row in range(6) if pool._places[row] > 0]
    assert resident == [1, 3, 4, 5]
    assert (pool.demoted, pool.dropped, pool.promoted) == (2, 0, 0) and pool._counts.tolist() == [4, 0, 0, 3]


def test_pins_at_exactly_the_capacity_and_one_more(folder):
    """The size named is the union of what is pinned and what is asked for, and exactly that size works."""
    first, second = np.arange(0, 8), np.arange(5, 13)
    with pytest.raises(HostTooSmall, match=r"13 rows of 12 bytes at once \(156 bytes\).*room for 12.*host_capacity"):
        pool = make(folder, 12)
        pool.pin(first)
        before = state(pool)
        try:
            pool.pin(second)
        finally:
            assert state(pool) == before
    pool = make(folder, 13)
    shared = pool.pin(first)[5:]
    assert pool.pin(second)[:3].tolist() == shared.tolist()
    assert pool.nbytes == 13 * 12


def test_nothing_at_all_and_nonsense(folder):
    pool = make(folder, 2)
    empty = np.empty(0, dtype=np.int64)
    assert pool.pin(empty).size == 0 and pool.copy(empty).shape == (0, WIDTH) and pool.nbytes == 0
    pool.unpin(empty, True)
    pool.free(empty)
    with pytest.raises(ValueError, match="row -1"):
        pool.pin(rows_of(-1))
    with pytest.raises(UserError, match="disk full: row"):
        pool.pin(rows_of(pool.row_capacity))
    frames = pool.pin(rows_of(0))
    pool.unpin(frames, False)
    with pytest.raises(ValueError, match=f"frame {frames[0]} is not pinned"):
        pool.unpin(frames, False)
    with pytest.raises(UserError, match="host_capacity too small"):
        make(folder, 0)
    with pytest.raises(ValueError, match="records of 4 bytes"):
        BufferPool(WIDTH, torch.float32, 2, RecordFile(folder, 4))


def test_a_row_that_was_freed_reads_as_new(folder):
    """Broken on purpose: with its place left at "in the file", the old record comes back."""
    pool = make(folder, 2)
    frames = pool.pin(rows_of(0), np.zeros(1, bool))
    pool.array[frames] = 7.0
    pool.unpin(frames, True)
    for row in (1, 2, 3):
        pool.unpin(pool.pin(rows_of(row)), False)
    assert pool.demoted == 1
    pool.free(rows_of(0))
    assert pool.copy(rows_of(0)).tolist() == [[0.0] * WIDTH]
    assert pool.array[pool.pin(rows_of(0))].tolist() == [[0.0] * WIDTH]


def filled(folder, frames: int = 4) -> BufferPool:
    """All frames hold changed records of rows 0 … frames − 1, row r's record being r + 1."""
    pool = make(folder, frames)
    rows = np.arange(frames)
    taken = pool.pin(rows, np.zeros(frames, bool))
    pool.array[taken] = (rows + 1.0)[:, None]
    pool.unpin(taken, True)
    return pool


def no_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_an_error_before_anything_changed(folder, monkeypatch):
    pool = filled(folder)
    pool.file.rows = 4  # as if the file had no room beyond
    before = state(pool)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_room, raising=False)
        with pytest.raises(UserError, match=r"^disk full: 12 bytes more .* free in .*another folder with disk=$"):
            pool.pin(rows_of(4, 1))
    assert state(pool) == before
    pool.unpin(pool.pin(rows_of(4, 1)), False)
    assert pool.copy(np.arange(5))[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 0.0]


def test_a_disk_too_small_for_a_generous_step_still_serves_what_is_needed(folder, monkeypatch):
    def one_page(descriptor, start, count):
        if start + count > 4096:
            no_room()

    monkeypatch.setattr(os, "posix_fallocate", one_page, raising=False)
    monkeypatch.setattr(record_file, "_STEP", 1 << 20)
    file = RecordFile(folder, 100)
    file.ensure(40)
    assert file.rows == 40
    with pytest.raises(UserError, match="disk full: 100 bytes more are needed for 41 records"):
        file.ensure(41)
    assert (file.rows, os.fstat(file.descriptor).st_size) == (40, 4000)


def test_where_disk_space_cannot_be_taken_ahead_zeros_are_written(folder, monkeypatch):
    def unknown(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unknown, raising=False)
    file = RecordFile(folder, 1 << 20)
    file.ensure(1)
    assert os.fstat(file.descriptor).st_blocks * 512 >= file.nbytes >= 1 << 20
    monkeypatch.delattr(os, "posix_fallocate")
    file.ensure(file.rows + 1)
    assert os.fstat(file.descriptor).st_size == file.nbytes


def test_a_failed_write_loses_nothing(folder, monkeypatch):
    """Broken on purpose: with a row's place published before its write has landed, the records of victims are lost."""
    pool = filled(folder)
    before = pool.copy(np.arange(4))
    with monkeypatch.context() as patch:
        patch.setattr(pool.file, "write", no_room)
        with pytest.raises(OSError, match="No space"):
            pool.pin(rows_of(1, 5, 6))
    assert torch.equal(pool.copy(np.arange(4)), before) and not pool._pins.any() and pool._counts[2] == 0
    pool.unpin(pool.pin(rows_of(1, 5, 6, 7)), False)
    assert torch.equal(pool.copy(np.arange(4)), before)


def test_a_failed_read_loses_nothing(folder, monkeypatch):
    pool = filled(folder)
    pool.unpin(pool.pin(rows_of(8, 9)), False)
    before = pool.copy(np.arange(10))
    with monkeypatch.context() as patch:
        patch.setattr(pool.file, "read", no_room)
        with pytest.raises(OSError, match="No space"):
            pool.pin(rows_of(0, 1, 2, 3))
    assert not pool._pins.any() and pool._counts[2] == 0
    assert torch.equal(pool.copy(np.arange(10)), before)
    assert sorted(pool.pin(rows_of(0, 1, 2, 3)).tolist()) == [0, 1, 2, 3]


def test_what_the_system_says_reaches_the_user(folder):
    file, array = RecordFile(folder, 12), np.zeros((2, 3), np.float32)
    file.ensure(2)
    reader = os.open(f"/dev/fd/{file.descriptor}", os.O_RDONLY) if os.path.exists("/dev/fd") else None
    if reader is None:
        pytest.skip("no /dev/fd")
    writable, file.descriptor = file.descriptor, reader
    with pytest.raises(UserError, match=r"record 1 of the disk tier's file .* cannot be written: Bad file descriptor"):
        file.write(rows_of(1), rows_of(0), array)
    os.ftruncate(writable, 0)
    with pytest.raises(
        UserError, match=r"record 0 of the disk tier's file .* cannot be read: it stopped in the middle"
    ):
        file.read(rows_of(1, 0), rows_of(0, 1), array)
    os.close(reader)
    with pytest.raises(ValueError, match="outside"):
        file.read(rows_of(file.rows), rows_of(0), array)
    with pytest.raises(ValueError, match="outside"):
        file.write(rows_of(0), rows_of(2), array)
    with pytest.raises(ValueError, match="in one piece"):
        file.read(rows_of(0), rows_of(0), np.zeros((2, 2), np.float32))


def test_no_folder_to_write_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot make a file in .*give another folder with disk="):
        RecordFile(tmp_path / "file", 4)
    assert RecordFile(tmp_path / "new" / "folder", 4).capacity > 0


def test_a_closed_file_is_no_longer_written_to(folder):
    """Its number is the next file's that is opened, whoever opens it."""
    file, array = RecordFile(folder, 12), np.ones((1, 3), np.float32)
    file.ensure(1)
    file.close()
    with open(folder / "another", "w+b") as another:
        with pytest.raises(UserError, match="cannot be written: Bad file descriptor"):
            file.write(rows_of(0), rows_of(0), array)
        assert another.seek(0, os.SEEK_END) == 0


def test_nothing_is_left_when_the_process_is_killed(tmp_path):
    code = f"""
import os, signal
import numpy as np, torch
from nestlab.embedding.host.pool import BufferPool
from nestlab.embedding.host.record_file import RecordFile
pool = BufferPool(4, torch.float32, 8, RecordFile({str(tmp_path)!r}, 16))
for start in range(0, 800, 8):
    pool.unpin(pool.pin(np.arange(start, start + 8)), True)
assert pool.demoted == 792 and os.fstat(pool.file.descriptor).st_nlink == 0
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("width", "count"), [(1, 3000), (7, 3000), (33, 3000), (5000, 500), (20_000, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_records_of_any_size_and_far_rows(folder, width, count, dtype):
    """Stretches of adjacent rows, holes between them, records longer than a page and than the longest stretch, in any
    order, with repeats."""
    rng = np.random.default_rng(width)
    file = RecordFile(folder, width * dtype.itemsize)
    file.ensure(count)
    rows = np.unique(np.concatenate([np.arange(40), 100 + 3 * np.arange(30), rng.integers(0, count, 60)]))
    expected = rng.standard_normal((count, width)).astype(str(dtype).removeprefix("torch."))
    rng.shuffle(rows)
    file.write(rows, rows, expected)
    wanted = rng.choice(rows, 150)
    read = np.zeros((150, width), expected.dtype)
    file.read(wanted, np.arange(150), read)
    assert np.array_equal(read, expected[wanted])
    os.fsync(file.descriptor)
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # what is not in the page cache is waited for
    again = np.zeros_like(read)
    file.read(wanted, np.arange(150), again)
    assert np.array_equal(read, again)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc gives freed memory back at once by a setting of its own")
def test_no_call_uses_memory_that_was_freed(tmp_path):
    """With every large allocation mapped by itself, memory that is used after it was freed is not there any more."""
    code = f"""
import os
import numpy as np
from nestlab.embedding.host.record_file import RecordFile
file, rows = RecordFile({str(tmp_path)!r}, 96), np.arange(1000)
records, read = np.arange(24_000, dtype=np.float32).reshape(1000, 24), np.zeros((1000, 24), np.float32)
file.ensure(1000)
file.write(rows, rows, records)
for cached in (True, False):
    if not cached:
        os.fsync(file.descriptor)
        os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    read[:] = 0
    file.read(rows, rows, read)
    assert np.array_equal(read, records)
"""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "4096"}
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_reads_and_writes_that_stop_early_go_on():
    """The kernels' own loops in plain Python, over system calls that do seven bytes of their work, and then none."""
    disk, memory, left = bytearray(range(200)), bytearray(200), [1000]

    def some(fd, address, count, offset):
        part = min(count, 7, left[0])
        memory[address : address + part] = disk[offset : offset + part]
        left[0] -= part
        return part

    for loop, call in ((file_kernels._read_all, "_pread"), (file_kernels._write_all, "_pwrite")):
        plain = loop.py_func
        patched = type(plain)(plain.__code__, dict(plain.__globals__) | {call: some})
        memory[:], left[0] = bytes(200), 1000
        assert patched(0, 3, 100, 50) and memory[3:103] == disk[50:150] and not any(memory[103:])
        left[0] = 99
        assert not patched(0, 3, 100, 50)


def test_what_threads_share_is_touched_under_its_lock(folder, monkeypatch):
    """Without, two threads harm each other in one of very many runs, which no test waits for."""
    pool, held = filled(folder), []

    def watched(name: str, *locks: threading.Lock):
        kernel = getattr(pool_kernels, name)

        def run(*arguments):
            held.append((name, [lock.locked() for lock in locks]))
            return kernel(*arguments)

        return run

    both = pool._moving, pool._state
    for name, locks in {"pin_resident": both, "unpin": both[1:], "copy_resident": both[:1], "drop": both}.items():
        monkeypatch.setattr(pool_kernels, name, watched(name, *locks))
    pool.unpin(pool.pin(rows_of(0, 1)), True)
    pool.copy(rows_of(0, 2))
    pool.free(rows_of(1))
    assert {name for name, _ in held} == {"pin_resident", "unpin", "copy_resident", "drop"}
    assert all(all(locked) for _, locked in held)


def slow(call):
    def slowly(*arguments):
        threading.Event().wait(0.0005)
        call(*arguments)

    return slowly


def test_two_threads_pin_and_unpin_at_once(folder, monkeypatch):
    """A lane that ends batches beside one that begins them, with a disk slow enough for each to run into the other."""
    pool, rng, done, errors = make(folder, 96), np.random.default_rng(0), [], []
    records = np.zeros((400, WIDTH), np.float32)
    ready = threading.Semaphore(0)
    for name in ("read", "write"):
        monkeypatch.setattr(pool.file, name, slow(getattr(pool.file, name)))

    def finish() -> None:
        try:
            while ready.acquire() and (batch := done.pop(0)) is not None:
                rows, frames = batch
                assert np.array_equal(pool.array[frames], records[rows])
                records[rows] += 1
                pool.array[frames] += 1
                pool.unpin(frames, True)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=finish)
    thread.start()
    for start in range(150):  # batches in flight are disjoint here: one updates what it reads
        rows = (rng.permutation(100)[:24] + 100 * (start % 4)).astype(np.int64)
        while not errors:
            try:
                frames = pool.pin(rows)
                break
            except HostTooSmall:
                threading.Event().wait(0.0005)
        done.append((rows, frames))
        ready.release()
    done.append(None)
    ready.release()
    thread.join(30)
    assert not errors and not thread.is_alive()
    assert pool._counts[pool_kernels.PINNED] == 0
    assert np.array_equal(pool.copy(np.arange(400)).numpy(), records)
