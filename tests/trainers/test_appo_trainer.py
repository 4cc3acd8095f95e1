"""What the loss of `APPOTrainer` gets: advantages that agree with a computation by hand, for initial rollouts alone."""

import pytest
import torch
from appo_records import advantages_by_hand, record
from tiny import appo_trainer

VARIANTS = [
    {},
    {"future_weight": 0.0},
    {"branch_credit": "prefix"},
    {"branch_credit": "prefix", "future_weight": 0.0},
    {"branch_credit": "single_group"},
    {"branches_per_rollout": 0},
    {"branch_schedule": "rollout"},
    {"branch_schedule": "rollout", "branch_credit": "prefix", "num_branch_rounds": 2, "branches_per_rollout": 1},
    {"num_branch_rounds": 2, "branches_per_rollout": 2},
    {"num_branch_rounds": 2, "branches_per_rollout": 1, "branch_credit": "prefix"},
    {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 2},
    {"gradient_accumulation_steps": 1, "future_half_life": 4.0, "future_clip": [0.5, 2.0]},
    {"num_iterations": 2, "steps_per_generation": 4},
    {"num_iterations": 2, "steps_per_generation": 4, "branch_credit": "prefix"},
    {"released_safeguards": True, "learning_rate": 0.02, "beta": 0.0},
    {"released_safeguards": True, "learning_rate": 0.02, "branch_credit": "prefix"},
]


def trained(tmp_path, **options):
    """A trainer that has done its steps, and what they were."""
    ours = appo_trainer(tmp_path, **{"max_steps": 5, **options})
    steps = record(ours)
    ours.train()
    assert len(steps) == ours.state.global_step
    return ours, steps


def is_fresh(args, step) -> bool:
    """Whether a generation begins with this optimizer step."""
    lasts_for = args.steps_per_generation // args.gradient_accumulation_steps * args.num_iterations
    return step.number % lasts_for == 0


@pytest.mark.parametrize("options", VARIANTS, ids=lambda options: "-".join(map(str, options)) or "defaults")
def test_the_loss_gets_the_advantages_that_follow_from_rewards_trees_and_log_ratios(tmp_path, options):
    ours, steps = trained(tmp_path, **options)
    for step in steps:
        expected, kept = advantages_by_hand(step, ours.args, is_fresh(ours.args, step))
        advantages, tool_mask = step.joined("advantages"), step.joined("tool_mask")
        assert len(expected) == len(advantages) == 8 * ours.args.gradient_accumulation_steps // (
            8 // ours.args.per_device_train_batch_size
        )
        advantages = advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand_as(tool_mask)
        for row, (of_row, is_kept) in enumerate(zip(expected, kept, strict=True)):
            places = list(of_row)
            assert tool_mask[row, places].tolist() == [float(is_kept)] * len(places)
            assert advantages[row, places].tolist() == pytest.approx(list(of_row.values()), rel=1e-3, abs=1e-3)
