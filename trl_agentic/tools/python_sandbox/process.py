"""
The process behind [`PythonSandbox`]: it isolates itself once, then forks for each program.

Standard library only: [`PythonSandbox`] starts it with an empty environment and without site-packages, and the package
itself never imports it. Three processes take part in a call:

- the *zygote*, one per sandbox, waits for calls on a socket that is its standard input;
- the *guard*, one per call and PID 1 of a PID namespace where there are such, collects the output, keeps the deadline
  and replies; when it ends, the kernel kills whatever the program has left behind;
- the *program*, a child of the guard, gives up every privilege and runs the code.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from . import kernel, seccomp
from .program import EXIT_OUT_OF_MEMORY, run_program
from .syscalls import PROGRAM_DENIALS

NOBODY = 65534
PROGRAM_ACCOUNT = 1000  # inside a user namespace
EXIT_NOT_STARTED = 87
# Imported once for all programs: what short programs import most.
STANDARD_MODULES = (
    "bisect cmath collections copy csv dataclasses datetime decimal enum fractions functools heapq itertools json "
    "math operator random re statistics string subprocess tempfile textwrap typing"
)


class Sandbox:
    """What the zygote knows: its settings, and which kinds of isolation the kernel has granted."""

    def __init__(self, settings: dict[str, Any]):
        self.settings = settings
        self.report = {"network": False, "filesystem": False, "processes": False}
        self.report["account"] = kernel.may_become(NOBODY)
        self.second_account = False
        self.pid_namespace: int | None = None
        if settings["namespaces"]:
            with contextlib.suppress(OSError):
                self._isolate()
        self.filter = seccomp.compile_filter(PROGRAM_DENIALS)
        self.report["seccomp"] = seccomp.is_available(self.filter)

    def _isolate(self) -> None:
        self.second_account = kernel.enter_user_namespace()
        self.report["account"] = self.second_account
        for flag in (kernel.NEW_IPC, kernel.NEW_UTS):
            with contextlib.suppress(OSError):
                kernel.unshare(flag)
        with contextlib.suppress(OSError):
            kernel.unshare(kernel.NEW_NETWORK)
            self.report["network"] = True
        with contextlib.suppress(OSError):
            kernel.enter_pid_namespace()
            self.pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            self.report["processes"] = True
        with contextlib.suppress(OSError):
            kernel.enter_new_root(self.settings["paths"], self.settings["directory"])
            self.report["filesystem"] = True

    def fork(self) -> int:
        """`os.fork`, the child being PID 1 of a new PID namespace where that is possible."""
        if self.pid_namespace is None:
            return os.fork()
        kernel.unshare(kernel.NEW_PIDS)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                kernel.rejoin_pids(self.pid_namespace)
        return pid

    def serve(self, control: socket.socket) -> str:
        """Fork for every call, until the sandbox's owner is gone. Returns in the program's process only: the code."""
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, 16, 1)
            if not message:
                os._exit(0)
            (call,) = descriptors
            try:
                if self.fork() == 0:
                    os.close(control.detach())
                    return self.guard(call)
            except OSError as error:
                _reply(call, reason="error", output=str(error))
            os.close(call)

    def guard(self, call: int) -> str:
        """Start the program, watch it and reply. Returns in the program's process only: the code."""
        kernel.control(kernel.SET_DEATH_SIGNAL, signal.SIGKILL)
        kernel.control(kernel.SET_SUBREAPER, 1)
        request = json.loads(_read_all(call))
        own_proc = self._private_mounts()
        os.chdir(request["directory"])
        output, output_end = os.pipe()
        wakeup, wakeup_end = os.pipe()
        os.set_blocking(wakeup_end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
        program = os.fork()
        if program == 0:
            self._become_program(output_end, own_proc, request["directory"])
            return request["code"]
        os.close(output_end)
        reason, status, text = self._watch(program, output, wakeup)
        if not self.report["processes"]:
            _kill_family(program)
        code = os.waitstatus_to_exitcode(status)
        reason = {EXIT_OUT_OF_MEMORY: "memory", EXIT_NOT_STARTED: "error"}.get(code, reason)
        _reply(call, reason=reason, code=code, output=text.decode("utf-8", "replace"))
        os._exit(0)

    def _private_mounts(self) -> bool:
        """Give the call a directory and a `/proc` of its own; whether the latter is a real one."""
        if not self.report["filesystem"]:
            return not self.report["processes"]
        account = PROGRAM_ACCOUNT if self.second_account else 0
        size = f"size={self.settings['disk_mb']}m,nr_inodes=4096,mode=0700,uid={account},gid={account}"
        kernel.unshare(kernel.NEW_MOUNTS)
        kernel.mount("tmpfs", self.settings["directory"], "tmpfs", kernel.NO_SUID | kernel.NO_DEVICES, size)
        try:
            kernel.mount("proc", "/proc", "proc", kernel.NO_SUID | kernel.NO_DEVICES)
        except OSError:  # inside some containers; better none than one that shows other calls
            kernel.mount("tmpfs", "/proc", "tmpfs", kernel.NO_SUID, "size=4k,mode=0555")
            return False
        return True

    def _watch(self, program: int, output: int, wakeup: int) -> tuple[str, int, bytes]:
        """Collect the output until the program ends or exceeds a limit: reason, wait status and output."""
        deadline = time.monotonic() + self.settings["timeout_s"]
        text = bytearray()
        poller = select.poll()
        poller.register(output, select.POLLIN)
        poller.register(wakeup, select.POLLIN)
        os.set_blocking(output, False)
        status: int | None = None
        while status is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout", 0, bytes(text)
            ready = [descriptor for descriptor, _ in poller.poll(left * 1000 + 1)]
            if wakeup in ready:
                os.read(wakeup, 512)
                status = _reap(program)
            if output in ready or status is not None:
                is_open = _drain(output, text, self.settings["max_output_bytes"])
                if len(text) > self.settings["max_output_bytes"]:
                    return "output", 0, bytes(text)
                if not is_open and status is None:
                    poller.unregister(output)
        return "exit", status, bytes(text)

    def _become_program(self, output: int, own_proc: bool, directory: str) -> None:
        """Turn this process into one that can do as little harm as possible."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 4096)
        os.environ.update(HOME=directory, TMPDIR=directory)
        try:
            self._drop_privileges(own_proc)
        except OSError as error:
            os.write(1, str(error).encode())
            os._exit(EXIT_NOT_STARTED)

    def _drop_privileges(self, own_proc: bool) -> None:
        in_namespace = self.pid_namespace is not None or self.report["filesystem"]
        account = PROGRAM_ACCOUNT if self.second_account else NOBODY
        guards = 1  # processes of ours that the limit would count
        if self.second_account or (self.report["account"] and not in_namespace):
            os.setresgid(account, account, account)
            os.setresuid(account, account, account)
            guards = 0
        kernel.control(kernel.SET_DUMPABLE, 1)  # else `/proc/self` belongs to root
        if in_namespace and own_proc:  # processes are counted per user namespace, hence one per call
            uid, gid = os.getuid(), os.getgid()
            kernel.unshare(kernel.NEW_USER)
            kernel.map_accounts("self", f"{PROGRAM_ACCOUNT} {uid} 1", f"{PROGRAM_ACCOUNT} {gid} 1", deny_groups=True)
            guards = 0
            with contextlib.suppress(OSError), open("/proc/sys/user/max_user_namespaces", "w") as file:
                file.write("0")  # in this namespace: the program shall not become the root of another one
        kernel.drop_capabilities()
        limits = self.settings["limits"] | {"NPROC": self.settings["max_processes"] + guards}
        kernel.limit_resources(limits | {"AS": limits["AS"] + kernel.address_space()})
        if self.report["seccomp"] and self.filter is not None:
            seccomp.install(self.filter)


def _read_all(call: int) -> bytes:
    parts = []
    while part := os.read(call, 65536):
        parts.append(part)
    return b"".join(parts)


def _reply(call: int, **facts: Any) -> None:
    with contextlib.suppress(OSError), open(call, "wb", closefd=False) as file:  # OSError: nobody waits any more
        file.write(json.dumps(facts).encode())


def _drain(output: int, text: bytearray, max_bytes: int) -> bool:
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


def _reap(program: int) -> int | None:
    """Collect the children that have ended; the wait status of the program if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found = ended[1] if ended[0] == program else found
    return found


def _kill_family(program: int) -> None:
    """Kill the program's group, and every orphan of it, which the guard adopts, for lack of a PID namespace."""
    with contextlib.suppress(OSError):
        os.killpg(program, signal.SIGKILL)
    with contextlib.suppress(OSError):
        for _ in range(1000):
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                for child in children.read().split():
                    os.kill(int(child), signal.SIGKILL)
            os.waitpid(-1, 0)  # raises when there are none left


def main() -> None:
    """Set the zygote up and serve calls. What comes back from there is a program's process: run its code."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    settings = json.loads(control.recv(1 << 20))
    sandbox = Sandbox(settings)
    sys.path.extend(settings["packages"])
    for name in [*STANDARD_MODULES.split(), *settings["preload"]]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards need no burial
    control.send(json.dumps(sandbox.report).encode())
    run_program(sandbox.serve(control))
