"""
A trainer under real FSDP2 on two CPU processes, each with an engine of its own; `test_fsdp2.py` launches it.

accelerate starts FSDP on accelerators alone, so `start_fsdp2` tells it that the processes have one; sharding, mixed
precision and all collectives are the real ones, over gloo. The engine's sleep is played: a CPU has no memory to give
back, so going to sleep wipes the weights instead, and whoever forgets to push them again samples nonsense.
"""

import json
import sys

import torch
from accelerate import PartialState
from accelerate.state import DistributedType
from accelerate.utils import gather_object
from engine_checks import ask, exact
from peft import LoraConfig, get_peft_model
from tiny_geo import MODEL, geo_trainer
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from trl_agentic import APPOConfig, APPOTrainer, ARPOConfig, ARPOTrainer
from trl_agentic.tasks import load_geo

OPTIONS = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_completion_length": 96,
    "bf16": True,
    "gradient_checkpointing": True,
    "lr_scheduler_type": "constant",
    "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
}
METHODS = {
    "appo": (APPOConfig, APPOTrainer, {"branches_per_rollout": 1, "steps_per_generation": 4}),
    "arpo": (ARPOConfig, ARPOTrainer, {"initial_rollouts": 2, "steps_per_generation": 2}),
}
BEST = {"load_best_model_at_end": True, "metric_for_best_model": "reward", "save_strategy": "steps", "save_steps": 1}
EVALUATION = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4, "num_generations_eval": 1}
SAVING = {"save_strategy": "steps", "save_steps": 2}
SCENARIOS = {
    "appo": ("appo", {"max_steps": 3}),
    "arpo": (
        "arpo",
        {"max_steps": 2, "beta": 0.05, "sync_ref_model": True, "ref_model_sync_steps": 1} | EVALUATION | BEST,
    ),
    "lora": ("arpo", {"max_steps": 3} | EVALUATION),
    "save": ("arpo", {"max_steps": 2} | SAVING),
    "resume": ("arpo", {"max_steps": 3} | SAVING),
}


def start_fsdp2(args) -> None:
    """Let accelerate build FSDP2 on this CPU process."""
    assert args.device.type == "cpu"  # the state is set up when it is read
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def whole(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()


def total(model: torch.nn.Module) -> float:
    """One number for all weights."""
    return sum(whole(parameter).double().sum().item() for parameter in model.parameters())


class Watch:
    """Notes what happens to a trainer's engine, and after each sync whether both have the same policy."""

    def __init__(self, trainer, adapter):
        self.trainer = trainer
        plain = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        self.plain = (plain if adapter is None else get_peft_model(plain, adapter)).eval()
        self.events, self.gaps, self.dtypes, self.is_sharded, self.weights = [], [], set(), [], []
        self.whole_before_sync, self.at_first = set(), {}
        self.push, trainer.weight_sync.push = trainer.weight_sync.push, self.noted_push
        self.read, trainer._get_per_token_logps_and_entropies = (
            trainer._get_per_token_logps_and_entropies,
            self.noted_read,
        )
        llm = trainer.vllm_generation.llm
        llm.wake_up = lambda tags: self.events.append(f"wake {tags[0]}")
        llm.sleep = self.sleep
        trainer.args.vllm_enable_sleep_mode = trainer.vllm_generation.enable_sleep_mode = True
        self.sleep()
        trainer.vllm_generation._llm_weights_sleeping = True

    def sleep(self, level=2):
        self.events.append(f"sleep {level}")
        runner = self.trainer.vllm_generation.llm.llm_engine.model_executor.driver_worker.model_runner
        for parameter in runner.model.parameters():
            parameter.data.zero_()

    def noted_push(self):
        self.events.append("sync")
        names = [name for name, value in self.trainer.model.named_parameters() if not isinstance(value, DTensor)]
        self.whole_before_sync |= set(names)
        self.push()
        parameters = dict(self.trainer.model.named_parameters())
        self.is_sharded.append(all(isinstance(parameter, DTensor) for parameter in parameters.values()))
        self.plain.load_state_dict({name: whole(value) for name, value in parameters.items()}, strict=False)
        self.weights.append(total(self.plain))
        if not self.at_first:
            state = self.plain.named_parameters()
            self.at_first = {name: value.detach().clone() for name, value in state if "lora_" not in name}
        prompt = tuple(self.trainer.dialect.encode_prompt(self.trainer.train_dataset[0]["prompt"]))
        outcome = ask(self.trainer.engine, prompt, 12, temperature=1.0)
        self.trainer.engine.reset_prefix_cache()
        logprobs, _ = exact(self.plain, prompt, outcome.token_ids, temperature=1.0)
        self.gaps.append((torch.tensor(outcome.logprobs) - logprobs).abs().max().item())

    def noted_read(self, *args, **kwargs):
        output = self.read(*args, **kwargs)
        self.dtypes |= {str(value.dtype) for value in output if value is not None}
        return output


def main(output_dir: str, scenario: str) -> None:
    method, options = SCENARIOS[scenario]
    config_class, trainer_class, of_method = METHODS[method]
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"]) if scenario == "lora" else None
    trainer = geo_trainer(
        output_dir,
        peft_config=adapter,
        config_class=config_class,
        trainer_class=trainer_class,
        prepare=start_fsdp2,
        eval_dataset=load_geo("test", "compact", 8) if "eval_strategy" in options else None,
        **(OPTIONS | of_method | options),
    )
    assert trainer.accelerator.is_fsdp2 and trainer.accelerator.num_processes == 2
    watch = Watch(trainer, adapter)
    trainer.train(resume_from_checkpoint=scenario == "resume")
    trainer.save_model()
    parameters = {name: whole(value) for name, value in trainer.model.named_parameters()}
    figures = {
        "events": watch.events,
        "gaps": watch.gaps,
        "dtypes": sorted(watch.dtypes),
        "is_sharded": watch.is_sharded,
        "whole_before_sync": sorted(watch.whole_before_sync),
        "steps": trainer.state.global_step,
        "frozen_is_equal": all(torch.equal(parameters[name], value) for name, value in watch.at_first.items()),
        "weights_at_syncs": watch.weights,
        "weights": total(trainer.model),
        "optimizer_steps": max(int(state["step"]) for state in trainer.optimizer.state.values()),
        "logs": [{k: v for k, v in log.items() if isinstance(v, float)} for log in trainer.state.log_history],
    }
    everyone = gather_object([figures])
    if trainer.accelerator.is_main_process:
        print("FIGURES " + json.dumps(everyone))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
