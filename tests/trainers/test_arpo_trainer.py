"""What `ARPOTrainer` refuses, what it survives, and what it keeps."""

import logging

import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from tiny import CALL, config, dataset, length_reward, scripted_engine, search, tiny_model_path, trainer
from transformers import TrainerCallback
from word_tokenizer import ids, word_tokenizer

from trl_agentic import rewards
from trl_agentic.rollout.engine import Script, ScriptedEngine
from trl_agentic.rollout.trajectory_file import read_trajectories
from trl_agentic.trainers import ARPOConfig, ARPOTrainer


def rows(ours, size=8):
    """One scored generation, as training makes it."""
    ours.model.train()
    return ours._generate_and_score_completions([dict(row) for row in dataset(size // 4) for _ in range(4)])


# --- what it refuses


def test_no_tools_is_an_error_that_names_the_alternative(tmp_path):
    with pytest.raises(ValueError, match=r"needs `tools`.*trl\.GRPOTrainer"):
        trainer(tmp_path, tools=())


def test_a_rollout_of_the_users_own_is_refused(tmp_path):
    with pytest.raises(ValueError, match="does not take `rollout_func`"):
        ARPOTrainer(
            tiny_model_path(),
            length_reward,
            config(tmp_path),
            dataset(),
            processing_class=word_tokenizer(),
            tools=[search],
            rollout_func=lambda *arguments: None,
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"branch_gate": "coin"}, "Unknown `branch_gate` 'coin'; expected one of 'threshold', 'stochastic'"),
        ({"advantage_attribution": "all"}, "expected one of 'soft', 'hard', 'softmax', 'winner'"),
        ({"tool_dialect": "xml"}, "Unknown `tool_dialect`"),
        ({"entropy_signal": "before"}, "Unknown `entropy_signal`"),
        ({"initial_rollouts": 5}, r"`initial_rollouts` \(5\) cannot exceed `num_generations` \(4\)"),
        ({"initial_rollouts": 0}, "must be at least 1, got 0"),
        ({"beam_size": 0}, "`beam_size` must be at least 1, got 0"),
        ({"entropy_window": 0}, "`entropy_window` must be at least 1, got 0"),
        ({"temperature": 0.0}, "`temperature` must be above 0"),
        ({"max_tool_calling_iterations": -1}, "`max_tool_calling_iterations` must be at least 0"),
        ({"branch_probability": float("nan")}, "`branch_probability` must be between 0 and 1"),
        ({"max_reward_failures": -1}, "`max_reward_failures` must be at least 0"),
        ({"num_tool_workers": -1}, "`num_tool_workers` must be at least 0, got -1"),
        ({"max_tool_result_tokens": 16}, "`max_tool_result_tokens` must be at least 32, got 16"),
        ({"max_completion_length": None}, "`max_completion_length` must be at least 1, got None"),
        ({"tool_timeout_s": 0.0}, "`tool_timeout_s` must be above 0"),
        ({"rollout_timeout_s": 3600.0}, r"below `ddp_timeout` \(1800 s\).*got 3600"),
        ({"generation_kwargs": {"seed": 1, "stop": ["x"]}}, "may not hold 'seed', 'stop'"),
        ({"per_device_train_batch_size": 3, "generation_batch_size": 12, "gradient_accumulation_steps": 1}, None),
    ],
)
def test_a_configuration_that_cannot_work_says_what_to_change(tmp_path, options, message):
    if message is None:
        config(tmp_path, **options)
        return
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **options)


def test_a_group_that_would_straddle_processes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ARPOConfig, "world_size", property(lambda self: 2))
    with pytest.raises(ValueError, match="must be a multiple of num_generations \\(4\\).*must stay on one process"):
        config(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=1)


def test_a_dataset_without_answers_is_refused_before_anything_is_loaded(tmp_path):
    questions = dataset().remove_columns("answer")
    with pytest.raises(ValueError, match=r"`arpo_reward` needs a column `answer`.*\['prompt'\]"):
        trainer(tmp_path, reward_funcs=rewards.arpo_reward, train_dataset=questions)


@pytest.mark.parametrize("empty", [None, [], [""], "", " ", [None, " "], float("nan")])
def test_a_dataset_whose_answers_are_all_empty_is_refused(tmp_path, empty):
    questions = Dataset.from_list([{"prompt": "what is a", "answer": empty}] * 8)
    with pytest.raises(ValueError, match="empty in all 8 rows of the training dataset"):
        trainer(tmp_path, reward_funcs=rewards.arpo_reward, train_dataset=questions)


