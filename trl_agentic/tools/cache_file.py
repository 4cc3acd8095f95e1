"""The SQLite file behind [`ResultCache`]: opened with care, and read and written by many threads and processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

BUSY_S = 2.0  # how long to wait for another process that writes
HURRIED_S = 0.05  # the same for one that has kept the file locked for longer than that
_PAUSE_S = 0.005
_FORMAT = 2
_TABLE = """
CREATE TABLE IF NOT EXISTS results (
    key BLOB, status TEXT, tool TEXT, version TEXT, arguments TEXT,
    content BLOB, negative INTEGER, truncated INTEGER, stored_at REAL, PRIMARY KEY (key, status)
)"""


# A process must not even close a connection that it inherited by a fork: SQLite would count it as its own.
_inherited: list[sqlite3.Connection] = []


class CacheBusyError(Exception):
    """Somebody is writing to the file, and the caller does not want to wait."""


class _Connection:
    """One connection that any thread may use, and that a forked process replaces by one of its own."""

    def __init__(self, path: Path, read_only: bool, busy_s: float):
        self._path = path
        self._read_only = read_only
        self._busy_s = busy_s
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._is_closed = False
        self._connection: sqlite3.Connection | None = None

    @contextlib.contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time."""
        self._leave_to_parent()
        with self._lock:
            if self._is_closed:
                raise sqlite3.ProgrammingError("the cache is closed")
            if self._connection is None:
                self._connection = self._connect()
            yield self._connection

    def close(self) -> None:
        """Close it for good."""
        self._leave_to_parent()
        with self._lock:
            self._is_closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _leave_to_parent(self) -> None:
        """In a forked process: begin anew."""
        if self._owner == os.getpid():
            return
        self._lock = threading.Lock()  # the old one may have been held by a thread that the fork left behind
        self._owner = os.getpid()
        if self._connection is not None:
            _inherited.append(self._connection)
            self._connection = None

    def _connect(self) -> sqlite3.Connection:
        mode = "ro" if self._read_only else "rwc"
        address = f"{self._path.resolve().as_uri()}?mode={mode}"
        connection = sqlite3.connect(
            address, uri=True, timeout=self._busy_s, isolation_level=None, check_same_thread=False, cached_statements=8
        )
        # No shared memory and no memory map: a file that is cut short by somebody else would kill the process.
        # Without waiting for the disk, a kill loses nothing; a power failure may damage the file, which is noticed.
        try:
            connection.execute("PRAGMA mmap_size = 0")
            if not self._read_only:
                connection.execute("PRAGMA journal_mode = TRUNCATE")
                connection.execute("PRAGMA synchronous = OFF")
        except sqlite3.Error:
            connection.close()
            raise
        return connection


class CacheFile:
    """
    Reads and writes the file. Reading needs no turn among the writers of this process, unless they are in the way.

    Args:
        path (`Path`):
            The file.
        read_only (`bool`):
            Whether it is never written to.
    """

    def __init__(self, path: Path, read_only: bool):
        self._reader = _Connection(path, read_only, 0.0)
        self._writer = _Connection(path, read_only, BUSY_S)
        self._is_locked = False  # as the last writer found it

    def read(self, statement: str, values: Sequence[Any] = (), wait_s: float | None = None) -> tuple[Any, ...] | None:
        """
        Read one row.

        Args:
            statement (`str`), values (`Sequence[Any]`, *optional*, defaults to `()`):
                The statement, and what stands for its question marks.
            wait_s (`float`, *optional*):
                Seconds to wait at most while somebody else is writing; `BUSY_S` if not given.

        Returns:
            `tuple[Any, ...]` or `None`: The first row.

        Raises:
            CacheBusyError: If somebody is writing, and `wait_s` is 0.
            sqlite3.Error: If the file cannot be read.
        """
        end = time.monotonic() + (BUSY_S if wait_s is None else wait_s)
        while True:
            try:
                with self._reader.use() as connection:
                    return connection.execute(statement, values).fetchone()
            except sqlite3.OperationalError as error:
                if "is locked" not in str(error):
                    raise
                if wait_s == 0:
                    raise CacheBusyError from error
                if time.monotonic() >= end:
                    raise
            time.sleep(_PAUSE_S)  # outside of the lock, which others need who do not wait

    def write(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """Execute a statement for every row, all or none; the number of rows that changed. Raises `sqlite3.Error`."""
        with self._writer.use() as connection:
            before = connection.total_changes
            connection.execute(f"PRAGMA busy_timeout = {int(1000 * (HURRIED_S if self._is_locked else BUSY_S))}")
            self._is_locked = True
            connection.execute("BEGIN IMMEDIATE")
            self._is_locked = False
            try:
                connection.executemany(statement, rows)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            return connection.total_changes - before

    def prepare(self) -> None:
        """
        Check the file, and make its table if there is none.

        Raises:
            ValueError: If it is the file of something else.
            sqlite3.Error: If it is damaged, or cannot be opened.
        """
        with self._writer.use() as connection:
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
            if tables and found != _FORMAT:
                raise ValueError("it holds other tables than those of a tool cache")
            if not tables:
                connection.execute(_TABLE)
                connection.execute(f"PRAGMA user_version = {_FORMAT}")

    def close(self) -> None:
        """Close both connections."""
        self._reader.close()
        self._writer.close()


def open_cache_file(path: Path, *, read_only: bool) -> CacheFile:
    """
    Open the file of a cache.

    Args:
        path (`Path`):
            The file; its directory is made.
        read_only (`bool`):
            Whether the file must exist, and is never written to. A damaged file then is an error; otherwise it is
            moved aside, and a new one is begun.

    Returns:
        [`CacheFile`]

    Raises:
        ValueError: If the file belongs to something else, or a file to be read does not exist or is damaged.
        OSError: If it cannot be opened or made.
    """
    if read_only:
        if not path.is_file():
            raise ValueError(f"There is no tool cache at {path} to replay; fill one with mode='read_write' first.")
        return _open(path, read_only=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.parent / "opening.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one process at a time finds a damaged file and moves it aside
            try:
                return _open(path, read_only=False)
            except _Damaged as damage:
                _move_aside(path, damage)
                return _open(path, read_only=False)
    except OSError as error:
        raise OSError(
            error.errno, f"The tool cache {path} cannot be opened for writing: {error}. Pass a directory that can be."
        ) from error


class _Damaged(ValueError):
    """The file is no SQLite database, or a broken one."""


def _open(path: Path, read_only: bool) -> CacheFile:
    file = CacheFile(path, read_only)
    try:
        file.prepare()
    except ValueError as error:
        file.close()
        raise ValueError(f"{path} is no tool cache of this version: {error}. Pass another directory.") from error
    except sqlite3.OperationalError as error:  # locked, not to be opened, disk full
        file.close()
        remedy = ""
        if read_only and "readonly" in str(error):  # reading would have to begin with a roll-back
            remedy = (
                ". A process that wrote to it was killed in the middle: open the cache once with mode='read_write', "
                "which undoes what it left half done"
            )
        raise OSError(errno.EIO, f"{path}: {error}{remedy}") from error
    except sqlite3.DatabaseError as error:
        file.close()
        raise _Damaged(
            f"The tool cache {path} is damaged ({error}). Open it once with mode='read_write', which moves it aside."
        ) from error
    return file


def _move_aside(path: Path, damage: Exception) -> None:
    aside = path.with_name(f"results.damaged-{time.time_ns()}.sqlite")
    path.rename(aside)
    path.with_name(path.name + "-journal").unlink(missing_ok=True)
    logger.warning(f"{damage} It has been moved to {aside}, and a new cache is begun.")
