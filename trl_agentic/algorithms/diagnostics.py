"""Whether the assumptions of a method hold in the data at hand."""

from __future__ import annotations

import math

import torch


def spearman(x: torch.Tensor, y: torch.Tensor) -> float:
    """
    Rank correlation of two samples; of Branching Scores and the reward variances of the branches made there, say.

    Args:
        x (`torch.Tensor`):
            Values, of shape `(K,)`.
        y (`torch.Tensor`):
            Their partners, of shape `(K,)`. Pairs with a NaN are left out.

    Returns:
        `float`:
            Correlation in [-1, 1], equal values sharing the mean of their ranks. NaN with fewer than two pairs, or if
            all values of a sample are equal.

    Raises:
        ValueError: If the shapes differ.
    """
    if x.dim() != 1 or x.shape != y.shape:
        raise ValueError(f"Expected two vectors of one length, got shapes {tuple(x.shape)} and {tuple(y.shape)}.")
    paired = ~(x.isnan() | y.isnan())
    x, y = _ranks(x[paired]), _ranks(y[paired])
    x, y = x - x.sum() / len(x), y - y.sum() / len(y)
    norm = ((x @ x) * (y @ y)).sqrt()
    return (x @ y / norm).clamp(-1, 1).item() if norm > 0 else math.nan


def _ranks(values: torch.Tensor) -> torch.Tensor:
    _, kinds, counts = values.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0)
    return (last - (counts - 1) / 2)[kinds].to(torch.float64)
