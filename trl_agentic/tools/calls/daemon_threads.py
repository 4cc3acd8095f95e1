"""Threads that never keep the interpreter from exiting: `concurrent.futures` joins its own at the end, hung or not."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

Value = TypeVar("Value")


class DaemonThreads(ThreadPoolExecutor):
    """
    An executor with a daemon thread for each task, so that tasks that hang take no place from others.

    Shutting it down waits for nothing. An event loop takes it as its default executor.
    """

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Start a task; see `concurrent.futures.Executor.submit`."""
        thread = _Task(functools.partial(function, *arguments, **named), "trl-agentic-task")
        thread.start()
        return thread.future


def run_together(tasks: Sequence[Callable[[], Value]], name: str) -> list[Value]:
    """
    Run tasks at the same time, each in a daemon thread, until all have ended.

    Args:
        tasks (`Sequence[Callable[[], Value]]`):
            What to run.
        name (`str`):
            Name of the threads.

    Returns:
        `list[Value]`:
            What each returned, in their order.

    Raises:
        BaseException: What the first of those that failed has raised.
    """
    threads = [_Task(task, name) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [thread.future.result() for thread in threads]


class _Task(threading.Thread):
    def __init__(self, task: Callable[[], Any], name: str):
        super().__init__(name=name, daemon=True)
        self.future: Future[Any] = Future()
        self._task = task

    def run(self) -> None:
        if self.future.set_running_or_notify_cancel():
            with _Delivery(self.future):
                self.future.set_result(self._task())


class _Delivery:
    """Hands whatever is raised inside to those who wait for a future."""

    def __init__(self, future: Future[Any]):
        self._future = future

    def __enter__(self) -> None:
        """Nothing is needed to begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return True