def test_some_questions_without_an_answer_are_counted(tmp_path, caplog):
    questions = Dataset.from_list([{"prompt": "what is a", "answer": answer} for answer in (None, "b", "c", "d")] * 2)
    with caplog.at_level(logging.WARNING):
        trainer(tmp_path, reward_funcs=rewards.arpo_reward, train_dataset=questions)
    assert "2 of 8 questions have no answer" in caplog.text


def test_a_tool_in_place_of_a_list_of_tools_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"must be a list of functions, got `function`. Pass tools=\[...\]"):
        ARPOTrainer(tiny_model_path(), length_reward, config(tmp_path), dataset(), tools=search)


def test_a_configuration_of_trl_itself_is_refused(tmp_path):
    from trl import GRPOConfig

    with pytest.raises(TypeError, match="must be an `ARPOConfig`, got `GRPOConfig`"):
        ARPOTrainer(
            tiny_model_path(),
            length_reward,
            GRPOConfig(str(tmp_path), use_cpu=True, bf16=False),
            dataset(),
            tools=[search],
        )


def test_a_template_dialect_without_a_template_for_tools_is_refused(tmp_path):
    with pytest.raises(ValueError, match="tool_dialect|template"):
        trainer(tmp_path, tool_dialect="template")


def test_sampling_options_of_vllm_are_refused_without_vllm(tmp_path):
    with pytest.raises(ValueError, match="go to vLLM"):
        ARPOTrainer(
            tiny_model_path(),
            length_reward,
            config(tmp_path, generation_kwargs={"frequency_penalty": 0.5}),
            dataset(),
            processing_class=word_tokenizer(),
            tools=[search],
        )


# --- what it survives


def test_a_reward_function_that_raises_leaves_its_rows_unscored_and_is_counted(tmp_path, caplog):
    def moody(completions, **kwargs):
        raise KeyError("gold")

    ours = trainer(tmp_path, reward_funcs=[length_reward, moody])
    with caplog.at_level(logging.WARNING):
        batch = rows(ours)
    assert ours.reward_guard.num_failures == 1
    assert ours._rewards_per_func[:, 1].isnan().all() and not ours._rewards_per_func[:, 0].isnan().any()
    assert batch["advantages"].isfinite().all()
    assert "`moody` raised KeyError" in caplog.text


def test_reward_functions_that_raise_too_often_stop_the_run(tmp_path):
    def moody(completions, **kwargs):
        raise KeyError("gold")

    ours = trainer(tmp_path, reward_funcs=[length_reward, moody], max_reward_failures=1)
    rows(ours)
    with pytest.raises(RuntimeError, match="more than `max_reward_failures` \\(1\\) allows; the last one was `moody`"):
        rows(ours)


def test_a_missing_package_is_no_unscored_row(tmp_path):
    def needy(completions, **kwargs):
        raise ImportError("pip install trl-agentic[math]")

    with pytest.raises(ImportError, match="trl-agentic"):
        rows(trainer(tmp_path, reward_funcs=needy))


def test_an_unscored_row_gets_no_advantage_in_any_attribution(tmp_path):
    def picky(completions, completion_ids, **kwargs):
        return [None, *length_reward(completions, completion_ids)[1:]]

    for mode in ("hard", "softmax", "winner"):
        ours = trainer(tmp_path / mode, reward_funcs=picky, advantage_attribution=mode)
        assert rows(ours)["advantages"][0].abs().max() == 0


def test_an_async_reward_function_and_an_async_failure_work_alike(tmp_path):
    async def even(completions, completion_ids, **kwargs):
        return length_reward(completions, completion_ids)

    async def moody(completions, **kwargs):
        raise KeyError("gold")

    ours = trainer(tmp_path, reward_funcs=[even, moody])
    rows(ours)
    assert ours._rewards_per_func[:, 1].isnan().all() and not ours._rewards_per_func[:, 0].isnan().any()


@pytest.mark.parametrize("value", [["a", "b"], None, b"\xff\x00", 3.5, "x" * 1_000_000, {"a": 1}])
def test_whatever_a_tool_returns_the_run_goes_on(tmp_path, value):
    def search(query: str) -> str:
        """
        Look something up.

        Args:
            query: What to look for.
        """
        return value

    ours = trainer(tmp_path, tools=(search,), max_tool_result_tokens=32, max_completion_length=200)
    batch = rows(ours)
    assert batch["completion_ids"].shape[0] == 8
    assert any(call["status"] == "ok" for calls in ours._batch.extra_fields["rollout_calls"] for call in calls)


def test_a_model_that_writes_broken_calls_gets_rows_with_a_status(tmp_path):
    ours = trainer(
        tmp_path,
        engine=ScriptedEngine(lambda request: Script(ids("need <search> </search>"))),
        max_completion_length=999,
    )
    rows(ours)
    assert set(ours._batch.extra_fields["rollout_status"]) == {"invalid_calls"}
    assert ours._metrics["train"]["tools/failures/malformed"][-1] > 0


