"""Rows of a generation batch, moved group by group."""

from __future__ import annotations

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
