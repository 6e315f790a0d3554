"""What a long benchmark says while its ranks measure: lines on standard error, so that the result stays alone."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MARK = "progress: "
_LOOK_S = 0.5


def tell(line: str) -> None:
    """For a rank to call, whose output is its log."""
    print(f"{_MARK}{line}", flush=True)


@contextmanager
def followed(title: str) -> Iterator[str]:
    """Says `title`, and then what rank 0 tells; gives the folder that `launch` takes as `log_dir`."""
    print(title, file=sys.stderr, flush=True)
    over = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=_follow, args=(Path(folder) / "rank_0.log", over), daemon=True)
        thread.start()
        try:
            yield folder
        finally:
            over.set()
            thread.join()


def _follow(log: Path, over: threading.Event) -> None:
    shown = 0
    while True:
        last = over.wait(_LOOK_S)
        lines = log.read_text(errors="replace").split("\n")[:-1] if log.exists() else []  # whole lines alone
        for line in lines[shown:]:
            if line.startswith(_MARK):
                print(f"  {line.removeprefix(_MARK)}", file=sys.stderr, flush=True)
        shown = max(shown, len(lines))
        if last:
            return
