"""`trajectories.parquet` of an APPO run, and runs that are resumed, repeated or evaluated in mid-generation."""

import random
from collections import Counter

import pyarrow.parquet as pq
import pytest
import torch
from appo_records import record
from tiny import ANSWERS, CALL, appo_trainer, dataset
from transformers import TrainerCallback

from trl_agentic.rollout.engine import Request, Script, ScriptedEngine


def table(folder):
    return pq.read_table(folder / "trajectories.parquet").to_pylist()


def by_prompt(rows):
    trees = {}
    for row in rows:
        trees.setdefault(row["prompt_id"], []).append(row)
    return trees


def kinds(rows):
    return Counter(row["kind"] for row in rows)


# --- the file


def test_branches_are_kept_behind_their_rollouts_with_their_parents_prefix(tmp_path):
    appo_trainer(tmp_path).train()
    trees = by_prompt(table(tmp_path))
    assert len(trees) == 8
    for rows in trees.values():
        assert [row["trajectory"] for row in rows] == list(range(16))
        assert [row["kind"] for row in rows] == ["initial"] * 4 + ["branch"] * 12
        assert {row["step"] for row in rows} == {0}
        for row in rows[4:]:
            parent = rows[row["parent"]]
            assert row["completion_ids"][: row["fork"]] == parent["completion_ids"][: row["fork"]]
            assert row["logprobs"][: row["fork"]] == parent["logprobs"][: row["fork"]]
            assert len(row["completion_ids"]) > row["fork"] and parent["sampled_mask"][row["fork"]] == 1


def test_every_row_has_its_reward_and_initial_rollouts_alone_have_advantages(tmp_path):
    appo_trainer(tmp_path).train()
    for row in table(tmp_path):
        ids = row["completion_ids"]
        assert row["reward"] == pytest.approx(sum(token % 2 == 0 for token in ids) / len(ids))
        assert row["rewards"] == {"length_reward": row["reward"]}
        assert row["messages"][0]["role"] == "assistant"
        if row["kind"] == "branch":
            assert row["advantages"] is None
        else:
            assert [value is not None for value in row["advantages"]] == [bool(bit) for bit in row["sampled_mask"]]


