"""
Every option of `GRPOConfig` works or raises: the table in `docs/options.md`, row by row.

What APPO does not share with ARPO is in `test_appo_every_option.py`.
"""

import dataclasses
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from test_equals_grpo import OPTIONS
from tiny import (
    CALL,
    appo_config,
    appo_trainer,
    config,
    dataset,
    length_reward,
    scripted_engine,
    search,
    tiny_model_path,
    trainer,
)
from transformers import TrainingArguments
from trl import GRPOConfig
from word_tokenizer import word_tokenizer, words

from trl_agentic.rollout.engine import Script, ScriptedEngine
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.trainers import ARPOTrainer
from trl_agentic.trainers.agentic_config import UNSUPPORTED_ENGINE_KWARGS

BOTH = pytest.mark.parametrize("config", [config, appo_config], ids=["arpo", "appo"])
TABLE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
ROWS = dict(re.findall(r"^\| `(\w+)` \|.*\| (\w+) \|$", TABLE.read_text(), re.MULTILINE))

RAISES = {
    "cache_implementation": "static",
    "ds3_gather_for_generation": False,
    "transformers_continuous_batching_config": {"max_memory_percent": 0.4},
    "use_transformers_continuous_batching": True,
    "use_transformers_paged": True,
    "vllm_group_port": 1,
    "vllm_mode": "server",
    "vllm_server_base_url": "http://127.0.0.1:8000",
    "vllm_server_host": "127.0.0.1",
    "vllm_server_port": 8001,
    "vllm_server_timeout": 1.0,
    "vllm_structured_outputs_regex": ".*",
    "vllm_tensor_parallel_size": 2,
}
SAMPLING = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "generation_kwargs": {"frequency_penalty": 0.5},
}
EFFECT = {
    "chat_template_kwargs",
    "log_completions",
    "log_completions_hub_repo",
    "log_multimodal",
    "log_unique_prompts",
    "mask_truncated_completions",
    "max_completion_length",
    "max_tool_calling_iterations",
    "model_init_kwargs",
    "num_completions_to_print",
    "num_generations",
    "num_generations_eval",
    "trust_remote_code",
}


def test_the_table_holds_each_option_of_grpo_and_no_other():
    inherited = {field.name for field in dataclasses.fields(TrainingArguments)}
    own = {field.name for field in dataclasses.fields(GRPOConfig)} - inherited
    assert set(ROWS) == own


def test_every_row_is_checked_the_way_it_says():
    compared = {name for options in OPTIONS for name in options} - {"max_steps", "gradient_accumulation_steps"}
    compared -= {"gradient_checkpointing"}
    compared.add("router_aux_loss_coef")
    by_check = {check: {name for name, kind in ROWS.items() if kind == check} for check in set(ROWS.values())}
    assert by_check["equal"] == compared
    assert by_check["raises"] == set(RAISES)
    assert by_check["sampling"] == set(SAMPLING)
    assert by_check["effect"] == EFFECT
    assert set(by_check) == {"equal", "raises", "sampling", "effect", "engine"}


@pytest.mark.filterwarnings("ignore:`use_transformers_paged` is deprecated:FutureWarning")
@BOTH
@pytest.mark.parametrize("name", sorted(RAISES))
def test_an_option_that_could_only_be_ignored_raises_and_says_why(tmp_path, config, name):
    reported = "use_transformers_continuous_batching" if name == "use_transformers_paged" else name
    with pytest.raises(ValueError, match=f"`{reported}=.*is not supported: .*Leave it at"):
        config(tmp_path, **{name: RAISES[name]})


@BOTH
@pytest.mark.parametrize("name", sorted(UNSUPPORTED_ENGINE_KWARGS))
def test_an_engine_argument_with_which_rollouts_would_go_wrong_raises(tmp_path, config, name):
    for kwargs in ({name: "anything"}, f'{{"{name}": null}}'):
        with pytest.raises(ValueError, match=f"`vllm_engine_kwargs` may not hold '{name}': .*Leave it out"):
            config(tmp_path, vllm_engine_kwargs=kwargs)


@BOTH
def test_no_forward_pass_holds_more_rows_than_a_micro_batch(tmp_path, config):
    ours = {"config": trainer, "appo_config": appo_trainer}[config.__name__](
        tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4, steps_per_generation=8
    )
    rows = set()
    ours.model.model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.add(len(kwargs["input_ids"])), with_kwargs=True
    )
    ours.train()
    assert rows == {2}


@pytest.mark.filterwarnings("ignore:With `top_p`:UserWarning")
@pytest.mark.parametrize("name", sorted(SAMPLING))
def test_sampling_options_reach_the_engine(tmp_path, name):
    engine = scripted_engine()
    ours = trainer(tmp_path, engine=engine, **{name: SAMPLING[name]})
    ours.rollout([dataset()[0]["prompt"]], 2)
    attribute = "extra" if name == "generation_kwargs" else name
    assert {repr(getattr(request.sampling, attribute)) for request in engine.requests} == {repr(SAMPLING[name])}


@BOTH
@pytest.mark.parametrize(("name", "value"), [("top_p", 0.9), ("top_k", 5), ("min_p", 0.1)])
def test_truncated_sampling_with_vllm_warns_that_ratios_are_biased(tmp_path, config, name, value):
    with pytest.warns(UserWarning, match="renormalised"):
        config(tmp_path, use_vllm=True, **{name: value})


