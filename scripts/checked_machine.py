"""[`Machine`]: what checks that share a process build there: trainers on the embedded questions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from check_report import Skip
from memory_at_steps import MemoryAtSteps

from trl_agentic import ARPOConfig, ARPOTrainer, rewards
from trl_agentic.tasks import TINY_GEO, geo_tools, load_geo

ON_GPU = torch.cuda.is_available()
ARPO = {"num_generations": 4, "initial_rollouts": 2, "entropy_window": 10}


def once(build: Callable[[Machine], Any]) -> property:
    """A property that is built when it is first read. Building takes long: after a failure, later reads are skips."""
    name = f"_{build.__name__}"

    @functools.wraps(build)
    def read(machine: Machine) -> Any:
        values = vars(machine)
        if name not in values:
            values[name] = None
            values[name] = build(machine)
        if values[name] is None:
            raise Skip(f"needs the {build.__name__.replace('_', ' ')} that has failed above")
        return values[name]

    return property(read)


class Machine:
    """What the checks of a process share: a folder, the model, and trainers that are built when one needs them."""

    def __init__(self, folder: Path, model: str | None):
        self.folder = folder
        self.model = str(TINY_GEO if model is None else model)
        self.rendering = "compact" if model is None else "natural"
        self.memory = MemoryAtSteps()

    def build(self, config_class=ARPOConfig, trainer_class=ARPOTrainer, peft_config=None, **options):
        """A trainer on the embedded questions: four steps, two for each generation."""
        on_cpu = {} if ON_GPU else {"enforce_eager": True, "block_size": 32}
        args = config_class(
            output_dir=str(self.folder / "run"),
            use_cpu=not ON_GPU,
            bf16=ON_GPU,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=1,
            steps_per_generation=2,
            max_steps=4,
            learning_rate=1e-4,
            lr_scheduler_type="constant",
            max_completion_length=128 if self.rendering == "compact" else 512,
            vllm_max_model_length=512 if self.rendering == "compact" else 2048,
            vllm_gpu_memory_utilization=0.3,
            vllm_importance_sampling_mode="token_truncate",
            vllm_engine_kwargs={"dtype": "bfloat16" if ON_GPU else "float32"} | on_cpu,
            report_to="none",
            logging_steps=1,
            disable_tqdm=True,
            **{"save_strategy": "no"} | options,
        )
        return trainer_class(
            model=self.model,
            reward_funcs=[rewards.arpo_reward, rewards.format_share_reward],
            args=args,
            train_dataset=load_geo("train", self.rendering, 64),
            tools=geo_tools(self.rendering),
            peft_config=peft_config,
        )

    @once
    def trainer(self) -> ARPOTrainer:
        """ARPO, with its engine."""
        return self.build(**ARPO, save_strategy="steps", save_steps=2)

    @once
    def training(self) -> list[dict[str, float]]:
        """What the steps of [`Machine.trainer`] have logged."""
        if ON_GPU:
            self.trainer.add_callback(self.memory)
        return steps_of(self.trainer)


def steps_of(trainer: ARPOTrainer) -> list[dict[str, float]]:
    """Train, and return what each step has logged."""
    trainer.train()
    return [log for log in trainer.state.log_history if "grad_norm" in log]
