"""Rows of a generation batch, moved group by group or left out of the loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch


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
