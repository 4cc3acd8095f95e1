"""The memory formula: each part by hand, and the activations of a layer against what autograd really keeps."""

import contextlib
import json
import re

import pytest
import torch
from launching import run_script
from peft import LoraConfig
from published_models import BILLIONS, published_config
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from trl_agentic import ARPOConfig
from trl_agentic.trainers.gpu_memory import estimate_memory

SMALL, MIDDLE, LARGE = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "Qwen/Qwen3-14B"
OPTIONS = {
    "use_cpu": True,
    "bf16": True,
    "num_generations": 2,
    "initial_rollouts": 1,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 8,
    "vllm_max_model_length": 1000,
    "vllm_gpu_memory_utilization": 0.5,
}
SYNCED = {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}}


def estimated(name, num_processes, peft_config=None, **options):
    return estimate_memory(
        published_config(name), ARPOConfig("unused", **OPTIONS | options), num_processes, peft_config=peft_config
    )


@pytest.mark.parametrize("name", BILLIONS)
def test_engine_weights_are_two_bytes_for_each_published_parameter(name):
    assert estimated(name, 8).engine_weights / 2e9 == pytest.approx(BILLIONS[name], abs=0.005)


@pytest.mark.parametrize("num_processes", [1, 2, 8])
def test_parameters_gradients_and_both_moments_are_16_bytes_shared_by_the_processes(num_processes):
    memory = estimated(SMALL, num_processes)
    shards = [memory.parameters, memory.gradients, memory.optimizer]
    assert [num_processes * part / 596_049_920 for part in shards] == [4, 4, 8]


