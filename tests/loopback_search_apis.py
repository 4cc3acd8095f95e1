"""Brave, Serper, Tavily and Bright Data on this machine: their published formats, and what else a server may send."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from trl_agentic.tools import BraveSearch, BrightDataSearch, SerperSearch, TavilySearch

KEY = "tvly-9f3c27AAb1d04e55"
ENGINES = [BraveSearch, SerperSearch, TavilySearch, BrightDataSearch]
PAGES = [
    {"title": "Cuba - Encyclopedia", "url": "https://example.org/cuba", "text": "The capital of Cuba is Havana."},
    {"title": "Havana", "url": "https://example.org/havana", "text": "Havana has two million inhabitants."},
    {"title": "Old Havana", "url": "https://example.org/old", "text": "The old town is from 1519."},
]


@dataclass(frozen=True)
class Received:
    """A request as it arrived; names of headers in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: dict


@dataclass(frozen=True)
class Reply:
    """What the server sends. With `pieces` they are all that is sent, status line and headers included."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    pieces: Iterable[bytes] | None = None


def page(title: object, url: object = "", text: object = "") -> dict[str, object]:
    """A result in no API's format."""
    return {"title": title, "url": url, "text": text}


def brave(query: str, pages: list) -> dict:
    """`WebSearchApiResponse`; `web` is left out when nothing was found."""
    found = [{"type": "search_result", "title": p["title"], "url": p["url"], "description": p["text"]} for p in pages]
    answer = {"type": "search", "query": {"original": query, "more_results_available": False}}
    return answer | ({"web": {"type": "search", "results": found}} if found else {})


def serper(query: str, pages: list) -> dict:
    """Google results, numbered from 1."""
    organic = [
        {"title": p["title"], "link": p["url"], "snippet": p["text"], "position": position}
        for position, p in enumerate(pages, start=1)
    ]
    return {"searchParameters": {"q": query, "type": "search"}, "organic": organic, "credits": 1}


def tavily(query: str, pages: list) -> dict:
    """Results with scores, and the time it took."""
    results = [
        {"title": p["title"], "url": p["url"], "content": p["text"], "score": 0.9 - 0.1 * n, "raw_content": None}
        for n, p in enumerate(pages)
    ]
    return {"query": query, "answer": None, "images": [], "results": results, "response_time": 0.8}


def bright_data(query: str, pages: list) -> dict:
    """A parsed results page; `organic` is left out when nothing was found."""
    organic = [
        {"link": p["url"], "title": p["title"], "description": p["text"], "rank": rank, "global_rank": rank}
        for rank, p in enumerate(pages, start=1)
    ]
    return {"general": {"search_engine": "bing", "query": query}} | ({"organic": organic} if organic else {})


FORMATS = {BraveSearch: brave, SerperSearch: serper, TavilySearch: tavily, BrightDataSearch: bright_data}
REFUSALS = {
    "Brave": Reply(422, b'{"type":"ErrorResponse","error":{"code":"SUBSCRIPTION_TOKEN_INVALID","status":422}}'),
    "Serper": Reply(403, b'{"message":"Unauthorized.","statusCode":403}'),
    "Tavily": Reply(401, b'{"detail":{"error":"Unauthorized: missing or invalid API key."}}'),
    "Bright Data": Reply(401, b"Invalid token"),
}


def service_of(request: Received) -> tuple[str, str, str, int] | None:
    """Whose endpoint was called as its documentation says: service, key, query and number of results wanted."""
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    if (request.method, request.path) == ("GET", "/res/v1/web/search"):
        key = request.headers.get("x-subscription-token", "")
        return "Brave", key, request.query["q"], int(request.query["count"])
    if (request.method, request.path) == ("POST", "/search") and "x-api-key" in request.headers:
        return "Serper", request.headers["x-api-key"], request.body["q"], request.body["num"]
    if (request.method, request.path) == ("POST", "/search"):
        return "Tavily", bearer, request.body["query"], request.body["max_results"]
    if (request.method, request.path) == ("POST", "/request"):
        target = urlsplit(request.body["url"])
        wanted = {name: values[0] for name, values in parse_qs(target.query).items()}
        assert (target.hostname, wanted["brd_json"], request.body["format"]) == ("www.bing.com", "1", "raw")
        return "Bright Data", bearer, wanted["q"], int(wanted["count"])
    return None


class LoopbackSearchApis:
    """
    A server for all four. A context manager.

    Args:
        pages (`list[dict]`, *optional*):
            What every query finds, made by [`page`].
        reply (`Callable[[Received], Reply]`, *optional*):
            Answers in place of the APIs.

    Attributes:
        requests (`list[Received]`):
            What arrived.
        closing (`threading.Event`):
            Set when the server is about to close: pieces that wait should wait for this.
    """

    def __init__(self, pages: list | None = None, reply: Callable[[Received], Reply] | None = None):
        self.pages = PAGES if pages is None else pages
        self.reply = reply or self.published
        self.requests: list[Received] = []
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = False  # so that closing waits for them
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> LoopbackSearchApis:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def engine(self, kind: type = SerperSearch, **options):
        """A backend of this kind that asks this server."""
        if kind is BrightDataSearch:
            options.setdefault("zone", "serp_api1")
        return kind(base_url=self.url + ("/res/v1" if kind is BraveSearch else ""), **options)

    def published(self, request: Received) -> Reply:
        """What the API answers, by its documentation."""
        called = service_of(request)
        if called is None:
            return Reply(404, b"Not Found")
        service, key, query, count = called
        if key != KEY:
            return REFUSALS[service]
        kind = next(kind for kind in ENGINES if kind.api.name == service)
        answer = FORMATS[kind](query, self.pages[:count])
        return Reply(body=json.dumps(answer).encode(), headers={"Content-Type": "application/json"})

    def drip(self, head: bytes, piece: bytes) -> Iterable[bytes]:
        """Send something, and then one piece again and again, until the server closes."""
        yield head
        while not self.closing.wait(0.02):
            yield piece


def _handler(apis: LoopbackSearchApis) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            address = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(address.query).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Received(self.command, address.path, query, headers, json.loads(body) if body else {})
            apis.requests.append(request)
            try:
                self.send(apis.reply(request))
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client has had enough, which is what many tests are about

        def send(self, reply: Reply) -> None:
            self.close_connection = True
            if reply.pieces is None:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
            for piece in [reply.body] if reply.pieces is None else reply.pieces:
                self.wfile.write(piece)

        do_GET = do_POST = respond

        def log_message(self, format: str, *values: object) -> None:
            """Requests are not printed."""

    return Handler
