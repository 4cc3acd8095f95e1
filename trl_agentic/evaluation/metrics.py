"""
How good a policy is on a set of questions, and how sure one can be that it got better.

Letters: `Q` questions, `S` samples of each.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Questions drawn at a time in the bootstrap: bounds its memory to some tens of megabytes.
DRAWS_AT_ONCE = 4_000_000


class Gain(NamedTuple):
    """
    A difference of two accuracies with its confidence interval, as fractions.

    Args:
        difference (`float`):
            After minus before.
        low (`float`):
            Lower end of the interval.
        high (`float`):
            Upper end of the interval.
    """

    difference: float
    low: float
    high: float


def pass_at_k(correct: ArrayLike, k: int = 1) -> float:
    """
    Estimate the probability that at least one of `k` samples of a question is right.

    Unbiased (https://huggingface.co/papers/2107.03374): a question with `c` right ones among its `S` samples counts
    `1 - C(S - c, k) / C(S, k)`, the share of the subsets of size `k` that hold a right one.

    Args:
        correct (`ArrayLike`):
            Whether each sample is right, of shape `(Q, S)`; booleans, or numbers that are 0 or 1.
        k (`int`, *optional*, defaults to `1`):
            Samples that may be drawn.

    Returns:
        `float`:
            Mean over questions, in [0, 1].

    Raises:
        ValueError: If the shape is another one, a value is neither 0 nor 1, or `k` is not in `1..S`.
    """
    samples = _matrix(correct, "correct")  # (Q, S)
    num_samples = samples.shape[1]
    if not np.isin(samples, (0, 1)).all():
        raise ValueError("pass@k needs right or wrong (0 or 1) for each sample; got other numbers. Apply a threshold.")
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} needs k between 1 and the {num_samples} samples a question. Draw more samples.")
    subsets = comb(num_samples, k)
    right = samples.sum(axis=1).astype(int)  # (Q,)
    return float(np.mean([1 - comb(num_samples - int(count), k) / subsets for count in right]))


def paired_bootstrap(
    before: ArrayLike, after: ArrayLike, num_resamples: int = 10_000, seed: int = 0, level: float = 0.95
) -> Gain:
    """
    Difference of two mean scores on the same questions, with a percentile bootstrap interval over questions.

    Questions are drawn with replacement, the same ones for both sides; samples inside a question are averaged first,
    since they are not independent of each other.

    Args:
        before (`ArrayLike`):
            Scores of the first policy, of shape `(Q, S)` or `(Q,)`.
        after (`ArrayLike`):
            Scores of the second policy on the same questions in the same order; the number of samples may differ.
        num_resamples (`int`, *optional*, defaults to `10000`):
            Bootstrap resamples.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the resampling.
        level (`float`, *optional*, defaults to `0.95`):
            Share of the resampled differences inside the interval, in (0, 1).

    Returns:
        [`Gain`]:
            `(difference, low, high)`, in the unit of the scores.

    Raises:
        ValueError: If the numbers of questions differ, or an argument is out of range.
    """
    first, second = _matrix(before, "before"), _matrix(after, "after")
    if len(first) != len(second):
        raise ValueError(
            f"A paired interval needs the same questions on both sides; got {len(first)} before and {len(second)} "
            "after."
        )
    if not 0 < level < 1 or num_resamples < 1:
        raise ValueError(f"Expected 0 < level < 1 and num_resamples >= 1, got {level} and {num_resamples}.")
    gains = second.mean(axis=1) - first.mean(axis=1)  # (Q,)
    rng = np.random.default_rng(seed)
    rows = max(1, DRAWS_AT_ONCE // len(gains))
    sizes = [min(rows, num_resamples - start) for start in range(0, num_resamples, rows)]
    means = [gains[rng.integers(len(gains), size=(size, len(gains)))].mean(axis=1) for size in sizes]
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return Gain(float(gains.mean()), float(low), float(high))


def accuracy_by(correct: ArrayLike, groups: Sequence[Hashable]) -> dict[Hashable, float]:
    """
    Mean score per group of questions, for example per number of hops.

    Args:
        correct (`ArrayLike`):
            Scores, of shape `(Q, S)` or `(Q,)`.
        groups (`Sequence[Hashable]`):
            Group of each question, `Q` of them.

    Returns:
        `dict[Hashable, float]`:
            Mean over a group's questions, groups in sorted order.

    Raises:
        ValueError: If there is not one group per question.
    """
    means = _matrix(correct, "correct").mean(axis=1)  # (Q,)
    return {group: float(means[rows].mean()) for group, rows in rows_by(groups, len(means)).items()}


def rows_by(groups: Sequence[Hashable], num_questions: int) -> dict[Hashable, list[int]]:
    """
    Rows of each group, groups in sorted order.

    Raises:
        ValueError: If there is not one group per question.
    """
    if len(groups) != num_questions:
        raise ValueError(f"Expected one group for each of {num_questions} questions, got {len(groups)}.")
    rows: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        rows.setdefault(group, []).append(row)
    return dict(sorted(rows.items()))  # type: ignore[type-var]


def _matrix(values: ArrayLike, name: str) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.size == 0:
        raise ValueError(
            f"`{name}` must have shape (questions, samples) with at least one of each, got {array.shape}."
        )
    if not np.isfinite(array).all():
        raise ValueError(f"`{name}` holds scores that are not finite; score every sample, a failed one as 0.")
    return array