def test_the_kept_advantages_are_those_of_the_loss(tmp_path):
    ours = appo_trainer(tmp_path)
    steps = record(ours)
    ours.train()
    kept = {(row["prompt_id"], row["trajectory"]): row["advantages"] for row in table(tmp_path)}
    for step in steps:
        trained = step.joined("advantages")
        for row, values in enumerate(trained.tolist()):
            of_row = kept[step.trees[row // 4].prompt_id, row % 4]
            assert len(of_row) == len(step.trees[row // 4].trajectories[row % 4])
            assert all(value is None or value == pytest.approx(values[at]) for at, value in enumerate(of_row))


def test_a_row_that_the_released_safeguards_leave_out_is_kept_without_advantages(tmp_path):
    ours = appo_trainer(tmp_path, released_safeguards=True, learning_rate=0.1, lr_scheduler_type="constant")
    steps = record(ours)
    ours.train()
    kept = {(row["prompt_id"], row["trajectory"]): row["advantages"] for row in table(tmp_path)}
    dropped = 0
    for step in steps:
        for row, mask in enumerate(step.joined("tool_mask")):
            is_dropped = kept[step.trees[row // 4].prompt_id, row % 4] is None
            assert is_dropped == (mask.sum() == 0)
            dropped += is_dropped
    assert 0 < dropped < 32


def test_model_versions_are_those_of_the_weights_that_sampled(tmp_path):
    appo_trainer(tmp_path, max_steps=6).train()
    versions = {0: set(), 4: set()}
    for rows in by_prompt(table(tmp_path)).values():
        planted, grown = ({row["model_version"] for row in part} for part in (rows[:4], rows[4:]))
        versions[rows[0]["step"]].add((*planted, *grown))
    # the first step branches with the weights that rolled out, each later one with its own
    assert versions[0] == {(1, 1), (1, 2), (1, 3), (1, 4)}
    assert {pair for pair in versions[4] if len(pair) == 2} == {(5, 5), (5, 6)}


def test_both_iterations_keep_their_branches_and_the_rollouts_are_kept_once(tmp_path):
    appo_trainer(tmp_path, num_iterations=2, steps_per_generation=4).train()
    trees = by_prompt(table(tmp_path))
    assert len(trees) == 4
    for rows in trees.values():
        assert [row["trajectory"] for row in rows] == list(range(28))
        assert kinds(rows) == {"initial": 4, "branch": 24}
        first, second = ({row["model_version"] for row in part} for part in (rows[4:16], rows[16:]))
        assert min(second) - min(first) == 2


def test_branches_of_branches_are_kept_with_the_prefix_of_theirs(tmp_path):
    appo_trainer(tmp_path, num_branch_rounds=2, branches_per_rollout=1, max_steps=2).train()
    grandchildren = 0
    for rows in by_prompt(table(tmp_path)).values():
        for row in rows:
            if row["parent"] is not None:
                parent = rows[row["parent"]]
                assert row["completion_ids"][: row["fork"]] == parent["completion_ids"][: row["fork"]]
                grandchildren += parent["parent"] is not None
    assert grandchildren > 0


@pytest.mark.parametrize("schedule", ["mini_batch", "rollout"])
def test_rollouts_that_were_never_trained_are_kept_without_advantages(tmp_path, schedule):
    appo_trainer(tmp_path, max_steps=1, branch_schedule=schedule).train()
    trees = by_prompt(table(tmp_path))
    assert len(trees) == 8
    trained = [rows for rows in trees.values() if rows[0]["advantages"] is not None]
    assert len(trained) == 2 and all(kinds(rows) == {"initial": 4, "branch": 12} for rows in trained)
    rest = [rows for rows in trees.values() if rows[0]["advantages"] is None]
    branches = {} if schedule == "mini_batch" else {"branch": 12}
    assert len(rest) == 6 and all(kinds(rows) == {"initial": 4} | branches for rows in rest)
    assert all(row["advantages"] is None for rows in rest for row in rows)


def test_no_file_is_written_where_none_is_wanted(tmp_path):
    appo_trainer(tmp_path, save_trajectories=False).train()
    assert not (tmp_path / "trajectories.parquet").exists() and not (tmp_path / "_trajectories").exists()


# --- in mid-generation


def test_a_run_that_is_resumed_in_mid_generation_begins_a_new_one(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 1}
    appo_trainer(tmp_path, max_steps=2, **options).train()
    resumed = appo_trainer(tmp_path, max_steps=7, **options)
    steps = record(resumed)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [step.number for step in steps] == [2, 3, 4, 5, 6]
    fresh = ["appo/ratio_noise_floor" in log for log in resumed.state.log_history if "loss" in log]
    assert fresh == [True, False] + [True, False, False, False, True]
    trees = by_prompt(table(tmp_path))
    assert Counter(rows[0]["step"] for rows in trees.values()) == {0: 8, 2: 8, 6: 8}
    trained = Counter(rows[0]["step"] for rows in trees.values() if rows[0]["advantages"] is not None)
    assert trained == {0: 4, 2: 8, 6: 2}


class EvaluateEachStep(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_evaluate = True


def order_free_engine() -> ScriptedEngine:
    """An engine whose answer to a request depends on its prefix and its place in the tree, not on those before."""

    def answer(request: Request) -> Script:
        rng = random.Random(f"{request.token_ids} {request.id.split('-')[-1]}")
        return Script(CALL if rng.random() < 0.5 and len(request.token_ids) < 24 else rng.choice(ANSWERS))

    return ScriptedEngine(answer)


@pytest.mark.parametrize("schedule", ["mini_batch", "rollout"])
def test_evaluation_in_mid_generation_disturbs_nothing(tmp_path, schedule):
    runs = []
    for name, callbacks in (("plain", []), ("evaluated", [EvaluateEachStep])):
        ours = appo_trainer(
            tmp_path / name, order_free_engine(), branch_schedule=schedule, per_device_eval_batch_size=4
        )
        ours.eval_dataset = dataset(4)
        for callback in callbacks:
            ours.add_callback(callback)
        ours.train()
        runs.append((ours, table(tmp_path / name)))
    (plain, rows), (evaluated, same) = runs
    assert sum("eval_reward" in log for log in evaluated.state.log_history) == 4
    timeless = [[row | {"tool_calls": None} for row in each] for each in (rows, same)]
    assert timeless[0] == timeless[1]
    for mine, other in zip(plain.model.parameters(), evaluated.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_second_call_of_train_begins_a_new_generation(tmp_path):
    ours = appo_trainer(tmp_path, max_steps=3)
    ours.train()
    steps = record(ours)
    ours.train()
    assert [step.number for step in steps] == [0, 1, 2]
    trees = by_prompt(table(tmp_path))
    assert Counter(rows[0]["step"] for rows in trees.values()) == {0: 8}
    fresh = ["appo/ratio_noise_floor" in log for log in ours.state.log_history if "loss" in log]
    assert fresh == [True, False, False]
