"""Writes results behind the back of those who have them: a slow or locked disk then delays no call."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from ..types import CallStatus
from .cache_entries import CachedResult, CacheKey


class LateWriter:
    """
    Hands results to a function, one after another, in a daemon thread that lives for as long as there is something.

    Args:
        write (`Callable[[CacheKey, CachedResult], None]`):
            Writes one result. Must not raise for what a disk can do.
    """

    def __init__(self, write: Callable[[CacheKey, CachedResult], None]):
        self._write = write
        self._begin()

    def add(self, key: CacheKey, result: CachedResult) -> None:
        """Have a result written soon; of two with one key and status that still wait the later one is."""
        self._leave_to_parent()
        with self._changed:
            self._waiting.pop((key, result.status), None)  # the order is that of the last change
            self._waiting[key, result.status] = result
            self._start()

    def get(self, key: CacheKey) -> CachedResult | None:
        """A result without a failure that is not yet written."""
        self._leave_to_parent()
        with self._changed:
            return self._waiting.get((key, CallStatus.OK))

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written, or passed over; returns whether that came to be in time."""
        self._leave_to_parent()
        with self._changed:
            if self._waiting:
                self._start()
            return self._changed.wait_for(lambda: not self._waiting, timeout=timeout_s)

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._waiting: dict[tuple[CacheKey, CallStatus], CachedResult] = {}
        self._thread: threading.Thread | None = None

    def _leave_to_parent(self) -> None:
        """In a forked process, which has no thread of this kind: begin anew."""
        if self._owner != os.getpid():
            self._begin()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name="trl-agentic-cache-writer", daemon=True)
            with contextlib.suppress(RuntimeError):  # the system has none to give: asked again with the next result
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    return
                (key, status), result = next(iter(self._waiting.items()))
            try:
                self._write(key, result)
            finally:  # whatever came: it must be neither tried for ever, nor keep others from being written
                with self._changed:
                    if self._waiting.get((key, status)) is result:
                        del self._waiting[key, status]
                    self._changed.notify_all()
