"""
Results of tool calls on disk, so that an equal call is paid for once, and a whole run can be repeated without paying.

Example:
    ```python
    with ResultCache("runs/cache") as cache, ToolRuntime([search], cache=cache) as runtime:
        ...  # `search` has been given `@tool_options(cached=True)`
    with ResultCache("runs/cache", mode="replay") as cache:
        ...  # the same run again: a call that is not in the cache raises `ReplayMiss`
    ```
"""

from __future__ import annotations

import errno
import json
import logging
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from ..types import CallStatus
from .cache_entries import CachedResult, CacheKey, normalised
from .cache_file import CacheFile, open_cache_file
from .late_writer import LateWriter

logger = logging.getLogger(__name__)

Mode = Literal["read_write", "replay", "refresh"]
FLUSH_S = 5.0  # how long a cache that is closed waits for a disk

# A disk, and results that SQLite does not take: too big, or with a key that is no Unicode.
_UNWRITABLE = (sqlite3.Error, OSError, ValueError, OverflowError, MemoryError)

_READ = "SELECT content, status, negative, truncated, stored_at FROM results WHERE key = ?"
_READ_OK = f"{_READ} AND status = 'ok'"
_READ_LATEST = f"{_READ} ORDER BY stored_at DESC LIMIT 1"
_COLUMNS = "INTO results (key, status, tool, version, arguments, content, negative, truncated, stored_at)"
_WRITE = f"INSERT OR REPLACE {_COLUMNS} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_FILL = f"INSERT OR IGNORE {_COLUMNS} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


class ReplayMiss(LookupError):
    """
    A call that a replayed run makes is not in the cache.

    Args:
        tool (`str`), arguments (`str`), path (`Path`):
            The call, its arguments as JSON, and the cache.
    """

    def __init__(self, tool: str, arguments: str, path: Path):
        super().__init__(
            f"{tool}({arguments[:500]}) is not in the cache {path}, and mode='replay' runs no tool that is "
            "cached. Run once with mode='read_write' to fill the cache, or use the model, seed and settings that it "
            "was filled with (num_tool_workers=0 makes a run repeat exactly)."
        )
        self.tool = tool
        self.arguments = arguments


