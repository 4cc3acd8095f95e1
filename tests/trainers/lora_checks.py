"""Parity of engine and trainer with a LoRA adapter; `test_peft.py` runs it."""

import json
import sys

import torch
from peft import LoraConfig
from tiny_geo import geo_trainer
from vllm_checks import differences


def main(output_dir: str) -> None:
    adapter = LoraConfig(r=4, lora_alpha=32, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    trainer = geo_trainer(output_dir, peft_config=adapter, use_vllm=True, num_generations=8, initial_rollouts=4)
    prompts = trainer.train_dataset["prompt"][:6]
    trees = trainer.rollout(prompts, 2)
    figures = {"merged": differences(trainer, trees)["logprobs"]}
    with trainer.model.disable_adapter():
        figures["base"] = differences(trainer, trees)["logprobs"]
    trainer.train()
    trainer.model.eval()
    with torch.no_grad():
        figures["after_training"] = differences(trainer, trainer.rollout(prompts, 2))["logprobs"]
    print("FIGURES " + json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1])
