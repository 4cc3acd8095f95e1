"""
The process of a session: it waits, forks for each call, and a fork of the fork that has run it waits in its place.

Everything here happens in a process that runs a model's code, and may have been tampered with by it. Nothing that
isolates one session from another is done here: the keeper and the kernel see to that. What is called after the first
call is bound to names of this module, so that a program that replaces `os.fork` does not lose its session by accident.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import signal
import threading
import time
import types
from faulthandler import cancel_dump_traceback_later
from os import _exit as leave_process
from os import chdir, close, closerange, dup2, fork, getcwd, getpid, getppid, lseek, read, setsid, waitpid
from os import open as open_descriptor
from random import getstate, setstate
from signal import SIG_BLOCK, SIG_SETMASK, pthread_sigmask
from socket import recv_fds
from socket import socket as Connection
from typing import Any

from . import kernel
from .program import execute, flush, open_output, prepare_main, show, show_error

LONGEST_MESSAGE = 64
HERE = b"here"
DONE = re.compile(rb"done (\d{1,3})")  # with the exit code
_SIGNALS = signal.valid_signals()
_sleep, _join_all, _loads = time.sleep, threading.enumerate, json.loads
_libc = ctypes.CDLL(None, use_errno=True)


class _Outcome:
    """Shows what ends the code of a call, and swallows it."""

    code = 0

    def __enter__(self) -> _Outcome:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: types.TracebackType | None) -> bool:
        if isinstance(error, SystemExit):
            value = 0 if error.code is None else error.code
            if not isinstance(value, int):
                show(str(value))
                value = 1
            self.code = value & 255
        elif kind is not None:
            show_error(kind, error, trace)
            self.code = 1
        return True


def serve(control: Connection) -> None:
    """
    Wait for calls, and run each in a fork that goes on here. Never returns.

    Args:
        control (`socket.socket`):
            Connection to the keeper: `b"fork"` comes with descriptors of the fork's own connection, its output, the
            request, and its mount namespace where there is one.
    """
    main = prepare_main()
    is_first = True  # until a call has run, no directory is the working directory
    while True:
        message, descriptors, _, _ = recv_fds(control, LONGEST_MESSAGE, 4)
        if not message:
            leave_process(0)
        if not _fork_aside():
            for descriptor in descriptors:
                close(descriptor)
            continue
        request = _read_request(descriptors[2])
        _take_over(control, descriptors, request, None if is_first else _working_directory(request))
        is_first = False
        control = Connection(fileno=descriptors[0])
        control.send(HERE)
        if control.recv(LONGEST_MESSAGE) != b"go":
            leave_process(0)
        me = getpid()
        code = _run(request["code"], main)
        if getpid() != me:  # the program has forked, and this is its child
            leave_process(code)
        _go_on_alone(control, code)


def _go_on_alone(control: Connection, code: int) -> None:
    """
    At the end of a call, go on in a fork: threads that still run, alarms and timers are left behind. They would
    change what later forks find, each at another moment, or end the process while it waits.
    """
    cancel_dump_traceback_later()  # the fork would wait for its thread
    blocked = pthread_sigmask(SIG_BLOCK, _SIGNALS)
    try:
        control.send(b"done %d" % code)
        if control.recv(LONGEST_MESSAGE) != b"go":
            leave_process(code)
    except OSError:  # the program has closed it
        leave_process(code)
    if not _fork_aside():
        control.close()  # without a fork, the keeper sees that nobody is left at this end
        while True:
            _sleep(3600)
    pthread_sigmask(SIG_SETMASK, blocked)
    control.send(HERE)


def _run(code: str, main: types.ModuleType) -> int:
    """Run the code of a call, its threads included; the exit code."""
    open_output()
    outcome = _Outcome()
    with outcome:
        execute(code, main)
    for thread in _join_all():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    with _Outcome():
        flush()
    return outcome.code


def _fork_aside() -> bool:
    """Fork a process that is the keeper's child, not this one's. Whether this is the fork."""
    random_numbers = getstate()  # the module `random` seeds itself anew in every child
    try:
        middle = fork()
    except OSError:  # too many processes: the keeper sees that nobody answers
        return False
    if middle:
        try:
            waitpid(middle, 0)
        except OSError:  # the program ignores its children
            pass
        return False
    middle = getpid()
    try:
        if fork():
            leave_process(0)
    except OSError:
        leave_process(1)
    setstate(random_numbers)
    while getppid() == middle:  # until that is gone, and the keeper is the parent
        _sleep(0.0002)
    kernel.control(kernel.SET_DEATH_SIGNAL, signal.SIGKILL)
    return True


def _read_request(descriptor: int) -> dict[str, Any]:
    lseek(descriptor, 0, os.SEEK_SET)
    parts = []
    while part := read(descriptor, 1 << 20):
        parts.append(part)
    close(descriptor)
    return _loads(b"".join(parts))


def _take_over(old: Connection, descriptors: list[int], request: dict[str, Any], where: str | None) -> None:
    """Become independent of the process that this one was forked from: files, memory, descriptors, signals."""
    if len(descriptors) == 4:
        kernel.enter(descriptors[3], kernel.NEW_MOUNTS)
        close(descriptors[3])
    _go_to(where or request["directory"], request["directory"])
    os.environ.update(HOME=request["directory"], TMPDIR=request["directory"])
    for start, length, protection in request["shared"]:
        _make_private(start, length, protection)
    for descriptor, path, flags, position in request["descriptors"]:
        if descriptor not in (old.fileno(), *descriptors):
            _reopen(descriptor, path, flags, position)
    dup2(descriptors[1], 1)
    dup2(descriptors[1], 2)
    close(descriptors[1])
    old.close()
    setsid()


def _working_directory(request: dict[str, Any]) -> str | None:
    """The working directory as seen from the new files, `None` if it has been removed."""
    try:
        where = getcwd()
    except OSError:
        return None
    if where == request["origin"] or where.startswith(request["origin"] + "/"):
        return request["directory"] + where[len(request["origin"]) :]
    return where


def _go_to(where: str, otherwise: str) -> None:
    try:
        chdir(where)
    except OSError:
        chdir(otherwise)


def _reopen(descriptor: int, path: str | None, flags: int, position: int) -> None:
    """Open a file anew, among the copied files, under the same descriptor; what is no file becomes `/dev/null`."""
    try:
        fresh = open_descriptor(path or "/dev/null", flags & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC))
    except OSError:
        fresh = open_descriptor("/dev/null", os.O_RDWR)
    try:
        lseek(fresh, position, os.SEEK_SET)
    except OSError:  # a directory or a device
        pass
    dup2(fresh, descriptor, inheritable=False)
    close(fresh)


def _make_private(start: int, length: int, protection: int) -> None:
    """
    Put a copy in the place of memory that is shared with the process that this one was forked from. The processes that
    this one will fork share the copy with it.
    """
    content = ctypes.string_at(start, length)
    _libc.mmap.restype = ctypes.c_void_p
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
    anywhere = [ctypes.c_void_p(start), ctypes.c_size_t(length), protection | mmap.PROT_WRITE, flags, -1]
    if _libc.mmap(*anywhere, ctypes.c_long(0)) == start:
        ctypes.memmove(start, content, length)


def close_inherited(kept: int) -> None:
    """Close every descriptor but the standard ones and `kept`."""
    closerange(3, kept)
    closerange(kept + 1, 4096)
