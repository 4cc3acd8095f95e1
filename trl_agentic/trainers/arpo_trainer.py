"""[`ARPOTrainer`]: GRPO whose rollouts branch where entropy rises after a tool result."""

from __future__ import annotations

import random

import torch

from ..algorithms import attribute_advantages
from ..rollout.policy import BranchPolicy, EntropyBranching, NoBranching
from .agentic_trainer import AgenticTrainer
from .arpo_config import ARPOConfig


class ARPOTrainer(AgenticTrainer):
    r"""
    Trainer for Agentic Reinforced Policy Optimization (ARPO), introduced in the paper [Agentic Reinforced Policy
    Optimization](https://huggingface.co/papers/2507.19849).

    It stands where [`~trl.GRPOTrainer`] stands and takes the same arguments in the same order. What differs is the
    rollout: tool calls of all trajectories run at the same time as the engine decodes, and a trajectory branches right
    after a tool result when the tokens that follow are more uncertain than its beginning.

    Example:

    ```python
    from datasets import Dataset
    from trl_agentic import ARPOConfig, ARPOTrainer
    from trl_agentic.rewards import arpo_reward
    from trl_agentic.tools import make_python_tool

    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": "What is 17 * 24?"}], "answer": "408"}] * 64
    )
    trainer = ARPOTrainer(
        model="Qwen/Qwen2.5-3B-Instruct",
        reward_funcs=arpo_reward,
        args=ARPOConfig("Qwen2.5-3B-ARPO", num_generations=8, initial_rollouts=4),
        train_dataset=dataset,
        tools=[make_python_tool()],
    )
    trainer.train()
    ```

    Args:
        model, reward_funcs, train_dataset, eval_dataset, processing_class, reward_processing_classes, callbacks, \
        optimizers, quantization_config, peft_config:
            As in [`~trl.GRPOTrainer`]. Reward functions written for TRL's tools work unchanged; they may also ask for
            `rollout_status`, `rollout_calls`, `rollout_parent`, `rollout_fork`, `rollout_dialect` and
            `rollout_messages` by name.
        args ([`ARPOConfig`], *optional*):
            Configuration of the trainer.
        tools (`list[Callable]`):
            Functions that the model may call, sync or async, with type hints and a Google-style docstring. A bound
            method of an object whose class defines `fork()` (which returns an independent copy) is a stateful tool:
            every trajectory calls it on a fork of its own, and a branch on a fork of its parent's.
        rollout_func:
            Not supported: the rollout is what this trainer is about. A value raises a `ValueError`.
        environment_factory (`Callable` or `dict[str, Callable]`, *optional*):
            As in [`~trl.GRPOTrainer`], in either dialect: the public methods of what it builds are tools, `reset` gets
            the columns of a row and may return a text that continues the prompt, `get_reward` (sync or async) is a
            further reward, and with a dictionary the column `environment` chooses. What differs: one environment per
            prompt is reset, and each of its trajectories goes on with a fork of it (`fork()`, a deep copy, or a replay
            of the recorded calls); `fork` and `close` are no tools; `environments`, which reward functions may ask
            for, holds `None` for a row whose state was lost; environments with a `close` method are closed after the
            rewards.
        engine ([`~trl_agentic.rollout.engine.Engine`], *optional*):
            Samples in place of the colocated vLLM or of `transformers`.

    Raises:
        ValueError: If there is nothing to call, if a reward function needs a column that the dataset lacks, or if an
            option cannot work with a branching rollout.
    """

    config_class = ARPOConfig
    args: ARPOConfig
    _tag_names = ["trl", "arpo"]
    _name = "ARPO"
    _paper = {
        "title": "Agentic Reinforced Policy Optimization",
        "id": "2507.19849",
        # docstyle-ignore
        "citation": """\
@inproceedings{dong2026agentic,
    title     = {{Agentic Reinforced Policy Optimization}},
    author    = {Guanting Dong and others},
    year      = 2026,
    booktitle = {The Fourteenth International Conference on Learning Representations},
    url       = {https://huggingface.co/papers/2507.19849}
}""",
    }

    def branch_policy(self) -> BranchPolicy:
        """Branch by entropy; the draws depend on seed, step and process alone, so that a resumed run repeats."""
        args = self.args
        if args.initial_rollouts == self.num_generations or args.beam_size == 1:
            return NoBranching()
        seed = f"{args.seed}-{self.state.global_step}-{self._step}-{self.accelerator.process_index}"
        return EntropyBranching(
            initial_rollouts=args.initial_rollouts,
            beam_size=args.beam_size,
            window=args.entropy_window,
            vocab_size=self.model.config.get_text_config().vocab_size,
            alpha=args.branch_probability,
            weight=args.entropy_weight,
            threshold=args.branch_threshold,
            gate=args.branch_gate,
            signal=args.entropy_signal,
            rng=random.Random(seed),
        )

    def attribute(self, rewards: torch.Tensor, advantages: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """
        Attribute advantages to the tokens that trajectories share, group by group.

        Args:
            rewards (`torch.Tensor`):
                Weighted reward of each row of this process, of shape `(B,)`; NaN where nothing scored the row.
            advantages (`torch.Tensor`):
                TRL's advantage of each row, of shape `(B,)`.
            num_tokens (`int`):
                Width `T` of the padded completions.

        Returns:
            `torch.Tensor`:
                `(B,)` for `advantage_attribution="soft"`, which leaves TRL's advantages alone; `(B, T)` otherwise.
        """
        if self.args.advantage_attribution == "soft":
            return advantages
        size = self.num_generations
        attributed = []
        for number, tree in enumerate(self._trees):
            rows = slice(number * size, (number + 1) * size)
            shared = torch.tensor(tree.shared_lengths(), device=rewards.device)  # (G, G)
            attributed.append(
                attribute_advantages(
                    rewards[rows],
                    shared,
                    num_tokens,
                    mode=self.args.advantage_attribution,
                    advantages=advantages[rows],
                )
            )
        return torch.cat(attributed)  # (B, T)
