"""Where APPO branches: what the policy of the moment thinks of rollouts, and the points chosen by it."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ..algorithms import branch_candidates, branching_scores, select_branch_points
from ..types import BranchTree
from .appo_config import APPOConfig

_PART_OF_CHARACTER = "\ufffd"  # what a tokenizer shows for bytes that are no character by themselves


def blank_tokens(tokenizer: PreTrainedTokenizerBase, size: int) -> torch.Tensor:
    """
    Which tokens decode to white space or punctuation alone; nobody decides anything there.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The tokenizer.
        size (`int`):
            Vocabulary size `V` of the model.

    Returns:
        `torch.Tensor`:
            Of shape `(V,)`, `bool`. Special tokens and ids without a text are blank; a token that holds part of a
            character is not, since it may be part of a word.
    """
    tokens = [[token] for token in range(min(size, len(tokenizer)))]
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    blank = [not any(map(_is_of_word, text)) for text in texts]
    return torch.tensor(blank + [True] * (size - len(blank)))


def _is_of_word(character: str) -> bool:
    # Letters, numbers, and marks: vowel signs, of which many scripts have tokens of their own.
    return unicodedata.category(character)[0] in "LNM" or character == _PART_OF_CHARACTER


@dataclass(frozen=True)
class PolicyView:
    """
    What the policy of the moment thinks of `B` rollouts: whole groups of `N` rows.

    Args:
        rows (`list[int]`):
            Number of each row in its generation.
        sampled_mask (`torch.Tensor`):
            True on sampled tokens that are trained, of shape `(B, T)`.
        blank_mask (`torch.Tensor`):
            True on tokens without a word, of shape `(B, T)`.
        log_ratios (`torch.Tensor`):
            `log(pi_theta / pi_old)`, of shape `(B, T)`; 0 off the mask, and everywhere if no optimizer step lies
            between.
        entropies (`torch.Tensor`):
            Entropies of `pi_theta` in nats, of shape `(B, T)`.
        future_values (`torch.Tensor`):
            See [`~trl_agentic.algorithms.future_values`], of shape `(B, T)`.
    """

    rows: list[int]
    sampled_mask: torch.Tensor
    blank_mask: torch.Tensor
    log_ratios: torch.Tensor
    entropies: torch.Tensor
    future_values: torch.Tensor


@dataclass(frozen=True)
class Point:
    """
    Where a branch starts.

    Args:
        parent (`int`):
            Position of its parent in the tree.
        position (`int`):
            Completion tokens that it keeps: it is sampled anew from the chosen token on.
        score (`float`):
            What the chosen token scored.
    """

    parent: int
    position: int
    score: float


def points_of_rollouts(
    view: PolicyView, args: APPOConfig, trees: Sequence[BranchTree], firsts: Sequence[int]
) -> list[list[Point]]:
    """
    Choose branch points of initial rollouts, prompt by prompt.

    Args:
        view ([`PolicyView`]):
            The rollouts, those of one tree after the other.
        args ([`APPOConfig`]):
            The rule.
        trees (`Sequence[BranchTree]`):
            The tree of each group.
        firsts (`Sequence[int]`):
            Where the branches of this phase begin in each tree: where one of them starts, no other does.

    Returns:
        `list[list[Point]]`: The points of each tree, at most `N * branches_per_rollout`.
    """
    size = args.num_generations
    rule: dict[str, Any] = {"clip": args.score_clip, "combine": args.branch_score}
    scores = branching_scores(view.entropies, view.future_values, view.sampled_mask, **rule)  # (B, T)
    candidates = branch_candidates(view.entropies, view.future_values, view.sampled_mask, view.blank_mask, **rule)
    free = view.sampled_mask & ~view.blank_mask  # (B, T)
    places = [row % size for row in view.rows]
    for row, place in enumerate(places):
        free[row, _starts(trees[row // size], firsts[row // size], place)] = False
    chosen: list[list[Point]] = []
    for number in range(len(trees)):
        group = slice(number * size, (number + 1) * size)
        positions = select_branch_points(
            scores[group],
            candidates[group] & free[group],
            args.branches_per_rollout,
            entropies=view.entropies[group],
            eligible=free[group],
            sampled_mask=view.sampled_mask[group],
        )
        chosen.append(_points(places[group], positions, scores[group]))
    return chosen


def points_of_branches(tree: BranchTree, first: int, blank: torch.Tensor, num_points: int) -> list[Point]:
    """
    Choose points of a further round in the tokens that branches sampled themselves, by the z-score of their entropy.

    Where a branch itself starts it is not branched from again: that would be a second branch of its parent.

    Args:
        tree ([`~trl_agentic.types.BranchTree`]):
            The tree.
        first (`int`):
            Where the branches of this phase begin.
        blank (`torch.Tensor`):
            Which tokens are blank, of shape `(V,)`.
        num_points (`int`):
            Points of each branch.

    Returns:
        `list[Point]`:
            The points, at most `num_points` times the branches. None at tokens whose entropy the engine did not tell.
    """
    branches = tree.trajectories[first:]
    shape = (len(branches), max([1, *map(len, branches)]))
    own, is_blank = torch.zeros(shape, dtype=torch.bool), torch.ones(shape, dtype=torch.bool)
    entropies = torch.zeros(shape, dtype=torch.float64)
    for row, branch in enumerate(branches):
        end = len(branch)
        entropies[row, :end] = torch.tensor([value or 0.0 for value in branch.entropies], dtype=torch.float64)
        known = [value is not None for value in branch.entropies]
        own[row, branch.fork : end] = torch.tensor(known[branch.fork :], dtype=torch.bool)
        is_blank[row, :end] = blank[branch.token_ids]
    scores = branching_scores(entropies, torch.ones_like(entropies), own, combine="entropy")
    candidates = branch_candidates(entropies, torch.ones_like(entropies), own, is_blank, combine="entropy")
    free = own & ~is_blank
    places = list(range(first, len(tree.trajectories)))
    for row, place in enumerate(places):
        free[row, _starts(tree, first, place)] = False
        fork = tree.trajectories[place].fork
        free[row, fork : fork + 1] = False
    chosen = select_branch_points(
        scores, candidates & free, num_points, entropies=entropies, eligible=free, sampled_mask=own
    )
    return _points(places, chosen, scores)


def _starts(tree: BranchTree, first: int, parent: int) -> list[int]:
    """Where branches of this phase start in one trajectory."""
    return [branch.fork for branch in tree.trajectories[first:] if branch.parent == parent]


def _points(places: Sequence[int], positions: Sequence[Sequence[int]], scores: torch.Tensor) -> list[Point]:
    return [
        Point(place, position, float(scores[row, position]))
        for row, (place, of_row) in enumerate(zip(places, positions, strict=True))
        for position in of_row
    ]
