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

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..types import CallStatus, ToolCall, ToolResult
from .cache import ResultCache
from .calls.admission import Admission, check_settings
from .calls.event_loop import EventLoops
from .calls.execution import Execution, broken_by, failure, timeout
from .calls.jobs import CallJob, CallState, Job, Outcome, Turn, WorkJob
from .calls.signatures import describe_tools
from .calls.twins import Twins
from .calls.workers import WorkerPool


class ToolRuntime:
    """
    Runs the tool calls of all rollouts in one bounded pool.

    Calls run concurrently in daemon threads. A call that outlives its deadline is answered with `CallStatus.TIMEOUT`,
    and its thread is abandoned and replaced, so that a hung tool takes nobody's place and never keeps the interpreter
    from exiting. Async tools are awaited on one event loop and cancelled at the deadline. No failure of a tool raises:
    the model gets to read one line about it.

    What a tool wants beyond that, it says by [`tool_options`]: a deadline of its own, limits on concurrency and rate
    (a call that waits for them occupies no worker, and calls of other tools overtake it), retries, caching.

    **State.** Where the tools of a trajectory have a state, its calls pass a [`CallState`].
    Calls on one state run one at a time, in the order of submission, and so do [`~ToolRuntime.fork`] and
    [`~ToolRuntime.prepare`]; all else stays concurrent. They are neither cached nor retried. If one is given up at its
    deadline, the state is lost: it may still be changing.

    **Caching.** A call that the cache knows is answered inside `submit`, without a worker. Of equal calls of a cached
    tool that are in flight at once, the first is run and the others share its result, be it an error.

    Args:
        tools (`Sequence[Callable]`):
            Sync or async functions, named by their `__name__`. Where a JSON schema can be built (type hints and a
            Google docstring), arguments are checked, and converted to what the hints say.
        num_workers (`int`, *optional*, defaults to `8`):
            Calls that run at the same time. With 0, calls run inside `submit`, one after another, so that a run
            repeats exactly; sync tools then have no deadline.
        timeout_s (`float`, *optional*, defaults to `30.0`):
            Deadline of a call in seconds, measured from its start, for tools that set none of their own.
        max_result_chars (`int`, *optional*, defaults to `100_000`):
            Most characters of a result. Of a longer one head and tail are kept, and the cut is marked.
        cache ([`ResultCache`], *optional*):
            Where results of tools with `cached=True` are kept. The caller closes it.

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
        cache: ResultCache | None = None,
    ):
        check_settings(num_workers, timeout_s, max_result_chars)
        self._tools = describe_tools(tools)
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._cache = cache
        self._admission = Admission(self._tools, timeout_s, max_result_chars, cache)
        self._loops = EventLoops()
        self._pool = WorkerPool(
            num_workers, self._execute, lambda job: self._remember(job, timeout(job)), self._finish
        )
        self._execution = Execution(self._loops, self._pool.closing, self._pool.reserve_start, max_result_chars)
        self._lock = self._pool.lock  # guards all that follows
        self._changed = threading.Condition(self._lock)  # a turn is done, or a lane has moved on
        self._finished: deque[Turn] = deque()
        self._pending: dict[str, Turn] = {}
        self._twins = Twins()

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

    @property
    def metrics(self) -> dict[str, float]:
        """`tools/abandoned_threads`, those still in a call that was given up, and `tools/cache/...` of the cache."""
        counts = {} if self._cache is None else self._cache.metrics
        counts["abandoned_threads"] = float(self._pool.num_abandoned)
        return {f"tools/{name}": count for name, count in counts.items()}

    def submit(self, key: str, calls: Sequence[ToolCall], state: CallState | None = None) -> None:
        """
        Start the calls of one turn.

        Args:
            key (`str`):
                Names the turn in what `poll` returns; unique among those in flight.
            calls (`Sequence[ToolCall]`):
                The calls, broken ones included. Those without a state may run in any order and at the same time.
            state ([`CallState`], *optional*):
                The state of the trajectory, for tools that have one.

        Raises:
            ValueError: If a turn of that key is in flight.
            RuntimeError: If the runtime is closed.
            ReplayMiss, OSError: If the cache is to answer alone, and does not know a call, or cannot be read.
        """
        turn = Turn(key, [None] * len(calls), len(calls))
        self._pool.check_open()
        if key in self._pending:
            raise ValueError(f"A turn with key {key!r} is in flight already; keys must be unique.")
        for position, call in enumerate(calls):
            job = self._admission.admit(turn, position, call, state)
            if job is not None and self._num_workers:
                turn.waiting.append(job)
            elif job is not None:
                self._run_inline(job)
        with self._lock:
            self._pending[key] = turn
            self._pool.add([job for job in turn.waiting if not self._twins.joins(job)])
            if not turn.num_open:
                self._finished.append(turn)
                self._changed.notify_all()

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
        if not self._finished and wait_s <= 0.0:  # asked thousands of times while the engine runs: no lock
            return []
        with self._lock:
            closing = self._pool.closing
            self._changed.wait_for(lambda: self._finished or not self._pending or closing.is_set(), timeout=wait_s)
            turns, self._finished = self._finished, deque()
            for turn in turns:
                del self._pending[turn.key]
        return [(turn.key, [result for result in turn.results if result is not None]) for turn in turns]

    def abandon(self, key: str) -> None:
        """Forget a turn: its calls that wait never start, nothing of it is returned. Unknown keys are ignored."""
        with self._lock:
            turn = self._pending.pop(key, None)
            if turn is not None:
                turn.abandoned = True
                self._pool.discard(turn.waiting)
                self._twins.drop_unwanted()
                self._finished = deque(other for other in self._finished if other is not turn)
                self._changed.notify_all()

    def fork(self, parent: CallState, child: CallState, work: Callable[[], None]) -> None:
        """
        Copy a state between the calls on it: behind all that were submitted, before all that will be.

        Args:
            parent ([`CallState`]), child ([`CallState`]):
                The state that is copied, and the one that becomes its copy. Calls on the child wait for it.
            work (`Callable[[], None]`):
                Does the copying. If it raises or outlives `timeout_s`, or the parent is broken, the child is broken.
        """
        self._add_work(WorkJob("", self._timeout_s, state=child, lanes=(parent, child), work=work, parent=parent))

    def prepare(self, state: CallState, work: Callable[[], None], num_calls: int = 0) -> None:
        """
        Do something to a state in its turn, such as a reset; the calls submitted later wait for it.

        Args:
            state ([`CallState`]), work (`Callable[[], None]`), num_calls (`int`, *optional*, defaults to `0`):
                The state, what to do, and how many calls that repeats. If it raises, or outlives `timeout_s` and as
                much again for each call, the state is broken.
        """
        timeout_s = self._timeout_s * (1 + num_calls)
        self._add_work(WorkJob("", timeout_s, state=state, lanes=(state,), work=work))

    def settle(self, states: Sequence[CallState], timeout_s: float | None = None) -> bool:
        """Wait, `timeout_s` at most if given, until nothing is queued or running on these states; whether it is so."""
        with self._lock:
            scheduler, closing = self._pool.scheduler, self._pool.closing
            return self._changed.wait_for(lambda: scheduler.is_idle(states) or closing.is_set(), timeout=timeout_s)

    def perform(self, call: ToolCall, state: CallState | None = None) -> ToolResult:
        """
        Run one call now and in this thread, past all queues: for work on a state that repeats recorded calls.

        Args:
            call ([`ToolCall`]), state ([`CallState`], *optional*): The call, and the state it is made on.
        """
        turn = Turn("", [None], 1)
        if (job := self._admission.admit(turn, 0, call, state)) is not None:
            job.answer(self._run_here(job))
        assert turn.results[0] is not None
        return turn.results[0]

    def close(self) -> None:
        """Drop what is waiting and stop. Threads whose call is still running end with it, without being waited for."""
        self._pool.close()
        with self._lock:
            self._changed.notify_all()
        if self._cache is not None:
            self._cache.flush()
        self._loops.close()

    def __enter__(self) -> ToolRuntime:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _add_work(self, job: WorkJob) -> None:
        if self._num_workers:
            self._pool.add([job])
        else:
            self._run_inline(job)

    def _run_inline(self, job: Job) -> None:
        outcome = self._run_here(job)
        with self._lock:
            self._finish(job, outcome)

    def _run_here(self, job: Job) -> Outcome:
        now = time.monotonic()
        job.started = self._pool.reserve_start(job, now)
        time.sleep(max(job.started - now, 0.0))
        job.deadline = job.started + job.timeout_s
        return self._execute(job)

    def _execute(self, job: Job) -> Outcome:
        """Run a job; whatever the tool does, the outcome says what the model gets to read."""
        outcome = _shielded(
            lambda: self._admission.look_again(job) or self._execution.run(job), lambda error: _described(job, error)
        )
        is_final = outcome.status is CallStatus.OK or not self._pool.closing.is_set()
        return self._remember(job, outcome) if is_final and not job.expired else outcome

    def _remember(self, job: Job, outcome: Outcome) -> Outcome:
        return _shielded(lambda: self._admission.remember(job, outcome), lambda error: outcome)

    def _finish(self, job: Job, outcome: Outcome) -> None:
        """Take the outcome of a job; the lock is held."""
        if job.state is not None:
            job.state.broken = job.state.broken or broken_by(job, outcome)
        if isinstance(job, CallJob):
            turns = [job.answer(outcome), *(twin.answer(outcome, is_twin=True) for twin in job.twins)]
            done = {turn.key: turn for turn in turns if not turn.num_open and self._pending.get(turn.key) is turn}
            self._finished.extend(done.values())
            self._twins.leave(job)
        self._changed.notify_all()  # the pool takes it out of its lanes before it lets go of the lock


def _described(job: Job, error: BaseException) -> Outcome:
    """Describing an error runs code of the tool, such as its properties, and may raise as well."""
    return _shielded(lambda: failure(job, error), lambda _: Outcome(CallStatus.ERROR, type(error).__name__))


def _shielded(run: Callable[[], Outcome], otherwise: Callable[[BaseException], Outcome]) -> Outcome:
    """Whatever is raised, a thread of the pool lives on and its job is answered."""
    try:
        return run()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # an inline call: it is the user who interrupts
        return otherwise(error)
