"""
Runs tool calls: many at a time, each with a deadline, and every failure comes back as a readable result.

Example:
    ```python
    with ToolRuntime([search, python], timeout_s=10.0) as runtime:
        runtime.submit("rollout-3", [ToolCall("search", {"query": "capital of Cuba"})])
        while runtime.num_pending:
            for key, results in runtime.poll(wait_s=1.0):
                ...
    ```
"""

from __future__ import annotations

import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from copy import deepcopy
from typing import Any

from ..types import CallStatus, ToolCall, ToolResult
from .event_loop import EventLoops
from .jobs import Job, Turn
from .signatures import describe_tools
from .texts import MAX_ERROR_CHARS, error_line, result_text


class ToolRuntime:
    """
    Runs the tool calls of all rollouts in one bounded pool.

    Calls run concurrently in daemon threads. A call that outlives its deadline is answered with `CallStatus.TIMEOUT`,
    and its thread is abandoned and replaced, so that a hung tool takes nobody's place and never keeps the interpreter
    from exiting. Async tools are awaited on one event loop and cancelled at the deadline. No failure of a tool raises:
    the model gets to read one line about it.

    Args:
        tools (`Sequence[Callable]`):
            Sync or async functions, named by their `__name__`. Where `transformers` can build a JSON schema (type
            hints and a Google docstring), the types of arguments are checked against it.
        num_workers (`int`, *optional*, defaults to `8`):
            Calls that run at the same time. With 0, calls run inside `submit`, one after another, so that a run
            repeats exactly; sync tools then have no deadline.
        timeout_s (`float`, *optional*, defaults to `30.0`):
            Deadline of a call in seconds, measured from its start.
        max_result_chars (`int`, *optional*, defaults to `100_000`):
            Most characters of a result. Of a longer one head and tail are kept, and the cut is marked.

    Raises:
        TypeError: If a tool is not callable.
        ValueError: If a tool has no name, two share one, or a setting is out of range.
    """

    def __init__(
        self,
        tools: Sequence[Callable[..., Any]],
        *,
        num_workers: int = 8,
        timeout_s: float = 30.0,
        max_result_chars: int = 100_000,
    ):
        if num_workers < 0:
            raise ValueError(f"num_workers must be 0 (inline) or more, got {num_workers}.")
        if timeout_s <= 0:
            raise ValueError(f"timeout_s must be positive, got {timeout_s}.")
        if max_result_chars < MAX_ERROR_CHARS:
            raise ValueError(f"max_result_chars must be at least {MAX_ERROR_CHARS}, got {max_result_chars}.")
        self._tools = describe_tools(tools)
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._max_result_chars = max_result_chars
        self._changed = threading.Condition()  # guards all that follows
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._finished: deque[Turn] = deque()
        self._pending: set[str] = set()
        self._threads: dict[threading.Thread, Job | None] = {}  # live ones, with the job each is at
        self._loops = EventLoops()
        self._closed = False

    @property
    def names(self) -> list[str]:
        """Names of the tools, in the order in which they were given."""
        return list(self._tools)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools that have one, in the same order."""
        return [tool.schema for tool in self._tools.values() if tool.schema is not None]

    @property
    def num_pending(self) -> int:
        """Turns submitted and not yet returned by `poll`."""
        return len(self._pending)

    def submit(self, key: str, calls: Sequence[ToolCall]) -> None:
        """
        Start the calls of one turn.

        Args:
            key (`str`):
                Names the turn in what `poll` returns; unique among those in flight.
            calls (`Sequence[ToolCall]`):
                The calls, broken ones included. They may run in any order and at the same time.

        Raises:
            ValueError: If a turn of that key is in flight.
            RuntimeError: If the runtime is closed.
        """
        with self._changed:
            if self._closed:
                raise RuntimeError("This ToolRuntime is closed; make a new one.")
            if key in self._pending:
                raise ValueError(f"A turn with key {key!r} is in flight already; keys must be unique.")
            turn = Turn(key, [None] * len(calls))
            jobs = [job for position, call in enumerate(calls) if (job := self._admit(turn, position, call))]
            self._pending.add(key)
            if self._num_workers:
                self._waiting.extend(jobs)
                self._start_threads()
            if turn.is_done:
                self._finished.append(turn)
            self._changed.notify_all()
        if not self._num_workers:
            self._run_inline(turn, jobs)

    def poll(self, wait_s: float = 0.0) -> list[tuple[str, list[ToolResult]]]:
        """
        Take the turns whose calls have all ended.

        Args:
            wait_s (`float`, *optional*, defaults to `0.0`):
                Seconds to wait at most if no turn is ready. Returns at once if none is pending.

        Returns:
            `list[tuple[str, list[ToolResult]]]`:
                Key and results of each turn, the first to end first, results in the order of the calls.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._finished or not self._pending or self._closed, timeout=wait_s)
            turns, self._finished = self._finished, deque()
            self._pending.difference_update(turn.key for turn in turns)
        return [(turn.key, [result for result in turn.results if result is not None]) for turn in turns]

    def abandon(self, key: str) -> None:
        """
        Forget a turn: calls of it that wait never start, and nothing of it is returned. Unknown keys are ignored.

        Args:
            key (`str`):
                The turn.
        """
        with self._changed:
            self._pending.discard(key)
            self._waiting = deque(job for job in self._waiting if job.turn.key != key)
            self._finished = deque(turn for turn in self._finished if turn.key != key)

    def close(self) -> None:
        """Drop what is waiting and stop. Threads whose call is still running end with it, without being waited for."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            idle = [thread for thread, job in self._threads.items() if job is None]
            self._changed.notify_all()
        for thread in idle:
            thread.join()
        self._loops.close()

    def __enter__(self) -> ToolRuntime:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _admit(self, turn: Turn, position: int, call: ToolCall) -> Job | None:
        """Check a call: a job if it can be run, else its result is set."""
        tool = self._tools.get(call.name)
        if call.problem is not None:
            status, content = CallStatus.MALFORMED, call.problem
        elif tool is None:
            known = ", ".join(self._tools) or "none"
            status, content = CallStatus.UNKNOWN_TOOL, f"There is no tool named {call.name[:100]!r}. Tools: {known}."
        else:
            arguments, problem = tool.check(call.arguments)
            if problem is None:
                return Job(turn, position, call, tool, arguments)
            status, content = CallStatus.INVALID_ARGUMENTS, problem
        turn.results[position] = ToolResult(call, result_text(content, self._max_result_chars), status)
        return None

    def _run_inline(self, turn: Turn, jobs: list[Job]) -> None:
        for job in jobs:
            job.started = time.monotonic()
            self._record(job, *self._execute(job))
        if jobs:
            with self._changed:
                self._finished.append(turn)
                self._changed.notify_all()

    def _execute(self, job: Job) -> tuple[CallStatus, str]:
        """Run a call; whatever the tool does, this is what the model gets to read."""
        try:
            value = job.tool.function(**deepcopy(job.arguments))
            if inspect.isawaitable(value):
                job.future = self._loops.start(value)
                value = job.future.result(timeout=self._timeout_s)
            return CallStatus.OK, result_text(value, self._max_result_chars)
        except (TimeoutError, FutureTimeoutError) as error:  # two classes before Python 3.11
            if job.future is not None and not job.future.done():
                job.future.cancel()
                return CallStatus.TIMEOUT, self._timeout_text(job)
            return CallStatus.TIMEOUT, error_line(error)
        except (Exception, SystemExit) as error:  # a failed tool is data, whatever it raised
            return CallStatus.ERROR, error_line(error)

    def _record(self, job: Job, status: CallStatus, content: str) -> None:
        job.turn.results[job.position] = ToolResult(job.call, content, status, time.monotonic() - job.started)

    def _timeout_text(self, job: Job) -> str:
        return f"{job.tool.name} did not answer within {self._timeout_s:g} s and was stopped."

    def _start_threads(self) -> None:
        """Start the watcher and as many workers as there is work for; the lock is held."""
        if not self._threads:
            self._start_thread(self._watch)
        wanted = min(self._num_workers, len(self._running) + len(self._waiting))
        for _ in range(wanted + 1 - len(self._threads)):
            self._start_thread(self._work)

    def _start_thread(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"trl-agentic-tool{target.__name__}", daemon=True)
        self._threads[thread] = None
        thread.start()

    def _work(self) -> None:
        """Body of a worker: run one job after another, until closed or replaced."""
        thread = threading.current_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    self._threads.pop(thread, None)
                    return
                job = self._waiting.popleft()
                job.started = time.monotonic()
                self._running.append(job)
                self._threads[thread] = job
                self._changed.notify_all()  # the watcher has a new deadline
            status, content = self._execute(job)
            with self._changed:
                if job.expired:
                    return  # this thread was replaced, and the result is in
                self._threads[thread] = None
                self._finish(job, status, content)

    def _finish(self, job: Job, status: CallStatus, content: str) -> None:
        """Set the result of a running job; the lock is held."""
        self._running.remove(job)
        self._record(job, status, content)
        if job.turn.is_done:
            self._finished.append(job.turn)
        self._changed.notify_all()

    def _watch(self) -> None:
        """Body of the watcher: answer the calls that outlive their deadline, and replace their threads."""
        with self._changed:
            while not self._closed:
                for job in [job for job in self._running if self._deadline(job) <= time.monotonic()]:
                    self._expire(job)
                nearest = min(map(self._deadline, self._running), default=None)
                self._changed.wait(None if nearest is None else max(nearest - time.monotonic(), 0.0))

    def _deadline(self, job: Job) -> float:
        return job.started + self._timeout_s

    def _expire(self, job: Job) -> None:
        job.expired = True
        if job.future is not None:
            job.future.cancel()
        self._threads = {thread: at for thread, at in self._threads.items() if at is not job}
        self._finish(job, CallStatus.TIMEOUT, self._timeout_text(job))
        self._start_threads()
