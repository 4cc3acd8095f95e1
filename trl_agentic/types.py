"""
What a rollout is made of: segments of tokens, trajectories, and the tree that the trajectories of one prompt form.

Standard library only. Every object is frozen, and what has to stay aligned (ids, log-probs, entropies) is checked
once, at birth. Facts are stored here; whatever follows from them is a property.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """Why a trajectory ended."""

    FINISHED = "finished"  # the model ended its last message itself
    TRUNCATED = "truncated"  # the token budget or the model's context ran out
    TOOL_BUDGET = "tool_budget"  # it asked for another tool call after the last one it was allowed
    INVALID_CALLS = "invalid_calls"  # too many broken calls in a row
    DEADLINE = "deadline"  # the rollout phase ran out of time
    ERROR = "error"  # the engine gave up on the request, or the environment could not be reset


class CallStatus(StrEnum):
    """What became of a tool call."""

    OK = "ok"
    ERROR = "error"  # the tool raised
    TIMEOUT = "timeout"  # the tool did not answer before its deadline
    UNKNOWN_TOOL = "unknown_tool"  # no tool of that name
    INVALID_ARGUMENTS = "invalid_arguments"  # missing, surplus or mistyped arguments
    MALFORMED = "malformed"  # the call could not be parsed at all
    BUDGET = "budget"  # the trajectory had no calls left

    @property
    def is_invalid(self) -> bool:
        """Whether the model wrote a call that could not be run at all."""
        return self in (CallStatus.UNKNOWN_TOOL, CallStatus.INVALID_ARGUMENTS, CallStatus.MALFORMED)


class Kind(StrEnum):
    """Where a trajectory was started."""

    INITIAL = "initial"  # at the prompt, before any branch
    BRANCH = "branch"  # in the middle of its parent
    FILL = "fill"  # at the prompt, after every other path had ended


@dataclass(frozen=True)
class ToolCall:
    """
    A tool call as the model wrote it.

    Args:
        name (`str`), arguments (`Mapping[str, Any]`): Name of the tool and its keyword arguments.
        problem (`str`, *optional*):
            Why the call could not be parsed, as a sentence that the model gets to read. `None` for a well-formed call.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class ToolResult:
    """
    What a tool call came to: always a text, whatever happened.

    Args:
        call ([`ToolCall`]):
            The call that is answered.
        content (`str`):
            The text that the model gets to see.
        status ([`CallStatus`], *optional*, defaults to `CallStatus.OK`), latency_s (`float`, defaults to `0.0`):
            What became of the call, and the seconds between its start and its result.
        cached (`bool`, *optional*, defaults to `False`), truncated (`bool`, *optional*, defaults to `False`):
            Whether the result came from a cache or from an equal call, and whether `content` was cut.
        attempts (`int`, *optional*, defaults to `1`):
            How often the tool was tried; more than once after errors that were declared transient.
    """

    call: ToolCall
    content: str
    status: CallStatus = CallStatus.OK
    latency_s: float = 0.0
    cached: bool = False
    truncated: bool = False
    attempts: int = 1


@dataclass(frozen=True)
class Segment:
    """
    A run of completion tokens by one author: the model (`sampled=True`) or the environment.

    Args:
        token_ids (`tuple[int, ...]`):
            The tokens, exactly as the engine sampled them or the dialect rendered them.
        sampled (`bool`):
            Whether the policy sampled these tokens. Only sampled tokens are trained and counted in statistics.
        logprobs (`tuple[float, ...]`, *optional*):
            Log-probability of each token under the policy that sampled it; for sampled segments, and only for them.
        entropies (`tuple[float, ...]`, *optional*):
            Entropy of the distribution each token was sampled from, in nats; only for sampled segments.
        results (`tuple[ToolResult, ...]`, *optional*, defaults to `()`):
            The tool results that the tokens render; only for segments that were not sampled.

    Raises:
        ValueError: If lengths differ, or a field does not belong to this kind of segment.
    """

    token_ids: tuple[int, ...]
    sampled: bool
    logprobs: tuple[float, ...] | None = None
    entropies: tuple[float, ...] | None = None
    results: tuple[ToolResult, ...] = ()

    def __post_init__(self):
        for name, values in (("logprobs", self.logprobs), ("entropies", self.entropies)):
            if values is None:
                continue
            if not self.sampled:
                raise ValueError(f"A segment that was not sampled has no {name}; got {len(values)} values.")
            if len(values) != len(self.token_ids):
                raise ValueError(f"A segment of {len(self.token_ids)} tokens needs as many {name}, got {len(values)}.")
        if self.sampled and (self.logprobs is None or self.results):
            raise ValueError("A sampled segment has the log-probs of its tokens, and no tool results.")

    def __len__(self) -> int:
        return len(self.token_ids)

    def head(self, num_tokens: int) -> Segment:
        """The first `num_tokens` tokens as a segment of their own (tool results stay with a whole segment only)."""
        if num_tokens == len(self):
            return self
        logprobs = None if self.logprobs is None else self.logprobs[:num_tokens]
        entropies = None if self.entropies is None else self.entropies[:num_tokens]
        return Segment(self.token_ids[:num_tokens], self.sampled, logprobs, entropies)


