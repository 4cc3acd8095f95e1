"""Reading and writing between the processes of the sandbox, and burying those that have ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from typing import Any


def read_all(descriptor: int) -> bytes:
    """Read to the end."""
    parts = []
    while part := os.read(descriptor, 65536):
        parts.append(part)
    return b"".join(parts)


def reply(call: int, **facts: Any) -> None:
    """Answer a call, if anybody waits for the answer still, who is not kept waiting until this process is gone."""
    connection = socket.socket(fileno=call)
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(facts).encode())
        connection.shutdown(socket.SHUT_WR)
    connection.detach()


def drain(output: int, text: bytearray, max_bytes: int) -> bool:
    """Read what there is, up to a little more than is allowed; whether the pipe is still open."""
    while len(text) <= max_bytes:
        try:
            part = os.read(output, 65536)
        except BlockingIOError:
            return True
        if not part:
            return False
        text += part
    return True


def reap() -> dict[int, int]:
    """Wait statuses of the children that have ended, by process id."""
    found = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found[ended[0]] = ended[1]
    return found


def watch_children() -> int:
    """A descriptor that can be read from whenever a child of this process has ended."""
    wakeup, wakeup_end = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(wakeup_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
    return wakeup


def kill(process: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def kill_family(program: int) -> None:
    """Kill the program's group, and every orphan of it, which the guard adopts, for lack of a PID namespace."""
    with contextlib.suppress(OSError):
        os.killpg(program, signal.SIGKILL)
    with contextlib.suppress(OSError):
        for _ in range(1000):
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                for child in children.read().split():
                    os.kill(int(child), signal.SIGKILL)
            os.waitpid(-1, 0)  # raises when there are none left
