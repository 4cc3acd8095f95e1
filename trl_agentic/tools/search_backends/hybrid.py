"""Several backends at once, their rankings fused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..calls.daemon_threads import run_together
from .passages import LocalBackend, Passage, SearchBackend, VersionedBackend, check_top_k, identity


class HybridSearch:
    """
    Reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009) over any backends.

    A passage scores the sum of `1 / (smoothing + rank)` over the backends that found it. Only ranks count, so that
    scores of any scale can be fused. All backends are asked at the same time. A failure of one of them is a failure of
    the query: a transient one is retried by the runtime, and no incomplete answer is ever shown or cached.

    Args:
        backends (`Sequence[SearchBackend]`):
            Whom to ask. Of equal scores the one found first by the first backend comes first.
        smoothing (`float`, *optional*, defaults to `60.0`):
            How little a high rank counts for more than a low one; the paper's value.
        depth (`int`, *optional*, defaults to `10`):
            Passages to ask each backend for, if more than `top_k`: one that is third for two backends can beat one
            that is first for one.

    Raises:
        ValueError: If there are no backends, or a number is out of range.

    Example:
        ```python
        backend = HybridSearch([BM25Search(documents), DenseSearch(documents, "minishlab/potion-base-8M")])
        ```
    """

    def __init__(self, backends: Sequence[SearchBackend], *, smoothing: float = 60.0, depth: int = 10):
        if not backends:
            raise ValueError("HybridSearch needs at least one backend, got none.")
        if smoothing < 0 or depth < 1:
            raise ValueError(f"smoothing must be at least 0 and depth at least 1, got {smoothing} and {depth}.")
        self._backends = list(backends)
        self._smoothing = smoothing
        self._depth = depth

    @property
    def cache_version(self) -> str | None:
        """What all of them depend on; `None` if all are local, or if one of them does not say."""
        remote = [backend.cache_version for backend in self._backends if isinstance(backend, VersionedBackend)]
        local = [backend.fingerprint for backend in self._backends if isinstance(backend, LocalBackend)]
        known = [version for version in remote if version is not None]
        if not known or len(known) + len(local) < len(self._backends):
            return None
        return f"hybrid {self._smoothing:g} {self._depth} [{', '.join(known + local)}]"

    def search(self, query: str, top_k: int) -> list[Passage]:
        """
        Ask every backend and fuse what they find.

        Args:
            query (`str`):
                What to look for.
            top_k (`int`):
                Most passages to return; at least 1.

        Returns:
            `list[Passage]`:
                Best first, each once, with its fused score.

        Raises:
            ValueError: If `top_k` is below 1.
        """
        check_top_k(top_k)
        depth = max(top_k, self._depth)
        rankings = run_together([partial(each.search, query, depth) for each in self._backends], "trl-agentic-hybrid")
        found: dict[tuple[str, ...], Passage] = {}
        scores: dict[tuple[str, ...], float] = {}
        for ranking in rankings:
            unique = {identity(passage): passage for passage in reversed(ranking)}  # the best of equals
            for rank, key in enumerate(dict.fromkeys(map(identity, ranking)), start=1):
                found.setdefault(key, unique[key])
                scores[key] = scores.get(key, 0.0) + 1.0 / (self._smoothing + rank)
        best = sorted(found, key=lambda key: -scores[key])[:top_k]  # stable: the order of discovery decides ties
        return [replace(found[key], score=scores[key]) for key in best]
