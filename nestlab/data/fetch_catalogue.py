"""What `nestlab data fetch` knows of each data set: addresses, checksums, and where the files go.

A checksum stands here only where the data's own home publishes one. Criteo publishes none for its files: of these,
the sha256 of what came is written beside, and a later download that differs from it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nestlab.errors import UserError

GIB = 1 << 30


@dataclass(frozen=True)
class Remote:
    """One file to download.

    Attributes:
        name: the file's own name; behind a mirror's address, too.
        addresses: where it lies, tried in this order where one says that it is not there.
        md5: 32 hex digits, published with the data; None: nobody publishes one.
        packing: `tar.gz`, `zip` or `gz`: how it is packed.
        folder: of the data, below the root.
        limit: bytes that it may unpack to; beyond, it is no copy of this data.
        members: files that it may hold.
        unpacked: bytes that it is known to unpack to, for the check of free space; 0: not known.
    """

    name: str
    addresses: tuple[str, ...]
    md5: str | None
    packing: str
    folder: str
    limit: int
    members: int = 1000
    unpacked: int = 0


@dataclass(frozen=True)
class Entry:
    """A data set that can be fetched; `by_day`: its files are days, any of which may be chosen."""

    name: str
    remotes: tuple[Remote, ...]
    by_day: bool = False


def _kuairand(name: str, md5: str, unpacked: int) -> Entry:
    archive = f"{name}.tar.gz"
    address = f"https://zenodo.org/records/10439422/files/{archive}"
    remote = Remote(archive, (address,), md5, "tar.gz", name, limit=2 * unpacked, unpacked=unpacked)
    return Entry(name.lower(), (remote,))


def _day(day: int) -> Remote:
    name = f"day_{day}.gz"
    # Hugging Face is its home today; the bucket is where older scripts, MLPerf's among them, took it from.
    addresses = (
        f"https://huggingface.co/datasets/criteo/CriteoClickLogs/resolve/main/{name}",
        f"https://storage.googleapis.com/criteo-cail-datasets/{name}",
    )
    return Remote(name, addresses, None, "gz", "criteo-1tb", limit=100 * GIB)


_KAGGLE = Remote(
    name="criteo-research-kaggle-display-advertising-challenge-dataset.tar.gz",
    addresses=("https://go.criteo.net/criteo-research-kaggle-display-advertising-challenge-dataset.tar.gz",),
    md5=None,
    packing="tar.gz",
    folder="criteo-kaggle",
    limit=30 * GIB,
)

ENTRIES = {
    entry.name: entry
    for entry in (
        _kuairand("KuaiRand-Pure", "0820331067a3784d9691136f772b35a7", 194_000_000),
        _kuairand("KuaiRand-1K", "6b0b9c8222d67fcd4c676218edca3f1f", 4_300_000_000),
        _kuairand("KuaiRand-27K", "3e3c799a24e2d23a4d2c757fbf9adf59", 46_000_000_000),
        Entry("criteo-kaggle", (_KAGGLE,)),
        Entry("criteo-1tb", tuple(_day(day) for day in range(24)), by_day=True),
    )
}


def chosen(name: str, days: Iterable[int] | None = None) -> tuple[Remote, ...]:
    """The files of a data set; `days`: of Criteo 1TB, which of the 24.

    Raises:
        UserError: no such data set, a day that there is not, or days missing or out of place.
    """
    if name not in ENTRIES:
        raise UserError(f"fetch: '{name}' cannot be fetched: choose one of {', '.join(ENTRIES)}")
    entry = ENTRIES[name]
    if not entry.by_day:
        if days is not None:
            raise UserError(f"fetch: '{name}' has no days; leave --days out")
        return entry.remotes
    last = len(entry.remotes) - 1
    if days is None:
        raise UserError(f"fetch: '{name}' is about 1.3 TB unpacked; say which days: --days 0-{last}, or --days 0,23")
    wanted = sorted(dict.fromkeys(days))
    if not wanted or wanted[0] < 0 or wanted[-1] > last:
        raise UserError(f"fetch: days {wanted}: choose from 0 to {last}")
    return tuple(entry.remotes[day] for day in wanted)


def parse_days(text: str) -> list[int]:
    """From `0-6,23` to the numbers.

    Raises:
        UserError: it is not of that form.
    """
    days: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)) or len(first) > 3 or len(last) > 3:
            raise UserError(f"--days {text}: write single days and ranges, such as 0-6,23")
        days += range(int(first), int(last or first) + 1)
    return days
