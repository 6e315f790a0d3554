"""Raw text files, plain or gzip, as blocks of lines, with bounded memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from nestlab.errors import UserError

LONGEST_LINE = 1 << 24  # bytes; a file without line ends must not fill the memory


def read_lines(path: Path, block_bytes: int, limit: int | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """Yields (number of the first line, lines without line ends), at most `limit` lines in all.

    Line ends may be LF or CRLF; the last line may lack one; empty lines at the end of the file are no lines, those
    in its middle are. Lines are counted from 1.

    Raises:
        UserError: the file cannot be read, its compression is damaged, or a line is longer than 16 MiB.
    """
    first, carry = 1, b""
    with _open(path) as file:
        while limit is None or first <= limit:
            block = file.read(block_bytes)
            data = carry + block
            # The last line with something in it is held back, with the line ends behind it: only what follows shows
            # whether these are empty lines or the end of the file.
            body = data.rstrip(b"\r\n")
            cut = body.rfind(b"\n") + 1 if block else len(body)
            text, carry = (data[:cut], data[cut:]) if block else (body, b"")
            if len(carry) > LONGEST_LINE:
                raise UserError(f"{path}: line {first + text.count(10)} is longer than 16 MiB: not a data file")
            lines = _split(text)
            if limit is not None:
                lines = lines[: limit - first + 1]
            if lines:
                yield first, lines
                first += len(lines)
            if not block:
                return


def _split(text: bytes) -> list[bytes]:
    if not text:
        return []
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    return (text[:-1] if text.endswith(b"\n") else text).split(b"\n")


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
