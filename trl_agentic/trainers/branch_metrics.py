"""What a branch phase came to, in numbers."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence

import torch

from ..algorithms import spearman
from ..rollout.batch import EXECUTED, rollout_metrics
from ..types import BranchTree
from .branch_points import Point, PolicyView

logger = logging.getLogger(__name__)

_TAG = re.compile(r"<(/?)(\w+)>")

MAX_PAIRS = 1000  # points whose scores are compared with what came of them
MIN_PAIRS = 100  # fewer say nothing
MIN_DEVIATIONS = 3.0  # the question is asked after each phase: with the usual 1.96, chance would answer it in the end


def future_metrics(
    view: PolicyView, score_clip: float, future_clip: Sequence[float], is_fresh: bool
) -> dict[str, float]:
    """
    How far the policy has moved from the one that sampled.

    Args:
        view ([`~trl_agentic.trainers.branch_points.PolicyView`]):
            The rollouts of an optimizer step.
        score_clip (`float`), future_clip (`Sequence[float]`):
            As in [`APPOConfig`].
        is_fresh (`bool`):
            Whether no optimizer step lies between: the ratios are 1 then, and nothing is to be measured.

    Returns:
        `dict[str, float]`: Metrics by name.
    """
    ratios, values = view.log_ratios[view.sampled_mask].exp(), view.future_values[view.sampled_mask]  # (S,)
    if is_fresh or not len(values):
        return {}
    low, high = future_clip
    return {
        "appo/ratio": float(ratios.mean()),
        "appo/ratio_std": float(ratios.std(correction=0)),
        "appo/future_value": float(values.mean()),
        "appo/future_value_std": float(values.std(correction=0)),
        "appo/score_clip_fraction": float(((values - 1).abs() > score_clip).float().mean()),
        "appo/future_clip_low_fraction": float((values < low).float().mean()),
        "appo/future_clip_high_fraction": float((values > high).float().mean()),
    }


def advantage_metrics(advantages: torch.Tensor, sampled_mask: torch.Tensor, size: int) -> dict[str, float]:
    """
    What an optimizer step has to learn from.

    Args:
        advantages (`torch.Tensor`):
            Of shape `(B,)` or `(B, T)`.
        sampled_mask (`torch.Tensor`):
            True on sampled tokens that are trained, of shape `(B, T)`.
        size (`int`):
            Rows of a prompt.

    Returns:
        `dict[str, float]`: The share of prompts whose advantages are all 0, and the largest advantage of any token.
    """
    of_tokens = advantages if advantages.dim() == 2 else advantages.unsqueeze(1)
    sizes = (of_tokens * sampled_mask).abs().amax(dim=1).view(-1, size)  # (B / N, N)
    flat = (sizes == 0).all(dim=1).float().mean()
    return {"appo/flat_prompts": float(flat), "appo/max_advantage": float(sizes.max())}


def branch_metrics(
    trees: Sequence[BranchTree], firsts: Sequence[int], rewards: torch.Tensor, wanted: int
) -> dict[str, float]:
    """
    Describe the branches of a phase.

    Args:
        trees (`Sequence[BranchTree]`):
            The trees.
        firsts (`Sequence[int]`):
            Where the branches of this phase begin in each.
        rewards (`torch.Tensor`):
            Weighted reward of each branch, of shape `(K,)`.
        wanted (`int`):
            Branches that the configuration asks for.

    Returns:
        `dict[str, float]`:
            Metrics by name. Those of the rollout loop and of the tools begin with `branches/`. They count what the
            branches themselves sampled and called; `tool_calls` and the frequencies look at their whole paths.
    """
    scored = rewards[~rewards.isnan()]
    queries = Counter(
        (tree.prompt_id, str(sorted(result.call.arguments.items())))
        for tree in trees
        for trajectory in tree.trajectories
        for result in trajectory.own_results
        if result.call.name == "search" and result.status in EXECUTED
    )
    metrics = {
        "appo/branches": len(rewards) / max(1, len(trees)),
        "appo/missing_branches": 1.0 - len(rewards) / wanted if wanted else 0.0,
    }
    if len(scored):
        metrics["appo/branch_reward"] = float(scored.mean())
        metrics["appo/branch_reward_std"] = float(scored.std(correction=0))
    if queries:
        metrics["appo/duplicate_searches"] = 1.0 - len(queries) / queries.total()
    described = rollout_metrics(trees, firsts)
    return metrics | {f"branches/{name}": value for name, value in described.items() if not name.startswith("branch/")}


def part_of_turn(text: str, tools: Iterable[str]) -> str:
    """
    The part of a turn that a text ends in, by the tags that are open there.

    Args:
        text (`str`):
            What the model has said since the last tool result.
        tools (`Iterable[str]`):
            Names of the tools, which are tags in the tag dialect.

    Returns:
        `str`: `"thinking"`, `"call"`, `"answer"`, or `"text"` outside of all three.

    Example:
        ```python
        >>> part_of_turn("<think> so </think> <search> capital of", ["search"])
        'call'
        ```
    """
    parts = {"think": "thinking", "answer": "answer", **dict.fromkeys(("tool_call", *tools), "call")}
    opened: list[str] = []
    for closing, name in _TAG.findall(text):
        if name in parts and not closing:
            opened.append(name)
        elif name in opened:
            del opened[opened.index(name) :]  # with what was opened inside and never closed
    return parts[opened[-1]] if opened else "text"


def place_metrics(places: Sequence[str]) -> dict[str, float]:
    """
    The share of branch points in each part of the text.

    Args:
        places (`Sequence[str]`):
            `"thinking"`, `"call"`, `"answer"` or `"text"` for each point.

    Returns:
        `dict[str, float]`: Metrics by name; none without points.
    """
    if not places:
        return {}
    return {f"appo/points/{name}": places.count(name) / len(places) for name in ("thinking", "call", "answer", "text")}


class ScoreCheck:
    """
    Whether rewards vary more where the Branching Score is higher, as the method assumes.

    At a point there are two outcomes, that of the rollout and that of its branch: `(R - R')^2 / 2` estimates the
    variance of the reward, without bias as long as the policy has hardly moved between the two.

    Args:
        warns (`bool`, *optional*, defaults to `True`):
            Whether this process is the one that warns.
    """

    def __init__(self, warns: bool = True):
        self._pairs: deque[tuple[float, float]] = deque(maxlen=MAX_PAIRS)
        self._warns = warns

    def add(self, pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
        """
        Take up the points of a phase, and warn once when the assumption fails.

        Args:
            pairs (`Sequence[tuple[float, float]]`):
                Score and reward variance of each point, of all processes.

        Returns:
            `dict[str, float]`: The rank correlation over the last 1,000 points, if there is one.
        """
        self._pairs.extend(pairs)
        if len(self._pairs) < 2:
            return {}
        scores, variances = torch.tensor(self._pairs, dtype=torch.float64).T
        correlation = spearman(scores, variances)
        if math.isnan(correlation):
            return {}
        count = len(self._pairs)
        bound = -MIN_DEVIATIONS / math.sqrt(count - 1)  # its deviation where the two are independent
        if count >= MIN_PAIRS and correlation < bound and self._warns:
            self._warns = False
            logger.warning(
                f"At the last {count} branch points the reward varied less where the Branching Score was higher "
                f"(rank correlation {correlation:.2f}), where APPO assumes the opposite. Compare with "
                "another `branch_score`, or with branches_per_rollout=0, which keeps the future advantage alone."
            )
        return {"appo/score_variance_correlation": correlation}


def outcome_pairs(
    points: Sequence[Point], tree: BranchTree, first: int, rewards: torch.Tensor
) -> list[tuple[float, float]]:
    """
    Score and reward variance of each branch point of a tree's initial rollouts.

    Args:
        points (`Sequence[Point]`):
            The points, in the order of the branches.
        tree ([`~trl_agentic.types.BranchTree`]):
            The tree.
        first (`int`):
            Where the branches begin.
        rewards (`torch.Tensor`):
            Weighted reward of each trajectory of the tree, of shape `(M,)`; a point without both is left out.

    Returns:
        `list[tuple[float, float]]`: The pairs.
    """
    pairs = []
    for number, point in enumerate(points, start=first):
        branch = tree.trajectories[number]
        assert (branch.parent, branch.fork) == (point.parent, point.position), "branches stand in the order of points"
        variance = float(rewards[number] - rewards[point.parent]) ** 2 / 2
        if not math.isnan(variance) and tree.trajectories[point.parent].parent is None:
            pairs.append((point.score, variance))
    return pairs
