"""
Answers the kernel's questions about signals.

The sessions of a family share a PID namespace and an account, so that the kernel alone would let one kill another. The
filter of a session hands `kill`, `tkill` and `tgkill` to the keeper, who lets a signal pass if the target sees the
same files as the sender, which is so for the processes of one call and no others.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import struct

from .family import namespace_of

_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_*
_CONTINUE = 1
# id, process, flags; number, architecture, instruction pointer, six arguments
_QUESTION = struct.Struct("=QII iIQ 6Q")
_ANSWER = struct.Struct("=Qq iI")


def answer(listener: int) -> None:
    """
    Answer one question.

    Args:
        listener (`int`):
            The descriptor that the filter was installed with.
    """
    buffer = bytearray(_QUESTION.size)
    with contextlib.suppress(OSError):  # the sender has been killed while it asked
        fcntl.ioctl(listener, _RECEIVE, buffer, True)
        identity, sender, _, _, _, _, target, *_ = _QUESTION.unpack(buffer)
        error = _refusal(sender, target)
        reply = _ANSWER.pack(identity, 0, -error, 0 if error else _CONTINUE)
        fcntl.ioctl(listener, _SEND, reply)


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
