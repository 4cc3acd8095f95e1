"""Reading the search cache of ARPO's released code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cache import CachedResult, ResultCache
from .calls.signatures import describe_tools

_NOTHING_FOUND = "No search results found."


def import_arpo_cache(
    path: str | Path,
    cache: ResultCache,
    *,
    tool: str | Callable[..., Any] = "search",
    argument: str = "query",
    version: str | None = None,
) -> int:
    """
    Read a search cache of ARPO's released code, a JSON object of queries and results, into a cache.

    Entries that the cache has already are kept. `"No search results found."` becomes a negative result.

    Args:
        path (`str` or `Path`):
            The JSON file.
        cache ([`ResultCache`]):
            Where to.
        tool (`str` or `Callable`, *optional*, defaults to `"search"`), argument (`str`, defaults to `"query"`):
            The calls that the entries are to answer: `search(query=...)`. Pass the tool itself, as the trainer gets
            it: its results are known by its version as well.
        version (`str`, *optional*):
            Another version than that of the tool in its [`ToolOptions`], or the one of a tool that is only named.

    Returns:
        `int`: Number of entries that were new.

    Raises:
        ValueError: If the file does not hold texts by query, or the cache is opened with `mode="replay"`.
    """
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not the JSON of an ARPO search cache: {error}.") from error
    if not isinstance(entries, dict) or not all(isinstance(text, str) for text in entries.values()):
        raise ValueError(f"{path} must hold one JSON object of queries and result texts, as ARPO's search cache does.")
    name, known_version = (tool, "") if isinstance(tool, str) else _described(tool)
    results = []
    for query, text in entries.items():
        key = cache.key(name, {argument: query}, known_version if version is None else version)
        assert key is not None
        results.append((key, CachedResult(text, text.strip() == _NOTHING_FOUND, truncated=False)))
    return cache.fill(results)


def _described(tool: Callable[..., Any]) -> tuple[str, str]:
    """Name and version of a tool."""
    (described,) = describe_tools([tool]).values()
    return described.name, described.options.version
