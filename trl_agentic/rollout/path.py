"""A trajectory while it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..tools.state import ToolState
from ..types import CallStatus, Kind, Segment, Status, ToolCall, ToolResult, Trajectory, cut
from .turns import turn_ids

if TYPE_CHECKING:
    from .growth import Growth

Fork = tuple[int, int]
"""Where a branch starts: position of its parent in the tree, and how many of the parent's tokens it keeps."""


@dataclass(frozen=True)
class Prompt:
    """
    A prompt to be rolled out.

    Args:
        id (`str`):
            Unique among all prompts of a run.
        token_ids (`tuple[int, ...]`):
            Its tokens, generation prompt included.
        num_generations (`int`):
            Trajectories wanted, `M`.
        state ([`~trl_agentic.tools.state.ToolState`], *optional*):
            The state that trajectories begin with, reset already: each gets a fork of it and leaves it alone. `None`
            where no tool has a state. If it is lost, the trajectories end with [`Status.ERROR`] before they begin.
    """

    id: str
    token_ids: tuple[int, ...]
    num_generations: int
    state: ToolState | None = None


class Path:
    """
    A trajectory in the making: finished segments, and the tokens of the one that is being sampled.

    Args:
        growth ([`Growth`]):
            The tree it belongs to.
        index (`int`):
            Its position in the tree.
        kind ([`Kind`]):
            Where it was started.
        segments (`Sequence[Segment]`, *optional*, defaults to `()`):
            What it inherits from its parent.
        parent (`int`, *optional*):
            Position of the parent in the tree.
        initial_entropy (`float`, *optional*):
            Entropy at the beginning, in nats; a child inherits its parent's.
        origin ([`~trl_agentic.tools.state.ToolState`], *optional*):
            The state of which this path gets a fork.
    """

    def __init__(
        self,
        growth: Growth,
        index: int,
        kind: Kind,
        segments: Sequence[Segment] = (),
        parent: int | None = None,
        initial_entropy: float | None = None,
        origin: ToolState | None = None,
    ):
        self.growth = growth
        self.index = index
        self.kind = kind
        self.parent = parent
        self.initial_entropy = initial_entropy
        self.untested: int | None = None  # fork position of the tool turn that is under test
        self.calls: tuple[ToolCall, ...] = ()  # those that run ...
        self.refused: tuple[ToolCall, ...] = ()  # ... and those of the same turn that the budget does not allow
        self.status: Status | None = None
        self._segments = list(segments)
        self.origin = origin
        self.state = None if origin is None else origin.child(self.results)
        self._open_segment()
        self.fork = len(self)
        self._num_requests = 0

    @classmethod
    def from_trajectory(cls, growth: Growth, trajectory: Trajectory, state: ToolState | None) -> Path:
        """A path that has ended, as the next one of a tree."""
        path = cls(growth, len(growth.paths), trajectory.kind, trajectory.segments, trajectory.parent)
        path.state, path.fork, path.status = state, trajectory.fork, trajectory.status
        return path

    def _open_segment(self) -> None:
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._entropies: list[float] | None = []

    def _close_segment(self) -> None:
        if self._token_ids:
            entropies = None if self._entropies is None else tuple(self._entropies)
            self._segments.append(Segment(tuple(self._token_ids), True, tuple(self._logprobs), entropies))
        self._open_segment()

    def __len__(self) -> int:
        return sum(len(segment) for segment in self._segments) + len(self._token_ids)

    @property
    def id(self) -> str:
        """Unique among all paths of a run."""
        return f"{self.growth.prompt.id}/{self.index}"

    @property
    def calls_id(self) -> str:
        """Names the turn of tool calls that follows what is there."""
        return f"{self.id}/calls/{self.num_tool_turns}"

    @property
    def results(self) -> list[ToolResult]:
        """All tool results so far, the inherited ones included."""
        return [result for segment in self._segments for result in segment.results]

    @property
    def token_ids(self) -> list[int]:
        """All completion tokens so far."""
        return [token for segment in self._segments for token in segment.token_ids] + self._token_ids

    @property
    def turn_ids(self) -> list[int]:
        """What the model has sampled since the last tool results."""
        return turn_ids(self._segments) + self._token_ids

    @property
    def before_turn(self) -> list[int]:
        """The prompt, and the completion up to that turn."""
        return [*self.growth.prompt.token_ids, *self.token_ids[: len(self) - len(self.turn_ids)]]

    @property
    def segment_entropies(self) -> list[float] | None:
        """Entropies of the segment that is being sampled, in nats; `None` where the engine has none."""
        return self._entropies or None

    @property
    def num_tool_turns(self) -> int:
        """Turns whose calls were answered."""
        return sum(bool(segment.results) for segment in self._segments)

    @property
    def was_refused(self) -> bool:
        """Whether a call was answered with the note that none are left."""
        return any(result.status is CallStatus.BUDGET for result in self.results)

    @property
    def num_invalid_turns(self) -> int:
        """Turns at the end, one after the other, whose calls were all broken."""
        count = 0
        for segment in reversed(self._segments):
            if segment.results and not all(result.status.is_invalid for result in segment.results):
                break
            count += bool(segment.results)
        return count

    def next_request_id(self) -> str:
        """A fresh request id."""
        self._num_requests += 1
        return f"{self.id}/{self._num_requests}"

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[float], entropies: Sequence[float] | None) -> None:
        """Add sampled tokens."""
        self._token_ids.extend(token_ids)
        self._logprobs.extend(logprobs)
        if entropies is None or self._entropies is None:
            self._entropies = None
        else:
            self._entropies.extend(entropies)

    def append(self, segment: Segment) -> None:
        """Close the sampled segment and add tool results."""
        self.calls = self.refused = ()
        self._close_segment()
        self._segments.append(segment)

    def end(self, status: Status) -> None:
        """Nothing follows. A state that a call is still at is lost: whether the call counts, nobody can say."""
        self._close_segment()
        if self.state is not None and any(self.state.function(call.name) for call in self.calls):
            self.state.broken = "the rollout phase ended in the middle of a call."
        self.status = status

    def prefix(self, num_tokens: int) -> tuple[Segment, ...]:
        """The finished segments that hold the first `num_tokens` tokens."""
        return cut(tuple(self._segments), num_tokens)

    def trajectory(self) -> Trajectory:
        """The finished trajectory."""
        assert self.status is not None, f"path {self.id} has not ended"
        return Trajectory(tuple(self._segments), self.status, self.kind, self.parent, self.fork)
