"""
Fetches a page from the public internet for a model that may ask for any address.

Example:
    ```python
    page = PageFetcher(timeout_s=10.0).fetch("https://example.com/")
    page.content_type  # "text/html; charset=UTF-8"
    ```
"""

from __future__ import annotations

import re
import ssl
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus

import httpcore
import httpx

from ..options import TransientToolError
from .bounded_http import DeadlineNetwork, NetworkTransport, seconds_left
from .public_network import PublicNetwork, RefusedAddressError, system_addresses

_MAX_URL_CHARS = 2_048
_INFLATED_BYTES = 1 << 16  # a step of decompression
_TRANSIENT = (429, 502, 503, 504)
_REDIRECTS = (301, 302, 303, 307, 308)
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}\.?")
_NUMERIC = re.compile(r"(?:.*\.)?(?:\d+|0x[0-9a-f]*)\.?")  # a name whose last label is a number
_DOTTED = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}")
_WITHOUT_SCHEME = re.compile(r"(?:[\w-]+\.)+[a-z]{2,}(?:[/?#].*)?", re.IGNORECASE)
_READABLE = re.compile(
    r"|text/.+|application/(?:pdf|xml|json|javascript|ecmascript|x-ndjson|x-javascript|octet-stream|.+\+(?:xml|json))"
)


class PageError(RuntimeError):
    """A page could not be fetched or read. The message is written for the model that asked for it."""


@dataclass(frozen=True)
class FetchedPage:
    """
    What a server sent.

    Args:
        url (`str`):
            Where the page was found, after all redirects.
        content_type (`str`):
            The header, with its parameters; may be empty.
        content (`bytes`):
            The body, decompressed.
        is_complete (`bool`):
            Whether `content` is all of it: `False` if it was longer than allowed, or shorter than announced.
        broke_off (`bool`, *optional*, defaults to `False`):
            Whether it was shorter than announced: another attempt may get more.
    """

    url: str
    content_type: str
    content: bytes
    is_complete: bool
    broke_off: bool = False


