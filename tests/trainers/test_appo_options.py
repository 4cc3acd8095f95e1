"""`APPOTrainer` with its options, with rewards of every kind, environments and adapters; and what it tells."""

import math

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from counting_environments import Copied, Replayed
from peft import LoraConfig
from tiny import appo_config, appo_trainer, dataset, length_reward, scripted_engine, search, tiny_model_path
from word_tokenizer import ids, word_tokenizer

from trl_agentic import APPOTrainer
from trl_agentic.rollout.engine import Request, Script, ScriptedEngine


def logs(ours):
    return [log for log in ours.state.log_history if "loss" in log]


def table(folder):
    return pq.read_table(folder / "trajectories.parquet").to_pylist()


@pytest.mark.parametrize(
    ("options", "num_branches"),
    [
        ({"branch_score": "sum"}, 12),
        ({"branch_score": "entropy"}, 12),
        ({"num_generations": 2, "branches_per_rollout": 1}, 2),
        ({"num_generations": 2, "branches_per_rollout": 7}, 14),
        ({"branches_per_rollout": 1, "num_branch_rounds": 3}, 28),
        ({"loss_type": "grpo", "beta": 0.1}, 12),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, 12),
        ({"loss_type": "luspo", "importance_sampling_level": "sequence"}, 12),
        ({"off_policy_mask_threshold": 0.5, "top_entropy_quantile": 0.5}, 12),
        ({"gradient_checkpointing": True, "pad_to_multiple_of": 32}, 12),
    ],
    ids=str,
)
def test_every_option_trains_on_the_branches_it_asks_for(tmp_path, options, num_branches):
    ours = appo_trainer(tmp_path, train_dataset=dataset(16), **options)
    before = [parameter.detach().clone() for parameter in ours.model.parameters()]
    ours.train()
    assert ours.state.global_step == 4
    for log in logs(ours):
        assert math.isfinite(float(log["loss"])) and float(log["grad_norm"]) > 0
        # a rollout of eight tokens may have fewer than seven words to branch at
        assert log["appo/branches"] == pytest.approx(num_branches, abs=0 if num_branches < 14 else num_branches / 4)
        missing = 1 - log["appo/branches"] / num_branches
        assert log["appo/missing_branches"] == pytest.approx(missing)
    assert all(not torch.equal(old, new) for old, new in zip(before, ours.model.parameters(), strict=True))


def test_rollouts_that_were_cut_off_branch_nowhere_and_are_not_trained(tmp_path):
    ours = appo_trainer(tmp_path, mask_truncated_completions=True, max_completion_length=22)
    ours.train()
    rows = table(tmp_path)
    cut = {(row["prompt_id"], row["trajectory"]) for row in rows if row["status"] == "truncated"}
    initial = [row for row in rows if row["kind"] == "initial"]
    assert 0 < sum(row["advantages"] is None for row in initial) < len(initial)
    for row in initial:
        assert (row["advantages"] is None) == ((row["prompt_id"], row["trajectory"]) in cut)
    assert not {(row["prompt_id"], row["parent"]) for row in rows if row["kind"] == "branch"} & cut


def test_a_rollout_phase_without_any_word_trains_without_branches(tmp_path):
    ours = appo_trainer(tmp_path, ScriptedEngine(lambda request: Script(ids("} } <eos>"))))
    ours.train()
    assert [log["appo/branches"] for log in logs(ours)] == [0.0] * 4
    assert {row["kind"] for row in table(tmp_path)} == {"initial"}


# --- rewards


def test_reward_functions_see_the_descent_of_branches_and_the_columns_of_their_prompt(tmp_path):
    seen = []

    def curious(completions, completion_ids, prompts, answer, letter, **kwargs):
        seen.append({name: kwargs[name] for name in ("rollout_parent", "rollout_fork", "rollout_status")})
        seen[-1] |= {"prompts": prompts, "letter": letter, "completions": completions}
        assert answer == [["b"]] * len(completions)
        return length_reward(completions, completion_ids)

    questions = dataset().add_column("letter", list("abcdefgh"))
    appo_trainer(tmp_path, reward_funcs=curious, train_dataset=questions, max_steps=2).train()
    rollouts, *phases = seen
    assert rollouts["rollout_parent"] == [None] * 32 and len(phases) == 2
    for phase in phases:
        assert len(phase["completions"]) == 24 and set(phase["rollout_parent"]) == {0, 1, 2, 3}
        assert max(phase["rollout_fork"]) > 0 and set(phase["rollout_status"]) <= {"finished", "truncated"}
        for prompt, letter, completion in zip(phase["prompts"], phase["letter"], phase["completions"], strict=True):
            assert prompt[0]["content"] == f"what is {letter}" and completion[0]["role"] == "assistant"
        assert len(set(phase["letter"])) == 2


