"""What APPO does when branches are cut off, rewards fail, a model has dropout, or the engine sleeps."""

import logging
import math
from contextlib import contextmanager

import pyarrow.parquet as pq
import pytest
import torch
from peft import LoraConfig
from tiny import appo_config, appo_trainer, dataset, length_reward, scripted_engine, search, tiny_model_path
from word_tokenizer import word_tokenizer

from trl_agentic import APPOTrainer
from trl_agentic.trainers import branch_phase
from trl_agentic.trainers.non_finite import SkipNonFiniteSteps


def logs(ours):
    return [log for log in ours.state.log_history if "loss" in log]


def test_a_branch_that_was_cut_off_is_compared_with_nobody(tmp_path, monkeypatch):
    ours = appo_trainer(tmp_path, max_steps=1, future_weight=0.0)
    run = branch_phase.BranchPhase.run

    def too_late(phase, view):
        monkeypatch.setattr(ours.rollout_states, "_phase_s", -1.0)
        run(phase, view)

    monkeypatch.setattr(branch_phase.BranchPhase, "run", too_late)
    ours.train()
    rows = pq.read_table(tmp_path / "trajectories.parquet").to_pylist()
    branches = [row for row in rows if row["kind"] == "branch"]
    assert branches and {row["status"] for row in branches} == {"deadline"}
    assert all(row["reward"] is None and row["rewards"]["length_reward"] is not None for row in branches)
    assert not {"appo/branch_reward", "appo/score_variance_correlation"} & set(logs(ours)[0])
    # What is left is the group of the rollouts.
    trained = [row for row in rows if row["advantages"] is not None]
    for start in range(0, len(trained), 4):
        rewards = torch.tensor([row["reward"] for row in trained[start : start + 4]])
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        for row, value in zip(trained[start : start + 4], expected.tolist(), strict=True):
            assert next(a for a in row["advantages"] if a is not None) == pytest.approx(value, abs=1e-4)


class FailsOnBranches:
    """A reward function that raises for branches until it is repaired."""

    __name__ = "reward"

    def __init__(self):
        self.is_broken = True

    def __call__(self, completions, completion_ids, rollout_parent, **kwargs):
        if self.is_broken and rollout_parent[0] is not None:
            raise KeyError("broken")
        return length_reward(completions, completion_ids)


def test_after_a_failed_phase_a_second_call_of_train_begins_afresh(tmp_path):
    reward = FailsOnBranches()
    ours = appo_trainer(tmp_path, reward_funcs=reward, max_reward_failures=0)
    with pytest.raises(RuntimeError, match="more than `max_reward_failures`"):
        ours.train()
    reward.is_broken = False
    ours.train()
    assert ours.state.global_step == 4
    rows = pq.read_table(tmp_path / "trajectories.parquet").to_pylist()
    assert {row["kind"] for row in rows} == {"initial", "branch"}
    assert all(row["reward"] is not None for row in rows)


@pytest.mark.parametrize("is_left_on", [False, True])
def test_dropout_of_adapters_is_off_and_said_when_it_is_left_on(tmp_path, caplog, is_left_on):
    with caplog.at_level(logging.WARNING, "trl_agentic"):
        ours = APPOTrainer(
            tiny_model_path(),
            length_reward,
            appo_config(tmp_path, disable_dropout=not is_left_on, learning_rate=0.0, max_steps=2),
            dataset(),
            processing_class=word_tokenizer(),
            peft_config=LoraConfig(lora_dropout=0.2, target_modules="all-linear", init_lora_weights=False),
            tools=[search],
            engine=scripted_engine(),
        )
    assert ("has dropout (probability 0.2)" in caplog.text) is is_left_on
    ours.train()
    ratio_std = logs(ours)[1]["appo/ratio_std"]
    assert ratio_std > 1e-3 if is_left_on else ratio_std < 1e-6


def test_the_batch_of_a_step_that_is_not_finite_is_the_one_that_was_trained_on(tmp_path):
    ours = appo_trainer(tmp_path, max_steps=1)
    assign = ours.assign
    ours.assign = lambda view, advantages: (assign(view, advantages)[0] * math.nan, assign(view, advantages)[1])
    ours.train()
    (skipper,) = [each for each in ours.callback_handler.callbacks if isinstance(each, SkipNonFiniteSteps)]
    assert skipper.num_skipped == 1
    kept = torch.load(tmp_path / "non_finite" / "step-0-0.pt", weights_only=True)
    assert kept[0]["advantages"].dim() == 2 and kept[0]["advantages"].isnan().all()


