"""Rows that move or drop out together."""

import torch

from trl_agentic.trainers.group_rows import mask_rows, shuffle_groups


def test_groups_move_whole_and_in_unison_and_scalars_stay():
    torch.manual_seed(3)
    batch = {"x": torch.arange(6), "y": torch.arange(6).view(6, 1) * 10, "n": torch.tensor(7)}
    moved = shuffle_groups(batch, 2)
    assert moved["x"].view(3, 2).diff(dim=1).flatten().tolist() == [1, 1, 1]
    assert sorted(moved["x"].tolist()) == list(range(6)) and moved["x"].tolist() != list(range(6))
    assert torch.equal(moved["y"].flatten(), moved["x"] * 10) and moved["n"] == 7


def test_a_masked_row_is_zero_in_both_masks_and_the_rest_is_counted():
    batch = {"completion_mask": torch.ones(2, 3, dtype=torch.long), "tool_mask": torch.tensor([[1, 0, 1], [1, 1, 1]])}
    left = mask_rows(batch, [False, True])
    assert batch["completion_mask"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert batch["tool_mask"].tolist() == [[1, 0, 1], [0, 0, 0]]
    assert left == 2
