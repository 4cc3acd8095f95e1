"""
The keeper of a family of sessions: one that was opened, and all that were forked from it.

It is PID 1 of the family's PID namespace and never runs a program's code. A session is at any time a *point*: a
process that has run the calls so far and is stopped, and the files it left. A call forks that process, gives the fork
a copy of the files, and runs the code there. If it comes to its end, a fork of the fork, which leaves its threads and
timers behind, is the session's new point, and the old one is dropped unless another session stands there; if not
(time, memory, a crash, `os._exit`), the fork is dropped, and the session stands where it stood. So forking a session
costs nothing: it is one more session at the same point.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable

from . import session
from .calls import prepare_call, read_message, write_request
from .family import Family, Point, Running, Session
from .files import Files
from .isolation import Isolation
from .messages import receive, send, tell
from .opening import become_keeper, open_family
from .program import EXIT_OUT_OF_MEMORY
from .questions import answer
from .streams import drain, kill, reap, watch_children


class Keeper:
    """
    Keeps one family.

    Args:
        isolation ([`Isolation`]):
            What is granted here.
        owner (`socket.socket`):
            Connection to the first session's owner.
    """

    def __init__(self, isolation: Isolation, owner: socket.socket):
        self._isolation = isolation
        self._settings = isolation.settings
        self._family = Family(isolated=False)
        self._poller = select.poll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._copy: Callable[[Files | None], Files]
        self._first = owner

    def serve(self) -> None:
        """Serve the sessions until the last one is closed. Never returns."""
        become_keeper()
        self._isolation.enter_own_network()
        request, _ = receive(self._first)
        try:
            opened = open_family(self._isolation, request["directory"])
        except OSError as error:
            send(self._first, reason="error", output=str(error))
            os._exit(0)
        self._copy = opened.copy
        listener = opened.listener
        self._family.isolated = listener is not None
        if listener is not None:
            self._handle(listener, lambda event: self._answer(listener, event))
        self._watch_children()
        self._admit(self._first, opened.point)
        send(self._first, reason="open", isolated=self._family.isolated)
        while self._family.sessions:
            ready = self._poller.poll(self._family.seconds_left() * 1000 + 1)
            for descriptor, event, handler in [(number, event, self._handlers[number]) for number, event in ready]:
                if self._handlers.get(descriptor) is handler:  # else it was closed by one before it
                    handler(event)
            for running in self._family.expired():
                self._fail(running, "timeout")
        os._exit(0)

    def _watch_children(self) -> None:
        wakeup = watch_children()

        def bury(event: int) -> None:
            os.read(wakeup, 512)
            for process, status in reap().items():
                self._bury(process, status)

        self._handle(wakeup, bury)

    def _handle(self, descriptor: int, handler: Callable[[int], None]) -> None:
        self._handlers[descriptor] = handler
        self._poller.register(descriptor, select.POLLIN)

    def _forget(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)

    def _answer(self, listener: int, event: int) -> None:
        if event & select.POLLIN:
            answer(listener, self._family.entrances)
        else:  # nobody is left who could ask
            self._forget(listener)

    # What owners ask for.

    def _admit(self, owner: socket.socket, point: Point) -> None:
        member = Session(owner, point)
        self._family.sessions.append(member)
        self._handle(owner.fileno(), lambda event: self._listen_to(member))

    def _listen_to(self, member: Session) -> None:
        try:
            request, descriptors = receive(member.owner)
        except (OSError, EOFError):
            self._drop(member)
            return
        if request["what"] == "close":
            self._drop(member, reply=True)
        elif request["what"] == "fork":
            self._fork(member, descriptors)
        else:
            self._run(member, request["code"])

    def _fork(self, member: Session, descriptors: list[int]) -> None:
        if not descriptors:  # the kernel has none left
            tell(member.owner, reason="error", output="there are too many open files")
            return
        member.point.sessions += 1
        self._admit(socket.socket(fileno=descriptors[0]), member.point)
        tell(member.owner, reason="forked")

    def _drop(self, member: Session, reply: bool = False) -> None:
        if member.running is not None:
            self._discard(member.running)
        self._family.sessions.remove(member)
        self._release(member.point)
        self._forget(member.owner.fileno())
        if reply:
            tell(member.owner, reason="closed")
        member.owner.close()

    def _release(self, point: Point) -> None:
        point.sessions -= 1
        if point.sessions > 0:
            return
        kill(point.process)
        point.control.close()
        if point.files is not None:
            self._family.end_processes(point.files, point.process, spare_root=False)
            point.files.remove()

    # A call.

    def _run(self, member: Session, code: str) -> None:
        """Fork the session's process for a call; how it goes on is decided as news arrive."""
        point, source = member.point, member.point.files
        if point.ended or source is None:
            tell(member.owner, reason="lost")
            return
        with contextlib.ExitStack() as lent:
            try:
                copy = (lambda: source) if self._may_reuse(point) else (lambda: self._copy(source))
                running, descriptors = prepare_call(member, copy, self._settings["timeout_s"], lent)
            except OSError as error:
                tell(member.owner, reason="error", output=str(error), kept=False)
                return
            self._expect(running)
            try:
                write_request(descriptors[2], {"code": code, **self._family.describe(point, running.files)})
                self._family.limit_processes(point.process, self._settings["max_processes"])
            except (OSError, ValueError, LookupError) as error:  # the program has chosen much of what is read here
                self._fail(running, "error", output=f"its process could not be described: {error}")
                return
            kill(point.process, signal.SIGCONT)
            with contextlib.suppress(OSError):  # it has ended, or does not read: then nobody will answer
                socket.send_fds(point.control, [b"fork"], descriptors)

    def _expect(self, running: Running) -> None:
        """Listen to a call whose process is yet to be forked."""
        running.session.running = running
        running.session.point.forking += 1
        self._handle(running.control.fileno(), lambda event: self._hear(running))
        self._handle(running.output, lambda event: self._collect(running))

    def _may_reuse(self, point: Point) -> bool:
        """Without private mounts a copy lies at another path, so that files are copied for forks alone."""
        return not self._family.isolated and point.sessions == 1

    def _hear(self, running: Running) -> None:
        """Read a message of a session's process. It may say anything."""
        try:
            message, sender = read_message(running.control)
        except BlockingIOError:
            return
        done = session.DONE.fullmatch(message)
        if running.process is None:
            self._settle(running, sender if message == session.HERE else None)
        elif running.code is not None:
            self._finish(running, sender if message == session.HERE else None)
        elif done is not None:
            self._renew(running, int(done[1]))
        elif message:
            self._fail(running, "error", output="its process sent a message that is none")
        else:  # closed; if it has not ended already, it will when its code does
            self._forget(running.control.fileno())

    def _settle(self, running: Running, process: int | None) -> None:
        """The fork is there: stop what it was forked from, and let it begin."""
        self._pause(running)
        if process is None or not self._family.is_new(process, running.files):
            self._fail(running, "error", output="its process could not be forked")
            return
        running.process = process
        self._family.limit_processes(process, self._settings["max_processes"])
        with contextlib.suppress(OSError):
            running.control.send(b"go")

    def _pause(self, running: Running) -> None:
        """One fork less is waited for: when it was the last, the process it comes from has nothing to do."""
        point = running.session.point
        running.settled = True
        point.forking -= 1
        if point.forking == 0:
            kill(point.process, signal.SIGSTOP)

    def _collect(self, running: Running) -> None:
        is_open = drain(running.output, running.text, self._settings["max_output_bytes"])
        if len(running.text) > self._settings["max_output_bytes"]:
            self._fail(running, "output")
        elif not is_open:
            self._forget(running.output)

    def _renew(self, running: Running, code: int) -> None:
        """The code came to its end: let its process fork, free of what the code has left running."""
        assert running.process is not None
        running.code = code
        kill(running.process, signal.SIGSTOP)  # its threads could start processes faster than they end
        self._family.end_processes(running.files, running.process, spare_root=True)
        self._family.limit_processes(running.process, 3)
        kill(running.process, signal.SIGCONT)
        with contextlib.suppress(OSError):
            running.control.send(b"go")

    def _finish(self, running: Running, process: int | None) -> None:
        """The fork of the process that has run the code is there: from now on the session stands here."""
        assert running.process is not None and running.code is not None
        if process is None or not self._family.is_new(process, running.files):
            self._fail(running, "error", output="its process could not be forked at the end of the call")
            return
        kill(running.process)
        running.process = process
        kill(process, signal.SIGSTOP)
        self._family.end_processes(running.files, running.process, spare_root=True)
        drain(running.output, running.text, self._settings["max_output_bytes"])
        member = running.session
        old, member.point = member.point, Point(running.process, running.control, running.files)
        if old.files is running.files:
            old.files = None  # the new point's now
        self._close(running)
        reason = "output" if len(running.text) > self._settings["max_output_bytes"] else "exit"
        self._reply(running, reason, running.code, kept=True)
        self._release(old)

    def _fail(self, running: Running, reason: str, code: int = 0, output: str | None = None) -> None:
        """The code did not come to its end: the session stands where it stood."""
        self._discard(running)
        self._reply(running, reason, code, kept=False, output=output)

    def _discard(self, running: Running) -> None:
        if not running.settled:
            self._pause(running)
        if running.process is not None:
            kill(running.process)
        self._family.end_processes(running.files, running.process, spare_root=False)
        self._close(running)
        running.control.close()
        if running.files is not running.session.point.files:
            running.files.remove()

    def _close(self, running: Running) -> None:
        running.session.running = None
        self._forget(running.control.fileno())
        self._forget(running.output)
        os.close(running.output)

    def _reply(self, running: Running, reason: str, code: int, kept: bool, output: str | None = None) -> None:
        text = running.text.decode("utf-8", "replace") if output is None else output
        tell(running.session.owner, reason=reason, code=code, output=text, kept=kept)

    def _bury(self, process: int, status: int) -> None:
        """A process has ended: that of a running call, of a point, or an orphan."""
        for member in self._family.sessions:
            if member.point.process == process:
                member.point.ended = True
            running = member.running
            if running is not None and running.process == process:
                drain(running.output, running.text, self._settings["max_output_bytes"])
                code = os.waitstatus_to_exitcode(status)
                self._fail(running, "memory" if code == EXIT_OUT_OF_MEMORY else "exit", code)
