"""What runs in a rank process that `launch` started."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import pickle
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nestlab.errors import RankFailed, UserError


@dataclass(frozen=True)
class Folders:
    """Where ranks write: `logs` for the reader, `notes` for the launcher, which reads them while the ranks run."""

    logs: Path
    notes: Path

    def log(self, rank: int) -> Path:
        return self.logs / f"rank_{rank}.log"

    def begun(self, rank: int) -> Path:
        return self.notes / f"rank_{rank}.begun"

    def error(self, rank: int) -> Path:
        return self.notes / f"rank_{rank}.error.json"


def run_rank(target: str, payload: bytes, folders: Folders, threads: int) -> bytes | None:
    """Calls `module:function`, with all output in the rank's log.

    Args:
        payload: pickled (args, kwargs).

    Returns:
        The pickled result, None after an error.
    """
    rank = int(os.environ["RANK"])
    _send_output_to(folders.log(rank))
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the launcher asks where a rank stands that is late
    try:
        import torch

        torch.set_num_threads(threads)
        module, _, name = target.partition(":")
        args, kwargs = pickle.loads(payload)
        function = getattr(importlib.import_module(module), name)
        folders.begun(rank).touch()
        return pickle.dumps(function(*args, **kwargs))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        traceback.print_exc()
        _write_error(folders.error(rank), error)
        return None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _send_output_to(path: Path) -> None:
    """Both streams, and what libraries write to them past Python."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)


def _write_error(path: Path, error: BaseException) -> None:
    found: dict[str, Any] = {
        "kind": type(error).__name__,
        "text": "\n".join([str(error), *getattr(error, "__notes__", [])]),
        "of_user": isinstance(error, UserError),
        "of_another": isinstance(error, RankFailed),
        "at": time.time(),
    }
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps(found))
    whole.rename(path)