def cut(segments: tuple[Segment, ...], num_tokens: int) -> tuple[Segment, ...]:
    """The segments that hold the first `num_tokens` tokens, the last one shortened where the cut falls inside it."""
    kept: list[Segment] = []
    for segment in segments:
        if num_tokens <= 0:
            break
        kept.append(segment.head(min(num_tokens, len(segment))))
        num_tokens -= len(segment)
    assert num_tokens <= 0, f"the cut lies {num_tokens} tokens behind the end of the trajectory"
    return tuple(kept)


@dataclass(frozen=True)
class Trajectory:
    """
    One path from the prompt to an end.

    Args:
        segments (`tuple[Segment, ...]`):
            The whole completion, the part shared with the parent included.
        status ([`Status`]):
            Why it ended.
        kind ([`Kind`], *optional*, defaults to `Kind.INITIAL`):
            Where it was started.
        parent (`int`, *optional*):
            Position of the parent in the tree; `None` if it started at the prompt.
        fork (`int`, *optional*, defaults to `0`):
            Leading completion tokens shared with the parent.
    """

    segments: tuple[Segment, ...]
    status: Status
    kind: Kind = Kind.INITIAL
    parent: int | None = None
    fork: int = 0

    def __len__(self) -> int:
        return sum(len(segment) for segment in self.segments)

    @property
    def token_ids(self) -> list[int]:
        """All completion tokens, of length `T`."""
        return [token for segment in self.segments for token in segment.token_ids]

    @property
    def sampled_mask(self) -> list[int]:
        """1 for tokens that the policy sampled, 0 for the environment's, of length `T`."""
        return [int(segment.sampled) for segment in self.segments for _ in segment.token_ids]

    @property
    def logprobs(self) -> list[float | None]:
        """Log-probability of each sampled token, `None` elsewhere, of length `T`."""
        return [value for part in self.segments for value in (part.logprobs or (None,) * len(part))]

    @property
    def entropies(self) -> list[float | None]:
        """Entropy of each sampled token in nats, `None` where there is none, of length `T`."""
        return [value for part in self.segments for value in (part.entropies or (None,) * len(part))]

    @property
    def results(self) -> list[ToolResult]:
        """Every tool result of the path, in order, the inherited ones included."""
        return [result for segment in self.segments for result in segment.results]

    @property
    def own_results(self) -> list[ToolResult]:
        """The tool results that this trajectory did not inherit from its parent."""
        inherited = sum(len(segment.results) for segment in cut(self.segments, self.fork))
        return self.results[inherited:]


@dataclass(frozen=True)
class BranchPoint:
    """
    A tool turn that was tested for branching.

    Args:
        trajectory (`int`):
            Position in the tree of the trajectory that received the results.
        position (`int`):
            Completion tokens up to and including the results: where children fork.
        initial_entropy (`float`), entropy (`float`):
            Mean entropy at the beginning of the trajectory, and right after the results, in nats.
        change (`float`), score (`float`):
            Normalised entropy change, in [-1, 1], and `alpha + weight * change`, not clipped.
        wanted (`int`), granted (`int`):
            Children that the gate asked for, and those that the budget allowed.
        sums (`bool`, *optional*, defaults to `False`):
            Whether the entropies are sums of another segment's, as in the released code; `change` has no bound then.
    """

    trajectory: int
    position: int
    initial_entropy: float
    entropy: float
    change: float
    score: float
    wanted: int
    granted: int
    sums: bool = False


@dataclass(frozen=True)
class BranchTree:
    """
    All trajectories of one prompt.

    Args:
        prompt_id (`str`):
            Unique per tree, even if a question repeats.
        prompt_ids (`tuple[int, ...]`):
            Tokens of the prompt.
        trajectories (`tuple[Trajectory, ...]`):
            Every parent stands before its children.
        points (`tuple[BranchPoint, ...]`, *optional*, defaults to `()`):
            The points that were tested for branching.

    Raises:
        ValueError: If a child does not follow its parent, or its first `fork` tokens are not its parent's.
    """

    prompt_id: str
    prompt_ids: tuple[int, ...]
    trajectories: tuple[Trajectory, ...]
    points: tuple[BranchPoint, ...] = ()

    def __post_init__(self):
        for position, trajectory in enumerate(self.trajectories):
            if trajectory.parent is None:
                continue
            if not 0 <= trajectory.parent < position:
                raise ValueError(f"Trajectory {position} has parent {trajectory.parent}, which must stand before it.")
            parent = self.trajectories[trajectory.parent]
            if trajectory.token_ids[: trajectory.fork] != parent.token_ids[: trajectory.fork]:
                raise ValueError(
                    f"The first {trajectory.fork} tokens of trajectory {position} differ from those of its parent "
                    f"{trajectory.parent}."
                )

    def shared_lengths(self) -> list[list[int]]:
        """
        Leading completion tokens that two trajectories share by descent, of shape `(G, G)`.

        The diagonal holds each trajectory's own length. Two texts that happen to be equal share nothing.
        """
        size = len(self.trajectories)
        shared = [[0] * size for _ in range(size)]
        for row, trajectory in enumerate(self.trajectories):
            shared[row][row] = len(trajectory)
            if trajectory.parent is None:
                continue
            for column in range(row):
                length = min(trajectory.fork, shared[trajectory.parent][column])
                shared[row][column] = shared[column][row] = length
        return shared
