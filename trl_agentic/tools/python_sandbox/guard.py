"""The guard of one call: it starts the program, watches it, and replies; see `process.py`."""

from __future__ import annotations

import json
import os
import select
import signal
import time

from . import kernel
from .isolation import Isolation
from .program import EXIT_NOT_STARTED, EXIT_OUT_OF_MEMORY
from .streams import drain, kill_family, read_all, reap, reply


class Guard:
    """
    Guards one program.

    Args:
        isolation ([`Isolation`]):
            What is granted here.
        call (`int`):
            Descriptor of the connection that the request comes from and the reply goes to.
    """

    def __init__(self, isolation: Isolation, call: int):
        self._isolation = isolation
        self._settings = isolation.settings
        self._call = call

    def run(self) -> str:
        """Start the program, watch it and reply. Returns in the program's process only: the code."""
        kernel.control(kernel.SET_DEATH_SIGNAL, signal.SIGKILL)
        kernel.control(kernel.SET_SUBREAPER, 1)
        request = json.loads(read_all(self._call))
        self._isolation.enter_own_network()
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
        if not self._isolation.report["processes"]:
            kill_family(program)
        code = os.waitstatus_to_exitcode(status)
        reason = {EXIT_OUT_OF_MEMORY: "memory", EXIT_NOT_STARTED: "error"}.get(code, reason)
        reply(self._call, reason=reason, code=code, output=text.decode("utf-8", "replace"))
        os._exit(0)

    def _private_mounts(self) -> bool:
        """Give the call a directory and a `/proc` of its own; whether the latter is a real one."""
        if not self._isolation.report["filesystem"]:
            return not self._isolation.report["processes"]
        kernel.unshare(kernel.NEW_MOUNTS)
        options = self._isolation.disk_options()
        kernel.mount("tmpfs", self._settings["directory"], "tmpfs", kernel.NO_SUID | kernel.NO_DEVICES, options)
        try:
            kernel.mount("proc", "/proc", "proc", kernel.NO_SUID | kernel.NO_DEVICES)
        except OSError:  # inside some containers; better none than one that shows other calls
            kernel.hide_proc()
            return False
        return True

    def _watch(self, program: int, output: int, wakeup: int) -> tuple[str, int, bytes]:
        """Collect the output until the program ends or exceeds a limit: reason, wait status and output."""
        deadline = time.monotonic() + self._settings["timeout_s"]
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
                status = reap().get(program)
            if output in ready or status is not None:
                is_open = drain(output, text, self._settings["max_output_bytes"])
                if len(text) > self._settings["max_output_bytes"]:
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
            self._isolation.become_program(own_proc)
        except OSError as error:
            os.write(1, str(error).encode())
            os._exit(EXIT_NOT_STARTED)
