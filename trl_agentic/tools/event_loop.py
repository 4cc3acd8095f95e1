"""An event loop in a thread of its own, replaced when a coroutine blocks it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

RESPONSE_S = 1.0  # how long a healthy loop may take to answer


class EventLoops:
    """
    Runs awaitables on a loop in a daemon thread, which is started when it is first needed.

    One loop serves all calls. Only where it stops answering, because a coroutine blocks it, a fresh one takes the next
    calls.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: list[tuple[asyncio.AbstractEventLoop, threading.Thread]] = []  # the last one is in use

    def start(self, awaitable: Awaitable[Any]) -> Future[Any]:
        """Start an awaitable; cancelling the future cancels it."""
        with self._lock:
            if not self._loops or not _answers(self._loops[-1][0]):
                self._loops.append(_start_loop())
            return asyncio.run_coroutine_threadsafe(_await(awaitable), self._loops[-1][0])

    def close(self) -> None:
        """Cancel what is running and stop. A loop that is blocked is left to its daemon thread."""
        with self._lock:
            for loop, thread in self._loops:
                loop.call_soon_threadsafe(loop.stop)
                thread.join(timeout=RESPONSE_S)
            self._loops.clear()


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _answers(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(timeout=RESPONSE_S)
    except FutureTimeoutError:
        return False
    return True


def _start_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_serve, args=(loop,), name="trl-agentic-tool-loop", daemon=True)
    thread.start()
    return loop, thread


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))  # lets the tasks see that they are cancelled
    loop.close()
