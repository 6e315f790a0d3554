"""One file over HTTP, resumable: what has come stays in `NAME.partial` until the whole is there.

A download goes on with a Range request (RFC 9110, section 14). If-Range carries the ETag or the date that the first
bytes came with, so that a file which changed meanwhile comes anew in place of being spliced. Without either, only a
file whose checksum is known goes on: the checksum tells a splice.
"""

from __future__ import annotations

import errno
import http.client
import re
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from nestlab.data.fetch_partial import CHUNK, Meter, Partial, write
from nestlab.errors import UserError

_ABSENT = (401, 403, 404, 410, 451)
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class NotThere(Exception):
    """An address does not have the file, or does not answer at all; another one may."""


class _BrokeOff(Exception):
    """Something that may pass: worth another try."""


@dataclass(frozen=True)
class Tries:
    """How patient a download is.

    Attributes:
        timeout_s: seconds without a byte after which a connection counts as dead.
        tries: connections in a row that bring nothing new, after which it is given up.
        pause_s: seconds before the second of them; doubled with each, 30 at most.
    """

    timeout_s: float = 60.0
    tries: int = 5
    pause_s: float = 1.0


class _NeverPlain(urllib.request.HTTPRedirectHandler):
    """A secure address must not lead to an insecure one."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise NotThere(f"{req.full_url} leads to the insecure {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Download:
    """One file from one address.

    Args:
        partial: where it goes; hold `partial.alone()` meanwhile.
        checked: a checksum is known, so that bytes without a validator may be gone on from.
        room: called with the bytes still to come, before the first of them; raises UserError where they have no room.
        tell: called with a line of progress.
    """

    def __init__(
        self,
        url: str,
        partial: Partial,
        *,
        checked: bool,
        room: Callable[[int], None] = lambda missing: None,
        tell: Callable[[str], None] = lambda line: None,
        tries: Tries = Tries(),
    ) -> None:
        self.url, self.partial, self.checked = url, partial, checked
        self._room, self._tell, self._tries = room, tell, tries
        self._opener = urllib.request.build_opener(_NeverPlain())
        self._ignored_range = self._had_answer = False

    def run(self) -> None:
        """Fills the partial file.

        Raises:
            NotThere: the address does not have it, or nobody answers there.
            UserError: it breaks off again and again, the disk is full, or the server cannot be understood.
        """
        furthest, idle = 0, 0
        while True:
            try:
                self._connect()
                return
            except _BrokeOff as error:
                why = str(error)
            # Only bytes that were never here before count: a server that begins again each time gets nowhere.
            furthest, idle = (self.partial.size, 0) if self.partial.size > furthest else (furthest, idle + 1)
            if idle >= self._tries.tries:
                raise self._given_up(why)
            self._tell(f"{self.partial.target.name}: {why}; trying again from {self.partial.size:,} bytes")
            time.sleep(min(30.0, self._tries.pause_s * 2**idle))

    def _given_up(self, why: str) -> UserError:
        name = self.partial.target.name
        if self._ignored_range:
            return UserError(
                f"{name}: {why}, and {_host(self.url)} ignores Range: it sends the whole file anew each time; "
                "try over a steadier connection, or --mirror URL"
            )
        return UserError(
            f"{name}: {why}, {self._tries.tries} times in a row without a new byte from {_host(self.url)}; "
            f"{self.partial.size:,} bytes are kept: run the same command later to go on, or give --mirror URL"
        )

    def _connect(self) -> None:
        start = self._resumable()
        if start and start == self.partial.known()["total"]:
            return  # all of it had come when the process ended
        with self._open(start) as answer:
            self._had_answer = True
            if answer.status not in (200, 206):
                raise UserError(f"{self.url}: unexpected answer {answer.status}; try --mirror URL")
            begin, total = self._place(answer, start)
            self._room(total - begin)
            if begin == 0:
                self.partial.begin(self.url, _validator(answer), total)
            self._receive(answer, begin, total)

    def _resumable(self) -> int:
        """The bytes that a request may go on from."""
        known = self.partial.known()
        usable = known and (self.checked or (known["validator"] and known["url"] == self.url))
        return self.partial.size if usable and self.partial.size <= known["total"] else 0

    def _open(self, start: int) -> http.client.HTTPResponse:
        headers = {"User-Agent": "nestlab", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
            if validator := self._known_validator():
                headers["If-Range"] = validator
        try:
            request = urllib.request.Request(self.url, headers=headers)
            return self._opener.open(request, timeout=self._tries.timeout_s)
        except urllib.error.HTTPError as error:
            error.close()
            raise self._refused(error) from None
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            raise self._unreachable(error) from None
        except ValueError:
            raise UserError(f"'{self.url}' is no address; write it as https://host/folder") from None

    def _known_validator(self) -> str | None:
        """What this address said of the bytes that are here; another address' words mean nothing to it."""
        known = self.partial.known()
        return known["validator"] if known and known["url"] == self.url else None

    def _refused(self, error: urllib.error.HTTPError) -> Exception:
        if error.code in _ABSENT:
            return NotThere(f"{self.url}: {error.code} {error.reason}")
        if error.code == 416:  # what is here is longer than the file there: another version
            self.partial.drop()
            return _BrokeOff("the file there is shorter than what had come; beginning again")
        if error.code in _PASSING:
            return _BrokeOff(f"answer {error.code} {error.reason}")
        return UserError(f"{self.url}: answer {error.code} {error.reason}; try --mirror URL")

    def _unreachable(self, error: Exception) -> Exception:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            return UserError(f"{_host(self.url)}: its certificate cannot be verified; install this machine's CA bundle")
        what = f"{_host(self.url)} does not answer ({reason})"
        # A name that is not found or a closed door at the very beginning: no network here, or no such host.
        at_once = isinstance(reason, socket.gaierror | ConnectionRefusedError) or getattr(reason, "errno", None) in (
            errno.ENETUNREACH,
            errno.EHOSTUNREACH,
        )
        return NotThere(what) if at_once and not self._had_answer else _BrokeOff(what)

    def _place(self, answer: http.client.HTTPResponse, start: int) -> tuple[int, int]:
        """(the byte that the answer begins with, the length of the whole file)."""
        if (answer.headers.get("Content-Encoding") or "identity") != "identity":
            raise UserError(f"{_host(self.url)} packs the file once more on its way; try --mirror URL")
        length = answer.headers.get("Content-Length", "")
        if answer.status == 200:
            if not length.isdecimal():
                raise UserError(f"{_host(self.url)} does not say how long the file is; try --mirror URL")
            if start:
                self._begins_again(answer)
            return 0, int(length)
        match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        known = self.partial.known()
        same = self._known_validator() in (None, _validator(answer))
        if not match or int(match[1]) != start or int(match[3]) != known["total"] or not same:
            self.partial.drop()
            raise _BrokeOff("the server went on with another file; beginning again")
        return start, int(match[3])

    def _begins_again(self, answer: http.client.HTTPResponse) -> None:
        changed = _validator(answer) != self._known_validator()
        self._ignored_range = not changed
        why = "the file there has changed" if changed else f"{_host(self.url)} ignores Range"
        self._tell(f"{self.partial.target.name}: {why}; beginning again")

    def _receive(self, answer: http.client.HTTPResponse, begin: int, total: int) -> None:
        meter = Meter(self.partial.target.name, total, begin, self._tell)
        with open(self.partial.path, "ab") as file:
            at = begin
            while at < total:
                try:
                    piece = answer.read(min(CHUNK, total - at))
                except (http.client.HTTPException, OSError) as error:
                    raise _BrokeOff(f"broke off at {at:,} of {total:,} bytes ({error})") from None
                if not piece:
                    raise _BrokeOff(f"broke off at {at:,} of {total:,} bytes")
                write(file, piece)
                at += len(piece)
                meter.show(at)


def _validator(answer: http.client.HTTPResponse) -> str | None:
    """A strong ETag, else the date of change; a weak ETag says nothing of bytes."""
    etag = answer.headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else answer.headers.get("Last-Modified")


def _host(url: str) -> str:
    return urllib.parse.urlsplit(url).netloc or url
