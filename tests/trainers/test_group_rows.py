"""Rows that move or drop out together."""

import torch

from trl_agentic.rollout.batch import RolloutBatch
from trl_agentic.trainers.group_rows import joined_rows, mask_rows, padded_rows, shuffle_groups


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


def test_micro_batches_are_joined_in_their_order_without_scalars_and_other_things():
    first = {"x": torch.tensor([[1, 2], [3, 4]]), "n": torch.tensor(7), "y": torch.tensor([1.0, 2.0]), "images": None}
    second = {"x": torch.tensor([[5, 6]]), "n": torch.tensor(7), "y": torch.tensor([3.0]), "images": None}
    joined = joined_rows([first, second])
    assert {name: value.tolist() for name, value in joined.items()} == {
        "x": [[1, 2], [3, 4], [5, 6]],
        "y": [1.0, 2.0, 3.0],
    }
    assert joined_rows([first])["x"].tolist() == [[1, 2], [3, 4]]


def test_rows_are_padded_at_the_outside_and_what_they_inherited_is_not_their_own():
    batch = RolloutBatch(
        prompt_ids=[[5, 6], [7]],
        completion_ids=[[1, 2, 3, 4], [8, 9]],
        sampled_mask=[[1, 0, 1, 1], [1, 1]],
        logprobs=[[-1.0, 0.0, -2.0, -3.0], [-4.0, -5.0]],
        completions=[[], []],
        extra_fields={},
        is_truncated=[False, False],
    )
    rows = padded_rows(batch, [3, 0], pad_token_id=99)
    assert {name: value.tolist() for name, value in rows.items()} == {
        "prompt_ids": [[5, 6], [99, 7]],
        "prompt_mask": [[1, 1], [0, 1]],
        "completion_ids": [[1, 2, 3, 4], [8, 9, 99, 99]],
        "completion_mask": [[1, 1, 1, 1], [1, 1, 0, 0]],
        "tool_mask": [[0, 0, 0, 1], [1, 1, 0, 0]],
        "sampling_per_token_logps": [[-1.0, 0.0, -2.0, -3.0], [-4.0, -5.0, 0.0, 0.0]],
    }
