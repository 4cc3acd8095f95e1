"""
How the rewards of branches, and the policy's own movement, reach the rollouts they grew from (APPO,
https://huggingface.co/papers/2606.12384).

`N` initial rollouts of one prompt, the only ones that are trained, and `K` branches of theirs; `B` rows, `T`
completion tokens. `rho = pi_theta / pi_old` is a token's probability ratio.
"""

from __future__ import annotations

import torch

from .advantages import group_advantages

_FLAT = 1e-6  # a smaller standard deviation of rewards is rounding


def dual_group_advantages(initial_rewards: torch.Tensor, branch_rewards: torch.Tensor) -> torch.Tensor:
    """
    Advantage of each initial rollout against two groups: the initial rollouts of its prompt, and all their branches.

    `mean over T in {initial, branches} of (R_n - mean_T R) / (std_T R + 1e-4)`, with unbiased standard deviations. A
    group with fewer than two rewards or without spread (standard deviation below 1e-6) leaves the mean; if both leave,
    all advantages are 0. Without branches these are [`group_advantages`], bit for bit, except that equal rewards give
    exactly 0, where rounding leaves the other up to 1e-3.

    Args:
        initial_rewards (`torch.Tensor`):
            Weighted reward of each initial rollout, of shape `(N,)`. NaN for one that was not scored: it counts in no
            statistic and gets advantage 0.
        branch_rewards (`torch.Tensor`):
            Weighted reward of each branch, of shape `(K,)`; NaN as above.

    Returns:
        `torch.Tensor`:
            Advantages of shape `(N,)`.

    Raises:
        ValueError: If the rewards are not vectors, or there is no initial rollout.
    """
    _check_vectors(initial_rewards=initial_rewards, branch_rewards=branch_rewards)
    terms = []
    if _has_spread(initial_rewards):
        terms.append(group_advantages(initial_rewards, len(initial_rewards)))
    if _has_spread(branch_rewards):
        group = branch_rewards[~branch_rewards.isnan()]
        terms.append((initial_rewards - group.mean()) / (group.std() + 1e-4))
    if not terms:
        return torch.zeros_like(initial_rewards)
    return torch.stack(terms).mean(dim=0).nan_to_num(nan=0.0)


def prefix_branch_credit(
    initial_rewards: torch.Tensor,
    branch_rewards: torch.Tensor,
    parents: torch.Tensor,
    splits: torch.Tensor,
    num_tokens: int,
) -> torch.Tensor:
    """
    Advantage of each token of the initial rollouts, with the branches' part on the prefix they share (released).

    Every token has its rollout's advantage within the initial group, `(R_n - mean R) / (std R + 1e-4)`. Token `t` has
    in addition the mean, over the rollout's branches with `split > t`, of the branch's advantage within the prompt's
    group of branches. A group with fewer than two rewards or without spread gives 0.

    Args:
        initial_rewards (`torch.Tensor`):
            Weighted reward of each initial rollout, of shape `(N,)`. NaN for one that was not scored: it counts in no
            statistic, and its tokens have 0.
        branch_rewards (`torch.Tensor`):
            Weighted reward of each branch, of shape `(K,)`. NaN for one that was not scored: it counts in no mean.
        parents (`torch.Tensor`):
            Initial rollout that each branch grew from, integers of shape `(K,)`.
        splits (`torch.Tensor`):
            Leading completion tokens that each branch shares with its parent, integers of shape `(K,)`.
        num_tokens (`int`):
            Width `T` of the padded completions.

    Returns:
        `torch.Tensor`:
            Advantages of shape `(N, T)`, also past the end of a rollout, where the loss looks at none.

    Raises:
        ValueError: If the shapes do not belong together, or a parent is no initial rollout.
    """
    _check_vectors(initial_rewards=initial_rewards, branch_rewards=branch_rewards)
    num_rollouts, shape = len(initial_rewards), branch_rewards.shape
    if parents.shape != shape or splits.shape != shape:
        raise ValueError(
            f"{len(branch_rewards)} branches need as many parents and splits, got shapes {tuple(parents.shape)} and "
            f"{tuple(splits.shape)}."
        )
    if ((parents < 0) | (parents >= num_rollouts)).any():
        raise ValueError(f"Parents are indices of the {num_rollouts} initial rollouts, got {parents.tolist()}.")
    own = _within(initial_rewards).unsqueeze(1)  # (N, 1)
    rollouts = torch.arange(num_rollouts, device=parents.device).unsqueeze(1)
    grown = (rollouts == parents) & ~branch_rewards.isnan()  # (N, K)
    shared = splits.unsqueeze(1) > torch.arange(num_tokens, device=splits.device)  # (K, T)
    grown, shared = grown.to(own.dtype), shared.to(own.dtype)
    total = grown @ (shared * _within(branch_rewards).unsqueeze(1))  # (N, T)
    credit = own + total / (grown @ shared).clamp(min=1)
    return credit.masked_fill(initial_rewards.isnan().unsqueeze(1), 0)