@pytest.mark.parametrize(
    ("num_processes", "options", "whole"),
    [
        (8, {}, 4),  # float32, as they are reduced
        (2, {}, 4),
        (8, {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": False}}}, 4),
        (8, SYNCED, 0),
        (8, {"gradient_accumulation_steps": 1}, 0),
        (1, {}, 0),  # they are whole anyway, and counted as gradients
    ],
)
def test_accumulation_keeps_whole_gradients_unless_each_batch_is_synced(num_processes, options, whole):
    assert estimated(SMALL, num_processes, **options).whole_gradients == whole * 596_049_920


def test_a_model_of_14b_fits_8_gpus_of_80_gb_with_synced_batches_and_not_without():
    options = {
        "per_device_train_batch_size": 1,
        "vllm_max_model_length": 12288,
        "vllm_gpu_memory_utilization": 0.6,
        "vllm_enable_sleep_mode": True,
    }
    assert estimated(LARGE, 8, **options).training_peak == pytest.approx(115.2e9, abs=0.1e9)
    assert estimated(LARGE, 8, **options, **SYNCED).training_peak == pytest.approx((115.2 - 59.1) * 1e9, abs=0.1e9)


def test_one_process_needs_bfloat16_copies_of_what_it_trains_in_float32_and_no_gathered_layers():
    assert estimated(SMALL, 1).layers == 2 * 596_049_920
    assert estimated(SMALL, 1, bf16=False).layers == 0
    in_bfloat16 = estimated(SMALL, 1, model_init_kwargs={"dtype": "bfloat16"})
    assert in_bfloat16.layers == 0 and in_bfloat16.parameters == 2 * 596_049_920


def test_two_layers_and_the_head_are_gathered_and_have_gradients_in_both_dtypes():
    memory = estimated(MIDDLE, 8)
    assert memory.layers == 2 * 8 * 192_946_432
    assert memory.head == 8 * 151_936 * 4096
    assert memory.synced_parameter == 4 * 151_936 * 4096


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float32", 4)])
def test_with_lora_the_base_has_no_gradient_and_keeps_the_dtype_it_is_loaded_in(dtype, size):
    adapter = LoraConfig(r=4, target_modules=["q_proj"])
    memory = estimated(SMALL, 1, adapter, model_init_kwargs={"dtype": dtype})
    trained = 28 * 4 * (1024 + 2048)
    assert memory.parameters == size * 596_049_920 + 4 * trained
    assert (memory.gradients, memory.optimizer, memory.head) == (4 * trained, 8 * trained, 0)


@pytest.mark.parametrize(("sleeps", "asleep"), [(True, 0.0), (False, 0.6 * 80e9)])
def test_an_engine_that_does_not_sleep_stays_while_the_trainer_works(sleeps, asleep):
    memory = estimated(MIDDLE, 8, vllm_enable_sleep_mode=sleeps, vllm_gpu_memory_utilization=0.6)
    assert memory.engine_asleep == asleep
    assert memory.training_peak == memory.parameters + memory.step + asleep + 3e9


def test_the_engine_gives_keys_and_values_what_weights_and_workspace_leave():
    memory = estimated(MIDDLE, 8)
    assert memory.kv_token == 2 * 36 * 8 * 128 * 2  # keys and values, layers, heads, head size, bytes
    assert memory.kv_cache == pytest.approx(40e9 - 16.38e9 - 2e9, abs=0.01e9)
    assert memory.kv_cache_tokens == pytest.approx(21.62e9 / 147_456, rel=1e-3)
    assert memory.rollout_peak == pytest.approx(12 * 8.19e9 / 8 + 2.49e9 + 40e9 + 3e9, abs=0.01e9)


def test_logits_are_one_tile_whatever_the_length():
    one, two = (estimated(MIDDLE, 8, vllm_max_model_length=length).logits for length in (1000, 2000))
    assert one == 4096 * 32_768 * 2 + 2 * 1000 * 4096 * 6
    assert two - one == 2 * 1000 * 4096 * 6


def test_without_gradient_checkpointing_every_layer_keeps_its_activations():
    memory = estimated(MIDDLE, 8, gradient_checkpointing=False)
    mask = 3 * 2 * 1000**2
    assert memory.checkpoints == 36 * (memory.activations - mask)
    assert estimated(MIDDLE, 8).checkpoints == 36 * 2 * 1000 * 4096 * 2


def test_the_context_of_the_model_bounds_a_row_where_the_engine_names_none():
    config = Qwen3Config(num_hidden_layers=1, max_position_embeddings=500)
    lengths = [
        estimate_memory(config, ARPOConfig("unused", **OPTIONS | {"vllm_max_model_length": length}), 8)
        for length in (None, 500)
    ]
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize("optimizer", ["adafactor", "sgd", "adamw_8bit"])
def test_another_optimizer_than_adamw_is_refused(optimizer):
    with pytest.raises(ValueError, match=f"`optim='{optimizer}'` is not in the formula; it counts `adamw_torch`"):
        estimated(SMALL, 1, optim=optimizer)


@pytest.mark.parametrize(("share", "said"), [(0.2, "16.0 GB"), (0.35, "28.0 GB")])
def test_a_share_that_does_not_hold_the_engines_weights_is_refused(share, said):
    with pytest.raises(ValueError, match=f"The engine gets {said} .* take 31.5 GB. Raise `vllm_gpu_memory"):
        estimated(LARGE, 8, vllm_gpu_memory_utilization=share)


def kept_by_autograd(config, dtype: torch.dtype, length: int) -> int:
    """Bytes that one layer keeps for its backward pass, weights aside, with float32 weights under autocast."""
    layer = (model := AutoModelForCausalLM.from_config(config).to(dtype)).model.layers[0]
    hidden = torch.randn(1, length, config.hidden_size, dtype=dtype, requires_grad=True)
    angles = model.model.rotary_emb(hidden, torch.arange(length)[None])
    mask = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
    cast = torch.autocast("cpu", torch.bfloat16) if dtype is torch.float32 else contextlib.nullcontext()
    sizes: dict[int, int] = {}

    def note(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with cast, saved_tensors_hooks(note, lambda tensor: tensor):
        output = layer(hidden, attention_mask=mask, position_embeddings=angles)
    del output
    matrices = sum(p.numel() for p in layer.parameters() if p.dim() > 1)
    return sum(sizes.values()) - 2 * matrices  # as bfloat16, or bfloat16 copies


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "autocast"])
@pytest.mark.parametrize("family", [Qwen2Config, Qwen3Config])
def test_a_layer_keeps_half_to_all_of_the_activations_that_the_formula_counts(family, dtype):
    config = family(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
    )
    args = ARPOConfig("unused", **OPTIONS | {"per_device_train_batch_size": 1, "vllm_max_model_length": 256})
    counted = estimate_memory(config, args, 8).activations
    assert 0.5 * counted < kept_by_autograd(config, dtype, 256) < counted


@pytest.mark.slow
def test_two_processes_really_keep_4_bytes_a_parameter_whole_or_none_when_each_batch_is_synced(tmp_path):
    launcher = "-m torch.distributed.run --standalone --nproc_per_node 2".split()
    printed = run_script("gradient_shards.py", tmp_path, launcher)
    assert json.loads(re.search(r"^FIGURES (.*)$", printed, re.MULTILINE).group(1)) == {
        "True": {"whole": 0.0, "shards": 2.0},  # float32, half of the parameters each
        "False": {"whole": 4.0, "shards": 0.0},
    }
