"""Without branches and future advantage, APPO is ARPO without branching, and both are TRL's GRPO, bit for bit."""

import math

import pytest
import torch
import trl.trainer.grpo_trainer as grpo
from test_equals_grpo import recording, run_arpo, run_grpo
from tiny import appo_trainer

from trl_agentic.trainers.group_rows import shuffle_groups

NOTHING_OF_APPO = {"branches_per_rollout": 0, "future_weight": 0.0}
OPTIONS = [
    {"steps_per_generation": 8, "max_steps": 5},
    {"steps_per_generation": 4, "num_iterations": 2, "max_steps": 5},
    {"gradient_accumulation_steps": 1, "steps_per_generation": 4, "max_steps": 5},
    {"gradient_accumulation_steps": 4, "steps_per_generation": 8, "per_device_train_batch_size": 2, "max_steps": 3},
    {"loss_type": "grpo", "scale_rewards": "none", "steps_per_generation": 8, "max_steps": 4},
    {"loss_type": "dr_grpo", "scale_rewards": "batch", "steps_per_generation": 4, "max_steps": 4},
    {"loss_type": "bnpo", "beta": 0.1, "use_bias_correction_kl": True, "steps_per_generation": 8, "max_steps": 4},
    {
        "gradient_checkpointing": True,
        "multi_objective_aggregation": "normalize_then_sum",
        "steps_per_generation": 4,
        "max_steps": 4,
    },
]


def run_appo(tmp_path, options, **own):
    """A run that notes its losses, and the log-ratios whenever the policy reads rows."""
    ours = appo_trainer(tmp_path / "appo", **NOTHING_OF_APPO, **own, **options)
    ours.__class__ = recording(type(ours))
    ours.seen, ours.log_ratios = [], []
    view = ours.view

    def viewing(rows):
        seen = view(rows)
        ours.log_ratios.append(seen.log_ratios)
        return seen

    ours.view = viewing
    ours.train()
    return ours


def assert_same_run(ours, theirs):
    """Advantages and loss of each micro-batch, on the same rows in the same order, and the weights in the end."""
    for (loss, advantages, ids), (their_loss, their_advantages, their_ids) in zip(ours.seen, theirs.seen, strict=True):
        assert torch.equal(ids, their_ids)
        assert torch.equal(advantages, their_advantages)
        assert torch.equal(loss, their_loss)
    for mine, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options))
def test_without_branches_and_future_advantage_appo_is_arpo_and_grpo_bit_for_bit(tmp_path, monkeypatch, options):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    arpo, rollouts = run_arpo(tmp_path, options)
    appo = run_appo(tmp_path, options)
    monkeypatch.setattr(grpo, "shuffle_sequence_dict", lambda batch: shuffle_groups(batch, 4))
    theirs = run_grpo(tmp_path / "grpo", options, rollouts)
    assert len(appo.seen) == options["max_steps"] * options.get("gradient_accumulation_steps", 2)
    assert all(advantages.dim() == 1 for _, advantages, _ in appo.seen)
    assert any(advantages.abs().max() > 0 for _, advantages, _ in appo.seen)
    assert not appo.log_ratios  # nobody asks for them
    assert_same_run(appo, arpo)
    assert_same_run(appo, theirs)


@pytest.mark.parametrize("options", [OPTIONS[1], OPTIONS[3]], ids=lambda options: "-".join(options))
def test_safeguards_that_nothing_sets_off_leave_every_bit_as_it_is(tmp_path, monkeypatch, options):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    arpo, rollouts = run_arpo(tmp_path, options)
    appo = run_appo(tmp_path, options, released_safeguards=True)
    # each optimizer step is read, and its advantages are assigned: with ratios other than 1, but none beyond 3
    assert len(appo.log_ratios) == options["max_steps"]
    assert 0.01 < max(float(ratios.abs().max()) for ratios in appo.log_ratios) < math.log(3)
    monkeypatch.setattr(grpo, "shuffle_sequence_dict", lambda batch: shuffle_groups(batch, 4))
    theirs = run_grpo(tmp_path / "grpo", options, rollouts)
    assert any(advantages.abs().max() > 0 for _, advantages, _ in appo.seen)
    assert_same_run(appo, arpo)
    assert_same_run(appo, theirs)


@pytest.mark.parametrize("options", [{"branches_per_rollout": 3}, {"future_weight": 0.5}], ids=str)
def test_either_of_the_two_makes_a_difference(tmp_path, options):
    inert = run_appo(tmp_path, {"max_steps": 2})
    ours = appo_trainer(tmp_path / "ours", **NOTHING_OF_APPO | options, max_steps=2)
    ours.train()
    assert any(not torch.equal(*pair) for pair in zip(ours.model.parameters(), inert.model.parameters(), strict=True))