def test_a_context_shorter_than_the_prompt_gives_truncated_rows_of_one_masked_token(tmp_path):
    ours = trainer(tmp_path, engine=ScriptedEngine(lambda request: Script(CALL), max_model_length=2))
    batch = rows(ours)
    assert set(ours._batch.extra_fields["rollout_status"]) == {"truncated"}
    assert batch["completion_ids"].shape == (8, 1) and batch["tool_mask"].sum() == 0


def test_a_gradient_that_is_not_finite_is_skipped_and_its_batch_kept(tmp_path, caplog):
    ours = trainer(tmp_path, max_steps=1)
    weights = [parameter.detach().clone() for parameter in ours.model.parameters()]
    compute = ours._compute_loss
    ours._compute_loss = lambda model, inputs: compute(model, inputs) * torch.nan
    with caplog.at_level(logging.WARNING):
        ours.train()
    assert all(torch.equal(old, new) for old, new in zip(weights, ours.model.parameters(), strict=True))
    assert "is not finite, so the step is skipped" in caplog.text
    kept = torch.load(tmp_path / "non_finite" / "step-0-0.pt", weights_only=False)
    assert kept[0]["completion_ids"].shape[0] == 4


def test_groups_without_any_spread_are_said_to_teach_nothing(tmp_path, caplog):
    def same(completions, **kwargs):
        return [0.0] * len(completions)

    ours = trainer(tmp_path, reward_funcs=same)
    with caplog.at_level(logging.WARNING):
        rows(ours)
    assert "teaches nothing. Add a graded reward" in caplog.text


# --- what it does


def test_reward_functions_may_ask_for_the_rollout_by_name(tmp_path):
    seen = {}

    def curious(completions, rollout_status, rollout_calls, rollout_parent, rollout_fork, answer, **kwargs):
        seen.update(locals())
        return [0.0] * len(completions)

    ours = trainer(tmp_path, reward_funcs=[curious, length_reward], initial_rollouts=2)
    rows(ours)
    assert set(seen["rollout_status"]) == {"finished"} and seen["answer"] == [["b"]] * 8
    assert seen["rollout_calls"][0][0]["name"] == "search" and seen["rollout_calls"][0][0]["status"] == "ok"
    branches = [row for row, parent in enumerate(seen["rollout_parent"]) if parent is not None]
    assert branches and all(seen["rollout_fork"][row] > 0 for row in branches)
    roles = [message["role"] for message in seen["completions"][0]]
    assert roles[:2] == ["assistant", "tool"] and roles[-1] == "assistant"


def test_soft_attribution_leaves_trls_advantages_alone(tmp_path):
    assert rows(trainer(tmp_path, initial_rollouts=2))["advantages"].shape == (8,)


def test_hard_attribution_averages_the_tokens_before_the_fork(tmp_path):
    soft = rows(trainer(tmp_path / "soft", initial_rollouts=2))["advantages"]
    ours = trainer(tmp_path / "hard", initial_rollouts=2, advantage_attribution="hard")
    hard = rows(ours)["advantages"]
    assert hard.shape == (8, max(map(len, ours._batch.completion_ids)))
    checked = 0
    for number, tree in enumerate(ours._trees):
        for row, trajectory in enumerate(tree.trajectories):
            if trajectory.parent is None:
                continue
            relatives = [other for other in range(4) if tree.shared_lengths()[row][other] >= trajectory.fork]
            mean = soft[[4 * number + other for other in relatives]].mean()
            assert hard[4 * number + row, trajectory.fork - 1] == pytest.approx(mean.item(), abs=1e-6)
            assert hard[4 * number + row, len(trajectory) - 1] == pytest.approx(soft[4 * number + row].item())
            checked += 1
    assert checked >= 2


def test_rows_of_a_prompt_stay_together_through_shuffling(tmp_path):
    ours = trainer(tmp_path, initial_rollouts=2, gradient_accumulation_steps=2)
    ours.model.train()
    ours._prepare_inputs([dict(row) for row in dataset(2) for _ in range(4)])
    for micro in ours._buffered_inputs:
        prompts = micro["prompt_ids"]
        assert (prompts == prompts[0]).all()


def test_evaluation_never_branches(tmp_path):
    ours = trainer(tmp_path, initial_rollouts=2, per_device_eval_batch_size=8)
    ours.eval_dataset = dataset(4)
    figures = ours.evaluate()
    assert figures["eval_branch/rate"] == 0.0 and figures["eval_branch/points"] == 0.0
    assert figures["eval_reward"] > 0


