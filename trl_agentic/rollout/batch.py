"""From trees to the rows that TRL wants, and to metrics: pure functions, each tree read once."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..tools import tool_metrics
from ..types import BranchTree, CallStatus, Kind, Status, ToolResult, Trajectory
from .dialect import Dialect

TRUNCATING = frozenset({Status.TRUNCATED, Status.DEADLINE, Status.ERROR})
EXECUTED = frozenset({CallStatus.OK, CallStatus.ERROR, CallStatus.TIMEOUT})


def depth_first_order(tree: BranchTree) -> list[int]:
    """
    The order in which each trajectory stands next to the ones it shares most with.

    Args:
        tree ([`BranchTree`]):
            The tree.

    Returns:
        `list[int]`: Positions in the tree: children behind their parent, the latest fork first.
    """
    children: dict[int | None, list[int]] = {}
    for position, trajectory in enumerate(tree.trajectories):
        children.setdefault(trajectory.parent, []).append(position)
    order: list[int] = []
    stack = list(reversed(children.get(None, [])))
    while stack:
        position = stack.pop()
        order.append(position)
        stack.extend(sorted(children.get(position, []), key=lambda child: (tree.trajectories[child].fork, -child)))
    return order


def depth_first(tree: BranchTree) -> BranchTree:
    """
    Order the trajectories by [`depth_first_order`], so that any run of rows is a contiguous piece of the tree.

    Args:
        tree ([`BranchTree`]):
            The tree.

    Returns:
        [`BranchTree`]: The same tree with its trajectories moved.
    """
    order = depth_first_order(tree)
    place = {position: row for row, position in enumerate(order)}
    moved = tuple(
        trajectory if trajectory.parent is None else replace(trajectory, parent=place[trajectory.parent])
        for trajectory in (tree.trajectories[position] for position in order)
    )
    points = tuple(replace(point, trajectory=place[point.trajectory]) for point in tree.points)
    return replace(tree, trajectories=moved, points=points)


def call_record(result: ToolResult) -> dict[str, Any]:
    """A tool call and its result as reward functions and datasets see it."""
    return {
        "name": result.call.name,
        "arguments": dict(result.call.arguments),
        "result": result.content,
        "status": result.status.value,
        "latency_s": result.latency_s,
        "cached": result.cached,
    }


@dataclass(frozen=True)
class RowLengths:
    """Prompt tokens, sampled tokens, and whether a budget ended the row."""

    prompt: int
    sampled: int
    is_truncated: bool


@dataclass(frozen=True)
class RolloutBatch:
    """
    The rows of some trees, group by group. Every list has one entry per trajectory.

    Args:
        prompt_ids (`list[list[int]]`):
            Tokens of the prompt.
        completion_ids (`list[list[int]]`):
            Tokens of the completion; never empty.
        sampled_mask (`list[list[int]]`):
            1 for sampled tokens, 0 for the environment's.
        logprobs (`list[list[float]]`):
            Log-probability of each sampled token under the policy that sampled it, 0 elsewhere.
        completions (`list[list[dict]]`):
            The completion as chat messages.
        extra_fields (`dict[str, list]`):
            Columns for reward functions: `rollout_status`, `rollout_calls`, `rollout_parent`, `rollout_fork`,
            `rollout_dialect`, and the completions as `rollout_messages`, since those of a plain-text prompt reach a
            reward function as one text, tool results included.
        is_truncated (`list[bool]`):
            Whether a budget, not the model, ended the row.
    """

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    sampled_mask: list[list[int]]
    logprobs: list[list[float]]
    completions: list[list[dict[str, Any]]]
    extra_fields: dict[str, list[Any]]
    is_truncated: list[bool]

    @classmethod
    def from_trees(cls, trees: Sequence[BranchTree], dialect: Dialect, eos_token_id: int) -> RolloutBatch:
        """
        Lay out trees as rows.

        Args:
            trees (`Sequence[BranchTree]`):
                The trees, in the order in which their rows should stand.
            dialect ([`Dialect`]):
                Turns segments into messages.
            eos_token_id (`int`):
                Stands, masked, in a row that would be empty, since TRL cannot take a row without a token.

        Returns:
            [`RolloutBatch`]: One row per trajectory.
        """
        rows = [(tree, trajectory) for tree in trees for trajectory in tree.trajectories]
        return cls.from_rows(rows, dialect, eos_token_id)

    @classmethod
    def from_rows(
        cls, rows: Sequence[tuple[BranchTree, Trajectory]], dialect: Dialect, eos_token_id: int
    ) -> RolloutBatch:
        """
        Lay out some trajectories as rows.

        Args:
            rows (`Sequence[tuple[BranchTree, Trajectory]]`):
                Each trajectory with its tree.
            dialect ([`Dialect`]), eos_token_id (`int`):
                As in [`RolloutBatch.from_trees`].

        Returns:
            [`RolloutBatch`]: One row per trajectory.
        """
        messages = [dialect.messages(trajectory.segments, tree.prompt_ids) for tree, trajectory in rows]
        return cls(
            prompt_ids=[list(tree.prompt_ids) for tree, _ in rows],
            completion_ids=[trajectory.token_ids or [eos_token_id] for _, trajectory in rows],
            sampled_mask=[trajectory.sampled_mask or [0] for _, trajectory in rows],
            logprobs=[[value or 0.0 for value in trajectory.logprobs] or [0.0] for _, trajectory in rows],
            completions=messages,
            extra_fields={
                "rollout_status": [trajectory.status.value for _, trajectory in rows],
                "rollout_calls": [[call_record(result) for result in trajectory.results] for _, trajectory in rows],
                "rollout_parent": [trajectory.parent for _, trajectory in rows],
                "rollout_fork": [trajectory.fork for _, trajectory in rows],
                "rollout_dialect": [dialect.name] * len(rows),
                "rollout_messages": messages,
            },
            is_truncated=[trajectory.status in TRUNCATING for _, trajectory in rows],
        )

    def lengths(self) -> list[RowLengths]:
        """What [`completion_metrics`] needs of each row."""
        return [
            RowLengths(len(prompt), sum(mask), truncated)
            for prompt, mask, truncated in zip(self.prompt_ids, self.sampled_mask, self.is_truncated, strict=True)
        ]


def completion_metrics(rows: Sequence[RowLengths]) -> dict[str, float]:
    """
    TRL's metrics on completion lengths, in sampled tokens, with truncation as the rollout's status tells it.

    Args:
        rows (`Sequence[RowLengths]`):
            Rows of all processes.

    Returns:
        `dict[str, float]`: Metrics by name.
    """
    metrics = {"completions/clipped_ratio": mean_or_zero([float(row.is_truncated) for row in rows])}
    ended = [row.sampled for row in rows if not row.is_truncated] or [0]
    for name, lengths in (("", [row.sampled for row in rows]), ("terminated_", ended)):
        metrics[f"completions/mean_{name}length"] = statistics.fmean(lengths)
        metrics[f"completions/min_{name}length"] = float(min(lengths))
        metrics[f"completions/max_{name}length"] = float(max(lengths))
    return metrics


def mean_or_zero(values: Sequence[float]) -> float:
    """Mean, 0 for nothing."""
    return statistics.fmean(values) if values else 0.0


def rollout_metrics(trees: Sequence[BranchTree], firsts: Sequence[int] | None = None) -> dict[str, float]:
    """
    Describe some trees in numbers. What trajectories share is counted once.

    Args:
        trees (`Sequence[BranchTree]`):
            The trees.
        firsts (`Sequence[int]`, *optional*):
            Trajectories at the beginning of each tree that are left out; 0 by default. What the others share with
            them counts as theirs, and a text that one of them had before is a repeated one.

    Returns:
        `dict[str, float]`: Metrics by name.
    """
    places = list(zip(trees, [0] * len(trees) if firsts is None else firsts, strict=True))
    trajectories = [trajectory for tree, first in places for trajectory in tree.trajectories[first:]]
    points = [point for tree, first in places for point in tree.points if point.trajectory >= first]
    results = [result for trajectory in trajectories for result in trajectory.own_results]
    executed = [result for result in results if result.status in EXECUTED]
    kinds = Counter(trajectory.kind for trajectory in trajectories)
    statuses = Counter(trajectory.status for trajectory in trajectories)
    count = max(1, len(trajectories))
    metrics = {
        "branch/rate": kinds[Kind.BRANCH] / count,
        "branch/fill_rate": kinds[Kind.FILL] / count,
        "branch/points": len(points) / max(1, len(trees)),
        "branch/passed": mean_or_zero([float(point.wanted > 0) for point in points]),
        "rollout/tool_calls": mean_or_zero([float(len(trajectory.results)) for trajectory in trajectories]),
        "rollout/executed_calls": len(executed) / count,
        "rollout/sampled_tokens": float(sum(_own_sampled(trajectory) for trajectory in trajectories)),
        "rollout/equal_texts": sum(_num_repeats(tree, first) for tree, first in places) / count,
    }
    sums = "_sum" if any(point.sums for point in points) else ""
    for name, values in {
        "initial_entropy": [point.initial_entropy for point in points],
        "entropy": [point.entropy for point in points],
        "entropy_change": [point.change for point in points],
    }.items():
        if values:
            metrics[f"branch/{name}{sums}"] = statistics.fmean(values)
    calls = [result for trajectory in trajectories for result in trajectory.results]
    failed = mean_or_zero([float(result.status is not CallStatus.OK) for result in calls])
    metrics |= {"tools/call_frequency": len(calls) / count, "tools/failure_frequency": failed}  # TRL's names
    metrics |= {f"rollout/status/{status.value}": statuses[status] / count for status in Status}
    return metrics | tool_metrics(results)


def _num_repeats(tree: BranchTree, first: int) -> int:
    """Trajectories from the `first` on whose text one before them has."""
    texts = [tuple(trajectory.token_ids) for trajectory in tree.trajectories]
    return len(texts) - len(set(texts)) - (first - len(set(texts[:first])))


def _own_sampled(trajectory: Trajectory) -> int:
    """Sampled tokens behind the fork."""
    return sum(trajectory.sampled_mask[trajectory.fork :])
