"""The files of KuaiRand-Pure, -1K and -27K: what there is, what lies under a root, and what does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STANDARD, RANDOM, USERS, VIDEOS, STATISTIC = "standard", "random", "users", "videos", "statistic"


@dataclass(frozen=True)
class Variant:
    """One of the three data sets.

    Attributes:
        key: what its file names end in: pure, 1k or 27k.
        folder: the archive's own folder.
        files: by role, in the order of time; a file is listed under every form of its name.
        rows: published rows by role of the log.
    """

    key: str
    folder: str
    files: dict[str, tuple[str, ...]]
    rows: dict[str, int]


def _variant(key: str, folder: str, parts: int, statistic_parts: int, rows: tuple[int, int]) -> Variant:
    def split(stem: str, count: int) -> list[str]:
        return [f"{stem}_{key}.csv"] if count == 1 else [f"{stem}_{key}_part{i}.csv" for i in range(1, count + 1)]

    standard = [*split("log_standard_4_08_to_4_21", parts), *split("log_standard_4_22_to_5_08", parts)]
    files = {
        STANDARD: tuple(standard),
        RANDOM: (f"log_random_4_22_to_5_08_{key}.csv",),
        USERS: (f"user_features_{key}.csv",),
        VIDEOS: (f"video_features_basic_{key}.csv",),
        STATISTIC: tuple(split("video_features_statistic", statistic_parts)),
    }
    return Variant(key, folder, files, {STANDARD: rows[0], RANDOM: rows[1]})


PURE = _variant("pure", "KuaiRand-Pure", 1, 1, (1_436_609, 1_186_059))
K1 = _variant("1k", "KuaiRand-1K", 1, 1, (11_713_045, 43_028))
K27 = _variant("27k", "KuaiRand-27K", 2, 3, (322_278_385, 1_186_059))


@dataclass(frozen=True)
class Survey:
    """What of a variant lies in one folder: paths by role, and the names of the files that do not."""

    variant: Variant
    found: dict[str, list[Path]]
    missing: dict[str, list[str]]

    @property
    def has_log(self) -> bool:
        return bool(self.found[STANDARD] or self.found[RANDOM])

    def paths(self, *roles: str) -> list[Path]:
        return [path for role in roles for path in self.found[role]]

    def absent(self, *roles: str) -> list[str]:
        return [name for role in roles for name in self.missing[role]]


def survey(variant: Variant, root: Path) -> Survey:
    """Looks in `root/KuaiRand-…/data`, `root/KuaiRand-…`, `root/data` and `root`, in this order.

    The first folder with a log is taken, else the first with any file; files are never gathered from two folders.
    """
    folders = (root / variant.folder / "data", root / variant.folder, root / "data", root)
    looks = [_look(variant, folder) for folder in folders]
    with_log = [look for look in looks if look.has_log]
    with_any = [look for look in looks if any(look.found.values())]
    return [*with_log, *with_any, looks[0]][0]


def _look(variant: Variant, folder: Path) -> Survey:
    found = {role: [folder / n for n in names if (folder / n).is_file()] for role, names in variant.files.items()}
    missing = {role: [n for n in names if not (folder / n).is_file()] for role, names in variant.files.items()}
    return Survey(variant, found, missing)