def test_prompts_of_plain_text_get_completions_of_plain_text(tmp_path):
    seen = []

    def curious(prompts, completions, rollout_messages, **kwargs):
        seen.extend(zip(completions, rollout_messages, strict=True))
        return [float(len(text)) for text in completions]

    texts = Dataset.from_list([{"prompt": f"what is {letter}", "answer": "b"} for letter in "abcdefgh"])
    ours = trainer(tmp_path, reward_funcs=curious, train_dataset=texts)
    ours.model.train()
    ours._generate_and_score_completions([dict(row) for row in texts.select(range(2)) for _ in range(4)])
    assert all("<answer>" in text and messages[-1]["role"] == "assistant" for text, messages in seen)
    searched = [(text, messages) for text, messages in seen if "<result>" in text]
    assert searched and all(
        messages[1] == {"role": "tool", "name": "search", "content": "a is b"} for _, messages in searched
    )


def test_every_trajectory_is_kept_with_ids_masks_scores_and_descent(tmp_path):
    ours = trainer(tmp_path, initial_rollouts=2, advantage_attribution="hard")
    ours.train()
    table = pq.read_table(tmp_path / "trajectories.parquet").to_pylist()
    assert [row["step"] for row in table] == [0] * 8 + [1] * 8
    assert len({(row["prompt_id"], row["trajectory"]) for row in table}) == 16
    by_place = {(row["prompt_id"], row["trajectory"]): row for row in table}
    assert any(row["kind"] == "branch" for row in table)
    for row in table:
        length = len(row["completion_ids"])
        assert len(row["sampled_mask"]) == len(row["logprobs"]) == len(row["entropies"]) == length
        assert len(row["advantages"]) == length
        for mask, *values in zip(
            row["sampled_mask"], row["logprobs"], row["entropies"], row["advantages"], strict=True
        ):
            assert all((value is None) == (mask == 0) for value in values)
        if row["parent"] is not None:
            parent = by_place[row["prompt_id"], row["parent"]]
            assert parent["completion_ids"][: row["fork"]] == row["completion_ids"][: row["fork"]]
        assert row["rewards"]["length_reward"] == pytest.approx(row["reward"])


def test_a_row_that_is_left_out_of_the_loss_has_no_advantages_in_the_file(tmp_path):
    options = {"mask_truncated_completions": True, "max_completion_length": 22, "max_steps": 1}
    trainer(tmp_path, engine=scripted_engine(3), **options).train()
    table = pq.read_table(tmp_path / "trajectories.parquet").to_pylist()
    left_out = [row["advantages"] is None for row in table]
    assert left_out == [row["status"] == "truncated" for row in table] and 0 < sum(left_out) < len(table)


def test_a_resumed_run_does_its_steps_again_and_keeps_each_once(tmp_path):
    options = {"initial_rollouts": 2, "save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    first, at_saves = trainer(tmp_path, **options), []

    class Look(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            at_saves.append(((tmp_path / "trajectories.parquet").exists(), read_trajectories(tmp_path).num_rows))

    first.add_callback(Look())
    first.train()
    assert at_saves == [(False, 8), (False, 16), (False, 24)]  # a save merges nothing, and misses nothing
    assert not (tmp_path / "_trajectories").exists()
    resumed = trainer(tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    steps = pq.read_table(tmp_path / "trajectories.parquet", columns=["step"])["step"].to_pylist()
    assert steps == [0] * 8 + [1] * 8 + [2] * 8


def test_a_merge_that_fails_costs_neither_the_run_nor_its_rollouts(tmp_path, monkeypatch, caplog):
    def on_a_full_disk():
        raise OSError("No space left on device")

    ours = trainer(tmp_path, max_steps=1)
    monkeypatch.setattr(ours.trajectory_writer, "compact", on_a_full_disk)
    ours.train()
    assert ours.state.global_step == 1 and "could not be merged and stay in parts" in caplog.text
    assert read_trajectories(tmp_path).num_rows == 8


def test_branching_draws_depend_on_seed_and_step_alone(tmp_path):
    ours = trainer(tmp_path, initial_rollouts=2, branch_gate="stochastic")
    draws = [[ours.branch_policy().rng.random() for _ in range(3)] for _ in range(2)]
    assert draws[0] == draws[1]
    ours.state.global_step = 1
    assert [ours.branch_policy().rng.random() for _ in range(3)] != draws[0]


def test_scripted_engine_and_transformers_engine_stand_in_the_same_place(tmp_path):
    ours = ARPOTrainer(
        tiny_model_path(),
        length_reward,
        config(tmp_path, max_completion_length=8, max_steps=1),
        dataset(),
        processing_class=word_tokenizer(),
        tools=[search],
    )
    ours.train()
    assert ours.state.global_step == 1
    assert scripted_engine().max_model_length == 4096
