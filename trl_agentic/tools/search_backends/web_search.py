"""
What web backends have in common: keys, limits, and results as plain text. `search_engines.py` has the backends.

A key is read from the environment whenever a request is made. No object holds it, so it is in no repr, pickle, log or
cache; where a server echoes it, it is cut out. (The DEBUG log of `httpcore` shows the headers of answers as they are.)
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

import httpx

from ..web.json_api import ApiLimits, SearchError, fetch_json, is_confidential
from .passages import Passage, check_top_k, identity
from .snippets import plain_text, snippet_text, snippet_url

MAX_QUERY_CHARS, MAX_QUERY_WORDS = 400, 50  # Brave's limits, which suit the others as well
MAX_TITLE_CHARS = 300


@dataclass(frozen=True)
class SearchApi:
    """
    The published format of an API.

    Args:
        name (`str`):
            Whose it is.
        key_variable (`str`):
            Environment variable that holds the key, as the service's own examples name it.
        base_url (`str`):
            Where it is.
        max_results (`int`):
            Most results of one request.
        results (`tuple[str, ...]`):
            Keys that lead to the list of results.
        envelope (`tuple[str, ...]`):
            Keys that an answer without results has at least one of.
        url (`str`), text (`str`):
            Keys of a result; its title is under `title` everywhere.
    """

    name: str
    key_variable: str
    base_url: str
    max_results: int
    results: tuple[str, ...]
    envelope: tuple[str, ...]
    url: str
    text: str


class WebSearch:
    """
    What the web backends have in common. Use one of its subclasses.

    Args:
        parameters (`Mapping[str, Any]`, *optional*):
            Further parameters of the API, such as country and language, by the names in its documentation.
        key_variable (`str`, *optional*):
            Environment variable that holds the key, if it is not the customary one. To replay a run from the cache
            alone it may hold any eight characters.
        base_url (`str`, *optional*):
            Where the API is, if not at its own address. The key goes there: `https`, or this machine.
        limits ([`ApiLimits`], *optional*):
            What a request may take.
        max_text_chars (`int`, *optional*, defaults to `2000`):
            Most characters of a passage.

    Raises:
        ValueError: If there is no key, a parameter is one that the backend sets itself, or the address is none.
    """

    api: ClassVar[SearchApi]

    def __init__(
        self,
        *,
        parameters: Mapping[str, Any] | None = None,
        key_variable: str | None = None,
        base_url: str | None = None,
        limits: ApiLimits | None = None,
        max_text_chars: int = 2_000,
    ):
        self.parameters = dict(parameters or {})
        self.base_url = (base_url or self.api.base_url).rstrip("/")
        self.limits = limits or ApiLimits()
        self._key_variable = key_variable or self.api.key_variable
        self._max_text_chars = max_text_chars
        self._key()
        _check_address(self.base_url)
        if reserved := self.parameters.keys() & self._own_parameters("", 1).keys():
            raise ValueError(f"{type(self).__name__} sets {sorted(reserved)} itself: leave them out of parameters.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_url={self.base_url!r}, parameters={self.parameters!r})"

    @property
    def cache_version(self) -> str:
        """Service and parameters, of which an answer depends; the key is no part of it."""
        return f"{self.api.name} {json.dumps(self.parameters, sort_keys=True, default=str)} {self._max_text_chars}"

    def search(self, query: str, top_k: int) -> list[Passage]:
        """
        Ask the API.

        Args:
            query (`str`):
                What to look for; of a long one the first 400 characters and 50 words.
            top_k (`int`):
                Most passages to return; at least 1. What the API gives for one request is the limit.

        Returns:
            `list[Passage]`:
                In the API's order, each once, as plain text, with `1 / rank` as score; empty when nothing was found.

        Raises:
            TransientToolError: If the service is busy, broken, slow or out of reach.
            SearchError: If it refuses the key or the request, or sends what can not be read.
            ValueError: If `top_k` is below 1, or the key is gone from the environment.
        """
        check_top_k(top_k)
        key = self._key()
        words = plain_text(query)[:MAX_QUERY_CHARS].split()[:MAX_QUERY_WORDS]
        if not words:
            return []

        def redact(text: str) -> str:
            return text.replace(key, "[key]").replace(quote(key, safe=""), "[key]")

        request = self._request(" ".join(words), min(top_k, self.api.max_results), key)
        answer = fetch_json(request, self.api.name, self.limits, redact)
        passages: dict[tuple[str, ...], Passage] = {}
        for result in self._results(answer, redact):
            passage = self._passage(result, len(passages) + 1, redact)
            if passage.title or passage.text:
                passages.setdefault(identity(passage), passage)
        return list(passages.values())[:top_k]

    def _request(self, query: str, count: int, key: str) -> httpx.Request:
        """The request that asks for `count` results."""
        raise NotImplementedError

    def _own_parameters(self, query: str, count: int) -> dict[str, Any]:
        """The parameters that say what to look for."""
        raise NotImplementedError

    def _key(self) -> str:
        key = os.environ.get(self._key_variable, "").strip()
        if not re.fullmatch(r"[!-~]{8,}", key):
            state = "holds no key: one has at least 8 characters, and no spaces" if key else "is not set"
            raise ValueError(
                f"{type(self).__name__} needs a key of {self.api.name}, but the environment variable "
                f"{self._key_variable} {state}. Set it, or name another one with key_variable."
            )
        return key

    def _results(self, answer: Any, redact: Callable[[str], str]) -> list[Any]:
        found = answer
        for name in self.api.results:
            found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, list):
            return found
        if found is None and isinstance(answer, dict) and any(name in answer for name in self.api.envelope):
            return []
        what = f"an object with {sorted(answer)[:10]}" if isinstance(answer, dict) else f"a {type(answer).__name__}"
        raise SearchError(
            f"{self.api.name} sent {snippet_text(what, 300, redact)}; expected an object with a list of results under "
            f"{'.'.join(self.api.results)}. Check base_url and parameters."
        )

    def _passage(self, result: Any, rank: int, redact: Callable[[str], str]) -> Passage:
        fields = result if isinstance(result, dict) else {}
        title = snippet_text(fields.get("title"), MAX_TITLE_CHARS, redact)
        text = snippet_text(fields.get(self.api.text), self._max_text_chars, redact)
        return Passage(title, text, 1.0 / rank, redact(snippet_url(fields.get(self.api.url))))


def _check_address(url: str) -> None:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.userinfo:
        raise ValueError("base_url must be an address without user and password: the key goes in a header.")
    if parsed.host and is_confidential(parsed):
        return
    raise ValueError(f"base_url must be an https address, or one of this machine, as the key goes there; got {url!r}.")