class PageFetcher:
    """
    Fetches pages over HTTP and HTTPS, from public addresses only.

    Every hop of a redirect is checked anew, before its name is resolved and after. Nothing is taken from the
    environment (no proxy, no credentials), and nothing is kept between two calls (no cookies, no connections). Safe
    from many threads.

    Args:
        timeout_s (`float`, *optional*, defaults to `20.0`):
            Deadline of a fetch in seconds: names, connections, redirects and body together.
        max_bytes (`int`, *optional*, defaults to `10_000_000`):
            Most bytes of a body, decompressed. Of a longer one the head is kept.
        max_redirects (`int`, *optional*, defaults to `5`):
            Most redirects that are followed.
        ports (`Collection[int]`, *optional*, defaults to `(80, 443, 8080, 8443)`):
            Ports that may be asked for: those of the web, and not those of databases or mail.
        private_hosts (`Collection[str]`, *optional*, defaults to `()`):
            Hosts that may have a private address, as they stand in a URL: an intranet's wiki, say. A host that is
            listed can be read by the model in full.
        user_agent (`str`, *optional*):
            How the fetcher introduces itself.
        ssl_context (`ssl.SSLContext`, *optional*):
            Checks certificates; by default against the authorities that `httpx` ships with.
        resolve (`Callable[[str], Sequence[str]]`, *optional*, defaults to [`system_addresses`]):
            From a name to its addresses.
        network (`httpcore.NetworkBackend`, *optional*):
            Connects to an address that was checked; sockets by default.

    Raises:
        ValueError: If a limit is out of range.
        TypeError: If `ports` are no integers, or `private_hosts` is a single text.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 20.0,
        max_bytes: int = 10_000_000,
        max_redirects: int = 5,
        ports: Collection[int] = (80, 443, 8080, 8443),
        private_hosts: Collection[str] = (),
        user_agent: str = "Mozilla/5.0 (compatible; trl-agentic)",
        ssl_context: ssl.SSLContext | None = None,
        resolve: Callable[[str], Sequence[str]] = system_addresses,
        network: httpcore.NetworkBackend | None = None,
    ):
        for name, value, least in (("max_bytes", max_bytes, 1), ("max_redirects", max_redirects, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}.")
        if timeout_s <= 0:
            raise ValueError(f"timeout_s must be positive, got {timeout_s}.")
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._max_redirects = max_redirects
        self._ports = frozenset(ports)
        if not all(isinstance(port, int) for port in self._ports):
            raise TypeError(f"ports must be integers, such as [80, 443]; got {ports!r}.")
        self._headers = {
            "User-Agent": user_agent,
            "Accept": "text/html,application/xhtml+xml,application/pdf,text/*;q=0.9,application/json;q=0.9,*/*;q=0.1",
            "Accept-Encoding": "gzip, deflate",
        }
        self._ssl_context = httpx.create_ssl_context(trust_env=False) if ssl_context is None else ssl_context
        self._network = PublicNetwork(network, resolve, private_hosts)

    def fetch(self, url: str, timeout_s: float | None = None) -> FetchedPage:
        """
        Fetch a page.

        Args:
            url (`str`):
                Its address. `https://` is put before an address without a scheme.
            timeout_s (`float`, *optional*):
                A shorter deadline than the fetcher's own, in seconds.

        Returns:
            [`FetchedPage`]:
                The page, of a type that may hold text.

        Raises:
            PageError: If the address is refused, the server gives no page, or not in time.
            TransientToolError: If the server asks to come back later (429, 502, 503, 504).
        """
        timeout_s = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        deadline = time.monotonic() + timeout_s
        if _WITHOUT_SCHEME.fullmatch(url.strip()):
            url = f"https://{url.strip()}"
        target = self._parse(url)
        seen = {target}
        with NetworkTransport(DeadlineNetwork(self._network, deadline), self._ssl_context) as transport:
            for _ in range(self._max_redirects + 1):
                request = httpx.Request("GET", target, headers=self._headers)
                with _readable_errors(target, timeout_s), closing(transport.handle_request(request)) as response:
                    if response.status_code not in _REDIRECTS:
                        return self._page(response, target, deadline)
                    target = self._next(target, response.headers.get("Location", ""))
                if target in seen:
                    raise PageError(f"The page redirects in a circle, back to {_shown(target)}.")
                seen.add(target)
        raise PageError(f"The page redirects more than {self._max_redirects} times; the last one is {_shown(target)}.")

    def _parse(self, url: str) -> httpx.URL:
        """The address, if it is one that may be fetched."""
        if len(url) > _MAX_URL_CHARS:
            raise PageError(f"The URL has {len(url)} characters; at most {_MAX_URL_CHARS} are allowed.")
        try:
            parsed = httpx.URL(url.strip())
        except (httpx.InvalidURL, ValueError) as error:  # ValueError: a lone surrogate
            raise PageError(f"{_shown(url)} is no URL: {str(error)[:200]}") from error
        if parsed.scheme not in ("http", "https"):
            raise PageError(f"{_shown(url)} is not allowed: only http:// and https:// pages can be read.")
        if parsed.userinfo:
            raise PageError(
                f"The URL of {_shown(parsed.host)} holds credentials, which are never sent. Leave them out."
            )
        host = parsed.raw_host.decode("ascii")
        if ":" not in host and (
            not _NAME.fullmatch(host) or (_NUMERIC.fullmatch(host) and not _DOTTED.fullmatch(host))
        ):
            raise PageError(f"{_shown(host)} is no host. Give a name such as example.com.")
        port = parsed.port if parsed.port is not None else 443 if parsed.scheme == "https" else 80
        if port not in self._ports:
            allowed = ", ".join(map(str, sorted(self._ports)))
            raise PageError(f"Port {port} of {_shown(host)} is not allowed. Allowed: {allowed}.")
        return parsed.copy_with(fragment=None)

    def _next(self, target: httpx.URL, location: str) -> httpx.URL:
        try:
            return self._parse(str(target.join(location)) if location else "")
        except (httpx.InvalidURL, ValueError, PageError) as error:
            raise PageError(f"{_shown(target)} redirects to a place that can not be read. {error}") from error

    def _page(self, response: httpx.Response, target: httpx.URL, deadline: float) -> FetchedPage:
        status = response.status_code
        if status in _TRANSIENT:
            raise TransientToolError(
                f"{_shown(target)}: the server answered {_phrase(status)}.", _retry_after(response)
            )
        if not 200 <= status < 300:
            raise PageError(f"{_shown(target)}: the server answered {_phrase(status)}.")
        content_type = response.headers.get("Content-Type", "")
        kind = content_type.partition(";")[0].strip().lower()
        if not _READABLE.fullmatch(kind):
            raise PageError(f"{_shown(target)} is {_shown(kind, 100)}, not a page with text.")
        content, broke_off = self._body(response, deadline)
        is_complete = not broke_off and len(content) <= self._max_bytes
        return FetchedPage(str(target), content_type, content[: self._max_bytes], is_complete, broke_off)

    def _body(self, response: httpx.Response, deadline: float) -> tuple[bytes, bool]:
        """What comes of a body, up to a piece beyond the limit, and whether it broke off."""
        content = bytearray()
        try:
            for piece in _inflated(response):
                content += piece
                if len(content) > self._max_bytes:
                    break
                seconds_left(deadline)
        except (httpcore.RemoteProtocolError, httpcore.ReadError):
            if not content:
                raise
            return bytes(content), True  # what came can be read
        return bytes(content), False


def _inflated(response: httpx.Response) -> Iterator[bytes]:
    """
    The body without its compression, in bounded pieces.

    `httpx` decompresses each piece that it receives at once, whatever it grows to, and several times over where a
    server says that it was compressed several times.
    """
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding in ("", "identity"):
        yield from response.iter_raw()
        return
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise PageError(f"The page is compressed with {_shown(encoding, 50)}, which was not asked for.")
    decoder = None
    try:
        for piece in response.iter_raw():
            if decoder is None:
                decoder = zlib.decompressobj(_window(piece, encoding))
            while piece:
                yield decoder.decompress(piece, _INFLATED_BYTES)
                if decoder.eof:
                    return  # whatever follows is not part of the page
                piece = decoder.unconsumed_tail
    except zlib.error as error:
        raise PageError(f"The page is said to be compressed with {encoding}, and is broken: {error}.") from error
    if decoder is not None:
        raise httpcore.RemoteProtocolError(f"the {encoding} stream broke off")


def _window(start: bytes, encoding: str) -> int:
    """What zlib is told: gzip, zlib, or the bare stream that some servers send as `deflate`."""
    if encoding != "deflate":
        return zlib.MAX_WBITS | 16
    return zlib.MAX_WBITS if start.startswith(b"\x78") else -zlib.MAX_WBITS


@contextmanager
def _readable_errors(target: httpx.URL, timeout_s: float) -> Iterator[None]:
    """What goes wrong on the way, as a sentence about the page."""
    try:
        yield
    except RefusedAddressError as error:
        raise PageError(f"{_shown(target)} is not allowed: {error}") from error
    except httpcore.TimeoutException as error:
        raise PageError(f"{_shown(target)} did not send the page within {timeout_s:g} s.") from error
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        raise PageError(f"{_shown(target)} could not be fetched: {str(error)[:200]}") from error


def _shown(value: httpx.URL | str, max_chars: int = 200) -> str:
    text = repr(str(value))[1:-1] if str(value).strip() else "(nothing)"
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."


def _phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _retry_after(response: httpx.Response) -> float | None:
    seconds = response.headers.get("Retry-After", "")
    return float(seconds) if re.fullmatch(r"\d{1,4}", seconds, re.ASCII) else None
