"""A web server on this machine that misbehaves to order."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """One file and its manners. Lists are used up from the front, one entry a request; empty: behave.

    break_after: bytes after which the connection is cut. etags: in place of `etag`. statuses: answer this alone.
    stall_s: seconds of silence before the body of the first request.
    """

    content: bytes
    etag: str | None = '"one"'
    ranges: bool = True
    break_after: list[int] = field(default_factory=list)
    etags: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    stall_s: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    honours_if_range: bool = True
    says_length: bool = True
    asked: list[tuple[str | None, str | None]] = field(default_factory=list)  # (Range, If-Range) a request


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self):
        served = self.server.files.get(self.path)
        if served is None:
            return self.send_error(404)
        served.asked.append((self.headers["Range"], self.headers["If-Range"]))
        if served.statuses:
            return self.send_error(served.statuses.pop(0))
        if served.etags:
            served.etag = served.etags.pop(0)
        if served.contents:
            served.content = served.contents.pop(0)
        return self._send(served)

    def _send(self, served):
        start = self._start(served)
        if start is not None and start >= len(served.content):
            return self.send_error(416)
        self.send_response(200 if start is None else 206)
        body = served.content[start or 0 :]
        if served.says_length:
            self.send_header("Content-Length", str(len(body)))
        if start is not None:
            self.send_header("Content-Range", f"bytes {start}-{len(served.content) - 1}/{len(served.content)}")
        if served.etag:
            self.send_header("ETag", served.etag)
        for name, value in served.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if served.stall_s:
            pause, served.stall_s = served.stall_s, 0.0
            self.wfile.flush()
            time.sleep(pause)
        self.wfile.write(body[: served.break_after.pop(0)] if served.break_after else body)

    def _start(self, served):
        asked, if_range = self.headers["Range"], self.headers["If-Range"]
        if not asked or not served.ranges:
            return None
        if served.honours_if_range and if_range and if_range != served.etag:
            return None
        return int(asked.removeprefix("bytes=").removesuffix("-"))

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    """`files`: path → Served; `url`: the address of its root."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, Served] = {}
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def handle_error(self, request, client_address):
        pass  # the client hung up, as it may

    def close(self):
        self.shutdown()
        self.server_close()
        self._thread.join()
