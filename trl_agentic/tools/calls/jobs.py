"""What the runtime knows of a call that waits or runs, of the turn it belongs to, and of the state it works on."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ...types import CallStatus, ToolCall, ToolResult
from ..cache import CacheKey
from ..options import ToolOptions


class CallState(Protocol):
    """
    The tools' state of one trajectory: its environment, its Python session.

    Attributes:
        broken (`str` or `None`):
            Why the state is lost, as a sentence; calls on it are answered with that. The runtime sets it where a call
            was given up in the middle, or the state could not be prepared or copied.
    """

    broken: str | None

    def function(self, name: str) -> Callable[..., Any] | None:
        """
        Look up what a call of a tool runs on this state.

        Args:
            name (`str`):
                Name of the tool.

        Returns:
            `Callable` or `None`:
                The function, bound to this trajectory's own environment; `None` if the tool has no state.
        """
        ...


@dataclass
class Turn:
    """The calls of one turn; `results` fills up in any order."""

    key: str
    results: list[ToolResult | None]
    num_open: int = 0  # calls without a result
    abandoned: bool = False
    waiting: list[CallJob] = field(default_factory=list)  # its jobs, for as long as the turn is in flight

    def set(self, position: int, result: ToolResult) -> None:
        """Answer one call, once."""
        assert self.results[position] is None, f"call {position} of turn {self.key!r} has a result already"
        self.results[position] = result
        self.num_open -= 1


@dataclass(frozen=True)
class Outcome:
    """
    What became of a job.

    Args:
        status ([`CallStatus`]), content (`str`):
            As in the [`ToolResult`] it becomes.
        truncated (`bool`, *optional*, defaults to `False`):
            Whether the content was cut.
        negative (`bool`, *optional*, defaults to `False`):
            Whether the tool said that it found nothing.
        given_up (`bool`, *optional*, defaults to `False`):
            Whether the deadline passed while it ran, so that it may still be running.
        cached (`bool`, *optional*, defaults to `False`):
            Whether it came from the cache.
    """

    status: CallStatus
    content: str
    truncated: bool = False
    negative: bool = False
    given_up: bool = False
    cached: bool = False


@dataclass(eq=False)
class Job:
    """
    Something that needs a worker: it waits in its lanes first, then for the limits of its tool, then it runs.

    Args:
        name (`str`):
            The tool, whose limits it waits for.
        timeout_s (`float`):
            Seconds that it may run.
        options ([`ToolOptions`], *optional*):
            Limits and retries.
        state ([`CallState`], *optional*):
            The state it changes, if any.
        lanes (`tuple[CallState, ...]`, *optional*, defaults to `()`):
            The states it needs: it waits for every earlier job that needs one of them.
    """

    name: str
    timeout_s: float
    options: ToolOptions = ToolOptions()
    state: CallState | None = None
    lanes: tuple[CallState, ...] = ()
    num_before: int = 0  # lanes in which another job is still before it
    number: int = 0  # position among those that may run, the lowest first
    created: float = 0.0  # `time.monotonic()`, as the following two
    started: float = 0.0
    deadline: float = 0.0
    attempts: int = 0
    future: Future[Any] | None = None  # set while an async tool runs
    expired: bool = False  # the deadline passed, and the job was answered

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for it still."""
        return True


@dataclass(eq=False)
class CallJob(Job):
    """One call of a turn; `twins` are equal calls that wait for its result."""

    turn: Turn = field(kw_only=True)
    position: int = field(kw_only=True)
    call: ToolCall = field(kw_only=True)
    arguments: dict[str, Any] = field(kw_only=True)
    function: Callable[..., Any] = field(kw_only=True)
    key: CacheKey | None = None
    is_unread: bool = False  # somebody was writing to the cache when the call came: it is still to be looked up
    twins: list[CallJob] = field(default_factory=list)

    @property
    def is_wanted(self) -> bool:
        """Whether its turn, or that of a twin, is still in flight."""
        return not self.turn.abandoned or any(twin.is_wanted for twin in self.twins)

    def answer(self, outcome: Outcome, is_twin: bool = False) -> Turn:
        """Set the result of the call, and as a twin's if it is not the one that was run; returns the turn."""
        latency_s = time.monotonic() - (self.created if is_twin else self.started)
        cached = outcome.cached or (is_twin and outcome.status is CallStatus.OK)
        result = ToolResult(self.call, outcome.content, outcome.status, latency_s, cached, outcome.truncated)
        self.turn.set(self.position, replace(result, attempts=self.attempts))
        return self.turn


@dataclass(eq=False)
class WorkJob(Job):
    """Work on a state that is no call of the model: a reset, a replay, or a copy of `parent` into `state`."""

    work: Callable[[], None] = field(kw_only=True)
    parent: CallState | None = None
