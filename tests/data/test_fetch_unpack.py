"""Archives made by hand to do harm, and damaged ones.

Broken on purpose, each seen to fail here: links let through; `..` let through; a member of more bytes than the limit
written before it is counted; the budget of a header left out; a file written over another.
"""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile

import pytest

from nestlab.data.fetch_unpack import Limits, unpack
from nestlab.errors import UserError

LIMITS = Limits(total=100_000, members=20)


def tar(path, *members, zeros=0):
    with tarfile.open(path, "w:gz") as out:
        for name, changes, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for key, value in changes.items():
                setattr(member, key, value)
            out.addfile(member, io.BytesIO(content))
    return path


def tried(path, packing, into, limits=LIMITS):
    into.mkdir()
    unpack(path, packing, into, limits)
    return {str(p.relative_to(into)): p.read_bytes() for p in sorted(into.rglob("*")) if p.is_file()}


def test_an_honest_tar(tmp_path):
    members = [("top", {"type": tarfile.DIRTYPE}, b""), ("top/a", {"mode": 0o4777}, b"one"), ("./top/sub/b", {}, b"")]
    found = tried(tar(tmp_path / "x.tar.gz", *members), "tar.gz", tmp_path / "out")
    assert found == {"top/a": b"one", "top/sub/b": b""}
    assert not (tmp_path / "out" / "top" / "a").stat().st_mode & (stat.S_ISUID | stat.S_IXUSR)


BAD = {
    "above": [("../a", {}, b"x")],
    "hidden above": [("a/../../b", {}, b"x")],
    "absolute": [("/tmp/nestlab-a", {}, b"x")],
    "backslash": [("..\\a", {}, b"x")],
    "link": [("a", {"type": tarfile.SYMTYPE, "linkname": "/etc"}, b""), ("a/passwd", {}, b"x")],
    "link inside": [("a", {}, b"x"), ("b", {"type": tarfile.SYMTYPE, "linkname": "a"}, b"")],
    "hard link inside": [("a", {}, b"x"), ("b", {"type": tarfile.LNKTYPE, "linkname": "a"}, b"")],
    "hard link": [("a", {"type": tarfile.LNKTYPE, "linkname": "../b"}, b"")],
    "device": [("a", {"type": tarfile.CHRTYPE}, b"")],
    "pipe": [("a", {"type": tarfile.FIFOTYPE}, b"")],
    "twice": [("a", {}, b"x"), ("./a", {}, b"y")],
    "below a file": [("a", {}, b"x"), ("a/b", {}, b"y")],
    "nothing in it": [("a", {"type": tarfile.DIRTYPE}, b"")],
    "large": [("a", {}, b"0" * 60_000), ("b", {}, b"0" * 60_000)],
    "many": [(f"a{i}", {}, b"") for i in range(21)],
    "a header of 3 MB": [("a", {"pax_headers": {"comment": "x" * 3_000_000}}, b"")],
}


@pytest.mark.parametrize("case", BAD)
def test_a_tar_that_means_harm_is_refused(case, tmp_path):
    path = tar(tmp_path / "x.tar.gz", *BAD[case])
    with pytest.raises(UserError, match=r"x.tar.gz: not to be trusted: .*; remove it"):
        tried(path, "tar.gz", tmp_path / "out")
    assert {p.name for p in tmp_path.iterdir()} == {"x.tar.gz", "out"}
    assert sum(p.stat().st_size for p in (tmp_path / "out").rglob("*") if p.is_file()) <= 100_000
    assert not any(p.is_symlink() for p in (tmp_path / "out").rglob("*"))


def test_a_damaged_tar(tmp_path):
    path = tar(tmp_path / "x.tar.gz", ("a", {}, bytes(range(256)) * 300), ("b", {}, b"x" * 10))
    whole = path.read_bytes()
    for number, content in enumerate([b"", whole[:100], whole[:-4], whole[:-8] + b"12341234", b"no gzip at all"]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"x.tar.gz: damaged"):
            tried(path, "tar.gz", tmp_path / f"out{number}")


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, mode, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            out.writestr(info, content)
    return path


def test_zips(tmp_path):
    good = zipped(tmp_path / "x.zip", [("d/", 0o40755, b""), ("d/a", 0o100644, b"one"), ("b", 0, b"two")])
    assert tried(good, "zip", tmp_path / "good") == {"d/a": b"one", "b": b"two"}
    bad = [[("../a", 0, b"x")], [("a", stat.S_IFLNK | 0o777, b"/etc")], [("a", 0, b"0" * 100_001)], [("/a", 0, b"")]]
    for number, members in enumerate(bad):
        with pytest.raises(UserError, match="not to be trusted"):
            tried(zipped(tmp_path / "y.zip", members), "zip", tmp_path / f"bad{number}")
    good.write_bytes(good.read_bytes()[:-10])
    with pytest.raises(UserError, match="damaged"):
        tried(good, "zip", tmp_path / "damaged")


def test_a_zip_that_lies_about_its_size(tmp_path):
    path = zipped(tmp_path / "x.zip", [("a", 0, b"0" * 90_000), ("b", 0, b"0" * 90_000)])
    content = path.read_bytes().replace((90_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    path.write_bytes(content)
    with pytest.raises(UserError):
        tried(path, "zip", tmp_path / "out")
    assert sum(p.stat().st_size for p in (tmp_path / "out").rglob("*") if p.is_file()) <= 100_000


def test_one_file_of_gzip(tmp_path):
    path = tmp_path / "day_0.gz"
    path.write_bytes(gzip.compress(b"row\n" * 1000) + gzip.compress(b"more"))
    assert tried(path, "gz", tmp_path / "out") == {"day_0": b"row\n" * 1000 + b"more"}
    path.write_bytes(gzip.compress(bytes(10_000_000)))
    with pytest.raises(UserError, match="more than 100,000 bytes"):
        tried(path, "gz", tmp_path / "bomb")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="damaged"):
        tried(path, "gz", tmp_path / "cut", Limits(1 << 30))
