"""Makes what a call of a session needs: one half for the keeper, one to be lent to the process that will run it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from .family import Running, Session
from .files import Files
from .session import LONGEST_MESSAGE

_CREDENTIALS_SPACE = socket.CMSG_SPACE(12)
_PASS_CREDENTIALS = 16  # SO_PASSCRED: each message says who sent it


def prepare_call(
    member: Session, copy: Callable[[], Files], timeout_s: float, lent: contextlib.ExitStack
) -> tuple[Running, list[int]]:
    """
    Prepare a call. If that fails, nothing is left of it.

    Args:
        member ([`Session`]):
            Whose call it is.
        copy (`Callable`):
            Makes its files.
        timeout_s (`float`):
            Seconds from now to its deadline.
        lent (`contextlib.ExitStack`):
            Will close the lent half.

    Returns:
        `tuple[Running, list[int]]`:
            The call, and the descriptors to be lent: the connection to the keeper, the output, the file for the
            request, and the mount namespace where there is one.

    Raises:
        OSError: If the kernel refuses, or the files do not fit.
    """
    with contextlib.ExitStack() as kept:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept.enter_context(control)
        lent.enter_context(theirs)
        control.setsockopt(socket.SOL_SOCKET, _PASS_CREDENTIALS, 1)
        control.setblocking(False)  # what is at the other end may never read
        output, output_end = os.pipe()
        kept.callback(os.close, output)
        lent.callback(os.close, output_end)
        os.set_blocking(output, False)
        request = os.memfd_create("call", os.MFD_CLOEXEC)
        lent.callback(os.close, request)
        files = copy()
        kept.pop_all()
    mounts = [] if files.mounts is None else [files.mounts]
    running = Running(member, control, files, output, time.monotonic() + timeout_s)
    return running, [theirs.fileno(), output_end, request, *mounts]


def read_message(control: socket.socket) -> tuple[bytes, int | None]:
    """
    Read a message of a session's process.

    Returns:
        `tuple[bytes, int | None]`:
            The message, `b""` if nobody is left at the other end, and the process that has sent it.

    Raises:
        BlockingIOError: If there is none.
    """
    try:
        message, ancillary, _, _ = control.recvmsg(LONGEST_MESSAGE, _CREDENTIALS_SPACE)
    except BlockingIOError:
        raise
    except OSError:
        return b"", None
    return message, int.from_bytes(ancillary[0][2][:4], "little") if ancillary else None


def write_request(request: int, facts: dict[str, Any]) -> None:
    """Write what the process has to know into the file for it."""
    with open(request, "wb", closefd=False) as file:
        file.write(json.dumps(facts).encode())
