"""
Answers the kernel's questions about signals, and about the files that a process enters.

The sessions of a family share a PID namespace and an account, so that the kernel alone would let one kill another. The
filter of a session hands `kill`, `tkill` and `tgkill` to the keeper, who lets a signal pass if the target sees the
same files as the sender, which is so for the processes of one call and no others. It also hands over `setns`, which
may enter files that a call is to begin with, and never those of a call that has begun: there, nobody would look for
the process when its own call ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct

from .family import namespace_of
from .syscalls import NUMBERS

_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_*
_CONTINUE = 1
# id, process, flags; number, architecture, instruction pointer, six arguments
_QUESTION = struct.Struct("=QII iIQ 6Q")
_ANSWER = struct.Struct("=Qq iI")


def answer(listener: int, entrances: set[int | None]) -> None:
    """
    Answer one question.

    Args:
        listener (`int`):
            The descriptor that the filter was installed with.
        entrances (`set[int | None]`):
            Numbers of the mount namespaces that may be entered.
    """
    buffer = bytearray(_QUESTION.size)
    with contextlib.suppress(OSError):  # the sender has been killed while it asked
        fcntl.ioctl(listener, _RECEIVE, buffer, True)
        identity, sender, _, number, _, _, target, *_ = _QUESTION.unpack(buffer)
        if number in NUMBERS["setns"]:
            error = 0 if _opened(sender, target & 0xFFFFFFFF) in entrances - {None} else errno.EPERM
        else:
            error = _refusal(sender, target)
        reply = _ANSWER.pack(identity, 0, -error, 0 if error else _CONTINUE)
        fcntl.ioctl(listener, _SEND, reply)


def _opened(process: int, descriptor: int) -> int | None:
    """Number of what a process has opened as a descriptor."""
    try:
        return os.stat(f"/proc/{process}/fd/{descriptor}").st_ino
    except OSError:
        return None


def _refusal(sender: int, target: int) -> int:
    """The error that a signal fails with, 0 if it may be sent."""
    low = target & 0xFFFFFFFF  # an `int` in the low half of an argument
    signed = low - (1 << 32) if low >> 31 else low
    if signed == 0:  # the sender's own process group, which no other session can join
        return 0
    if signed == -1:  # everybody
        return errno.EPERM
    there = namespace_of(abs(signed))
    if there is None:
        return errno.ESRCH
    return 0 if there == namespace_of(sender) else errno.EPERM
