"""`nestlab data fetch` against a server that breaks off, lies, is slow, and changes its mind.

Broken on purpose, each seen to fail here: a range appended without looking at its ETag or Content-Range; a validator
that is not sent; a checksum that is not compared; a partial file kept after a wrong checksum; names of an archive not
checked; sizes believed rather than counted; free space not looked at.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest
from fetch_server import Served, Server

from nestlab import cli
from nestlab.data import fetch as fetching
from nestlab.data.fetch import FetchOptions, fetch_all
from nestlab.data.fetch_catalogue import ENTRIES, Remote, chosen, parse_days
from nestlab.data.fetch_http import Tries
from nestlab.data.fetch_partial import Partial
from nestlab.errors import UserError

PATIENT = FetchOptions(tries=Tries(timeout_s=0.3, tries=3, pause_s=0.001))


def packed(content: bytes, size: int = 1_024_000) -> bytes:
    """A gzip file of `size` bytes: a long name in its header fills it up."""
    plain = gzip.compress(content, compresslevel=0, mtime=0)
    name = b"n" * (size - len(plain) - 1) + b"\0"
    return plain[:3] + b"\x08" + plain[4:10] + name + plain[10:]


DAY = packed(bytes(range(256)) * 3900)
OTHER = packed(bytes(range(256))[::-1] * 3900)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    yield server
    server.close()


def archive(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


PURE = archive({"KuaiRand-Pure/data/log.csv": b"a,b\n1,2\n" * 1000, "KuaiRand-Pure/LICENSE": b"share alike"})


def day(server, **changes) -> Remote:
    given = {"name": "day_0.gz", "addresses": (f"{server.url}/day_0.gz",), "md5": None, "packing": "gz"}
    return Remote(**{**given, "folder": "criteo-1tb", "limit": 1 << 30, **changes})


def pure(server, content=PURE, **changes) -> Remote:
    md5 = hashlib.md5(content).hexdigest()
    given = {"name": "KuaiRand-Pure.tar.gz", "addresses": (f"{server.url}/KuaiRand-Pure.tar.gz",), "md5": md5}
    return Remote(**{**given, "packing": "tar.gz", "folder": "KuaiRand-Pure", "limit": 1 << 20, **changes})


def get(remote, root, options=PATIENT):
    told = []
    (fetched,) = fetch_all([remote], root, options, told.append)
    return fetched, told


def left_over(root):
    return sorted(path.name for path in root.rglob("*") if path.is_file() and not path.name.endswith(".lock"))


def test_an_archive_becomes_its_folder_and_a_record(server, tmp_path):
    server.files["/KuaiRand-Pure.tar.gz"] = Served(PURE)
    fetched, _ = get(pure(server), tmp_path)
    assert fetched.path == tmp_path / "KuaiRand-Pure" and fetched.new
    assert (fetched.path / "data" / "log.csv").read_bytes() == b"a,b\n1,2\n" * 1000
    assert left_over(tmp_path) == ["KuaiRand-Pure.tar.gz.sha256", "LICENSE", "log.csv"]
    assert (fetched.path / "KuaiRand-Pure.tar.gz.sha256").read_text().split()[0] == hashlib.sha256(PURE).hexdigest()
    again, told = get(pure(server), tmp_path)
    assert not again.new and again.sha256 == fetched.sha256 and "already" in told[0]
    assert len(server.files["/KuaiRand-Pure.tar.gz"].asked) == 1


def test_a_kept_archive_is_used_again(server, tmp_path):
    server.files["/KuaiRand-Pure.tar.gz"] = served = Served(PURE)
    keep = FetchOptions(keep_archive=True, tries=PATIENT.tries)
    get(pure(server), tmp_path, keep)
    assert (tmp_path / "KuaiRand-Pure.tar.gz").read_bytes() == PURE
    shutil.rmtree(tmp_path / "KuaiRand-Pure")
    get(pure(server), tmp_path, keep)
    assert len(served.asked) == 1
    shutil.rmtree(tmp_path / "KuaiRand-Pure")
    (tmp_path / "KuaiRand-Pure.tar.gz").write_bytes(PURE[:-1])
    with pytest.raises(UserError, match=r"wrong checksum .* remove .*KuaiRand-Pure.tar.gz, and try again"):
        get(pure(server), tmp_path, keep)


def test_a_download_that_breaks_off_goes_on_where_it_was(server, tmp_path):
    server.files["/day_0.gz"] = served = Served(DAY, break_after=[300_000, 500_000])
    fetched, told = get(day(server), tmp_path)
    assert fetched.path.read_bytes() == DAY
    assert served.asked == [(None, None), ("bytes=300000-", '"one"'), ("bytes=800000-", '"one"')]
    assert any("broke off at 300,000 of 1,024,000 bytes" in line for line in told)
    assert left_over(tmp_path) == ["day_0.gz", "day_0.gz.sha256"]


def test_a_command_goes_on_where_the_one_before_was_killed(server, tmp_path):
    once = FetchOptions(tries=Tries(timeout_s=1, tries=1, pause_s=0))
    server.files["/day_0.gz"] = served = Served(DAY, break_after=[300_000], statuses=[])
    served.break_after += [0]
    with pytest.raises(UserError, match=r"300,000 bytes are kept: run the same command later"):
        get(day(server), tmp_path, once)
    assert left_over(tmp_path) == ["day_0.gz.partial", "day_0.gz.partial.json"]
    assert get(day(server), tmp_path, once)[0].path.read_bytes() == DAY
    assert served.asked[-1] == ("bytes=300000-", '"one"')


@pytest.mark.parametrize("honours", [True, False], ids=["If-Range", "ignores If-Range"])
def test_a_file_that_changes_midway_comes_anew(honours, server, tmp_path):
    served = Served(DAY, break_after=[300_000], etags=['"one"', '"two"'], contents=[DAY, OTHER])
    served.honours_if_range = honours
    server.files["/day_0.gz"] = served
    fetched, told = get(day(server), tmp_path)
    assert fetched.path.read_bytes() == OTHER
    assert any("beginning again" in line for line in told)


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_validator_only_a_known_checksum_lets_it_go_on(etag, server, tmp_path):
    server.files["/day_0.gz"] = served = Served(DAY, etag=etag, break_after=[300_000])
    get(day(server), tmp_path / "unknown")
    assert served.asked == [(None, None), (None, None)]
    server.files["/day_0.gz"] = served = Served(DAY, etag=etag, break_after=[300_000])
    get(day(server, md5=hashlib.md5(DAY).hexdigest()), tmp_path / "known")
    assert served.asked == [(None, None), ("bytes=300000-", None)]


def test_a_server_without_ranges_begins_again_and_is_given_up_by_name(server, tmp_path):
    server.files["/day_0.gz"] = Served(DAY, ranges=False, break_after=[300_000])
    fetched, told = get(day(server), tmp_path / "a")
    assert fetched.path.read_bytes() == DAY and any("ignores Range; beginning again" in line for line in told)
    server.files["/day_0.gz"] = Served(DAY, ranges=False, break_after=[300_000] * 9)
    with pytest.raises(UserError, match=r"ignores Range: it sends the whole file anew each time; try .*--mirror"):
        get(day(server), tmp_path / "b")


def test_a_slow_server_is_waited_for_and_a_silent_one_asked_again(server, tmp_path):
    server.files["/day_0.gz"] = served = Served(DAY, stall_s=0.1)
    get(day(server), tmp_path / "slow")
    assert len(served.asked) == 1
    server.files["/day_0.gz"] = served = Served(DAY, stall_s=0.6)
    get(day(server), tmp_path / "silent")
    assert len(served.asked) == 2


def test_an_overloaded_server_is_asked_again_and_another_fault_is_not(server, tmp_path):
    server.files["/day_0.gz"] = served = Served(DAY, statuses=[503, 429])
    get(day(server), tmp_path)
    assert len(served.asked) == 3
    server.files["/day_1.gz"] = served = Served(DAY, statuses=[400] * 3)
    with pytest.raises(UserError, match=r"answer 400"):
        get(day(server, name="day_1.gz", addresses=(f"{server.url}/day_1.gz",)), tmp_path)
    assert len(served.asked) == 1


def test_wrong_bytes_are_removed_and_the_next_try_succeeds(server, tmp_path):
    server.files["/KuaiRand-Pure.tar.gz"] = Served(PURE, contents=[PURE[:-9] + b"x" * 9, PURE])
    with pytest.raises(UserError, match=r"wrong checksum [0-9a-f]{32}, expected [0-9a-f]{32}: it was removed"):
        get(pure(server), tmp_path)
    assert left_over(tmp_path) == []
    assert get(pure(server), tmp_path)[0].new


def test_where_nobody_publishes_a_checksum_the_first_download_sets_it(server, tmp_path):
    server.files["/day_0.gz"] = served = Served(DAY)
    fetched, _ = get(day(server), tmp_path)
    assert fetched.sha256 == hashlib.sha256(DAY).hexdigest()
    fetched.path.unlink()
    served.content = OTHER
    for _ in range(2):
        with pytest.raises(UserError, match=r"wrong checksum .* or remove .*day_0.gz.sha256 to accept this version"):
            get(day(server), tmp_path)
    (tmp_path / "criteo-1tb" / "day_0.gz.sha256").unlink()
    assert get(day(server), tmp_path)[0].sha256 == hashlib.sha256(OTHER).hexdigest()
    assert len(served.asked) == 2  # what was refused was not thrown away


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"<html>log in</html>", "Not a gzipped file"),
        (DAY[:-9], "ended before the end-of-stream"),
        (DAY[:-8] + bytes(8), "CRC check failed"),
        (gzip.compress(b""), "unpacks to nothing"),
        (gzip.compress(bytes(5000)), "more than 4,000 bytes"),
    ],
    ids=["page", "cut", "sum", "empty", "bomb"],
)
def test_a_day_without_a_checksum_counts_only_if_it_unpacks(content, why, server, tmp_path):
    """Though it stays packed. Broken on purpose: not looked into; the end not reached."""
    server.files["/day_0.gz"] = Served(content, etag=None)
    limit = 4000 if "4,000" in why else 1 << 30
    with pytest.raises(UserError, match=rf"day_0.gz: .*{why}.*: it was removed; try again"):
        get(day(server, limit=limit), tmp_path)
    assert left_over(tmp_path) == []
    server.files["/day_0.gz"] = Served(DAY)
    assert get(day(server), tmp_path)[0].new
    (tmp_path / "criteo-1tb" / "day_1.gz").write_bytes(b"<html>saved by a browser</html>")
    with pytest.raises(UserError, match=r"day_1.gz: is there, but is no gzip file; remove it"):
        get(day(server, name="day_1.gz"), tmp_path)


def test_a_folder_may_be_a_link_to_elsewhere(server, tmp_path):
    """Even to another disk. Broken on purpose: unpacked beside the link."""
    server.files["/KuaiRand-Pure.tar.gz"] = Served(PURE)
    disk = next((each for each in (Path("/dev/shm"),) if os.access(each, os.W_OK)), tmp_path)
    with tempfile.TemporaryDirectory(dir=disk) as elsewhere:
        for name in ("KuaiRand-Pure", "criteo-1tb"):
            (Path(elsewhere) / name).mkdir()
            (tmp_path / name).symlink_to(Path(elsewhere) / name)
        fetched, _ = get(pure(server), tmp_path)
        assert (tmp_path / "KuaiRand-Pure").is_symlink() and fetched.path == Path(elsewhere) / "KuaiRand-Pure"
        assert (tmp_path / "KuaiRand-Pure" / "data" / "log.csv").exists()
        assert not get(pure(server), tmp_path)[0].new
        server.files["/day_0.gz"] = Served(DAY)
        get(day(server), tmp_path, FetchOptions(unpack=True, tries=PATIENT.tries))
        assert (tmp_path / "criteo-1tb" / "day_0").read_bytes() == gzip.decompress(DAY)
        assert not list(Path(elsewhere).rglob("*.unpacking"))


def test_a_mirror_goes_on_with_what_its_checksum_proves(server, tmp_path):
    server.files["/KuaiRand-Pure.tar.gz"] = Served(PURE, break_after=[100, 0, 0, 0])
    server.files["/copies/KuaiRand-Pure.tar.gz"] = mirrored = Served(PURE, etag='"its own"')
    with pytest.raises(UserError, match=r"or give --mirror URL"):
        get(pure(server), tmp_path)
    get(pure(server), tmp_path, FetchOptions(mirror=f"{server.url}/copies/", tries=PATIENT.tries))
    assert mirrored.asked == [("bytes=100-", None)]


def test_the_next_address_is_tried_where_one_has_it_no_more(server, tmp_path):
    server.files["/old/day_0.gz"] = Served(DAY)
    both = (f"{server.url}/new/day_0.gz", f"{server.url}/old/day_0.gz")
    assert get(day(server, addresses=both), tmp_path)[0].path.read_bytes() == DAY
    with pytest.raises(UserError, match=r"404 Not Found; check the connection and --mirror, or put the file at"):
        get(day(server, addresses=both[:1]), tmp_path / "b")


def test_no_network_is_said_at_once(tmp_path):
    closed = Server()
    closed.close()
    with pytest.raises(UserError, match=r"127.0.0.1:\d+ does not answer .*refused.*; check the connection"):
        get(day(closed), tmp_path, FetchOptions(tries=Tries(pause_s=60)))


def test_a_full_disk_is_seen_before_the_first_byte(server, tmp_path, monkeypatch):
    server.files["/KuaiRand-Pure.tar.gz"] = Served(PURE)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: usage(10**12, 0, 3 * 10**9))
    with pytest.raises(UserError, match=r"needs 5.2 GB below .*, of which 3.0 GB are free"):
        get(pure(server, unpacked=5 * 10**9), tmp_path)
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"headers": {"Content-Encoding": "gzip"}}, "packs the file once more"), ({"says_length": False}, "how long")],
)
def test_answers_that_cannot_be_trusted_are_refused(changes, message, server, tmp_path):
    server.files["/day_0.gz"] = Served(DAY, **changes)
    with pytest.raises(UserError, match=message):
        get(day(server), tmp_path)


def test_a_folder_from_elsewhere_is_never_written_over(server, tmp_path):
    server.files["/KuaiRand-Pure.tar.gz"] = served = Served(PURE)
    (tmp_path / "KuaiRand-Pure").mkdir()
    (tmp_path / "KuaiRand-Pure" / "mine.csv").write_text("mine")
    with pytest.raises(UserError, match=r"is there, but not from a finished fetch; move it away"):
        get(pure(server), tmp_path)
    assert not served.asked and left_over(tmp_path) == ["mine.csv"]


def test_two_at_once_do_not_meet_in_one_file(server, tmp_path):
    (tmp_path / "criteo-1tb").mkdir()
    with Partial(tmp_path / "criteo-1tb" / "day_0.gz").alone(), pytest.raises(UserError, match="another process"):
        get(day(server), tmp_path)


def test_a_bad_archive_leaves_no_folder(server, tmp_path):
    bad = archive({"KuaiRand-Pure/a": b"a", "../b": b"b"})
    server.files["/KuaiRand-Pure.tar.gz"] = Served(bad)
    with pytest.raises(UserError, match="outside the destination"):
        get(pure(server, bad), tmp_path)
    assert left_over(tmp_path) == ["KuaiRand-Pure.tar.gz"]
    assert not (tmp_path / "KuaiRand-Pure").exists() and not (tmp_path.parent / "b").exists()


def test_the_catalogue_says_what_is_known_and_refuses_the_rest():
    assert [len(chosen(name, [0, 23, 0] if entry.by_day else None)) for name, entry in ENTRIES.items()] == [1] * 4 + [2]
    for name, entry in ENTRIES.items():
        for remote in entry.remotes:
            assert (remote.md5 is not None) == name.startswith("kuairand")
            assert all(address.startswith("https://") and address.endswith(remote.name) for address in remote.addresses)
    assert parse_days("0-2, 5") == [0, 1, 2, 5]
    for days in ("x", "1-", "-1", "", "1,,2"):
        with pytest.raises(UserError, match="--days"):
            parse_days(days)
    for name, days, why in [("nothing", None, "cannot be fetched"), ("criteo-1tb", None, "which days")]:
        with pytest.raises(UserError, match=why):
            chosen(name, days)
    for name, days, why in [("criteo-1tb", [24], "0 to 23"), ("kuairand-pure", [1], "has no days")]:
        with pytest.raises(UserError, match=why):
            chosen(name, days)


def test_the_command_line(server, tmp_path, capsys):
    server.files["/day_3.gz"] = Served(DAY)
    line = ["data", "fetch", "criteo-1tb", "--root", str(tmp_path), "--mirror", server.url]
    assert cli.main([*line, "--days", "3"]) == 0
    assert capsys.readouterr().out.endswith(f"day_3.gz: sha256 {hashlib.sha256(DAY).hexdigest()}\n")
    assert cli.main([*line, "--days", "3"]) == 0 and "was there already" in capsys.readouterr().out
    assert cli.main([*line, "--days", "4"]) == 2 and "404" in capsys.readouterr().err
    assert cli.main([*line[:-1], "elsewhere", "--days", "4"]) == 2 and "begins with https" in capsys.readouterr().err
