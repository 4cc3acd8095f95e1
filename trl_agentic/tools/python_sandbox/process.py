"""
The process behind [`PythonSandbox`]: it isolates itself once, then forks for each program.

Standard library only: [`PythonSandbox`] starts it with an empty environment and without site-packages, and the package
itself imports `messages.py` and `trees.py` alone. Three processes take part in a call:

- the *zygote*, one per sandbox, waits for calls on a socket that is its standard input;
- the *guard*, one per call and PID 1 of a PID namespace where there are such, collects the output, keeps the deadline
  and replies; when it ends, the kernel kills whatever the program has left behind;
- the *program*, a child of the guard, gives up every privilege and runs the code.

For sessions, whose programs go on from one another, a *keeper* stands in the place of the guard; see `keeper.py`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys

from .guard import Guard
from .isolation import Isolation
from .keeper import Keeper
from .program import run_program
from .streams import reply

# Imported once for all programs: what short programs import most.
STANDARD_MODULES = (
    "bisect cmath collections copy csv dataclasses datetime decimal enum fractions functools heapq itertools json "
    "math operator random re statistics string subprocess tempfile textwrap typing"
)


def serve(isolation: Isolation, control: socket.socket) -> str:
    """
    Fork for every call and every family of sessions, until the sandbox's owner is gone.

    Args:
        isolation ([`Isolation`]):
            What is granted here.
        control (`socket.socket`):
            Where `b"call"` and `b"session"` arrive, each with the descriptor of a connection to the caller.

    Returns:
        `str`:
            The code, in a program's process. Other processes do not return.
    """
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 16, 1)
        if not message:
            os._exit(0)
        (call,) = descriptors
        try:
            if isolation.fork() == 0:
                os.close(control.detach())
                if message == b"session":
                    Keeper(isolation, socket.socket(fileno=call)).serve()
                return Guard(isolation, call).run()
        except OSError as error:
            reply(call, reason="error", output=str(error))
        os.close(call)


def main() -> None:
    """Set the zygote up and serve calls. What comes back from there is a program's process: run its code."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    settings = json.loads(control.recv(1 << 20))
    isolation = Isolation(settings)
    sys.path.extend(settings["packages"])
    for name in [*STANDARD_MODULES.split(), *settings["preload"]]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards need no burial
    control.send(json.dumps(isolation.report).encode())
    run_program(serve(isolation, control))
