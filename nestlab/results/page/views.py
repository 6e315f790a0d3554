"""A run as the page shows it: plain values, and links relative to the page."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nestlab.results import export
from nestlab.results.store import list_runs


@dataclasses.dataclass(frozen=True)
class RunView:
    """One run.

    Attributes:
        dataset: id, kind, title and fingerprint, as far as they are recorded.
        figures, files: (name, link) of pictures, and of everything else that can be opened.
    """

    run_id: str
    experiment: str
    status: str
    title: str
    how: str
    via: str
    seed: Any
    start: datetime.datetime | None
    seconds: float | None
    exception: str
    params: dict[str, Any]
    summary: dict[str, Any]
    dataset: dict[str, Any]
    figures: list[tuple[str, str]]
    files: list[tuple[str, str]]

    @property
    def data_title(self) -> str:
        """The data's name, which always says whether it is real or SYNTHETIC."""
        name = str(self.dataset.get("title") or self.dataset.get("id") or "no data recorded")
        if self.synthetic:
            return name if "synthetic" in name.lower() else f"{name} (SYNTHETIC)"
        unsaid = self.data_kind == "real" and not re.search(r"\breal\b", name.lower())
        return f"{name}, real data" if unsaid else name

    @property
    def data_kind(self) -> str:
        """real, synthetic or none."""
        return str(self.dataset.get("kind")) if self.dataset.get("kind") in ("real", "synthetic") else "none"

    @property
    def synthetic(self) -> bool:
        return self.dataset.get("kind") == "synthetic"


def views(results_dir: Path) -> list[RunView]:
    """All runs, the newest first."""
    rows = list_runs(results_dir).to_dict("records")
    found = [_view(row, results_dir) for row in rows]
    never = datetime.datetime.min.replace(tzinfo=datetime.UTC)
    return sorted(found, key=lambda run: run.start or never, reverse=True)


def number(value: Any) -> float | None:
    """A finite number that can be drawn, or None."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None


def shown(name: str, value: Any) -> str:
    """A key figure or parameter in words: bytes in units that can be read, numbers to four digits."""
    drawn = number(value)
    if drawn is None:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if name.endswith("_bytes") and drawn >= 1024:
        unit = min(int(math.log2(drawn)) // 10, 4)
        return f"{drawn / 1024**unit:.4g} {('', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"
    return f"{value:,}" if isinstance(value, int) else export.number(value)


def _view(row: dict[str, Any], root: Path) -> RunView:
    folder = Path(row["path"])
    text = {
        name: str(row[name] or "") for name in ("run_id", "experiment", "status", "title", "how", "via", "exception")
    }
    objects = {name: row[name] if isinstance(row[name], dict) else {} for name in ("params", "summary", "dataset")}
    return RunView(
        **text,
        **objects,
        seed=row["seed"],
        start=_time(row["start"]),
        seconds=number(row["duration_s"]),
        figures=_links(root, sorted((folder / "figures").glob("[!.]*.png"))),
        files=_links(root, _files(folder)),
    )


def _files(folder: Path) -> list[Path]:
    """What a reader may want to open: the notebook first, then traces, tables and logs."""
    found = [*folder.glob("notebook.ipynb"), *sorted(folder.glob("trace*"))]
    found += [*sorted((folder / "tables").glob("[!.]*.parquet")), *folder.glob("manifest.json")]
    return found + [path for path in sorted(folder.glob("*.log")) if path.stat().st_size > 0]


def _links(root: Path, paths: list[Path]) -> list[tuple[str, str]]:
    return [(path.name, quote(path.relative_to(root).as_posix())) for path in paths]


def _time(text: Any) -> datetime.datetime | None:
    try:
        found = datetime.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
