"""Starts and stops the process behind [`PythonSandbox`]."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_START_S = 60.0  # generous: imports of `preload` on a busy machine
_BOOT = (
    "import sys; sys.path[:] = [path for path in sys.path if path] + sys.argv[1:]; "
    "from python_sandbox.process import main; sys.path.remove(sys.argv[1]); main()"
)
# Sets of strings print in the same order in every run, and numerical libraries start no threads.
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONWARNINGS": "ignore",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class SandboxError(RuntimeError):
    """A program exceeded a limit other than time, or its process was lost."""


@dataclass(frozen=True)
class Zygote:
    """The long-lived process that forks one child per program."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    report: dict[str, bool]
    owner: int  # process id of who started it

    def stop(self) -> None:
        """End it, and every program with it."""
        self.control.close()  # it exits when it reads the end
        try:
            self.process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def python_paths() -> dict[str, Any]:
    """Where this Python and its packages lie, and where programs may write: at `/tmp`, unless Python lies below it."""
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    paths = sorted({sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *packages})
    in_tmp = any(path.startswith("/tmp/") for path in paths)
    return {"packages": packages, "paths": paths, "directory": "/sandbox" if in_tmp else "/tmp"}


def numerical_libraries() -> list[str]:
    """Those of `numpy` and `sympy` that are installed."""
    return [name for name in ("numpy", "sympy") if importlib.util.find_spec(name) is not None]


def start_zygote(settings: dict[str, Any]) -> Zygote:
    """
    Start the process and wait until it is ready.

    Args:
        settings (`dict[str, Any]`):
            What [`~python_sandbox.process.Sandbox`] reads.

    Returns:
        [`Zygote`]:
            The running process.

    Raises:
        SandboxError: If it does not start; the message ends with its last words.
    """
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-s", "-S", "-B", "-c", _BOOT, str(Path(__file__).resolve().parent)],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
    assert process.stderr is not None
    with process.stderr as errors:
        try:
            control.settimeout(_START_S)
            control.send(json.dumps(settings).encode())
            greeting = control.recv(1 << 16)
        except OSError:
            greeting = b""
        if not greeting:
            control.close()
            process.kill()
            process.wait()
            last = errors.read().decode("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
            raise SandboxError(f"The sandbox's process could not be started: {last[0]}")
    control.settimeout(None)
    return Zygote(process, control, json.loads(greeting), os.getpid())
