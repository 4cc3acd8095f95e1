"""What becomes of a call before it runs: an answer at once, because it is wrong or known, or a job."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...types import CallStatus, ToolCall, ToolResult
from ..cache import CachedResult, CacheKey, ResultCache
from ..cache_file import CacheBusyError
from ..options import is_duration
from .jobs import CallJob, CallState, Job, Outcome, Turn
from .signatures import Tool
from .texts import MAX_ERROR_CHARS, bounded_text

LOOK_S = 0.1  # how long a worker waits for somebody who writes to the cache; the call's deadline has begun


@dataclass(frozen=True)
class Admission:
    """
    Decides which calls run.

    Args:
        tools (`Mapping[str, Tool]`):
            The tools by name.
        timeout_s (`float`):
            Deadline of a call of a tool that sets none, in seconds.
        max_result_chars (`int`):
            Most characters of an answer.
        cache ([`ResultCache`], *optional*):
            Results that are known.
    """

    tools: Mapping[str, Tool]
    timeout_s: float
    max_result_chars: int
    cache: ResultCache | None = None

    def admit(self, turn: Turn, position: int, call: ToolCall, state: CallState | None) -> CallJob | None:
        """
        Check a call.

        Args:
            turn ([`Turn`]), position (`int`):
                Where its result belongs.
            call ([`ToolCall`]):
                The call.
            state ([`CallState`], *optional*):
                The state of the trajectory.

        Returns:
            [`CallJob`] or `None`:
                A job if the call is to be run, else `None`, and the result is set.

        Raises:
            ReplayMiss: If the cache is to answer alone, and does not know the call.
            OSError: If it is to answer alone, and cannot be read.
        """
        answer = self._refusal(call)
        if answer is None:
            tool = self.tools[call.name]
            arguments = tool.check(call.arguments)
            if not isinstance(arguments, str):
                job = CallJob(
                    name=tool.name,
                    timeout_s=self.timeout_s if tool.options.timeout_s is None else tool.options.timeout_s,
                    options=tool.options,
                    created=time.monotonic(),
                    turn=turn,
                    position=position,
                    call=call,
                    arguments=arguments.values,
                    function=tool.function,
                )
                return self._bind(job, arguments.plain, state)
            answer = CallStatus.INVALID_ARGUMENTS, arguments
        status, content = answer
        self._answer(turn, position, ToolResult(call, content, status))
        return None

    def look_again(self, job: Job) -> Outcome | None:
        """What the cache knows of a call that could not be looked up when it came; for a worker, which may wait."""
        if not isinstance(job, CallJob) or job.key is None or not job.is_unread:
            return None
        assert self.cache is not None
        known = self.cache.get(job.key, wait_s=LOOK_S)
        if known is None:
            return None
        content, is_cut = bounded_text(known.content, self.max_result_chars)
        return Outcome(known.status, content, known.truncated or is_cut, cached=True)

    def remember(self, job: Job, outcome: Outcome) -> Outcome:
        """Store what became of a call, for equal ones if it did not fail, else for a replay; returns it."""
        if isinstance(job, CallJob) and job.key is not None and not outcome.cached:
            assert self.cache is not None
            result = CachedResult(outcome.content, outcome.negative, outcome.truncated, outcome.status)
            self.cache.put_later(job.key, result)
        return outcome

    def _refusal(self, call: ToolCall) -> tuple[CallStatus, str] | None:
        if call.problem is not None:
            return CallStatus.MALFORMED, call.problem
        if call.name not in self.tools:
            known = ", ".join(self.tools) or "none"
            return CallStatus.UNKNOWN_TOOL, f"There is no tool named {call.name[:100]!r}. Tools: {known}."
        return None

    def _bind(self, job: CallJob, plain: Mapping[str, Any], state: CallState | None) -> CallJob | None:
        """Give a call its trajectory's own function, or an answer from the cache where the tool has no state."""
        function = None if state is None else state.function(job.name)
        if state is not None and function is not None:
            if state.broken:
                text = lost_state_text(job.name, state.broken)
                self._answer(job.turn, job.position, ToolResult(job.call, text, CallStatus.ERROR))
                return None
            job.function, job.state, job.lanes = function, state, (state,)
        elif self.cache is not None and job.options.cached:
            job.key = self.cache.key(job.name, plain, job.options.version)
            known = None if job.key is None else self._known(job, job.key)
            if known is not None:
                latency_s = time.monotonic() - job.created
                result = ToolResult(job.call, known.content, known.status, latency_s, True, known.truncated, 0)
                self._answer(job.turn, job.position, result)
                return None
        return job

    def _known(self, job: CallJob, key: CacheKey) -> CachedResult | None:
        """What the cache knows and can say at once; the engine shares this thread."""
        assert self.cache is not None
        try:
            return self.cache.get(key, wait_s=0.0)
        except CacheBusyError:
            job.is_unread = True
            return None

    def _answer(self, turn: Turn, position: int, result: ToolResult) -> None:
        content, is_cut = bounded_text(result.content, self.max_result_chars)
        turn.set(position, replace(result, content=content, truncated=result.truncated or is_cut))


def lost_state_text(name: str, reason: str) -> str:
    """What the model gets to read about a tool whose state is gone."""
    return f"{name} cannot be used any more, its state is lost: {reason}"


def check_settings(num_workers: int, timeout_s: float, max_result_chars: int) -> None:
    """Raises `ValueError` for settings of a [`ToolRuntime`] that are out of range."""
    if num_workers < 0:
        raise ValueError(f"num_workers must be 0 (inline) or more, got {num_workers}.")
    if not is_duration(timeout_s):
        raise ValueError(
            f"timeout_s must be positive, finite, and at most {threading.TIMEOUT_MAX:g} s, got {timeout_s}."
        )
    if max_result_chars < MAX_ERROR_CHARS:
        raise ValueError(f"max_result_chars must be at least {MAX_ERROR_CHARS}, got {max_result_chars}.")