class ResultCache:
    """
    Keeps results of tool calls in one SQLite file.

    Any number of threads and processes of one machine may share a directory. (On a network file system give each
    machine one of its own: SQLite needs file locks that hold between all its users.) Nothing is ever evicted, and what
    has expired stays for `replay` until it is written anew.

    Two calls are equal if tool, version and arguments are. Of the arguments, the order of names does not matter, and
    texts are brought to Unicode's NFC; white space and case are kept, since a tool may care (Python does). An argument
    that is left out differs from one that is given its default.

    A call that failed is stored beside the last one that did not, for a replay alone: the later of both is its answer.

    A fault of the disk never fails a call, except in a replay: the cache is passed over, which is counted, and logged
    once. A damaged entry is noticed by its checksum and counts as missing. A damaged file is moved aside when it is
    next opened for writing.

    Args:
        directory (`str` or `Path`):
            Where to keep `results.sqlite`; made if it does not exist.
        mode (`"read_write"`, `"replay"` or `"refresh"`, *optional*, defaults to `"read_write"`):
            `"replay"` answers from the cache alone, however old an entry is, writes nothing, and makes a miss a
            [`ReplayMiss`]; `"refresh"` runs every call and stores its result.
        expire_s (`float`, *optional*):
            Seconds for which an entry answers calls; for ever if not given.
        negative_expire_s (`float`, *optional*, defaults to `3600.0`):
            The same for results that say that nothing was found.

    Raises:
        ValueError: If a setting is wrong, the file belongs to something else, or there is nothing to replay.
        OSError: If the file can be neither opened nor made.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        mode: Mode = "read_write",
        expire_s: float | None = None,
        negative_expire_s: float | None = 3600.0,
    ):
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}; got {mode!r}.")
        for name, value in (("expire_s", expire_s), ("negative_expire_s", negative_expire_s)):
            if value is not None and not value >= 0:
                raise ValueError(f"{name} must be 0 or more, or None for never; got {value}.")
        self.mode = mode
        self.path = Path(directory) / "results.sqlite"
        self._expire_s = expire_s
        self._negative_expire_s = negative_expire_s
        self._file: CacheFile = open_cache_file(self.path, read_only=mode == "replay")
        self._late = LateWriter(self.put)
        self._lock = threading.Lock()
        self._counts = {"hits": 0, "misses": 0, "errors": 0}

    @property
    def metrics(self) -> dict[str, float]:
        """Counts since the cache was opened: `cache/hits`, `cache/misses` and `cache/errors` (faults passed over)."""
        with self._lock:
            return {f"cache/{name}": float(count) for name, count in self._counts.items()}

    @staticmethod
    def key(tool: str, arguments: Mapping[str, Any], version: str = "") -> CacheKey | None:
        """
        The key of a call.

        Args:
            tool (`str`), arguments (`Mapping[str, Any]`), version (`str`, *optional*, defaults to `""`):
                The call, and the version of the tool.

        Returns:
            [`CacheKey`] or `None`:
                `None` for arguments that JSON does not know; such a call cannot be cached.
        """
        try:
            return CacheKey(tool, version, json.dumps(normalised(arguments), sort_keys=True, separators=(",", ":")))
        except (TypeError, ValueError, RecursionError):
            return None

    def get(self, key: CacheKey, *, wait_s: float | None = None) -> CachedResult | None:
        """
        Look a result up.

        Args:
            key ([`CacheKey`]):
                The call.
            wait_s (`float`, *optional*):
                Seconds to wait at most while somebody is writing to the file; two if not given, and in a replay.

        Returns:
            [`CachedResult`] or `None`:
                `None` if it is not there, has expired, or cannot be read; always with `mode="refresh"`.

        Raises:
            ReplayMiss: If it is not there, and `mode` is `"replay"`.
            OSError: If it cannot be read, and `mode` is `"replay"`.
            CacheBusyError: If somebody is writing, and `wait_s` is 0.
        """
        result = None if self.mode == "refresh" else self._unwritten(key) or self._read(key, wait_s)
        self._count("misses" if result is None else "hits")
        if result is None and self.mode == "replay":
            raise ReplayMiss(key.tool, key.arguments, self.path)
        return result

    def put(self, key: CacheKey, result: CachedResult) -> None:
        """
        Store a result; nothing happens with `mode="replay"`.

        Args:
            key ([`CacheKey`]), result ([`CachedResult`]):
                The call and its result. An earlier one of the same status is replaced.
        """
        if self.mode == "replay":
            return
        try:
            self._file.write(_WRITE, [_row(key, result)])
        except _UNWRITABLE as error:
            self._pass_over("written", error)

    def put_later(self, key: CacheKey, result: CachedResult) -> None:
        """
        The same, without waiting for the disk; what is not yet written answers calls already.

        Args:
            key ([`CacheKey`]), result ([`CachedResult`]):
                As in [`ResultCache.put`].
        """
        if self.mode != "replay":
            self._late.add(key, result)

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until what was put is written, or passed over; returns whether that came to be in time."""
        return self._late.flush(timeout_s)

    def fill(self, results: Iterable[tuple[CacheKey, CachedResult]]) -> int:
        """
        Add results from elsewhere, as if they had been obtained now. Those that are there already are kept.

        Args:
            results (`Iterable[tuple[CacheKey, CachedResult]]`):
                The results.

        Returns:
            `int`: Number of results that were new.

        Raises:
            ValueError: If `mode` is `"replay"`.
            OSError: If they cannot be written.
        """
        if self.mode == "replay":
            raise ValueError("mode='replay' writes nothing; open the cache with mode='read_write' to fill it.")
        try:
            return self._file.write(_FILL, [_row(key, result) for key, result in results])
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"The tool cache {self.path} could not be written: {error}") from error

    def close(self) -> None:
        """Flush, and close the file. A cache that is used afterwards is passed over."""
        self.flush()
        self._file.close()

    def __enter__(self) -> ResultCache:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _unwritten(self, key: CacheKey) -> CachedResult | None:
        result = self._late.get(key)
        return None if result is None or self._expiry(result.negative) == 0.0 else result

    def _expiry(self, negative: bool) -> float | None:
        return self._negative_expire_s if negative else self._expire_s

    def _read(self, key: CacheKey, wait_s: float | None) -> CachedResult | None:
        is_replay = self.mode == "replay"
        try:
            row = self._file.read(
                _READ_LATEST if is_replay else _READ_OK, (key.digest,), None if is_replay else wait_s
            )
            if row is None:
                return None
            packed, status, negative, truncated, stored_at = row
            text = zlib.decompress(packed).decode()
            result = CachedResult(text, bool(negative), bool(truncated), CallStatus(status))
            expire_s = self._expiry(negative)
            is_fresh = expire_s is None or time.time() - stored_at < expire_s
        except (sqlite3.Error, OSError, zlib.error, ValueError, TypeError) as error:  # the last ones: a damaged row
            if is_replay:
                raise self._replay_error(key, error) from error
            self._pass_over("read", error)
            return None
        return result if is_fresh or is_replay else None

    def _replay_error(self, key: CacheKey, error: Exception) -> OSError:
        self._count("errors")
        what = f"The tool cache {self.path} could not be read for {key.tool}({key.arguments[:500]})"
        remedy = "A replay has no other answer: end what keeps the file locked, or restore the file."
        return OSError(errno.EIO, f"{what}: {type(error).__name__}: {error}. {remedy}")

    def _pass_over(self, action: str, error: Exception) -> None:
        if self._count("errors") == 1:
            logger.warning(
                f"The tool cache {self.path} could not be {action} ({type(error).__name__}: {error}). Calls go on "
                "without it; this is said once, and counted in `cache/errors`. A file that is damaged is moved aside "
                "when the cache is next opened."
            )

    def _count(self, name: str) -> int:
        with self._lock:
            self._counts[name] += 1
            return self._counts[name]


def _row(key: CacheKey, result: CachedResult) -> tuple[Any, ...]:
    packed = zlib.compress(result.content.encode("utf-8", "replace"), 1)  # compressed for its checksum as well
    return (key.digest, result.status.value, *key, packed, result.negative, result.truncated, time.time())
