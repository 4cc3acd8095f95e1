"""
Runs the parsers of pages in processes that can be killed.

Example:
    ```python
    with PageParser() as parser:
        page = parser.read(b"<title>Cuba</title><p>Its capital is Havana.", "text/html")
        page.text  # "Its capital is Havana."
    ```
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from .page_text.decoding import UnreadablePageError
from .page_text.extraction import Limits, PageText

_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from page_text.process import main; sys.path.remove(sys.argv[1]); main()"
)
# No key that the environment holds is within reach of a parser.
_INHERITED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")
_LENGTH_BYTES = 8
_PLAIN_SHARE = 0.3  # of the time, kept for reading a page plainly that the first attempt failed on


class PageParser:
    """
    Reads pages in a few warm processes. Safe from many threads.

    A page that is not read in time costs the process, which is killed and started anew: the parsers can not be
    interrupted. An HTML page is then read once more, plainly.

    Args:
        num_processes (`int`, *optional*, defaults to `2`):
            Pages that are read at the same time. A process starts when it is first needed, in about a second, and
            holds some 100 MB.

    Raises:
        ImportError: If `trafilatura` or `pypdf` is not installed.
    """

    def __init__(self, num_processes: int = 2):
        if num_processes < 1:
            raise ValueError(f"num_processes must be at least 1, got {num_processes}.")
        for library in ("trafilatura", "pypdf"):
            if importlib.util.find_spec(library) is None:
                raise ImportError(
                    f"Reading pages needs {library}. Install it with `pip install trl-agentic[browser]`."
                )
        self._num_processes = num_processes
        self._idle: list[_Process] = []
        self._begin()

    def read(
        self, content: bytes, content_type: str, *, is_complete: bool = True, limits: Limits | None = None
    ) -> PageText:
        """
        Read a page.

        Args:
            content (`bytes`):
                The body of the response.
            content_type (`str`):
                Its header.
            is_complete (`bool`, *optional*, defaults to `True`):
                Whether `content` is the whole body.
            limits ([`Limits`], *optional*):
                What may be spent; `timeout_s` is the deadline of this call.

        Returns:
            [`PageText`]:
                Title, text and remark.

        Raises:
            UnreadablePageError: If there is no text, or it was not found in time.
        """
        self._leave_to_parent()
        limits = Limits() if limits is None else limits
        deadline = time.monotonic() + limits.timeout_s
        if not self._places.acquire(timeout=limits.timeout_s):
            raise UnreadablePageError("The page was not read: too many others were being read at the same time.")
        try:
            for plain in (False, True):
                until = deadline if plain else deadline - _PLAIN_SHARE * limits.timeout_s
                seconds = max(until - time.monotonic(), 0.01)
                header = {
                    "content_type": content_type,
                    "is_complete": is_complete,
                    "plain": plain,
                    "limits": asdict(limits) | {"timeout_s": seconds / 2},
                }
                answer = self._ask(json.dumps(header).encode() + b"\n" + content, until)
                if answer is not None:
                    return _page(answer)
        finally:
            self._places.release()
        raise UnreadablePageError("The page is broken, or too complicated to be read in the time there is.")

    def warm(self) -> None:
        """Start a process if none is waiting and one may start, without waiting for it."""
        self._leave_to_parent()
        if self._places.acquire(blocking=False):
            try:
                process = self._take()
                with self._lock:
                    self._idle.append(process)
            finally:
                self._places.release()

    def close(self) -> None:
        """End the processes that wait. The next page starts one again."""
        self._leave_to_parent()
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def __enter__(self) -> PageParser:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._places = threading.Semaphore(self._num_processes)
        self._lock = threading.Lock()
        self._idle = []

    def _leave_to_parent(self) -> None:
        """In a forked process: begin anew. The processes are the parent's, and so are the locks that are held."""
        if self._owner != os.getpid():
            idle = self._idle
            self._begin()
            for process in idle:
                process.channel.close()

    def _take(self) -> _Process:
        """A process that lives; the caller holds one of the places."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.process.poll() is None:
                    return process
                process.end()
            return _start()

    def _ask(self, request: bytes, deadline: float) -> dict[str, str] | None:
        """The answer of a process; `None` if it died or took too long."""
        process = self._take()
        answer = None
        try:
            with contextlib.suppress(OSError):  # the deadline, or the end of the process
                answer = process.ask(request, deadline)
        finally:
            if answer is None:
                process.end()
            else:
                with self._lock:
                    self._idle.append(process)
        return answer


@dataclass(frozen=True)
class _Process:
    process: subprocess.Popen[bytes]
    channel: socket.socket

    def ask(self, request: bytes, deadline: float) -> dict[str, str]:
        self.channel.settimeout(max(deadline - time.monotonic(), 0.01))
        self.channel.sendall(len(request).to_bytes(_LENGTH_BYTES, "big") + request)
        length = int.from_bytes(self._exactly(_LENGTH_BYTES, deadline), "big")
        return json.loads(self._exactly(length, deadline))

    def _exactly(self, length: int, deadline: float) -> bytes:
        received = bytearray()
        while len(received) < length:
            self.channel.settimeout(max(deadline - time.monotonic(), 0.01))
            piece = self.channel.recv(min(length - len(received), 1 << 20))
            if not piece:
                raise ConnectionResetError("the process ended")
            received += piece
        return bytes(received)

    def end(self) -> None:
        self.channel.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


def _start() -> _Process:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, str(Path(__file__).resolve().parent)],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _INHERITED if name in os.environ},
            start_new_session=True,  # Ctrl-C is for the training run
        )
    return _Process(process, ours)


def _page(answer: dict[str, str]) -> PageText:
    if "problem" in answer:
        raise UnreadablePageError(answer["problem"])
    return PageText(**answer)


def page_parser() -> PageParser:
    """The parser that this process shares among its browser tools; its processes end with the interpreter."""
    return _shared(os.getpid())


@cache
def _shared(owner: int) -> PageParser:
    # One per process: after a fork the channels are still the parent's.
    parser = PageParser()
    atexit.register(parser.close)
    return parser
