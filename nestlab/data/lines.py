"""Raw text files, plain or gzip, as blocks of lines, with bounded memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from nestlab.errors import UserError

LONGEST_LINE = 1 << 24  # bytes; a file without line ends must not fill the memory
BOM = b"\xef\xbb\xbf"  # what some editors put before the first line of a file
_NEWLINE = 10


@dataclass(frozen=True)
class Block:
    """Some whole lines of a file.

    Attributes:
        first: number of the first of them, from 1.
        text: the lines, each with one LF behind it.
        lines: how many.
        end: where in the (unpacked) file the line after them starts, in bytes: what reading on begins with.
    """

    first: int
    text: bytes
    lines: int
    end: int

    @property
    def after(self) -> tuple[int, int]:
        """`begin` of a `read_blocks` that goes on behind this block."""
        return self.end, self.first + self.lines


def read_lines(path: Path, block_bytes: int, limit: int | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """Yields (number of the first line, lines without line ends), otherwise as `read_blocks`."""
    for block in read_blocks(path, block_bytes, limit):
        yield block.first, split_lines(block)


def read_blocks(
    path: Path, block_bytes: int, limit: int | None = None, begin: tuple[int, int] = (0, 1)
) -> Iterator[Block]:
    """Yields a file in blocks of about `block_bytes`: at most its first `limit` lines.

    Line ends may be LF or CRLF; the last line may lack one; empty lines at the end of the file are no lines, those
    in its middle are. `begin`: `Block.after` of the last block that was seen before.

    Raises:
        UserError: the file cannot be read, its compression is damaged, or a line is longer than 16 MiB.
    """
    (end, first), carry = begin, b""
    with _open(path) as file:
        file.seek(end)
        while limit is None or first <= limit:
            read = file.read(block_bytes)
            data = carry + read
            # The last line with something in it is held back, with the line ends behind it: only what follows shows
            # whether these are empty lines or the end of the file.
            body = data.rstrip(b"\r\n")
            cut = body.rfind(b"\n") + 1 if read else len(body)
            text, carry = (data[:cut], data[cut:]) if read else (body, b"")
            if len(carry) > LONGEST_LINE:
                raise UserError(f"{path}: line {first + text.count(_NEWLINE)} is longer than 16 MiB: not a data file")
            end += len(text)
            if text:
                block = _block(text, first, end, limit)
                yield block
                first += block.lines
            if not read:
                return


def starts_with(path: Path, start: bytes) -> bool:
    """Whether the (unpacked) file does.

    Raises:
        UserError: it cannot be read.
    """
    with _open(path) as file:
        return file.read(len(start)) == start


def split_lines(block: Block) -> list[bytes]:
    """The lines without their ends."""
    return block.text[:-1].split(b"\n")


def _block(text: bytes, first: int, end: int, limit: int | None) -> Block:
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    if not text.endswith(b"\n"):
        text += b"\n"
    lines = text.count(_NEWLINE)
    if limit is not None and first + lines - 1 > limit:
        lines = limit - first + 1
        text = text[: int(np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)[lines - 1]) + 1]
    return Block(first, text, lines, end)


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
