"""The process that reads pages: one request after another, until its caller is gone."""

from __future__ import annotations

import faulthandler
import json
import resource
import socket
from dataclasses import asdict

from .decoding import UnreadablePageError
from .extraction import Limits, extract

_MEMORY_BYTES = 3 << 30
_ORPHAN_S = 60.0  # beyond the caller's deadline, at which it kills: for when the caller itself is gone
_LENGTH_BYTES = 8


def main() -> None:
    """Answer the requests that come in at standard input, a socket, and write each answer back to it."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import pypdf  # noqa: F401 (imported before the first page comes)
    import trafilatura  # noqa: F401

    with socket.socket(fileno=0) as channel:
        while request := _receive(channel):
            header, _, content = request.partition(b"\n")
            answer = json.dumps(_answer(json.loads(header), content)).encode()
            channel.sendall(len(answer).to_bytes(_LENGTH_BYTES, "big") + answer)


def _answer(header: dict, content: bytes) -> dict[str, str]:
    limits = Limits(**header.pop("limits"))
    faulthandler.dump_traceback_later(limits.timeout_s + _ORPHAN_S, exit=True)
    try:
        return asdict(extract(content, **header, limits=limits))
    except UnreadablePageError as error:
        return {"problem": str(error)}
    finally:
        faulthandler.cancel_dump_traceback_later()


def _receive(channel: socket.socket) -> bytes:
    length = int.from_bytes(_exactly(channel, _LENGTH_BYTES), "big")
    return _exactly(channel, length)


def _exactly(channel: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        piece = channel.recv(min(length - len(received), 1 << 20))
        if not piece:
            return b""  # the caller is gone
        received += piece
    return bytes(received)
