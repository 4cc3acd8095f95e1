"""LoRA: adapters train, the base stays, and the engine samples from the merged weights."""

import pytest
import torch
from launching import measured_by
from peft import LoraConfig
from tiny import config, dataset, length_reward, scripted_engine, search, tiny_model_path
from word_tokenizer import word_tokenizer

from trl_agentic.trainers import ARPOTrainer


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_adapters_train_and_the_base_model_stays(tmp_path, beta):
    ours = ARPOTrainer(
        tiny_model_path(),
        length_reward,
        config(tmp_path, initial_rollouts=2, beta=beta),
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


def test_the_engine_samples_from_the_merged_weights(tmp_path):
    figures = measured_by("lora_checks.py", tmp_path)
    assert figures["base"] > 0.05  # the adapter changes the policy visibly ...
    assert figures["merged"] < 1e-3  # ... and the engine has it
    assert figures["after_training"] < 1e-3
