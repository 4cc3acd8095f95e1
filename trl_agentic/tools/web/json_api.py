"""
One request to a JSON API, bounded in time and size. No error tells the key that went with the request.

A server that sends a byte a second never exceeds the timeout of a read, so a request runs on an event loop, where all
of it can be cancelled. It has a loop and a thread of its own: that leaves nothing behind, works in a notebook, whose
own loop is running, and goes through the proxies of the environment, as APIs often must. The price is a handshake.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from email.utils import parsedate_to_datetime
from functools import cache
from ipaddress import ip_address
from typing import Any

import httpx

from ..calls.daemon_threads import DaemonThreads, run_together
from ..options import TransientToolError
from ..search_backends.snippets import MAX_KEY_CHARS, cut_end, snippet_text

_EXCERPT_BYTES = 2_000  # of the body of an error


class SearchError(RuntimeError):
    """A search failed, and would fail again: a refused key, a wrong request, an answer that can not be read."""


@dataclass(frozen=True)
class ApiLimits:
    """
    What a request may take.

    Args:
        connect_timeout_s (`float`, *optional*, defaults to `5.0`):
            Seconds until a connection is made.
        read_timeout_s (`float`, *optional*, defaults to `10.0`):
            Seconds between two pieces of the answer.
        total_timeout_s (`float`, *optional*, defaults to `15.0`):
            Seconds of the whole request, the look-up of its host included.
        max_body_bytes (`int`, *optional*, defaults to `2_000_000`):
            Most bytes of the answer after decompression.

    Raises:
        ValueError: If one of them is not positive.
    """

    connect_timeout_s: float = 5.0
    read_timeout_s: float = 10.0
    total_timeout_s: float = 15.0
    max_body_bytes: int = 2_000_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = self.__dict__[field.name]
            if not value > 0:
                raise ValueError(f"{field.name} must be positive, got {value}.")


def is_confidential(url: httpx.URL) -> bool:
    """
    Whether a key may be sent to an address: nobody on the way can read it.

    Args:
        url (`httpx.URL`):
            The address.

    Returns:
        `bool`: `True` for `https`, and for `http` to this machine.
    """
    if url.scheme != "http":
        return url.scheme == "https"
    try:
        return ip_address(url.host).is_loopback
    except ValueError:
        return url.host == "localhost"


@dataclass(frozen=True)
class _Answer:
    status: int
    retry_after: str
    location: str
    body: bytes


def fetch_json(request: httpx.Request, service: str, limits: ApiLimits, redact: Callable[[str], str]) -> Any:
    """
    Send a request and read its answer as JSON. Redirects are not followed: the key would go along.

    Args:
        request (`httpx.Request`):
            The request, its headers complete.
        service (`str`):
            Whose API it is, for the error messages.
        limits ([`ApiLimits`]):
            What it may take.
        redact (`Callable[[str], str]`):
            Takes the key out of a text.

    Returns:
        `Any`:
            What the JSON holds.

    Raises:
        TransientToolError: If the server is busy, broken, slow or out of reach.
        SearchError: If the answer is an error that will stay, too large, or no JSON.
    """
    request.headers["Accept-Encoding"] = "gzip"  # the one whose decoder can be stopped at a size
    (answer,) = run_together([lambda: asyncio.run(_exchange(request, service, limits))], "trl-agentic-http")
    _check_status(answer, service, redact)
    if len(answer.body) > limits.max_body_bytes:
        raise SearchError(
            f"{service} sent more than {limits.max_body_bytes:,} bytes. If that is right, raise max_body_bytes."
        )
    return _parse(answer.body, service)


async def _exchange(request: httpx.Request, service: str, limits: ApiLimits) -> _Answer:
    asyncio.get_running_loop().set_default_executor(DaemonThreads())  # a look-up that hangs is not waited for
    timeout = httpx.Timeout(limits.read_timeout_s, connect=limits.connect_timeout_s)
    try:
        async with asyncio.timeout(limits.total_timeout_s):
            async with httpx.AsyncClient(verify=_ssl_context(), timeout=timeout) as client:
                response = await client.send(request, stream=True, follow_redirects=False)
                try:
                    return await _read_answer(response, service, limits)
                finally:
                    await response.aclose()
    except TimeoutError:
        problem = f"did not answer within {limits.total_timeout_s:g} s"
    except httpx.TimeoutException as error:
        problem = f"did not answer in time ({type(error).__name__})"
    except httpx.TransportError as error:  # its message may quote what the server sent, and that the key
        problem = f"could not be reached, or broke off ({type(error).__name__})"
    # Raised here and not above, so that no context leads to the request and its headers.
    raise TransientToolError(f"{service} {problem}.")


async def _read_answer(response: httpx.Response, service: str, limits: ApiLimits) -> _Answer:
    header = response.headers.get
    if response.status_code == 200:
        body = await _read_body(response, limits.max_body_bytes + 1)
        if body is None:
            raise SearchError(f"{service} sent a body that is compressed in a broken or unknown way; expected gzip.")
    elif 400 <= response.status_code < 500:
        body = await _read_body(response, _EXCERPT_BYTES)
    else:
        body = None
    return _Answer(response.status_code, header("Retry-After", ""), header("Location", ""), body or b"")


async def _read_body(response: httpx.Response, max_bytes: int) -> bytes | None:
    """The first `max_bytes` of a body, decompressed piece by piece; `None` if that can not be done."""
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        return None
    inflate = zlib.decompressobj(wbits=31) if "gzip" in encoding else None
    body = bytearray()
    async for piece in response.aiter_raw():
        try:
            body += inflate.decompress(piece, max_bytes - len(body)) if inflate else piece
        except zlib.error:
            return None
        if len(body) >= max_bytes:
            break
    return bytes(body[:max_bytes])


def _check_status(answer: _Answer, service: str, redact: Callable[[str], str]) -> None:
    status = answer.status
    if status == 200:
        return
    if status in (408, 425, 429) or status >= 500:
        what = "is asked too often" if status == 429 else "has a problem of its own"
        raise TransientToolError(f"{service} {what} (HTTP {status}).", _seconds(answer.retry_after))
    said = snippet_text(answer.body.decode("utf-8", "replace"), _EXCERPT_BYTES, redact)
    if len(answer.body) == _EXCERPT_BYTES:  # it may end in a part of the key
        said = said[:-MAX_KEY_CHARS]
    said = f" It said: {cut_end(said, 200)}" if said else ""
    if status in (401, 403):
        raise SearchError(f"{service} refused the key (HTTP {status}); check it, and what it is allowed to do.{said}")
    if 300 <= status < 400:
        host = _host(answer.location, redact) or "nowhere"
        raise SearchError(
            f"{service} redirects to {host} (HTTP {status}), which is not followed, as the key would go along. "
            "Check base_url."
        )
    raise SearchError(f"{service} refused the request (HTTP {status}).{said}")


def _host(location: str, redact: Callable[[str], str]) -> str:
    try:
        return snippet_text(httpx.URL(location).host, 200, redact) or "the same host"
    except httpx.InvalidURL:
        return ""


def _seconds(retry_after: str) -> float | None:
    """Seconds to wait after a `Retry-After`, given in seconds or as a date; `None` if it says neither."""
    if re.fullmatch(r"\d{1,9}", retry_after, re.ASCII):
        return float(retry_after)
    try:
        return max(parsedate_to_datetime(retry_after).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return None


def _parse(body: bytes, service: str) -> Any:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:  # what else is sent under any name of a charset is most often this one
        text = body.decode("cp1252", "replace")
    try:
        return json.loads(text)
    except RecursionError:
        problem = "JSON that is nested too deep"
    except ValueError:
        problem = "an HTML page" if text.lstrip()[:1] == "<" else "no valid JSON" if text.strip() else "nothing"
    raise SearchError(f"{service} sent {problem}; expected a JSON object. Check base_url and the parameters.")


@cache
def _ssl_context() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # reads the certificates, which takes longer than a request on this machine