def future_advantages(
    base: torch.Tensor, future_values: torch.Tensor, weight: float = 0.5, clip: tuple[float, float] = (1.0, 1.2)
) -> torch.Tensor:
    """
    Scale advantages by what the policy has come to think of a token's future: `A * (1 + weight * clip(Omega))`.

    Args:
        base (`torch.Tensor`):
            Advantages of rows, of shape `(B,)`, or of tokens, of shape `(B, T)`.
        future_values (`torch.Tensor`):
            Future values `Omega`, see [`future_values`], of shape `(B, T)`.
        weight (`float`, *optional*, defaults to `0.5`):
            Influence of the future. 0 gives `base`, bit for bit.
        clip (`tuple[float, float]`, *optional*, defaults to `(1.0, 1.2)`):
            Range that future values are clipped to.

    Returns:
        `torch.Tensor`:
            Advantages of shape `(B, T)`, in the type of `base`.

    Raises:
        ValueError: If the shapes do not belong together, or the range is empty.
    """
    base = _per_token(base, future_values)
    if clip[0] > clip[1]:
        raise ValueError(f"`clip` is (low, high), got {clip}.")
    return base * (1 + weight * future_values.clamp(*clip)).to(base.dtype)


def released_safeguards(
    advantages: torch.Tensor, log_ratios: torch.Tensor, future_values: torch.Tensor, sampled_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    What the released code does about tokens that have become much more likely although their advantage is negative.

    Where `rho > 6`, the future value is held in [0.8, 1]. A row with more than one token where `rho > 3` leaves the
    loss. The third safeguard is `max_ratio` of [`future_values`].

    Args:
        advantages (`torch.Tensor`):
            Advantages of rows, of shape `(B,)`, or of tokens, of shape `(B, T)`, before [`future_advantages`].
        log_ratios (`torch.Tensor`):
            `log rho` of each token, of shape `(B, T)`.
        future_values (`torch.Tensor`):
            See [`future_values`], of shape `(B, T)`.
        sampled_mask (`torch.Tensor`):
            True (or 1) on sampled tokens, of shape `(B, T)`; others count for nothing and change nothing.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`:
            Future values of shape `(B, T)` for [`future_advantages`], whose clip to a range that holds 1 commutes with
            this one; and whether each row stays in the loss, booleans of shape `(B,)`.

    Raises:
        ValueError: If the shapes do not belong together.
    """
    if not log_ratios.shape == future_values.shape == sampled_mask.shape:
        shapes = [tuple(tensor.shape) for tensor in (log_ratios, future_values, sampled_mask)]
        raise ValueError(f"Expected log-ratios, future values and mask of one shape (B, T), got {shapes}.")
    ratios = log_ratios.detach().exp()
    negative = (_per_token(advantages, future_values) < 0) & sampled_mask.bool()  # (B, T)
    held = torch.where(negative & (ratios > 6), future_values.clamp(0.8, 1.0), future_values)
    return held, (negative & (ratios > 3)).sum(dim=1) <= 1


def _per_token(values: torch.Tensor, future_values: torch.Tensor) -> torch.Tensor:
    if future_values.dim() != 2 or values.shape not in (future_values.shape, future_values.shape[:1]):
        raise ValueError(
            f"Expected future values (B, T) and advantages (B,) or (B, T), got shapes {tuple(future_values.shape)} "
            f"and {tuple(values.shape)}."
        )
    return values.unsqueeze(1) if values.dim() == 1 else values


def _has_spread(rewards: torch.Tensor) -> bool:
    scored = rewards[~rewards.isnan()].to(torch.float64)
    return len(scored) > 1 and bool(scored.std() >= _FLAT)


def _within(rewards: torch.Tensor) -> torch.Tensor:
    return group_advantages(rewards, len(rewards)) if _has_spread(rewards) else torch.zeros_like(rewards)


def _check_vectors(initial_rewards: torch.Tensor, branch_rewards: torch.Tensor) -> None:
    if initial_rewards.dim() != 1 or branch_rewards.dim() != 1 or len(initial_rewards) == 0:
        raise ValueError(
            f"Expected rewards (N,) of at least one initial rollout and (K,) of its branches, got shapes "
            f"{tuple(initial_rewards.shape)} and {tuple(branch_rewards.shape)}."
        )
