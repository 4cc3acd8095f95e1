"""Rows of a generation batch, moved group by group or left out of the loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from trl.trainer.utils import pad

from ..rollout.batch import RolloutBatch


def shuffle_groups(batch: dict[str, torch.Tensor], num_generations: int) -> dict[str, torch.Tensor]:
    """
    Shuffle whole groups; the rows of a group keep their order.

    Args:
        batch (`dict[str, torch.Tensor]`):
            Tensors with `B` rows each; scalars stay as they are.
        num_generations (`int`):
            Rows `G` of a group.

    Returns:
        `dict[str, torch.Tensor]`: The same tensors with their rows moved in unison.

    Example:
        ```python
        >>> shuffle_groups({"x": torch.arange(6)}, 2)
        {'x': tensor([4, 5, 0, 1, 2, 3])}
        ```
    """
    rows = max(value.size(0) for value in batch.values() if value.dim())
    assert rows % num_generations == 0, f"{rows} rows are no whole groups of {num_generations}"
    order = torch.arange(rows).view(-1, num_generations)[torch.randperm(rows // num_generations)].flatten()
    return {key: value[order.to(value.device)] if value.dim() else value for key, value in batch.items()}


def joined_rows(micro_batches: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """
    The rows of some micro-batches, one after the other.

    Args:
        micro_batches (`Sequence[dict[str, torch.Tensor]]`):
            Batches with the same entries.

    Returns:
        `dict[str, torch.Tensor]`: Their tensors in one; scalars are left out.
    """
    names = [name for name, value in micro_batches[0].items() if isinstance(value, torch.Tensor) and value.dim()]
    return {name: torch.cat([each[name] for each in micro_batches]) for name in names}


def padded_rows(batch: RolloutBatch, firsts: Sequence[int], pad_token_id: int) -> dict[str, torch.Tensor]:
    """
    Rows as tensors, padded as TRL does it: prompts on the left, completions on the right.

    Args:
        batch ([`~trl_agentic.rollout.batch.RolloutBatch`]):
            `B` rows.
        firsts (`Sequence[int]`):
            Tokens at the beginning of each completion that count as not sampled in `tool_mask`.
        pad_token_id (`int`):
            Stands in the padding.

    Returns:
        `dict[str, torch.Tensor]`:
            `prompt_ids` and `prompt_mask`, and `completion_ids`, `completion_mask`, `tool_mask` and
            `sampling_per_token_logps` of shape `(B, T)`.
    """
    prompts, completions = ([torch.tensor(ids) for ids in of] for of in (batch.prompt_ids, batch.completion_ids))
    own = [[0] * first + mask[first:] for mask, first in zip(batch.sampled_mask, firsts, strict=True)]
    return {
        "prompt_ids": pad(prompts, pad_token_id, "left"),
        "prompt_mask": pad([torch.ones_like(ids) for ids in prompts], 0, "left"),
        "completion_ids": pad(completions, pad_token_id),
        "completion_mask": pad([torch.ones_like(ids) for ids in completions]),
        "tool_mask": pad([torch.tensor(mask) for mask in own]),
        "sampling_per_token_logps": pad([torch.tensor(logprobs) for logprobs in batch.logprobs]),
    }


def mask_rows(batch: dict[str, torch.Tensor], is_masked: Sequence[bool]) -> torch.Tensor:
    """
    Leave rows out of the loss, in both masks together.

    Args:
        batch (`dict[str, torch.Tensor]`):
            A generation batch; its `completion_mask` and `tool_mask`, of shape `(B, T)`, are replaced.
        is_masked (`Sequence[bool]`):
            Which of the `B` rows.

    Returns:
        `torch.Tensor`: Tokens that are left to train on, a scalar.
    """
    kept = ~torch.tensor(is_masked, device=batch["completion_mask"].device).unsqueeze(1)  # (B, 1)
    for name in ("completion_mask", "tool_mask"):
        batch[name] = batch[name] * kept
    return (batch["completion_mask"] * batch["tool_mask"]).sum()
