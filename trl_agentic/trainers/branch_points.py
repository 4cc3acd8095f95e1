"""Where APPO branches: what the policy of the moment thinks of rollouts, and the points chosen by it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ..algorithms import branch_candidates, branching_scores, select_branch_points
from ..rollout.path import Fork
from ..types import BranchTree
from .appo_config import APPOConfig

_WORD = re.compile(r"\w")


def blank_tokens(tokenizer: PreTrainedTokenizerBase, size: int) -> torch.Tensor:
    """
    Which tokens decode to white space or punctuation alone; nobody decides anything there.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The tokenizer.
        size (`int`):
            Vocabulary size `V` of the model.

    Returns:
        `torch.Tensor`: Of shape `(V,)`, `bool`. Special tokens and ids without a text are blank.
    """
    special = set(tokenizer.all_special_ids)
    texts = tokenizer.batch_decode([[token] for token in range(min(size, len(tokenizer)))])
    blank = [token in special or not _WORD.search(text) for token, text in enumerate(texts)]
    return torch.tensor(blank + [True] * (size - len(blank)))


@dataclass(frozen=True)
class StepRows:
    """
    What the policy of the moment thinks of the `B` rollouts of one optimizer step; whole groups of `N` rows.

    Args:
        rows (`list[int]`):
            Number of each row in its generation.
        sampled_mask (`torch.Tensor`):
            True on sampled tokens that are trained, of shape `(B, T)`.
        blank_mask (`torch.Tensor`):
            True on tokens without a word, of shape `(B, T)`.
        log_ratios (`torch.Tensor`):
            `log(π_θ/π_old)`, of shape `(B, T)`; 0 off the mask, and everywhere if no optimizer step lies between.
        entropies (`torch.Tensor`):
            Entropies of `π_θ` in nats, of shape `(B, T)`.
        future_values (`torch.Tensor`):
            Ω, of shape `(B, T)`.
    """

    rows: list[int]
    sampled_mask: torch.Tensor
    blank_mask: torch.Tensor
    log_ratios: torch.Tensor
    entropies: torch.Tensor
    future_values: torch.Tensor


@dataclass(frozen=True)
class Choice:
    """
    Where branches start.

    Args:
        forks (`list[list[Fork]]`):
            For each prompt the parent's place in its tree, and the tokens that the branch keeps.
        scores (`list[list[float]]`):
            The score of each of these points.
        num_missing (`int`):
            Points that could not be found.
    """

    forks: list[list[Fork]]
    scores: list[list[float]]
    num_missing: int


def merged(micro_batches: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The rows of some micro-batches in one; scalars are left out."""
    names = [name for name, value in micro_batches[0].items() if isinstance(value, torch.Tensor) and value.dim()]
    return {name: torch.cat([each[name] for each in micro_batches]) for name in names}


def choose_points(step: StepRows, args: APPOConfig, used: Sequence[set[int]]) -> Choice:
    """
    Choose branch points of the initial rollouts, prompt by prompt.

    Args:
        step ([`StepRows`]):
            The rollouts.
        args ([`APPOConfig`]):
            The rule.
        used (`Sequence[set[int]]`):
            Positions of each row that earlier rounds have taken.

    Returns:
        [`Choice`]: The points. A branch is sampled anew from the chosen token on.
    """
    size, wanted = args.num_generations, args.branches_per_rollout
    rule: dict[str, Any] = {"clip": args.score_clip, "combine": args.branch_score}
    free = torch.ones_like(step.sampled_mask)
    for row, positions in enumerate(used):
        free[row, sorted(positions)] = False
    scores = branching_scores(step.entropies, step.future_values, step.sampled_mask, **rule)  # (B, T)
    candidates = free & branch_candidates(
        step.entropies, step.future_values, step.sampled_mask, step.blank_mask, **rule
    )  # (B, T)
    eligible = free & step.sampled_mask & ~step.blank_mask
    forks: list[list[Fork]] = []
    values: list[list[float]] = []
    for start in range(0, len(step.rows), size):
        group = slice(start, start + size)
        chosen = select_branch_points(
            scores[group], candidates[group], wanted, entropies=step.entropies[group], eligible=eligible[group]
        )
        points = [(start + row, position) for row, positions in enumerate(chosen) for position in positions]
        forks.append([(step.rows[row] % size, position) for row, position in points])
        values.append([float(scores[row, position]) for row, position in points])
    return Choice(forks, values, len(step.rows) * wanted - sum(map(len, forks)))


def choose_in_branches(tree: BranchTree, first: int, blank: torch.Tensor, wanted: int) -> list[Fork]:
    """
    Choose points of a further round in the tokens that branches sampled themselves, by the z-score of their entropy.

    Args:
        tree ([`~trl_agentic.types.BranchTree`]):
            The tree.
        first (`int`):
            Where the branches of this phase begin.
        blank (`torch.Tensor`):
            Which tokens are blank, of shape `(V,)`.
        wanted (`int`):
            Points of each branch.

    Returns:
        `list[Fork]`: The points.
    """
    forks: list[Fork] = []
    for number, trajectory in enumerate(tree.trajectories[first:], start=first):
        values = zip(trajectory.entropies, trajectory.token_ids, strict=True)
        own = [(value, at, token) for at, (value, token) in enumerate(values) if value is not None]
        own = [each for each in own if each[1] >= trajectory.fork]
        mean = sum(value for value, _, _ in own) / max(len(own), 1)
        allowed = [(value, at) for value, at, token in own if value > mean and not blank[token]]
        forks += [(number, at) for _, at in sorted(allowed, key=lambda each: (-each[0], each[1]))[:wanted]]
    return forks