def test_a_reward_function_that_raises_now_and_then_costs_the_scores_of_its_call(tmp_path):
    calls = []

    def moody(completions, completion_ids, rollout_parent, **kwargs):
        calls.append(rollout_parent[0] is None)
        if len(calls) % 2 == 0:
            raise KeyError("gold")
        return length_reward(completions, completion_ids)

    ours = appo_trainer(tmp_path, reward_funcs=moody)
    ours.train()
    assert calls == [True] + [False] * 4 and ours.reward_guard.num_failures == 2
    scores = [row["reward"] for row in table(tmp_path) if row["kind"] == "branch"]
    assert sum(score is None for score in scores) == 2 * 24 and len(scores) == 4 * 24
    assert all(math.isfinite(float(log["grad_norm"])) for log in logs(ours))


def test_metrics_of_a_reward_function_are_those_of_the_rollouts_that_are_trained(tmp_path):
    def measuring(completions, completion_ids, rollout_parent, log_metric, **kwargs):
        log_metric("from_branches", float(rollout_parent[0] is not None))
        return length_reward(completions, completion_ids)

    ours = appo_trainer(tmp_path, reward_funcs=measuring, max_steps=6)
    ours.train()
    assert [log["from_branches"] for log in logs(ours) if "from_branches" in log] == [0.0, 0.0]


@pytest.mark.parametrize("factory", [Copied, Replayed])
def test_a_branch_goes_on_with_the_environment_of_its_position(tmp_path, factory):
    class Shelf(factory):
        def search(self, query: str) -> str:
            """
            Look something up.

            Args:
                query: What to look for.
            """
            self.add()
            return f"{query} is {self.counts[-1]}"

    ours = APPOTrainer(
        tiny_model_path(),
        None,
        appo_config(tmp_path),
        dataset(),
        processing_class=word_tokenizer(),
        environment_factory=Shelf,
        engine=scripted_engine(),
    )
    ours.train()
    branches = [row for row in table(tmp_path) if row["kind"] == "branch"]
    assert any(row["fork"] and row["tool_calls"] for row in branches)
    for row in branches:
        answered = [call["result"] for call in row["tool_calls"] if call["status"] == "ok"]
        assert [result.split()[-1] for result in answered] == [str(number + 1) for number in range(len(answered))]
        assert row["reward"] == len(answered)


def test_adapters_train_and_the_base_model_stays(tmp_path):
    ours = APPOTrainer(
        tiny_model_path(),
        length_reward,
        appo_config(tmp_path),
        dataset(),
        processing_class=word_tokenizer(),
        tools=[search],
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False),
        engine=scripted_engine(),
    )
    before = {name: parameter.detach().clone() for name, parameter in ours.model.named_parameters()}
    ours.train()
    changed = {name for name, parameter in ours.model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed and all("lora_" in name for name in changed)
    assert all(log["appo/ratio_std"] > 0 for log in logs(ours)[1:])


# --- what it tells


def test_the_table_of_completions_shows_the_rows_that_are_trained(tmp_path):
    def telling(completions, completion_ids, rollout_parent, log_extra, **kwargs):
        log_extra("parent", [str(parent) for parent in rollout_parent])
        return length_reward(completions, completion_ids)

    ours = appo_trainer(tmp_path, reward_funcs=telling, log_completions=True, num_completions_to_print=1, max_steps=5)
    ours.train()
    for path in sorted((tmp_path / "completions").glob("*.parquet")):
        shown = pd.read_parquet(path)
        assert len(shown) == 32 and set(shown["parent"]) == {"None"}


def test_an_optimizer_step_that_cannot_hold_a_group_is_refused_with_the_numbers(tmp_path):
    with pytest.raises(ValueError, match=r"2 \* 1 = 2 rows, which must be a multiple of num_generations \(4\)"):
        appo_trainer(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=1)


def test_the_model_card_names_method_paper_and_settings(tmp_path):
    ours = appo_trainer(tmp_path, branch_credit="prefix", future_half_life=16.0)
    ours.create_model_card("tiny-appo")
    card = (tmp_path / "README.md").read_text()
    assert "APPO" in card and "2606.12384" in card and "appo2026" in card
    for row in (
        "| `branch_credit` | `prefix` |",
        "| `future_half_life` | `16.0` |",
        "| `branches_per_rollout` | `3` |",
    ):
        assert row in card
    assert "ARPO" not in card


def test_the_engine_is_asked_for_branches_with_the_budget_that_their_prefix_leaves(tmp_path):
    requests = []
    inner = scripted_engine()
    submit = inner.submit

    def noting(request: Request):
        requests.append(request)
        submit(request)

    inner.submit = noting
    appo_trainer(tmp_path, inner, max_steps=1).train()
    branches = [request for request in requests if int(request.id.split("/")[1]) >= 4]
    assert len({request.id.rsplit("/", 1)[0] for request in branches}) == 24
    prompt = 3  # "what is a"
    assert all(request.max_tokens == 64 - (len(request.token_ids) - prompt) for request in branches)
