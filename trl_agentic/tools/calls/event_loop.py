"""An event loop in a thread of its own, replaced when a coroutine blocks it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Any

from .daemon_threads import DaemonThreads

RESPONSE_S = 1.0  # how long a healthy loop may take to answer
_RETIRED_POLL_S = 0.1


class ToolExit(RuntimeError):
    """A coroutine raised `SystemExit` or `KeyboardInterrupt`, its cause, which would have ended the loop itself."""


class EventLoops:
    """
    Runs awaitables on a loop in a daemon thread, which is started when it is first needed.

    One loop serves all calls. Only where it stops answering, because a coroutine blocks it, a fresh one takes the next
    calls; the old one ends with the calls that it has.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: list[tuple[asyncio.AbstractEventLoop, threading.Thread]] = []  # the last one is in use
        self._closed = False

    def start(self, awaitable: Awaitable[Any]) -> Future[Any]:
        """
        Start an awaitable; cancelling the future cancels it.

        Raises:
            RuntimeError: If the loops are closed.
        """
        with self._lock:
            if self._closed:
                if asyncio.iscoroutine(awaitable):
                    awaitable.close()
                raise RuntimeError("the tool runtime is closed")
            if not self._loops or not _answers(self._loops[-1][0]):
                self._replace()
            return asyncio.run_coroutine_threadsafe(_await(awaitable), self._loops[-1][0])

    def close(self) -> None:
        """Cancel what is running and stop. A loop that is blocked is left to its daemon thread."""
        with self._lock:
            self._closed = True
            for loop, _ in self._loops:
                with contextlib.suppress(RuntimeError):  # it has ended by itself
                    loop.call_soon_threadsafe(loop.stop)
            for _, thread in self._loops:
                thread.join(timeout=RESPONSE_S)
            self._loops.clear()

    def _replace(self) -> None:
        if self._loops:
            asyncio.run_coroutine_threadsafe(_retire(), self._loops[-1][0])
        self._loops = [(loop, thread) for loop, thread in self._loops if thread.is_alive()]
        self._loops.append(_start_loop())


async def _await(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:
        raise ToolExit(str(error)) from error


async def _retire() -> None:
    """Stop the loop once nothing but this runs on it."""
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(_RETIRED_POLL_S)
    asyncio.get_running_loop().stop()


def _answers(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(timeout=RESPONSE_S)
    except TimeoutError:
        return False
    return True


def _start_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonThreads())  # for `asyncio.to_thread`, which tools use for what blocks
    thread = threading.Thread(target=_serve, args=(loop,), name="trl-agentic-tool-loop", daemon=True)
    thread.start()
    return loop, thread


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:  # lets them see that they are cancelled, and clean up
        loop.run_until_complete(asyncio.wait(tasks, timeout=RESPONSE_S / 2))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
