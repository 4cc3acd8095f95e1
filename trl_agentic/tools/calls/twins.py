"""Equal calls that are in flight at the same time: the first is run, and the others wait for its result."""

from __future__ import annotations

from ..cache import CacheKey
from .jobs import CallJob


class Twins:
    """Knows the cached calls in flight. The caller takes care that one thread at a time uses it."""

    def __init__(self) -> None:
        self._first: dict[CacheKey, CallJob] = {}

    def joins(self, job: CallJob) -> bool:
        """Let a call wait for an equal one, if there is one; otherwise later ones wait for it."""
        if job.key is None:
            return False
        first = self._first.get(job.key)
        if first is not None and (first.started or first.is_wanted):  # else it was abandoned, and may never run
            first.twins.append(job)
            return True
        self._first[job.key] = job
        return False

    def leave(self, job: CallJob) -> None:
        """Note that a call has ended."""
        if job.key is not None and self._first.get(job.key) is job:
            del self._first[job.key]

    def drop_unwanted(self) -> None:
        """Forget the calls that have not begun and that nobody waits for any more: they never will."""
        self._first = {key: job for key, job in self._first.items() if job.started or job.is_wanted}
