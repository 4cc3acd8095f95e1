"""A web server on this machine that sends exactly what a test wants, byte by byte, and remembers who asked."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Pieces = Iterable[bytes | float]  # bytes are sent, numbers are seconds to wait


@dataclass(frozen=True)
class Asked:
    """A request that came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class LoopbackPages:
    """
    A server whose answers are raw bytes. A context manager.

    Args:
        tls (`ssl.SSLContext`, *optional*):
            Speaks HTTPS with this certificate.

    Attributes:
        port (`int`):
            Where it listens, at `127.0.0.1`.
        requests (`list[Asked]`):
            Every request so far.
    """

    def __init__(self, tls: ssl.SSLContext | None = None):
        self.requests: list[Asked] = []
        self._routes: dict[str, Callable[[], Pieces]] = {}
        self._stopping = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = False  # so that closing waits for them
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.port = self._server.server_port

    def __enter__(self) -> LoopbackPages:
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def url(self, path: str = "/", host: str = "pages.test") -> str:
        """Address of a page, under a name that a test resolves itself."""
        return f"http://{host}:{self.port}{path}"

    def send(self, path: str, pieces: Pieces | Callable[[], Pieces]) -> None:
        """Answer requests for a path with raw bytes: status line, headers and all."""
        self._routes[path] = pieces if callable(pieces) else lambda: pieces

    def page(
        self, path: str, body: bytes | str, content_type: str = "text/html", status: int = 200, **headers
    ) -> None:
        """Answer requests for a path with a well-formed response."""
        body = body.encode() if isinstance(body, str) else body
        headers = {"Content-Type": content_type, "Content-Length": len(body)} | headers
        self.send(path, [head(status, **headers), body])

    def pieces(self, path: str) -> Iterator[bytes | float]:
        """What is sent for a path."""
        yield from self._routes.get(path, lambda: [head(404, Content_Length=0)])()

    def wait(self, seconds: float) -> None:
        """Wait, but not beyond the end of the test."""
        if self._stopping.wait(seconds):
            raise ConnectionAbortedError("the test is over")


def head(status: int = 200, **headers) -> bytes:
    """A status line and headers; underscores in their names become hyphens."""
    lines = [f"HTTP/1.1 {status} Reason", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode()


def _handler(pages: LoopbackPages) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                """The client has gone, or the test is over."""

        def finish(self) -> None:
            try:
                super().finish()
            except OSError:
                """As above."""

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            pages.requests.append(Asked(self.command, self.path, dict(self.headers), body))
            self.close_connection = True
            for piece in pages.pieces(self.path):
                if isinstance(piece, bytes):
                    self.wfile.write(piece)
                else:
                    pages.wait(piece)

        do_GET = do_POST = respond

        def log_message(self, format: str, *values) -> None:
            """Requests are not printed."""

    return Handler