def test_where_branches_differ_flat_rollouts_are_not_called_useless(tmp_path, caplog):
    def by_descent(completions, rollout_parent, **kwargs):
        return [0.3 if parent is None else float(row % 2) for row, parent in enumerate(rollout_parent)]

    with caplog.at_level(logging.WARNING, "trl_agentic"):
        appo_trainer(tmp_path / "with", reward_funcs=by_descent, max_steps=1).train()
        assert "teaches nothing" not in caplog.text
        appo_trainer(tmp_path / "without", reward_funcs=by_descent, max_steps=1, branches_per_rollout=0).train()
    assert "teaches nothing" in caplog.text


def test_that_neither_rollouts_nor_branches_have_any_spread_is_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "trl_agentic"):
        ours = appo_trainer(tmp_path, reward_funcs=lambda completions, **kwargs: [0.5] * len(completions), max_steps=1)
        ours.train()
    assert caplog.text.count("teaches nothing") == 1
    assert logs(ours)[0]["appo/flat_prompts"] == 1.0 and logs(ours)[0]["appo/max_advantage"] == 0.0


def test_an_infinite_reward_counts_as_none(tmp_path, caplog):
    def hot(completions, completion_ids, **kwargs):
        return [math.inf, *length_reward(completions, completion_ids)[1:]]

    with caplog.at_level(logging.WARNING, "trl_agentic"):
        ours = appo_trainer(tmp_path, reward_funcs=hot, max_steps=4)
        ours.train()
    assert "Infinite rewards of hot count as none" in caplog.text
    assert all(math.isfinite(log["grad_norm"]) and math.isfinite(log["appo/branch_reward"]) for log in logs(ours))
    rows = pq.read_table(tmp_path / "trajectories.parquet").to_pylist()
    unscored = [row for row in rows if row["advantages"] is not None and row["reward"] is None]
    assert unscored and all(set(row["advantages"]) <= {None, 0.0} for row in unscored)


def test_metrics_of_branching_rollouts_are_not_logged_where_rollouts_do_not_branch(tmp_path):
    ours = appo_trainer(tmp_path, max_steps=1)
    ours.train()
    assert not [name for name in logs(ours)[0] if name.startswith("branch/")]
    assert "rollout/tool_calls" in logs(ours)[0]


class Restless:
    """An environment that says something else at each reset."""

    num_resets = 0

    def reset(self, **kwargs) -> str:
        Restless.num_resets += 1
        return f" {'abcdefgh'[Restless.num_resets % 8]}"

    def fork(self):
        return Restless()

    def count(self) -> str:
        """
        Count.
        """
        return "1"


def test_a_reset_that_does_not_repeat_costs_branches_their_state_and_not_the_run(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "trl_agentic"):
        ours = APPOTrainer(
            tiny_model_path(),
            length_reward,
            appo_config(tmp_path, max_steps=2),
            dataset(),
            processing_class=word_tokenizer(),
            environment_factory=Restless,
            engine=scripted_engine(),
        )
        ours.train()
    assert ours.state.global_step == 2
    assert logs(ours)[0]["branches/rollout/state/broken"] > 0
    assert caplog.text.count("branches was lost") == 1


def test_the_engine_wakes_once_for_all_rounds_of_a_phase(tmp_path, monkeypatch):
    woken = []

    @contextmanager
    def awake(trainer):
        woken.append(trainer.state.global_step)
        yield

    monkeypatch.setattr(branch_phase, "awake", awake)
    appo_trainer(tmp_path, max_steps=2, num_branch_rounds=2, branches_per_rollout=1).train()
    assert woken == [0, 1]


def test_without_a_branch_the_engine_is_not_judged_by_what_older_weights_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr(branch_phase, "points_of_rollouts", lambda view, args, trees, firsts: [[] for _ in trees])
    ours = appo_trainer(tmp_path, max_steps=3)
    ours.train()
    assert all("appo/branch_logprob_gap" not in log for log in logs(ours))
    assert [log["appo/branches"] for log in logs(ours)] == [0.0] * 3


def test_how_many_trajectories_a_prompt_gets_is_printed(tmp_path, capsys):
    appo_trainer(tmp_path)
    assert capsys.readouterr().out.startswith("4 * (3 + 1) = 16 trajectories of a prompt in each optimizer step")


def test_no_noise_floor_is_logged_where_none_was_measured(tmp_path):
    options = {"steps_per_generation": 2, "num_iterations": 1, "branch_score": "entropy", "future_weight": 0.0}
    ours = appo_trainer(tmp_path, max_steps=2, **options)
    ours.train()
    assert all("appo/ratio_noise_floor" not in log for log in logs(ours))
