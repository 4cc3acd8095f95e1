"""Running one job: a call, sync or async, again after an error that was declared transient; or work on a state."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import tenacity

from ...types import CallStatus
from ..options import NoResult, TransientToolError
from .admission import lost_state_text
from .event_loop import EventLoops, ToolExit
from .jobs import CallJob, Job, Outcome, WorkJob
from .texts import bounded_text, error_line

_backoff = tenacity.wait_exponential(multiplier=0.25, max=8.0) + tenacity.wait_random(0.0, 0.25)


class DeadlinePassed(TimeoutError):
    """A call was still not answered at its deadline."""


@dataclass(frozen=True)
class Execution:
    """
    Runs jobs.

    Args:
        loops ([`EventLoops`]):
            Where awaitables run.
        closing (`threading.Event`):
            Ends the wait for another attempt.
        reserve_start (`Callable[[Job, float], float]`):
            Takes the next start that a tool's rate limit allows from a moment on, and returns its time.
        max_result_chars (`int`):
            Most characters of a result.
    """

    loops: EventLoops
    closing: threading.Event
    reserve_start: Callable[[Job, float], float]
    max_result_chars: int

    def run(self, job: Job) -> Outcome:
        """
        Run a job to its end.

        Args:
            job ([`Job`]):
                The job. Its attempts are counted in it.

        Returns:
            [`Outcome`]

        Raises:
            DeadlinePassed: If an async tool outlived its deadline, or the next attempt would.
            BaseException: Whatever the tool raised last.
        """
        if isinstance(job, WorkJob):
            if job.parent is not None and job.parent.broken:
                return Outcome(CallStatus.ERROR, job.parent.broken)
            job.work()
            return Outcome(CallStatus.OK, "")
        assert isinstance(job, CallJob)
        if job.state is not None and job.state.broken:
            return Outcome(CallStatus.ERROR, lost_state_text(job.name, job.state.broken))
        retried = job.options.num_retries > 0 and job.state is None
        return self._retrying(job)(self._attempt, job) if retried else self._attempt(job)

    def _retrying(self, job: CallJob) -> tenacity.Retrying:
        def is_transient(error: BaseException) -> bool:
            return isinstance(error, (TransientToolError, *job.options.transient)) and not self.closing.is_set()

        def wait_s(retry: tenacity.RetryCallState) -> float:
            error = None if retry.outcome is None else retry.outcome.exception()
            asked_s = error.retry_after_s if isinstance(error, TransientToolError) else None
            return max(_backoff(retry), asked_s or 0.0)

        def sleep(pause_s: float) -> None:
            self.closing.wait(pause_s)
            now = time.monotonic()
            self.closing.wait(min(self.reserve_start(job, now), job.deadline) - now)

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_transient),
            stop=tenacity.stop_after_attempt(job.options.num_retries + 1)
            | tenacity.stop_before_delay(max(job.deadline - time.monotonic(), 0.0)),
            wait=wait_s,
            sleep=sleep,
            reraise=True,
        )

    def _attempt(self, job: CallJob) -> Outcome:
        if job.attempts and (self.closing.is_set() or time.monotonic() >= job.deadline):
            raise DeadlinePassed  # while it waited for another attempt
        job.attempts += 1
        value = job.function(**deepcopy(job.arguments))  # a tool that changes its arguments changes no record
        if inspect.isawaitable(value):
            value = self._awaited(job, value)
        if isinstance(value, AsyncIterator):
            value = self._items(job, value)
        content, is_cut = bounded_text(value, self.max_result_chars)  # reads what the tool yields
        return Outcome(CallStatus.OK, content, is_cut, isinstance(value, NoResult))

    def _items(self, job: CallJob, values: AsyncIterator[Any]) -> Iterator[Any]:
        end = object()
        while (value := self._awaited(job, anext(values, end))) is not end:
            yield value

    def _awaited(self, job: CallJob, awaitable: Awaitable[Any]) -> Any:
        future = job.future = self.loops.start(awaitable)
        try:
            return future.result(timeout=max(job.deadline - time.monotonic(), 0.0))
        except TimeoutError:
            if future.cancel():
                raise DeadlinePassed from None
            return future.result()  # it ended in the last moment, or raised the error itself


def failure(job: Job, error: BaseException) -> Outcome:
    """What the model gets to read about a job that raised."""
    if isinstance(error, DeadlinePassed):
        return timeout(job)
    if isinstance(error, ToolExit) and error.__cause__ is not None:
        error = error.__cause__
    status = CallStatus.TIMEOUT if isinstance(error, TimeoutError) else CallStatus.ERROR
    return Outcome(status, error_line(error))


def timeout(job: Job) -> Outcome:
    """What the model gets to read about a job that outlived its deadline."""
    text = f"{job.name} did not answer within {job.timeout_s:g} s and was stopped."
    return Outcome(CallStatus.TIMEOUT, text, given_up=True)


def broken_by(job: Job, outcome: Outcome) -> str | None:
    """Why the state that a job worked on is lost now, as a sentence; `None` if it is not."""
    if isinstance(job, CallJob):
        return f"a call did not end within {job.timeout_s:g} s and was given up." if outcome.given_up else None
    assert isinstance(job, WorkJob)
    if outcome.status is CallStatus.OK:
        return None
    if job.parent is not None and job.parent.broken:
        return job.parent.broken
    what = "preparing it" if job.parent is None else "copying it at the branch point"
    if outcome.given_up:
        return f"{what} did not end within {job.timeout_s:g} s and was given up; raise tool_timeout_s."
    return f"{what} failed with {outcome.content}"
