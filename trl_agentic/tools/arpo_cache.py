"""Reading the search cache of ARPO's released code."""

from __future__ import annotations

import json
from pathlib import Path

from .cache import CachedResult, ResultCache

_NOTHING_FOUND = "No search results found."


def import_arpo_cache(
    path: str | Path, cache: ResultCache, *, tool: str = "search", argument: str = "query", version: str = ""
) -> int:
    """
    Read a search cache of ARPO's released code, a JSON object of queries and results, into a cache.

    Entries that the cache has already are kept. `"No search results found."` becomes a negative result.

    Args:
        path (`str` or `Path`):
            The JSON file.
        cache ([`ResultCache`]):
            Where to.
        tool (`str`, *optional*, defaults to `"search"`), argument (`str`, *optional*, defaults to `"query"`):
            The calls that the entries are to answer: `search(query=...)`.
        version (`str`, *optional*, defaults to `""`):
            The version that the tool has in its [`ToolOptions`].

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
    results = []
    for query, text in entries.items():
        key = cache.key(tool, {argument: query}, version)
        assert key is not None
        results.append((key, CachedResult(text, text.strip() == _NOTHING_FOUND, truncated=False)))
    return cache.fill(results)
