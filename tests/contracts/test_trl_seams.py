"""What we rely on in TRL 1.16, one test per seam: they fail first when TRL changes."""

import ast
import inspect
import os
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import trl
from trl import GRPOConfig, GRPOTrainer
from trl.generation import vllm_generation
from trl.trainer.utils import split_tensor_dict

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "trainers"))

from tiny import dataset, length_reward, tiny_model_path, trainer  # noqa: E402
from word_tokenizer import ids, word_tokenizer  # noqa: E402

from trl_agentic.trainers import ARPOTrainer  # noqa: E402


def tree_of(function) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def test_the_version_is_the_one_these_tests_describe():
    assert trl.__version__.startswith("1.16.")


def test_the_constructor_takes_trls_arguments_in_trls_order():
    theirs = list(inspect.signature(GRPOTrainer.__init__).parameters)
    ours = inspect.signature(ARPOTrainer.__init__).parameters
    assert list(ours)[: len(theirs)] == theirs
    assert [name for name, parameter in ours.items() if parameter.kind is parameter.KEYWORD_ONLY] == ["engine"]


def test_the_loss_takes_an_advantage_per_token(tmp_path):
    ours = trainer(tmp_path)
    ours.model.train()
    batch = ours._generate_and_score_completions([dict(row) for row in dataset(1) for _ in range(4)])
    ours.current_gradient_accumulation_steps = 2
    per_row = GRPOTrainer._compute_loss(ours, ours.model, batch)
    width = batch["completion_ids"].size(1)
    batch["advantages"] = batch["advantages"].unsqueeze(1).expand(-1, width)
    assert torch.equal(per_row, GRPOTrainer._compute_loss(ours, ours.model, batch))


def test_a_tool_tokens_advantage_and_a_pads_do_not_reach_the_loss(tmp_path):
    ours = trainer(tmp_path)
    ours.model.train()
    batch = ours._generate_and_score_completions([dict(row) for row in dataset(1) for _ in range(4)])
    ours.current_gradient_accumulation_steps = 2
    width = batch["completion_ids"].size(1)
    advantages = batch["advantages"].unsqueeze(1).repeat(1, width)
    outside = (batch["completion_mask"] * batch["tool_mask"]) == 0
    assert outside.any()
    batch["advantages"] = advantages
    loss = GRPOTrainer._compute_loss(ours, ours.model, batch)
    batch["advantages"] = advantages.masked_fill(outside, 1e6)
    assert torch.equal(loss, GRPOTrainer._compute_loss(ours, ours.model, batch))


def test_generate_hands_back_eight_values():
    calls = [
        node.targets[0]
        for node in ast.walk(tree_of(GRPOTrainer._generate_and_score_completions))
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "self._generate"
    ]
    assert [len(target.elts) for target in calls] == [8]


def test_the_truncation_mask_is_read_where_we_replace_it_and_nowhere_else():
    readers = {
        name
        for name, function in inspect.getmembers(GRPOTrainer, inspect.isfunction)
        if name != "__init__" and "mask_truncated_completions" in inspect.getsource(function)
    }
    assert readers == {"_generate_and_score_completions"}


def test_an_empty_completion_crashes_trl_which_is_why_we_never_emit_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")

    def rollout_func(prompts, _):
        return {"prompt_ids": [[3]] * len(prompts), "completion_ids": [[]] * len(prompts), "logprobs": None}

    theirs = GRPOTrainer(
        tiny_model_path(),
        length_reward,
        GRPOConfig(
            str(tmp_path),
            per_device_train_batch_size=4,
            num_generations=4,
            use_cpu=True,
            bf16=False,
            report_to="none",
        ),
        dataset(),
        processing_class=word_tokenizer(),
        rollout_func=rollout_func,
    )
    with pytest.raises(IndexError):
        theirs._generate([row["prompt"] for row in dataset(1) for _ in range(4)])


@pytest.fixture
def same_environment():
    """TRL sets rank and port for the colocated engine; the next test is not its second rank."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("same_environment")
def test_the_colocated_engine_is_built_through_the_module_with_our_arguments(tmp_path, monkeypatch):
    built = {}

    class Stop(Exception):
        pass

    def llm(**arguments):
        built.update(arguments)
        raise Stop

    monkeypatch.setattr(vllm_generation, "LLM", llm)
    with pytest.raises(Stop):
        trainer(tmp_path, use_vllm=True, seed=20250101, vllm_engine_kwargs={"block_size": 16, "dtype": "float32"})
    assert vllm_generation.LLM is llm  # put back, also when building failed
    assert built["block_size"] == 16 and built["dtype"] == "float32"
    assert built["seed"] == 20250101000 % 2**32  # TRL's rank, and the seed of the run
    assert built["logprobs_mode"] == "processed_logprobs" and built["max_num_batched_tokens"] == 4096
    assert built["max_num_seqs"] == 8


def test_a_generation_batch_is_split_by_rows_in_order():
    parts = split_tensor_dict({"x": torch.arange(8).view(4, 2), "n": torch.tensor(3)}, 2)
    assert torch.equal(parts[1]["x"], torch.tensor([[4, 5], [6, 7]])) and parts[0]["n"] == 3


def test_extra_fields_overwrite_the_columns_that_reward_functions_see(tmp_path):
    seen = {}

    def curious(completions, rollout_status, **kwargs):
        seen["status"] = rollout_status
        return length_reward(completions, **kwargs)

    ours = trainer(tmp_path, reward_funcs=curious, train_dataset=dataset().add_column("rollout_status", ["old"] * 8))
    ours.model.train()
    rows = ours.train_dataset.select(range(2))
    ours._generate_and_score_completions([dict(row) for row in rows for _ in range(4)])
    assert set(seen["status"]) == {"finished"}


def test_trl_takes_a_row_for_truncated_when_it_does_not_end_with_eos_or_pad():
    source = inspect.getsource(GRPOTrainer._generate)
    assert "ids[-1] not in eos_and_pad" in source
    assert ids("<eos>") == (1,)


@pytest.mark.parametrize(
    "name", ["eos_token_ids", "_tokenizer", "_is_vlm", "reward_func_names", "reward_weights", "_metrics", "_step"]
)
def test_attributes_that_we_read_exist(tmp_path, name):
    assert name in vars(trainer(tmp_path))
