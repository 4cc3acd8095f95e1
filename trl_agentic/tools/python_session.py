"""
Python sessions: variables, imports and files stay from call to call, and a session can be forked.

Example:
    ```python
    with PythonSandbox() as sandbox, sandbox.session() as session:
        session.run("x = [1]")
        branch = session.fork()
        branch.run("x.append(2); x")  # "[1, 2]\\n"
        session.run("x")  # "[1]\\n"
    ```
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
import threading
import weakref
from typing import TYPE_CHECKING, Any

from .program_replies import Limits, read_reply
from .python_report import log_once
from .python_sandbox.messages import receive, send
from .python_sandbox.trees import remove_tree
from .zygote import SandboxError, numerical_libraries

if TYPE_CHECKING:
    from .python import PythonSandbox

_REPLY_S = 30.0  # how much later than the deadline a reply may come on a busy machine
_NOT_APART = (
    "Python sessions: the forks of a session are NOT kept apart from one another here, which takes namespaces, a "
    "filter of system calls and a /proc of their own. What to do: see the documentation of `sandbox_report`."
)


class PythonSession:
    """
    A Python session in a [`PythonSandbox`], with the same limits for each call, and the same conventions for output.

    A call is a transaction: it runs in a copy of the session, which takes the session's place when the code has come
    to its end (an exception or `exit()` is an end). If it is stopped at a limit, crashes or calls `os._exit`, the
    error says so, and the session is as it was before the call, its files included. `fork` returns a session that
    stands at the same point, and neither sees what the other does later.

    What stays from call to call are variables, imports, files and the working directory. Open files stay open, at
    their position, and belong to the copied files. Pipes, sockets and files that have been deleted read as `/dev/null`
    in the next call; shared memory keeps its content, and is no longer shared. Threads,
    processes, alarms and timers end with the call: it waits for threads that are no daemons, and for nothing else.
    Pools of threads or processes that are still open then are of no use to the next call.

    **Covered** where the sandbox's report grants `filesystem`, `processes` and `seccomp` (`isolated` says so): all
    that is covered for programs; and a session can neither signal, trace nor read another, reach its files, change its
    limits, or outlive its end. Sessions that were not forked from one another do not even share a PID namespace.
    `/proc` is empty. Calls run with `CAP_SYS_ADMIN` and `CAP_SYS_CHROOT` in a user namespace that owns the family's
    files alone, and seccomp denies every call that these allow, except to enter the files of a call: faults of the
    kernel in that part are a little nearer than they are for programs.

    **Not covered**: a session that sets out, before it is forked, to talk to its forks: what is in its memory then is
    its own doing. A limit that a call has set itself, or directories that it has closed or nested too deep to be
    copied, may keep every later call from starting. The limit on processes counts a session together with its forks,
    each call adding `max_processes`. Where `isolated` is `False`, the forks of a session see one another, as far as
    the account's rights go; files of a fork lie at another path; and files stay as a failed call has left them.

    Args:
        sandbox ([`PythonSandbox`]):
            Where it is opened.

    Raises:
        SandboxError: If it cannot be opened.
    """

    def __init__(self, sandbox: PythonSandbox):
        connection, self._family = _open(sandbox)
        self._adopt(connection, sandbox.limits)

    def _adopt(self, connection: socket.socket, limits: Limits) -> None:
        connection.settimeout(limits.timeout_s + _REPLY_S)
        self._connection = connection
        self._limits = limits
        self._lock = threading.Lock()
        self._lost: str | None = None
        self._finalizer = weakref.finalize(self, connection.close)

    @property
    def isolated(self) -> bool:
        """Whether the kernel keeps this session and its forks apart; see above."""
        return self._family.isolated

    def run(self, code: str) -> str:
        """
        Run Python code in the session.

        Args:
            code: The code. Variables, imports and files of earlier calls are there.

        Returns:
            What it printed, the value of its last expression, and how it ended, if not well.
        """
        return read_reply(self._ask(what="run", code=code), self._limits)

    def fork(self) -> PythonSession:
        """
        Fork the session.

        Returns:
            [`PythonSession`]:
                A session with the variables and files of this moment.

        Raises:
            SandboxError: If this session is closed or lost.
        """
        mine, theirs = socket.socketpair()
        try:
            with theirs:
                reply = self._ask(theirs.fileno(), what="fork")
            if reply["reason"] != "forked":
                raise SandboxError(f"the session could not be forked: {reply['output']}")
        except SandboxError:
            mine.close()
            raise
        child = object.__new__(type(self))
        child._family = self._family
        child._adopt(mine, self._limits)
        return child

    def close(self) -> None:
        """End the session. Its forks go on."""
        with contextlib.suppress(SandboxError):
            self._ask(what="close")
        self._lost = self._lost or "the session is closed; open another one"
        self._finalizer()

    def __enter__(self) -> PythonSession:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, descriptor: int | None = None, **request: Any) -> dict[str, Any]:
        """Send a request and wait for the reply; whatever goes wrong loses the session."""
        with self._lock:
            if self._lost is not None:
                raise SandboxError(self._lost)
            try:
                send(self._connection, descriptor, **request)
                reply, _ = receive(self._connection)
            except (OSError, EOFError) as error:
                reply = {"reason": "lost", "error": str(error)}
            if reply["reason"] == "lost":
                self._lost = "the session was lost: its process has ended between two calls; open another one"
                self._finalizer()
                raise SandboxError(self._lost)
            return reply


class _Family:
    """What a session and its forks share on this side: the directory, where the kernel grants no private one."""

    def __init__(self, directory: str | None):
        self.isolated = False
        if directory is not None:
            weakref.finalize(self, remove_tree, directory)


def _open(sandbox: PythonSandbox) -> tuple[socket.socket, _Family]:
    report = sandbox.report
    directory = None
    if not report["filesystem"]:
        directory = tempfile.mkdtemp(prefix="trl-agentic-")
        os.chmod(directory, 0o711)
    family = _Family(directory)
    reply: dict[str, Any] = {"output": "the sandbox's process is gone"}
    for _ in range(2):  # nothing has been run yet, so that a second try repeats nothing
        connection = sandbox.connect(b"session")
        try:
            send(connection, directory=directory)
            reply, _ = receive(connection)
            break
        except (OSError, EOFError):
            connection.close()
            sandbox.discard_if_dead()
    if "isolated" not in reply:
        connection.close()
        raise SandboxError(f"no session could be opened: {reply['output']}")
    family.isolated = reply["isolated"]
    if not family.isolated:
        log_once(logging.WARNING, _NOT_APART)
    return connection, family


class PythonEnvironment:
    """
    A Python session as an environment in TRL's sense: `environment_factory=PythonEnvironment`.

    `python` is its only tool. Every instance has a session of its own, which `reset` begins anew; one sandbox stands
    behind all of them, with `numpy` and `sympy` loaded where they are installed.
    """

    _lock = threading.Lock()
    _sandbox: PythonSandbox | None = None

    def __init__(self) -> None:
        self._session: PythonSession | None = None

    def reset(self, **row: Any) -> None:
        """
        Begin a new session.

        Args:
            row (`Any`):
                The columns of the prompt's row, of which none is needed.
        """
        self.close()

    def python(self, code: str) -> str:
        """
        Run Python code in a session and return what it prints.

        Args:
            code: The code. Variables, imports and files of earlier calls are there. The value of a last line that is
                an expression is shown too.

        Returns:
            The output.
        """
        if self._session is None:
            self._session = PythonSession(self._shared_sandbox())
        return self._session.run(code)

    def fork(self) -> PythonEnvironment:
        """
        Fork the environment.

        Returns:
            [`PythonEnvironment`]:
                One with the variables and files of this moment.
        """
        child = type(self)()
        if self._session is not None:
            child._session = self._session.fork()
        return child

    def close(self) -> None:
        """End the session. A later call of `python` begins another one."""
        if self._session is not None:
            self._session.close()
        self._session = None

    @classmethod
    def _shared_sandbox(cls) -> PythonSandbox:
        from .python import PythonSandbox

        with PythonEnvironment._lock:
            if PythonEnvironment._sandbox is None:
                PythonEnvironment._sandbox = PythonSandbox(preload=numerical_libraries())
            return PythonEnvironment._sandbox
