"""
How uncertain the model is, and whether that calls for a branch (ARPO, https://huggingface.co/papers/2507.19849).

`V` is the vocabulary size, `k` the number of log-probs that an engine returns. Entropies are in nats.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch

Real = TypeVar("Real", float, torch.Tensor)

_CHUNK_ELEMENTS = 1 << 24  # 64 MiB of float32 per temporary


def token_entropies(logits: torch.Tensor) -> torch.Tensor:
    """
    Exact entropy of each next-token distribution, over the whole vocabulary.

    Rows are worked off in chunks, so that half-precision logits are never held in float32 as a whole.

    Args:
        logits (`torch.Tensor`):
            Logits, divided by the sampling temperature, of shape `(..., V)`; `-inf` where a token is ruled out.

    Returns:
        `torch.Tensor`:
            `-sum_j p_j log p_j` with `p = softmax(logits)`, in nats, of shape `(...)`; float32, or float64 for float64
            logits. NaN for a row without any finite logit.
    """
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if logits.numel() == 0:
        return logits.new_zeros(logits.shape[:-1], dtype=dtype)
    if logits.dim() == 1:
        return token_entropies(logits.unsqueeze(0)).squeeze(0)
    if logits.dim() > 2:  # flattening would copy a slice such as `logits[:, :-1]`
        return torch.stack([token_entropies(rows) for rows in logits])
    num_rows = max(1, _CHUNK_ELEMENTS // logits.size(-1))
    return torch.cat([_expected_surprise(rows.log_softmax(-1, dtype=dtype)) for rows in logits.split(num_rows)])


def topk_entropies(logprobs: torch.Tensor) -> torch.Tensor:
    """
    Entropy from the log-probs of some tokens, with all other tokens as one bucket.

    A lower bound of the exact entropy: the spread inside the bucket is unknown.

    Args:
        logprobs (`torch.Tensor`):
            Log-probabilities of `k` different tokens, of shape `(..., k)`.

    Returns:
        `torch.Tensor`:
            Entropy of the `k + 1` outcomes in nats, of shape `(...)`; float32, or float64 for float64 log-probs.
    """
    logprobs = logprobs.to(torch.float64 if logprobs.dtype == torch.float64 else torch.float32)
    rest = (1 - logprobs.exp().sum(-1)).clamp(min=0)  # rounding may push the sum above 1
    return _expected_surprise(logprobs) + torch.special.entr(rest)


def _expected_surprise(logprobs: torch.Tensor) -> torch.Tensor:
    # 0 * -inf is NaN, but an impossible token adds nothing.
    surprise = logprobs.masked_fill(logprobs == -math.inf, 0)
    return -(logprobs.exp() * surprise).sum(-1)


def entropy_change(initial: Real, current: Real, vocab_size: int) -> Real:
    """
    Entropy change after a tool result, relative to the largest possible one: `(current - initial) / ln V`.

    Args:
        initial (`float` or `torch.Tensor`):
            Mean entropy at the beginning of the trajectory, in nats.
        current (`float` or `torch.Tensor`):
            Mean entropy right after the result, in nats.
        vocab_size (`int`):
            Vocabulary size `V`, at least 2.

    Returns:
        `float` or `torch.Tensor`:
            Change in [-1, 1]; positive when the result made the model less certain. NaN stays NaN.

    Raises:
        ValueError: If the vocabulary has fewer than two tokens.
    """
    if vocab_size < 2:
        raise ValueError(f"An entropy needs a vocabulary of at least 2 tokens, got `vocab_size={vocab_size}`.")
    return _clip((current - initial) / math.log(vocab_size), -1.0, 1.0)


def branch_probability(change: Real, alpha: float = 0.5, weight: float = 0.2) -> Real:
    """
    Probability of a branch: `clip(alpha + weight * change, 0, 1)`.

    Args:
        change (`float` or `torch.Tensor`):
            Normalised entropy change, see [`entropy_change`].
        alpha (`float`, *optional*, defaults to `0.5`):
            Probability when the entropy does not change.
        weight (`float`, *optional*, defaults to `0.2`):
            Influence of the change.

    Returns:
        `float` or `torch.Tensor`:
            Probability in [0, 1]. NaN stays NaN.
    """
    return _clip(alpha + weight * change, 0.0, 1.0)


def _clip(value: Real, low: float, high: float) -> Real:
    if isinstance(value, torch.Tensor):
        return value.clamp(low, high)
    return min(max(value, low), high)  # in this order NaN comes through