def test_a_router_loss_on_a_model_without_experts_raises_as_in_trl(tmp_path):
    with pytest.raises(ValueError, match="not a Mixture-of-Experts model"):
        trainer(tmp_path, router_aux_loss_coef=0.1)


def test_model_init_kwargs_and_trust_remote_code_reach_the_model(tmp_path):
    ours = trainer(tmp_path, model_init_kwargs={"attn_implementation": "eager"}, trust_remote_code=True)
    assert ours.model.config._attn_implementation == "eager"


def test_chat_template_kwargs_reach_the_template(tmp_path):
    tokenizer = word_tokenizer()
    tokenizer.chat_template = "{% if shout %}h {% endif %}a"
    ours = ARPOTrainer(
        tiny_model_path(),
        length_reward,
        config(tmp_path, chat_template_kwargs={"shout": True}),
        dataset(),
        processing_class=tokenizer,
        tools=[search],
        engine=scripted_engine(),
    )
    assert words(ours.dialect.encode_prompt([{"role": "user", "content": "b"}])) == "h a"


def test_completion_length_and_tool_turns_are_limits_of_the_whole_trajectory(tmp_path):
    ours = trainer(tmp_path, max_completion_length=20, max_tool_calling_iterations=1)
    trees = ours.rollout([row["prompt"] for row in dataset()], 4)
    rows = [trajectory for tree in trees for trajectory in tree.trajectories]
    assert max(map(len, rows)) <= 20
    assert max(sum(result.status == "ok" for result in row.results) for row in rows) == 1


def test_a_trajectory_makes_32_calls_at_most_however_many_a_turn_holds(tmp_path):
    class Eager(TagDialect):
        """Reads every call forty times."""

        def parse(self, *token_ids):
            turn = super().parse(*token_ids)
            return dataclasses.replace(turn, calls=turn.calls * 40)

    ours = trainer(tmp_path, engine=ScriptedEngine(lambda request: Script(CALL)), max_completion_length=2048)
    ours.dialect = Eager(word_tokenizer(), [search])
    (tree,) = ours.rollout([dataset()[0]["prompt"]])
    statuses = [result.status.value for result in tree.trajectories[0].results]
    assert statuses == ["ok"] * 32 + ["budget"] * 8
    assert config(tmp_path, max_tool_calls=None).max_tool_calls is None


def test_num_generations_eval_groups_the_rows_of_an_evaluation(tmp_path):
    ours = trainer(tmp_path, num_generations_eval=2, per_device_eval_batch_size=4)
    ours.eval_dataset = dataset(4)
    figures = ours.evaluate()
    assert 0 <= figures["eval_frac_reward_zero_std"] <= 1 and figures["eval_reward"] > 0


def called(**arguments):
    """A completion that calls a tool."""
    call = {"type": "function", "function": {"name": "look_up", "arguments": arguments}}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "b"}]


@pytest.mark.parametrize(
    "completions",
    [
        [called(key=1), called(key="one")],  # one tool takes a number, another a text
        [called(key=[1]), called(key=None), called(other={"a": 1})],
        [called(), called()],
        [called(key="\ud83d"), [{"role": "assistant", "content": "half of \ud83d"}]],
        [called(key=10**30), called(key=float("nan"))],
        ["plain text", "with half of \ud83d"],
    ],
    ids=["types", "kinds", "none", "half a character", "numbers", "texts"],
)
def test_completions_of_any_kind_are_logged(tmp_path, capsys, completions):
    ours = trainer(tmp_path, log_completions=True)
    ours._logs["prompt"].extend([[{"role": "user", "content": "what is a"}]] * len(completions))
    ours._logs["completion"].extend(completions)
    for values in (ours._logs["rewards"]["length_reward"], ours._logs["advantages"]):
        values.extend([0.0] * len(completions))
    (tmp_path / "completions").mkdir(exist_ok=True)
    ours.log({"loss": 0.0})
    logged = pq.read_table(tmp_path / "completions" / "completions_00000.parquet")["completion"].to_pylist()
    assert len(logged) == len(completions) and "\ud83d" not in str(logged)
    for completion, given in zip(logged, completions, strict=True):
        if not isinstance(given, str) and "tool_calls" in given[0]:
            (call,) = completion[0]["tool_calls"]
            json.loads(call["function"]["arguments"], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_completions_are_logged_and_printed_as_trl_does(tmp_path, capsys):
    ours = trainer(
        tmp_path,
        log_completions=True,
        num_completions_to_print=1,
        log_unique_prompts=True,
        log_multimodal=False,
        max_steps=1,
    )
    ours.train()
    table = pq.read_table(tmp_path / "completions" / "completions_00001.parquet").to_pydict()
    assert len(table["completion"]) == 8 and "length_reward" in table
    assert "Completion" in capsys.readouterr().out


@BOTH
def test_a_completions_repository_without_logged_completions_raises_as_in_trl(tmp_path, config):
    with pytest.raises(ValueError, match="log_completions_hub_repo is set, but log_completions is False"):
        config(tmp_path, log_completions_hub_repo="me/rollouts")
