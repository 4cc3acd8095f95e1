"""
Search: the tool that a model calls, over any backend.

Example:
    ```python
    backend = BM25Search([Document("Cuba", "Its capital is Havana."), Document("Peru", "Its capital is Lima.")])
    search = make_search_tool(backend, top_k=1)
    search("capital of Cuba")  # "[1] Cuba\\nIts capital is Havana."
    ```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .options import NoResult, tool_options
from .search_backends.bm25 import BM25Search
from .search_backends.passages import (
    Document,
    Passage,
    SearchBackend,
    VersionedBackend,
    check_top_k,
    split_passages,
)
from .search_backends.terms import tokenize

__all__ = ["BM25Search", "Document", "Passage", "SearchBackend", "make_search_tool", "split_passages", "tokenize"]

# What a search that costs money or a second gets, unless the user says otherwise.
NUM_RETRIES = 2
MAX_CONCURRENCY = 16


def make_search_tool(backend: SearchBackend, top_k: int = 3, **options: Any) -> Callable[[str], str]:
    """
    Make the tool `search`, to be passed in `tools=[...]`.

    Over a web backend its results are cached, transient failures are tried again twice, and at most 16 searches run at
    the same time. Local backends answer faster than a cache.

    Args:
        backend ([`SearchBackend`]):
            Where to search.
        top_k (`int`, *optional*, defaults to `3`):
            Most passages to show.
        **options (`Any`):
            Fields of [`ToolOptions`] that are to be different, such as `rate_per_s=1.0` or `cached=False`.

    Returns:
        `Callable[[str], str]`:
            A function named `search`. It always returns a text, also for an empty query and when nothing was found:
            then a [`NoResult`].

    Raises:
        ValueError: If `top_k` is below 1, or an option is out of range.
    """
    check_top_k(top_k)

    def search(query: str) -> str:
        """
        Search for passages about a topic.

        Args:
            query: What to look for, in a few words.

        Returns:
            The passages that match best.
        """
        if not query.strip():
            return NoResult("The query is empty. Give the words to look for.")
        passages = backend.search(query, top_k)
        if not passages:
            return NoResult(f"No results for {query[:200]!r}. Try other words.")
        return "\n\n".join(_show(number, passage) for number, passage in enumerate(passages, start=1))

    settings = _remote_options(backend, top_k) | options
    return tool_options(**settings)(search) if settings else search


def _remote_options(backend: SearchBackend, top_k: int) -> dict[str, Any]:
    version = backend.cache_version if isinstance(backend, VersionedBackend) else None
    if version is None:
        return {}
    return {
        "cached": True,
        "version": f"{version} top_k={top_k}",
        "num_retries": NUM_RETRIES,
        "max_concurrency": MAX_CONCURRENCY,
    }


def _show(number: int, passage: Passage) -> str:
    head = f"[{number}] {passage.title or passage.url}".rstrip()
    if passage.title and passage.url:
        head += f"\n{passage.url}"
    if not (passage.title or passage.url):
        return f"{head} {passage.text}"
    return f"{head}\n{passage.text}".rstrip()
