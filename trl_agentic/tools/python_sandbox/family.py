"""What the keeper knows of its sessions, and of the processes of each."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from .files import Files
from .streams import kill


@dataclass(eq=False)
class Point:
    """
    A point in the life of sessions.

    Args:
        process (`int`):
            The process, stopped unless it is `forking`.
        control (`socket.socket`):
            Connection to it.
        files ([`Files`], *optional*):
            The files; `None` once they belong to the next point.
        sessions (`int`), forking (`int`):
            Sessions that stand here, and forks under way.
        ended (`bool`):
            Whether the process has ended, which it should not.
    """

    process: int
    control: socket.socket
    files: Files | None
    sessions: int = 1
    forking: int = 0
    ended: bool = False


@dataclass(eq=False)
class Session:
    """A session: its owner's connection, where it stands, and the call it is at."""

    owner: socket.socket
    point: Point
    running: Running | None = None


@dataclass(eq=False)
class Running:
    """A call under way. `process` is the fork that runs it, `None` until it is there; `code` is how it has ended."""

    session: Session
    control: socket.socket
    files: Files
    output: int
    deadline: float
    process: int | None = None
    code: int | None = None
    settled: bool = False
    text: bytearray = field(default_factory=bytearray)


class Family:
    """
    All sessions that were forked from one, and the processes that belong to them.

    Args:
        isolated (`bool`):
            Whether each call has a mount namespace of its own, which then tells whose a process is, whatever it does.
            Otherwise a process belongs to a call as long as its parents do, and orphans belong to nobody.
    """

    def __init__(self, isolated: bool):
        self.isolated = isolated
        self.sessions: list[Session] = []

    @property
    def running(self) -> list[Running]:
        """The calls under way."""
        return [member.running for member in self.sessions if member.running is not None]

    @property
    def entrances(self) -> set[int | None]:
        """The mount namespaces of calls whose process is not there yet."""
        return {running.files.namespace for running in self.running if running.process is None}

    @property
    def _known(self) -> set[int]:
        points = {member.point.process for member in self.sessions}
        return points | {running.process for running in self.running if running.process is not None}

    def seconds_left(self) -> float:
        """Seconds to the next deadline, an hour if there is none."""
        now = time.monotonic()
        return max(min((running.deadline - now for running in self.running), default=3600.0), 0.0)

    def expired(self) -> list[Running]:
        """The calls whose deadline has passed."""
        return [running for running in self.running if running.deadline <= time.monotonic()]

    def is_new(self, process: int, files: Files) -> bool:
        """Whether a process is a child of this one that nothing is known of yet, and sees the files it shall see."""
        parents = _parents()
        if process in self._known or parents.get(process, 0 if parents else os.getpid()) != os.getpid():
            return False
        return not self.isolated or namespace_of(process) == files.namespace

    def end_processes(self, files: Files, root: int | None, spare_root: bool) -> None:
        """Kill the processes that see some files (descend from `root`, where that says nothing), and wait for that."""
        if not self.isolated and root is not None and not spare_root:
            with contextlib.suppress(OSError):
                os.killpg(root, signal.SIGKILL)
        for _ in range(2000):
            found = self._processes_of(files, root) - ({root} if spare_root else set())
            if not found:
                return
            for process in found:
                kill(process)
            time.sleep(0.0005)

    def _processes_of(self, files: Files, root: int | None) -> set[int]:
        if self.isolated:
            wanted = files.namespace
            return {process for process in _processes() if namespace_of(process) == wanted}
        parents = _parents()
        orphans = {process for process, parent in parents.items() if parent == os.getpid()} - self._known
        others = [running for running in self.running if running.files is not files]
        if any(running.process is None or running.code is not None for running in others):
            orphans = set()  # one of them may be the fork that another call waits for
        family = {root} & parents.keys() if root is not None else set()
        found = orphans | family
        while more := {process for process, parent in parents.items() if parent in found} - found:
            found |= more
        return found - self._known | family

    def limit_processes(self, process: int, num_processes: int) -> None:
        """Let a process start `num_processes` beside what all sessions have now, and those under way may have."""
        owner = _owner(process)
        if owner is None:
            return
        present = sum(_num_threads(each) for each in _processes() if _owner(each) == owner)
        wanted = present + num_processes * max(len(self.running), 1) - 1
        with contextlib.suppress(OSError):
            hard = resource.prlimit(process, resource.RLIMIT_NPROC)[1]
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.prlimit(process, resource.RLIMIT_NPROC, (soft, hard))

    def describe(self, point: Point, files: Files) -> dict[str, Any]:
        """
        What a fork of a point has to know in order to be independent of it.

        Args:
            point ([`Point`]):
                Where it is forked; stopped.
            files ([`Files`]):
                The files it gets.

        Returns:
            `dict[str, Any]`:
                `directory` and `origin`: where its files are, and where the point's are; `descriptors`: number, path
                (`None` if it is no file that can be opened again), flags and position of each; `shared`: start, length
                and protection of memory that it shares with the point.
        """
        assert point.files is not None
        origin = point.files.path
        descriptors, shared = [], []
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{point.process}/fd"):
                if int(name) > 2:
                    descriptors.append(_open_file(point.process, name, origin, files.path))
            with open(f"/proc/{point.process}/maps", "rb") as maps:  # the program chose the names in there
                shared = [area for line in maps if (area := _shared_memory(line, origin)) is not None]
        return {"directory": files.path, "origin": origin, "descriptors": descriptors, "shared": shared}


def namespace_of(process: int) -> int | None:
    """Number of the mount namespace of a process or thread; `None` if it has ended."""
    try:
        return os.stat(f"/proc/{process}/ns/mnt").st_ino
    except OSError:
        return None


def _processes() -> list[int]:
    """All that `/proc` shows: nothing inside some containers, where it may not be mounted."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parents() -> dict[int, int]:
    """The parent of every process that has not ended."""
    parents = {}
    for process in _processes():
        with contextlib.suppress(OSError), open(f"/proc/{process}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state not in b"ZX":
                parents[process] = int(parent)
    return parents


def _owner(process: int) -> int | None:
    try:
        return os.stat(f"/proc/{process}").st_uid
    except OSError:
        return None


def _num_threads(process: int) -> int:
    try:
        return len(os.listdir(f"/proc/{process}/task"))
    except OSError:
        return 1


def _open_file(process: int, name: str, origin: str, target: str) -> tuple[int, str | None, int, int]:
    try:
        where = os.readlink(f"/proc/{process}/fd/{name}")
    except OSError:  # longer than a path may be
        where = ""
    with open(f"/proc/{process}/fdinfo/{name}", "rb") as file:
        facts = dict(line.split(b":", 1) for line in file if b":" in line)
    if where.startswith(origin + "/"):
        where = target + where[len(origin) :]
    path = where if where.startswith("/") and not where.endswith(" (deleted)") else None
    return int(name), path, int(facts[b"flags"], 8), int(facts[b"pos"])


def _shared_memory(line: bytes, origin: str) -> tuple[int, int, int] | None:
    """Start, length and protection of an area of memory that is shared and may change; from a line of `maps`."""
    span, rights, _, _, _, *path = line.split(maxsplit=5)
    inside = b"".join(path).startswith(os.fsencode(origin) + b"/")
    if not rights.startswith(b"r") or not rights.endswith(b"s") or not (inside or rights[1:2] == b"w"):
        return None
    start, end = (int(number, 16) for number in span.split(b"-"))
    write = mmap.PROT_WRITE if rights[1:2] == b"w" else 0
    return start, end - start, mmap.PROT_READ | write
