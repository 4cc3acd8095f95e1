"""Opens a family of sessions: the place for its files, and the process that all others are forked from."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from . import kernel, session
from .family import Point
from .files import Files, PlainDirectories, PrivateMounts
from .isolation import Isolation
from .streams import kill


@dataclass(frozen=True)
class OpenFamily:
    """
    A family that has just been opened.

    Args:
        point ([`Point`]):
            Where its first session stands: nothing has been run, and there are no files.
        copy (`Callable`):
            Copies files for a call.
        listener (`int`, *optional*):
            Descriptor that signals are asked about at; `None` where calls have no mount namespaces of their own.
    """

    point: Point
    copy: Callable[[Files | None], Files]
    listener: int | None


def become_keeper() -> None:
    """Make this process one that ends with its parent, adopts orphans, and may hold many descriptors."""
    kernel.control(kernel.SET_DEATH_SIGNAL, signal.SIGKILL)
    kernel.control(kernel.SET_SUBREAPER, 1)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each session takes four
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the zygote ignores it


def open_family(isolation: Isolation, directory: str | None) -> OpenFamily:
    """
    Open a family in this process.

    Args:
        isolation ([`Isolation`]):
            What is granted here.
        directory (`str`, *optional*):
            Where files may lie if there is no private file system.

    Returns:
        [`OpenFamily`]:
            The family.

    Raises:
        OSError: If the kernel refuses.
    """
    isolated, directory = _prepare_mounts(isolation, directory)
    control, process, listener = _start_process(isolation, isolated)
    copy: Callable[[Files | None], Files]
    if listener is not None:
        copy = PrivateMounts(isolation, os.open(f"/proc/{process}/ns/user", os.O_RDONLY)).copy
    else:
        copy = PlainDirectories(isolation, directory).copy
    return OpenFamily(Point(process, control, copy(None)), copy, listener)


def _prepare_mounts(isolation: Isolation, directory: str | None) -> tuple[bool, str]:
    """Whether calls can have mount namespaces of their own, and where files lie otherwise."""
    report = isolation.report
    if not report["filesystem"]:
        assert directory is not None
        return False, directory
    kernel.unshare(kernel.NEW_MOUNTS)
    flags = kernel.NO_SUID | kernel.NO_DEVICES
    directory = isolation.settings["directory"]
    if report["processes"] and report["seccomp"]:
        try:
            kernel.mount("proc", "/proc", "proc", flags)
        except OSError:  # inside some containers: the keeper could not tell whose a process is
            pass
        else:
            return True, directory
    kernel.mount("tmpfs", directory, "tmpfs", flags, f"size={isolation.settings['disk_mb']}m,mode=0711")
    return False, directory


def _start_process(isolation: Isolation, isolated: bool) -> tuple[socket.socket, int, int | None]:
    """Start the process, and stop it: connection, id, and the descriptor that signals are asked about at."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = os.fork()
        if process == 0:
            _become_session(theirs, isolation, isolated)
    message, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
    if message != b"ready":
        raise OSError(errno.EIO, f"no session could be started: {message.decode('utf-8', 'replace')}")
    control.setblocking(False)
    kill(process, signal.SIGSTOP)
    return control, process, descriptors[0] if descriptors else None


def _become_session(control: socket.socket, isolation: Isolation, isolated: bool) -> None:
    """In a child: give up every privilege, and serve. Never returns, whatever a program does: this is no keeper."""
    try:
        os.setsid()
        session.close_inherited(control.fileno())
        try:
            listener = isolation.become_session(isolated)
        except OSError as error:
            control.send(str(error).encode())
            os._exit(1)
        socket.send_fds(control, [b"ready"], [] if listener is None else [listener])
        if listener is not None:
            os.close(listener)
        session.serve(control)
    finally:
        os._exit(1)
