"""What the engine is given of a model with adapters, and what that leaves of the model."""

from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from tiny import tiny_model_path
from transformers import AutoModelForCausalLM
from trl.generation.vllm_generation import VLLMGeneration

from trl_agentic.trainers.weight_sync import WeightSync, merged

TARGETS = ["q_proj", "v_proj", "down_proj"]
KINDS = {
    "lora": {},
    "rank-stabilised": {"use_rslora": True, "lora_alpha": 32},
    "dora": {"use_dora": True},
    "pattern": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 7}},
    "embedding": {"target_modules": ["embed_tokens", "q_proj", "lm_head"]},
    "saved": {"modules_to_save": ["norm"]},
}


class RecordingGeneration(VLLMGeneration):
    """TRL's sync, with an engine that notes what it is given."""

    def _init_vllm(self):
        self.pushed = {}
        noting = SimpleNamespace(load_weights=lambda weights: self.pushed.update((k, v.clone()) for k, v in weights))
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=noting))
        executor = SimpleNamespace(driver_worker=worker)
        self.llm = SimpleNamespace(
            llm_engine=SimpleNamespace(model_executor=executor),
            reset_prefix_cache=lambda: self.pushed.update(reset=1),
        )


def adapted(dtype=torch.float32, **options):
    """A generation over the tiny model with adapters that do something."""
    path, ties = tiny_model_path(), "embed_tokens" not in options.get("target_modules", ())
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, tie_word_embeddings=ties)
    options = {"r": 4, "target_modules": TARGETS, "init_lora_weights": False} | options
    model = get_peft_model(model, LoraConfig(**options))
    return RecordingGeneration(model, Accelerator(cpu=True), None)


def move(model):
    """An optimizer step, more or less."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(1e-3 * torch.randn_like(parameter))


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_gets_what_trls_merge_in_place_would_give_it(kind):
    theirs, ours = adapted(**KINDS[kind]), adapted(**KINDS[kind])
    for generation in (theirs, ours):
        torch.manual_seed(1)
        move(generation.model)
    theirs.sync_weights()
    WeightSync(ours).push()
    assert ours.pushed.keys() == theirs.pushed.keys() and ours.pushed.pop("reset")
    for name, weights in ours.pushed.items():
        torch.testing.assert_close(weights, theirs.pushed[name], msg=name)
    names = dict(AutoModelForCausalLM.from_pretrained(tiny_model_path()).named_parameters()).keys()
    assert ours.pushed.keys() - {"lm_head.weight"} == names


def test_tokens_that_are_trained_alone_reach_the_embedding_of_the_engine():
    generation = adapted(trainable_token_indices=[5, 6])
    before = generation.model.get_input_embeddings().weight.detach().clone()
    torch.manual_seed(1)
    move(generation.model)
    WeightSync(generation).push()
    changed = (generation.pushed["model.embed_tokens.weight"] != before).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [5, 6]
    assert not any("token_adapter" in name for name in generation.pushed)


def test_after_100_syncs_a_bfloat16_base_is_bit_equal_and_the_engine_has_base_plus_delta():
    generation = adapted(torch.bfloat16)
    model, sync = generation.model, WeightSync(generation)
    frozen = {name: value for name, value in model.named_parameters() if not value.requires_grad}
    before = {name: value.detach().clone() for name, value in frozen.items()}
    for _ in range(100):
        move(model)
        sync.push()
    assert before and all(torch.equal(value, before[name]) for name, value in frozen.items())
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    delta = 2.0 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight  # lora_alpha / r = 8 / 4
    expected = (layer.base_layer.weight.float() + delta).bfloat16()
    assert torch.equal(generation.pushed["model.layers.0.self_attn.q_proj.weight"], expected)


def test_a_sync_hands_back_the_very_parameters_that_the_optimizer_has():
    generation = adapted(modules_to_save=["norm"])
    before = list(generation.model.named_parameters())
    WeightSync(generation).push()
    after = list(generation.model.named_parameters())
    assert [name for name, _ in after] == [name for name, _ in before]
    assert all(new is old for (_, new), (_, old) in zip(after, before, strict=True))
    assert not any(module.merged for module in generation.model.modules() if isinstance(module, BaseTunerLayer))


def test_an_error_while_merging_leaves_the_model_as_it_was():
    model = adapted().model
    layer = model.base_model.model.model.layers[0].mlp.down_proj
    before = dict(layer.named_parameters())
    with pytest.raises(RuntimeError, match="gone"), merged(layer, lambda parameter: parameter.detach()):
        assert layer.base_layer.weight is not before["base_layer.weight"]
        raise RuntimeError("the engine is gone")
    assert dict(layer.named_parameters()) == before and not layer.merged
