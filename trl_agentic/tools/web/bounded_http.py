"""
HTTP exchanges that end at one deadline, whatever the other side does.

The time limits of an HTTP client hold for each read: a server that sends a byte a second never exceeds them. Here the
deadline belongs to the connection itself, below TLS, headers, body and decompression.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Iterator
from typing import Any

import httpcore
import httpx


def seconds_left(deadline: float) -> float:
    """
    Time until a deadline.

    Args:
        deadline (`float`):
            In `time.monotonic()` seconds.

    Returns:
        `float`:
            Seconds, more than 0.

    Raises:
        httpcore.ReadTimeout: If there is none left.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the deadline has passed")
    return left


class DeadlineNetwork(httpcore.NetworkBackend):
    """
    Lets every operation of its connections end at one deadline.

    Args:
        network (`httpcore.NetworkBackend`):
            Makes the connections.
        deadline (`float`):
            In `time.monotonic()` seconds.
    """

    def __init__(self, network: httpcore.NetworkBackend, deadline: float):
        self._network = network
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect; see `httpcore.NetworkBackend`. The deadline stands in for `timeout`."""
        timeout = seconds_left(self._deadline)
        stream = self._network.connect_tcp(host, port, timeout, local_address, socket_options)
        return _DeadlineStream(stream, self._deadline)


class _DeadlineStream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, deadline: float):
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, seconds_left(self._deadline))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, seconds_left(self._deadline))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        stream = self._stream.start_tls(ssl_context, server_hostname, seconds_left(self._deadline))
        return _DeadlineStream(stream, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class NetworkTransport(httpx.BaseTransport):
    """
    Carries requests over a network backend, which `httpx.HTTPTransport` does not let one choose. A context manager.

    Errors are those of `httpcore`. Used without an `httpx.Client`, it leaves redirects and cookies to its caller: a
    client reads both from every response, and fails on broken ones, even where it is told not to follow them.

    Args:
        network (`httpcore.NetworkBackend`):
            Makes the connections.
        ssl_context (`ssl.SSLContext`):
            Checks certificates, against the name in the URL and not the address that was connected to.
    """

    def __init__(self, network: httpcore.NetworkBackend, ssl_context: ssl.SSLContext):
        self._pool = httpcore.ConnectionPool(ssl_context, http1=True, http2=False, network_backend=network)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; see `httpx.BaseTransport`."""
        assert isinstance(request.stream, httpx.SyncByteStream)
        url = request.url
        response = self._pool.handle_request(
            httpcore.Request(
                request.method,
                httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=_ResponseStream(response),
            extensions=response.extensions,
        )

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


class _ResponseStream(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response):
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        return self._response.iter_stream()

    def close(self) -> None:
        self._response.close()
