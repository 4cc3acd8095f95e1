"""Messages between the owner of a session and its keeper: JSON, preceded by its length."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")


def send(connection: socket.socket, descriptor: int | None = None, **facts: Any) -> None:
    """Send a message, with a file descriptor if one is given."""
    content = json.dumps(facts).encode()
    header = _LENGTH.pack(len(content))
    if descriptor is None:
        connection.sendall(header + content)
    else:
        socket.send_fds(connection, [header], [descriptor])
        connection.sendall(content)


def tell(connection: socket.socket, **facts: Any) -> None:
    """Send a message to somebody who may be gone."""
    with contextlib.suppress(OSError):
        send(connection, **facts)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """
    Receive a message and the descriptors that came with it.

    Raises:
        EOFError: If the other side is gone.
    """
    header, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, 1)
    header += _read(connection, _LENGTH.size - len(header))
    return json.loads(_read(connection, _LENGTH.unpack(header)[0])), descriptors


def _read(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size > 0:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise EOFError("the other side has closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
