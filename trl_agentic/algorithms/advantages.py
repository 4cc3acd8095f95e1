"""
Advantages of a group, and how they reach the tokens that several trajectories share.

`B` rows, `G` trajectories of one prompt, `T` completion tokens. A token is *shared* by the trajectories whose prefix
contains it by descent; a token of one trajectory only is *individual*. See ARPO,
https://huggingface.co/papers/2507.19849.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

RewardScale = Literal["group", "batch", "none"]
Attribution = Literal["soft", "hard", "softmax", "winner"]


def group_advantages(rewards: torch.Tensor, num_generations: int, scale: RewardScale = "group") -> torch.Tensor:
    """
    Group-relative advantages, bit for bit those of TRL's [`GRPOTrainer`].

    Args:
        rewards (`torch.Tensor`):
            Weighted reward of each row, of shape `(B,)`, the rows of a prompt next to each other. NaN for a row that
            no reward function scored: it is left out of the statistics and gets advantage 0.
        num_generations (`int`):
            Rows per prompt.
        scale (`str`, *optional*, defaults to `"group"`):
            What divides the deviation from the group's mean: the standard deviation of the group (`"group"`), of all
            rows (`"batch"`), or nothing (`"none"`). Unbiased, plus 1e-4.

    Returns:
        `torch.Tensor`:
            Advantages of shape `(B,)`. 0 also where a standard deviation has fewer than two rows to rest on.

    Raises:
        ValueError: If the rows do not form whole groups, or `scale` is unknown.
    """
    if scale not in get_args(RewardScale):
        raise ValueError(f"`scale` must be one of {', '.join(get_args(RewardScale))}; got {scale!r}.")
    if num_generations < 1 or rewards.dim() != 1 or rewards.numel() % num_generations:
        raise ValueError(
            f"Rewards of shape {tuple(rewards.shape)} do not form groups of {num_generations}: pass a vector whose "
            "length is a multiple of `num_generations`."
        )
    groups = rewards.view(-1, num_generations)
    advantages = rewards - groups.nanmean(dim=1).repeat_interleave(num_generations)
    if scale == "group":
        spread = _nanstd(groups, 1) if num_generations > 1 else torch.zeros_like(groups[:, 0])
        advantages = advantages / (spread.repeat_interleave(num_generations) + 1e-4)
    elif scale == "batch":
        spread = _nanstd(rewards) if rewards.numel() > 1 else torch.zeros_like(rewards)
        advantages = advantages / (spread + 1e-4)
    return advantages.nan_to_num(nan=0.0)


def _nanstd(values: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    # The order of operations is TRL's, down to the last bit: Bessel's correction multiplies the biased variance.
    mean = values.nanmean(dim=dim, keepdim=True)
    variance = ((values - mean) ** 2).nanmean(dim=dim, keepdim=True)
    count = (~values.isnan()).sum(dim=dim, keepdim=True)
    correction = count / (count - 1)
    correction = correction.where(count > 1, torch.full_like(correction, torch.nan))
    std = (variance * correction).sqrt()
    return std.squeeze() if dim is None else std.squeeze(dim)


def shared_prefix_mean(
    advantages: torch.Tensor, shared_lengths: torch.Tensor, num_tokens: int, scored: torch.Tensor | None = None
) -> torch.Tensor:
    """
    Average the advantage of each token over the trajectories that contain it (ARPO, hard estimate).

    Args:
        advantages (`torch.Tensor`):
            Advantage of each trajectory, of shape `(G,)`.
        shared_lengths (`torch.Tensor`):
            Leading completion tokens that each pair of trajectories shares by descent, of shape `(G, G)`; the diagonal
            holds each trajectory's own length.
        num_tokens (`int`):
            Width `T` of the padded completions.
        scored (`torch.Tensor`, *optional*):
            Which trajectories have a reward, booleans of shape `(G,)`; all by default. The others are in no mean and
            have 0.

    Returns:
        `torch.Tensor`:
            Advantages of shape `(G, T)`, 0 past the end of a trajectory.
    """
    contains = _contains(shared_lengths, num_tokens)  # (G, G, T)
    if scored is not None:
        contains = contains & scored[:, None, None] & scored[:, None]
        advantages = advantages.masked_fill(~scored, 0.0)
    return _mean(advantages, contains)


def attribute_advantages(
    rewards: torch.Tensor,
    shared_lengths: torch.Tensor,
    num_tokens: int,
    mode: Attribution = "soft",
    advantages: torch.Tensor | None = None,
) -> torch.Tensor:
    """
    Give every token of a prompt's trajectories its advantage.

    - `"soft"`: every token has the advantage of its row. Under a token mean, a token that `d` rows share then receives
      the mean of their advantages by itself.
    - `"hard"`: a shared token has the mean advantage of the rows that share it, see [`shared_prefix_mean`].
    - `"softmax"`: on rewards `R`. A shared token has `sum(w * R)` with `w = softmax(R)` over the rows that share it.
      An individual token has `R` minus that value of the innermost shared segment its row leaves; of the whole group
      when its row shares nothing.
    - `"winner"`: on rewards `R`. A shared token has the best `R` of the rows that share it. An individual token has
      `R` minus the mean `R` of the rows of that same segment.

    Args:
        rewards (`torch.Tensor`):
            Weighted reward of each trajectory, of shape `(G,)`. NaN for one that was not scored: it counts in no mean,
            maximum or softmax, and its tokens have 0.
        shared_lengths (`torch.Tensor`):
            Leading completion tokens that each pair of trajectories shares by descent, of shape `(G, G)`; the diagonal
            holds each trajectory's own length.
        num_tokens (`int`):
            Width `T` of the padded completions.
        mode (`str`, *optional*, defaults to `"soft"`):
            One of `"soft"`, `"hard"`, `"softmax"`, `"winner"`.
        advantages (`torch.Tensor`, *optional*):
            Advantage of each trajectory, of shape `(G,)`, for `"soft"` and `"hard"`. By default
            [`group_advantages`] of `rewards`.

    Returns:
        `torch.Tensor`:
            Advantages of shape `(G, T)`, 0 past the end of a trajectory.

    Raises:
        ValueError: If `mode` is unknown or the shapes do not belong together.
    """
    if mode not in get_args(Attribution):
        raise ValueError(f"`mode` must be one of {', '.join(get_args(Attribution))}; got {mode!r}.")
    size = rewards.numel()
    shapes = [tuple(rewards.shape), tuple(shared_lengths.shape), (size,) if advantages is None else advantages.shape]
    if shapes != [(size,), (size, size), (size,)]:
        raise ValueError(
            f"Expected rewards (G,), shared lengths (G, G) and advantages (G,) of one prompt; got shapes {shapes}."
        )
    if mode in ("softmax", "winner"):
        return _attribute_rewards(rewards, shared_lengths, num_tokens, mode)
    if advantages is None:
        advantages = group_advantages(rewards, size)
    if mode == "hard":
        return shared_prefix_mean(advantages, shared_lengths, num_tokens, ~rewards.isnan())
    positions = torch.arange(num_tokens, device=shared_lengths.device)
    return advantages.unsqueeze(1) * (positions < shared_lengths.diagonal().unsqueeze(1))  # (G, T)


def _attribute_rewards(
    rewards: torch.Tensor, shared_lengths: torch.Tensor, num_tokens: int, mode: Attribution
) -> torch.Tensor:
    scored = ~rewards.isnan()
    rewards = rewards.nan_to_num(nan=0.0)
    contains = _contains(shared_lengths, num_tokens)  # (G, G, T)
    depth = contains.sum(dim=1)  # (G, T)
    if mode == "softmax":
        shared = _softmax_mean(rewards, contains & scored[:, None])
    else:
        shared = _best(rewards, contains & scored[:, None])

    # Rows never meet again, so the innermost shared segment of a row ends where its longest shared prefix does. If
    # that is empty, every row of the group shares at least as much.
    own = torch.eye(len(rewards), dtype=torch.bool, device=rewards.device)
    innermost = shared_lengths.masked_fill(own, 0).amax(dim=1, keepdim=True)  # (G, 1)
    siblings = ((shared_lengths >= innermost) & scored).unsqueeze(-1)  # (G, G, 1)
    if mode == "softmax":
        baseline = _softmax_mean(rewards, siblings)
    else:
        baseline = _mean(rewards, siblings)

    individual = rewards.unsqueeze(1) - baseline  # (G, 1)
    value = torch.where(depth > 1, shared, individual)
    return value.where((depth > 0) & scored.unsqueeze(1), torch.zeros_like(value))  # (G, T)


def _contains(shared_lengths: torch.Tensor, num_tokens: int) -> torch.Tensor:
    positions = torch.arange(num_tokens, device=shared_lengths.device)
    return shared_lengths.unsqueeze(-1) > positions  # (G, G, T): trajectory j contains token t of trajectory i


def _softmax_mean(rewards: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
    # Over the rows of each set, (G, G, T) -> (G, T); the softmax of an empty set is NaN and its value 0.
    logits = rewards[:, None].where(members, rewards.new_tensor(-torch.inf))
    return torch.einsum("ijt,j->it", logits.softmax(dim=1).nan_to_num(nan=0.0), rewards)


def _mean(rewards: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
    weights = members.to(rewards.dtype)
    return torch.einsum("ijt,j->it", weights, rewards) / weights.sum(dim=1).clamp(min=1)


def _best(rewards: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
    best = rewards[:, None].where(members, rewards.new_tensor(-torch.inf)).amax(dim=1)
    return best.where(best > -torch.inf, torch.zeros_like(best))
