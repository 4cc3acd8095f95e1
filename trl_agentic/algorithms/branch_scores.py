"""
Where to branch a finished rollout (APPO, https://huggingface.co/papers/2606.12384).

`B` rows, `T` completion tokens, `S` sampled tokens of the row that has most. `rho = pi_theta / pi_old` is a token's
probability ratio between the policy of the moment and the one that sampled it, `H` an entropy, and `z(x)` the z-score
of `x` over the sampled tokens of one rollout. Tokens off the sampled mask (tool results, padding) are in no sum, no
distance and no statistic: whatever they hold, NaN included, changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, get_args

import torch

Combination = Literal["product", "sum", "entropy"]
Ranking = list[tuple[float, int, int, int]]  # value, place among the sampled tokens, row, position; best first

_FLAT = 1e-6  # a smaller standard deviation is rounding
_NEGLIGIBLE = 2.0**-64  # a discount that no longer shows in a sum of float64


def future_values(
    log_ratios: torch.Tensor, sampled_mask: torch.Tensor, gamma: float, max_ratio: float | None = None
) -> torch.Tensor:
    """
    How much the policy has moved towards what followed each token: `exp(sum_{j >= i} gamma^(j - i) log rho_j)`.

    The distance `j - i` counts sampled tokens, so a longer tool result discounts nothing. Memory is O(T). Each pass
    over the tokens doubles how far a sum reaches, until the next discount no longer shows: at most 11 passes at a
    half-life of 32 tokens, however long the rollout.

    Args:
        log_ratios (`torch.Tensor`):
            `log rho` of each token, of shape `(B, T)`. All 0 gives exactly 1.
        sampled_mask (`torch.Tensor`):
            True (or 1) on sampled tokens, of shape `(B, T)`.
        gamma (`float`):
            Discount per sampled token, in [0, 1]; `2 ** (-1 / half_life)` for a half-life in tokens.
        max_ratio (`float`, *optional*):
            Tokens with a larger `rho` add nothing to any sum; they still count as a distance. Released: 3.

    Returns:
        `torch.Tensor`:
            Future values of shape `(B, T)` without a gradient, 1 off the mask; float32, or float64 for float64
            log-ratios. A NaN on a sampled token spreads to those before it.

    Raises:
        ValueError: If the shapes differ, `gamma` is outside [0, 1] or `max_ratio` is not positive.
    """
    _check_shapes(log_ratios=log_ratios, sampled_mask=sampled_mask)
    if not 0 <= gamma <= 1:
        raise ValueError(f"`gamma` is a discount in [0, 1], got {gamma}: pass `2 ** (-1 / half_life)`.")
    if max_ratio is not None and not max_ratio > 0:
        raise ValueError(f"`max_ratio` is a ratio of probabilities, got {max_ratio}: pass a positive number or None.")
    total = _compact(log_ratios.detach(), sampled_mask)  # (B, S)
    if max_ratio is not None:
        total = total.masked_fill(total > math.log(max_ratio), 0)
    reach, discount = 1, gamma  # each total covers `reach` tokens; `discount` is gamma ** reach
    while reach < total.size(1) and discount > _NEGLIGIBLE:
        total[:, :-reach] += discount * total[:, reach:]
        reach, discount = 2 * reach, discount * discount
    dtype = torch.float64 if log_ratios.dtype == torch.float64 else torch.float32
    return _scatter(total.exp(), sampled_mask, off_mask=1).to(dtype)


def branching_scores(
    entropies: torch.Tensor,
    future_values: torch.Tensor,
    sampled_mask: torch.Tensor,
    clip: float = 0.2,
    combine: Combination = "product",
) -> torch.Tensor:
    """
    Branching Score of each token: `z(clip(Omega, 1 - clip, 1 + clip)) * z(H)`.

    In a rollout whose clipped future values `Omega` are flat (standard deviation below 1e-6), as they all are before
    the first optimizer step, the score is `z(H)`. z-scores use the biased standard deviation, and are 0 where it is
    below 1e-6.

    Args:
        entropies (`torch.Tensor`):
            Entropies `H` under the current policy in nats, of shape `(B, T)`.
        future_values (`torch.Tensor`):
            See [`future_values`], of shape `(B, T)`.
        sampled_mask (`torch.Tensor`):
            True (or 1) on sampled tokens, of shape `(B, T)`.
        clip (`float`, *optional*, defaults to `0.2`):
            How far from 1 a future value may be.
        combine (`str`, *optional*, defaults to `"product"`):
            The paper's `"product"`, or for ablations the `"sum"` of the two z-scores, or `"entropy"`: `z(H)` alone.

    Returns:
        `torch.Tensor`:
            Scores of shape `(B, T)`, 0 off the mask; float32, or float64 for float64 entropies. NaN on all sampled
            tokens of a rollout that has one, and then no token of it is a candidate.

    Raises:
        ValueError: If the shapes differ, `clip` is negative or `combine` is unknown.
    """
    score, _ = _score_and_rule(entropies, future_values, sampled_mask, clip, combine)
    return score.to(torch.float64 if entropies.dtype == torch.float64 else torch.float32)


def branch_candidates(
    entropies: torch.Tensor,
    future_values: torch.Tensor,
    sampled_mask: torch.Tensor,
    blank_mask: torch.Tensor,
    clip: float = 0.2,
    combine: Combination = "product",
) -> torch.Tensor:
    """
    Tokens at which a branch may start: those above the rollout's average in both z-scores.

    Two negative z-scores also make a high product, hence both must be positive. Where the clipped future values of a
    rollout are flat, `z(H)` must be. Under `combine="sum"` the sum must be positive, under `"entropy"` `z(H)`.

    Args:
        entropies (`torch.Tensor`):
            Entropies `H` under the current policy in nats, of shape `(B, T)`.
        future_values (`torch.Tensor`):
            See [`future_values`], of shape `(B, T)`.
        sampled_mask (`torch.Tensor`):
            True (or 1) on sampled tokens, of shape `(B, T)`.
        blank_mask (`torch.Tensor`):
            True (or 1) on tokens that decode to white space or punctuation alone, of shape `(B, T)`. Never candidates,
            though part of the statistics.
        clip (`float`, *optional*, defaults to `0.2`):
            How far from 1 a future value may be.
        combine (`str`, *optional*, defaults to `"product"`):
            As in [`branching_scores`].

    Returns:
        `torch.Tensor`:
            Booleans of shape `(B, T)`.

    Raises:
        ValueError: If the shapes differ, `clip` is negative or `combine` is unknown.
    """
    _check_shapes(entropies=entropies, blank_mask=blank_mask)
    _, above_average = _score_and_rule(entropies, future_values, sampled_mask, clip, combine)
    return above_average & sampled_mask.bool() & ~blank_mask.bool()


def select_branch_points(
    scores: torch.Tensor,
    candidates: torch.Tensor,
    num_points: int,
    entropies: torch.Tensor | None = None,
    eligible: torch.Tensor | None = None,
    sampled_mask: torch.Tensor | None = None,
) -> list[list[int]]:
    """
    Choose the branch points of one prompt's rollouts: `num_points` for each, as long as there are enough.

    Every rollout takes its best candidates. What a rollout with fewer cannot use goes to the prompt's next-best
    candidates in any rollout, then (with `entropies` and `eligible`) to its other eligible tokens by entropy, and is
    lost when those run out. A prompt so has at most `B * num_points` points, and a rollout may have more than
    `num_points`, or none. Ties go to the earlier position, then to the earlier row.

    Args:
        scores (`torch.Tensor`):
            Scores of the rollouts of *one* prompt, see [`branching_scores`], of shape `(B, T)`.
        candidates (`torch.Tensor`):
            See [`branch_candidates`], of shape `(B, T)`.
        num_points (`int`):
            Branch points per rollout.
        entropies (`torch.Tensor`, *optional*):
            Entropies in nats, of shape `(B, T)`, for when the candidates do not suffice.
        eligible (`torch.Tensor`, *optional*):
            Where a branch may start at all, of shape `(B, T)`: on the sampled mask and not blank. Goes with
            `entropies`.
        sampled_mask (`torch.Tensor`, *optional*):
            Which tokens were sampled, of shape `(B, T)`. Where it is given, they alone count in which position is the
            earlier one, so that the length of a tool result decides no tie.

    Returns:
        `list[list[int]]`:
            Positions in each row, its candidates first, best first. A position occurs once; one with a NaN score or
            entropy does not occur.

    Raises:
        ValueError: If the shapes differ, `num_points` is negative, or only one of `entropies` and `eligible` is given.
    """
    _check_shapes(scores=scores, candidates=candidates)
    if num_points < 0:
        raise ValueError(f"`num_points` is a count, got {num_points}: pass 0 for no branches.")
    budget = num_points * len(scores)
    counted = torch.ones_like(candidates) if sampled_mask is None else sampled_mask
    _check_shapes(scores=scores, sampled_mask=counted)
    places = counted.long().cumsum(dim=1)  # (B, T)
    ranked = _rank(scores, candidates.bool(), places, budget)
    chosen = [[position for *_, position in ranking[:num_points]] for ranking in ranked]
    reserve = _best_first(entry for ranking in ranked for entry in ranking[num_points:])
    if entropies is not None and eligible is not None:
        _check_shapes(scores=scores, entropies=entropies, eligible=eligible)
        others = _rank(entropies, eligible.bool() & ~candidates.bool(), places, budget)
        reserve += _best_first(entry for ranking in others for entry in ranking)
    elif entropies is not None or eligible is not None:
        raise ValueError("Pass both `entropies` and `eligible`, or neither: one says nothing without the other.")
    slack = budget - sum(map(len, chosen))
    for _, _, row, position in reserve[:slack]:
        chosen[row].append(position)
    return chosen


def _score_and_rule(
    entropies: torch.Tensor, future_values: torch.Tensor, sampled_mask: torch.Tensor, clip: float, combine: Combination
) -> tuple[torch.Tensor, torch.Tensor]:
    # Both from float64, so that a score and the rule that admits it cannot round apart.
    _check_shapes(entropies=entropies, future_values=future_values, sampled_mask=sampled_mask)
    if combine not in get_args(Combination):
        raise ValueError(f"`combine` must be one of {', '.join(get_args(Combination))}; got {combine!r}.")
    if clip < 0:
        raise ValueError(f"`clip` is a distance from 1, got {clip}: pass a number of at least 0.")
    uncertainty, _ = _standardize(entropies, sampled_mask)  # (B, T)
    if combine == "entropy":
        return uncertainty, uncertainty > 0
    promise, flat = _standardize(future_values.clamp(1 - clip, 1 + clip), sampled_mask)  # (B, T), (B, 1)
    if combine == "sum":
        score = promise + uncertainty
        return score, score > 0
    score = torch.where(flat, uncertainty, promise * uncertainty)
    return score, (uncertainty > 0) & (flat | (promise > 0))


def _standardize(values: torch.Tensor, sampled_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """z-scores over the sampled tokens of each row, `(B, T)`, and which rows are flat, `(B, 1)`."""
    compact = _compact(values.detach(), sampled_mask)
    count = sampled_mask.bool().sum(dim=1, keepdim=True)
    held = torch.arange(compact.size(1), device=compact.device) < count  # (B, S)
    mean = compact.sum(dim=1, keepdim=True) / count.clamp(min=1)
    deviation = (compact - mean).masked_fill(~held, 0)
    std = (deviation.square().sum(dim=1, keepdim=True) / count.clamp(min=1)).sqrt()
    flat = std < _FLAT
    return _scatter((deviation / std).masked_fill(flat, 0), sampled_mask, off_mask=0), flat


def _compact(values: torch.Tensor, sampled_mask: torch.Tensor) -> torch.Tensor:
    # Sampled tokens moved to the left, (B, T) -> (B, S), so that no sum depends on what lies between them, not even in
    # its last bit.
    mask = sampled_mask.bool()
    slots = mask.cumsum(dim=1) - 1
    width = int(slots.amax()) + 1 if slots.numel() else 0
    compact = values.new_zeros((len(values), width), dtype=torch.float64)
    compact[mask.nonzero(as_tuple=True)[0], slots[mask]] = values[mask].to(torch.float64)
    return compact


def _scatter(compact: torch.Tensor, sampled_mask: torch.Tensor, off_mask: float) -> torch.Tensor:
    # Back to where the tokens were, (B, S) -> (B, T).
    mask = sampled_mask.bool()
    values = compact.new_full(mask.shape, off_mask)
    values[mask] = compact[mask.nonzero(as_tuple=True)[0], (mask.cumsum(dim=1) - 1)[mask]]
    return values


def _rank(values: torch.Tensor, allowed: torch.Tensor, places: torch.Tensor, limit: int) -> list[Ranking]:
    rankings = []
    for row, usable in enumerate(allowed & ~values.isnan()):
        positions = usable.nonzero().squeeze(1)
        best, order = values[row, positions].sort(descending=True, stable=True)
        first = positions[order[:limit]]
        entries = zip(best[:limit].tolist(), places[row, first].tolist(), first.tolist(), strict=True)
        rankings.append([(value, place, row, position) for value, place, position in entries])
    return rankings


def _best_first(entries: Iterable[tuple[float, int, int, int]]) -> Ranking:
    return sorted(entries, key=lambda entry: (-entry[0], *entry[1:]))


def _check_shapes(**tensors: torch.Tensor) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 2 for shape in shapes.values()):
        raise ValueError(f"Expected tensors of one shape (B, T), got {shapes}.")
