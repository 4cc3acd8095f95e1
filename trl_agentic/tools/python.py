"""
Runs Python that a model wrote, in a process that can do little else.

Example:
    ```python
    with PythonSandbox(timeout_s=5.0) as sandbox:
        sandbox.run("x = 6\\nx * 7")  # "42\\n"
        sandbox.run("1 / 0")  # "ZeroDivisionError: division by zero (line 1)\\n"
    ```
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .program_replies import Limits, read_reply
from .python_report import log_report
from .python_sandbox.trees import remove_tree
from .python_session import PythonSession
from .zygote import SandboxError, Zygote, numerical_libraries, python_paths, start_zygote

_REPLY_S = 15.0  # how much later than the deadline a reply may come on a busy machine


class PythonSandbox:
    """
    Runs programs, each in a fresh process forked from a small one that is kept warm: a call costs a few milliseconds.

    The process is started by the first call and replaced if it dies. `run` may be called from many threads at once.

    **Covered** where the kernel allows namespaces to users (what it allows here: [`sandbox_report`]): no network, not
    even loopback; a read-only file system that holds the system's programs and this Python alone, with a private
    `/tmp` in memory that is gone after the call; no view of other processes, no signals to them, and none left behind;
    no privileges. **Covered** where it allows seccomp: none of the calls by which a program could trace or read other
    processes, mount, load code into the kernel, reach other kinds of sockets or await connections, or use what is
    large and young (bpf, io_uring, userfaultfd, perf, keys, new namespaces); calls of another architecture end the
    program. **Covered** on every Linux: wall-clock and CPU time, memory, file size, open files and processes; output;
    an empty environment; no standard input; if this process is root, the program is not. Without namespaces the
    network is open, and files can be read as far as permissions go, and written if this process is not root.

    **Not covered**: faults of the kernel in the calls that programs do need (there is no virtual machine: code that
    must not be trusted at all belongs in one); memory summed over the processes that one program starts, which is
    bounded by `memory_mb` times `max_processes`, beside `disk_mb` and what the kernel holds in pipes and sockets (and,
    without seccomp, files in memory, which nothing bounds); channels between programs that conspire, such as timing,
    or locks and watches on files that all may read; whatever lies below Python's prefixes, which is readable. Without
    namespaces, the limit on processes counts all of the account's where this process is not root; where it is, and
    nobody else may enter the directory of its Python, programs can import little more than `preload` and the usual
    modules.

    This does what `bubblewrap` does, with a fork per call where that starts a program; `bwrap` itself is not called.
    So hosts that deny namespaces to users but not to `bwrap` are **not covered**: there, programs run under limits and
    seccomp alone. Such are old kernels with a `bwrap` that has the set-user-ID bit, and Ubuntu since 24.04, whose
    AppArmor asks for a profile; [`sandbox_report`] says so, and its documentation what to do.

    Args:
        timeout_s (`float`, *optional*, defaults to `10.0`):
            Wall-clock seconds of a program.
        cpu_s (`float`, *optional*):
            CPU seconds of each process, rounded up; `timeout_s` by default.
        memory_mb (`int`, *optional*, defaults to `512`):
            Address space of each process, in MB, beside what the interpreter and `preload` occupy.
        disk_mb (`int`, *optional*, defaults to `16`):
            Largest file, and where the file system is private, all files together, in MB.
        max_output_bytes (`int`, *optional*, defaults to `100_000`):
            Most bytes a program may print.
        max_processes (`int`, *optional*, defaults to `16`):
            Processes and threads of a program, itself included.
        preload (`Sequence[str]`, *optional*, defaults to `()`):
            Modules to import once, so that programs get them for free, such as `"numpy"` or `"sympy"`.
        namespaces (`bool`, *optional*, defaults to `True`):
            Whether to isolate programs by namespaces where the kernel allows it.

    Raises:
        OSError: If this is not Linux.
        ValueError: If a limit is not positive.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 10.0,
        cpu_s: float | None = None,
        memory_mb: int = 512,
        disk_mb: int = 16,
        max_output_bytes: int = 100_000,
        max_processes: int = 16,
        preload: Sequence[str] = (),
        namespaces: bool = True,
    ):
        if sys.platform != "linux":
            raise OSError(f"PythonSandbox needs Linux, this is {sys.platform}; pass a tool of your own instead.")
        self.limits = Limits(timeout_s, timeout_s if cpu_s is None else cpu_s, memory_mb, max_output_bytes)
        numbers = [timeout_s, self.limits.cpu_s, memory_mb, disk_mb, max_output_bytes, max_processes]
        if min(numbers) <= 0:
            raise ValueError(f"Every limit of PythonSandbox must be positive, got {numbers}.")
        self._settings: dict[str, Any] = {
            "timeout_s": timeout_s,
            "disk_mb": disk_mb,
            "max_output_bytes": max_output_bytes,
            "max_processes": max_processes,
            "preload": list(preload),
            "namespaces": namespaces,
            "limits": {
                "CPU": math.ceil(self.limits.cpu_s),
                "AS": memory_mb << 20,
                "FSIZE": disk_mb << 20,
                "NOFILE": 256,
                "CORE": 0,
                "MEMLOCK": 0,
                "MSGQUEUE": 0,
            },
            **python_paths(),
        }
        self._lock = threading.Lock()
        self._zygote: Zygote | None = None
        self._finalizer: weakref.finalize | None = None

    @property
    def report(self) -> dict[str, bool]:
        """What is enforced here, by name; see [`sandbox_report`]."""
        with self._lock:
            return dict(self._running_zygote().report)

    def run(self, code: str) -> str:
        """
        Run a program.

        Args:
            code (`str`):
                The program. It starts afresh: nothing of earlier calls is there.

        Returns:
            `str`:
                What it printed, the value of its last expression if that is not `None`, and one line about the
                exception, signal or exit code it ended with. Never empty.

        Raises:
            TimeoutError: If the program ran too long.
            SandboxError: If it used too much memory or printed too much, or if its process was lost.
        """
        connection, zygote = self._connect(b"call")
        with connection, self._private_directory(zygote.report) as directory:
            request = json.dumps({"code": code, "directory": directory}).encode()
            try:
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
                reply = _read_all(connection)
            except TimeoutError:
                raise TimeoutError(f"the program did not end within {self.limits.timeout_s:g} s") from None
            except OSError:  # the peer is gone
                reply = b""
        if not reply:
            self._discard_if_dead(zygote)
            raise SandboxError("the process of the program was lost; run it again")
        return read_reply(json.loads(reply), self.limits)

    def session(self) -> PythonSession:
        """
        Open a session, whose variables and files stay from call to call.

        Returns:
            [`PythonSession`]:
                A session of its own; close it when it is not needed any more.
        """
        return PythonSession(self)

    def connect(self, kind: bytes) -> socket.socket:
        """
        Connect to a process of its own; for what is built on this class.

        Args:
            kind (`bytes`):
                `b"call"` or `b"session"`.

        Returns:
            `socket.socket`:
                The connection; closing it ends the process.
        """
        return self._connect(kind)[0]

    def discard_if_dead(self) -> None:
        """Drop the sandbox's process if it has ended or is about to; the next call starts another one."""
        zygote = self._zygote
        if zygote is not None:
            self._discard_if_dead(zygote)

    def close(self) -> None:
        """Stop the sandbox's process, and every program with it. A later call starts a new one."""
        with self._lock:
            self._discard()

    def __enter__(self) -> PythonSandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _connect(self, kind: bytes) -> tuple[socket.socket, Zygote]:
        """A connection to a process that was forked for one call or one family of sessions."""
        mine, theirs = socket.socketpair()
        mine.settimeout(self.limits.timeout_s + _REPLY_S)
        try:
            with theirs, self._lock:
                zygote = self._running_zygote()
                try:
                    socket.send_fds(zygote.control, [kind], [theirs.fileno()])
                except OSError:  # it died; nothing has been run yet, so that a second try repeats nothing
                    self._discard()
                    zygote = self._running_zygote()
                    socket.send_fds(zygote.control, [kind], [theirs.fileno()])
        except (OSError, SandboxError):
            mine.close()
            raise
        return mine, zygote

    @contextlib.contextmanager
    def _private_directory(self, report: dict[str, bool]) -> Iterator[str]:
        """Where a program may write; for lack of a private file system a directory that is removed."""
        if report["filesystem"]:
            yield self._settings["directory"]
            return
        directory = tempfile.mkdtemp(prefix="trl-agentic-")
        try:
            if report["account"]:
                os.chown(directory, 65534, 65534)
            yield directory
        finally:
            remove_tree(directory)

    def _running_zygote(self) -> Zygote:
        """The process in use; the lock is held."""
        if self._zygote is None or self._zygote.owner != os.getpid():  # a fork of the owner needs one of its own
            self._zygote = start_zygote(self._settings)
            self._finalizer = weakref.finalize(self, self._zygote.stop)
            log_report(self._zygote.report)
        return self._zygote

    def _discard_if_dead(self, zygote: Zygote) -> None:
        """Drop a process that is dying, so that no other call is sent to it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            zygote.process.wait(timeout=0.5)
            with self._lock:
                if self._zygote is zygote:
                    self._discard()

    def _discard(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._zygote = self._finalizer = None


def _read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def make_python_tool(sandbox: PythonSandbox | None = None) -> Callable[[str], str]:
    """
    Make the tool `python`, to be passed in `tools=[...]`.

    Args:
        sandbox ([`PythonSandbox`], *optional*):
            Where programs run. If not given, one with the default limits, in which `numpy` and `sympy` are loaded
            already where they are installed.

    Returns:
        `Callable[[str], str]`:
            A function named `python`.
    """
    runner = PythonSandbox(preload=numerical_libraries()) if sandbox is None else sandbox

    def python(code: str) -> str:
        """
        Run a Python program and return what it prints.

        Args:
            code: The program. The value of a last line that is an expression is shown too. Every call starts afresh.

        Returns:
            The output.
        """
        return runner.run(code)

    return python
