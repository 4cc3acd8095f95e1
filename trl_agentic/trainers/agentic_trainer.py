"""[`AgenticTrainer`]: a [`~trl.GRPOTrainer`] whose rollouts come from the event loop. ARPO and APPO build on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset, DatasetDict, IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOTrainer
from trl.data_utils import is_conversational
from trl.extras.profiling import profiling_context
from trl.trainer.utils import get_config_model_id, split_tensor_dict

from ..rollout.batch import RolloutBatch, completion_metrics, depth_first, rollout_metrics
from ..rollout.dialects import make_dialect
from ..rollout.engine import Engine, SamplingSettings
from ..rollout.loop import Limits, Prompt, RolloutLoop
from ..rollout.policy import BranchPolicy, NoBranching
from ..rollout.trajectory_file import TrajectoryWriter
from ..tools import ToolRuntime
from ..types import BranchTree
from .arpo_config import ARPOConfig
from .checks import check_arguments, check_columns, check_engine, describe_first_rows, warn_without_spread
from .colocated import awake, build_engine, extra_vllm_arguments
from .group_rows import mask_rows, shuffle_groups
from .keep_trajectories import KeepTrajectories, scored_rows
from .model_card import write_model_card
from .non_finite import SkipNonFiniteSteps
from .reward_guard import RewardGuard

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import BitsAndBytesConfig


class AgenticTrainer(GRPOTrainer):
    """
    What ARPO and APPO have in common: rollouts by the event loop, masks by rollout status, and groups that stay whole.

    See [`ARPOTrainer`] for the arguments. A subclass says where to branch ([`AgenticTrainer.branch_policy`]) and which
    advantage each token gets ([`AgenticTrainer.attribute`]).
    """

    args: ARPOConfig
    card_results: str | None = None  # Markdown for the model card, such as a before/after table
    _last_loaded_step: int  # both of TRL's: the step whose weights the engine has, and the rows of a generation
    _buffered_inputs: list[dict[str, torch.Tensor]] | None

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: Callable | str | PreTrainedModel | list[Any] | None = None,
        args: ARPOConfig | None = None,
        train_dataset: Dataset | IterableDataset | None = None,
        eval_dataset: Dataset | IterableDataset | DatasetDict | dict[str, Dataset] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        reward_processing_classes: PreTrainedTokenizerBase | list[PreTrainedTokenizerBase] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        quantization_config: BitsAndBytesConfig | None = None,
        peft_config: PeftConfig | None = None,
        tools: list[Callable] | None = None,
        rollout_func: None = None,
        environment_factory: None = None,
        *,
        engine: Engine | None = None,
    ):
        if args is None:
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = ARPOConfig(f"{name.split('/')[-1]}-{self._name}")
        check_arguments(type(self).__name__, args, tools, rollout_func, environment_factory)
        functions = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs] if reward_funcs else []
        check_columns(functions, train_dataset)
        check_columns(functions, eval_dataset)
        self.reward_guard = RewardGuard(args.max_reward_failures)
        with extra_vllm_arguments(args):
            super().__init__(
                model=model,
                reward_funcs=[self.reward_guard.wrap(function) for function in functions],
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                reward_processing_classes=reward_processing_classes,
                callbacks=callbacks,
                optimizers=optimizers,
                quantization_config=quantization_config,
                peft_config=peft_config,
            )
        self._set_up_rollouts(tools or [], engine)

    def _set_up_rollouts(self, tools: list[Callable], engine: Engine | None) -> None:
        """Build what stands between TRL's trainer and the loop."""
        args = self.args
        if self._is_vlm:
            raise ValueError(f"{type(self).__name__} trains text models; pass a tokenizer as `processing_class`.")
        self.rollout_tools = list(tools)
        self.dialect = make_dialect(
            args.tool_dialect,
            self._tokenizer,
            self.rollout_tools,
            max_result_tokens=args.max_tool_result_tokens,
            eos_token_ids=self.eos_token_ids,
            chat_template_kwargs=self.chat_template_kwargs,
        )
        self.runtime = ToolRuntime(
            self.rollout_tools, num_workers=args.num_tool_workers, timeout_s=args.tool_timeout_s
        )
        self.engine = build_engine(self) if engine is None else engine
        self.mask_truncated_completions = False  # TRL guesses by the last token; the status of a rollout knows
        self._model_version = self._num_rollouts = 0
        self._last_loaded_step = -1
        self._has_described = False
        self.trajectory_writer = TrajectoryWriter(args.output_dir, rank=self.accelerator.process_index)
        self.add_callback(SkipNonFiniteSteps(self))
        if args.save_trajectories:
            self.add_callback(KeepTrajectories(self))

    def rollout(
        self,
        prompts: Sequence[str | list[dict[str, Any]]],
        num_generations: int = 1,
        policy: BranchPolicy | None = None,
        temperature: float | None = None,
    ) -> list[BranchTree]:
        """
        Sample trajectories with the current weights.

        Args:
            prompts (`Sequence`):
                Prompts, as text or as chat messages.
            num_generations (`int`, *optional*, defaults to `1`):
                Trajectories per prompt.
            policy ([`~trl_agentic.rollout.policy.BranchPolicy`], *optional*):
                Where to branch; nowhere by default.
            temperature (`float`, *optional*):
                Sampling temperature, the configured one by default; 0 is greedy.

        Returns:
            `list[BranchTree]`: One tree per prompt, rows depth first.
        """
        self._num_rollouts += 1
        prefix = f"{self.state.global_step}-{self.accelerator.process_index}-{self._num_rollouts}"
        planted = [
            Prompt(f"{prefix}-{number}", tuple(self.dialect.encode_prompt(prompt)), num_generations)
            for number, prompt in enumerate(prompts)
        ]
        sampling = self._sampling()
        loop = RolloutLoop(
            self.engine,
            self.runtime,
            self.dialect,
            policy or NoBranching(),
            sampling if temperature is None else replace(sampling, temperature=temperature),
            Limits(
                max_completion_length=self.max_completion_length,
                max_tool_turns=self.max_tool_calling_iterations,
                max_invalid_turns=self.args.max_invalid_tool_calls,
                timeout_s=self.args.rollout_timeout_s,
            ),
        )
        self._sync_weights()
        with awake(self), profiling_context(self, "rollout"):
            start = time.perf_counter()
            trees = [depth_first(tree) for tree in loop.run(planted)]
            self._rollout_s = time.perf_counter() - start
        return trees

    def _sampling(self) -> SamplingSettings:
        return SamplingSettings(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p or 0.0,
            repetition_penalty=self.repetition_penalty,
            extra=self.args.generation_kwargs or {},
        )

    def branch_policy(self) -> BranchPolicy:
        """Where trajectories branch in the next rollout phase."""
        return NoBranching()

    def attribute(self, rewards: torch.Tensor, advantages: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """Give each token its advantage: from `(B,)` rewards and advantages to `(B,)` or `(B, T)`."""
        return advantages

    def _sync_weights(self) -> None:
        """Give the engine the weights of this step, once."""
        if self.state.global_step == self._last_loaded_step:
            return
        if self.use_vllm:
            with profiling_context(self, "sync_weights"):
                self.vllm_generation.sync_weights()
        self._last_loaded_step = self.state.global_step
        self._model_version += 1

    def _generate(self, prompts: list):
        """Roll out the prompts of this process; see [`~trl.GRPOTrainer`] for the eight values."""
        if self.model.training:
            size, policy = self.num_generations, self.branch_policy()
        else:
            size, policy = 1, NoBranching()  # evaluation never branches, so every row is a tree of its own
        groups = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        assert all(group == [group[0]] * size for group in groups), "the rows of a group must share their prompt"
        trees = self.rollout([group[0] for group in groups], size, policy)
        batch = RolloutBatch.from_trees(trees, self.dialect, self._tokenizer.eos_token_id)
        self._trees, self._batch = trees, batch
        self._log_rollout(trees, batch)
        completions: list[Any] = batch.completions
        if not is_conversational({"prompt": prompts[0]}):
            completions = self._tokenizer.batch_decode(batch.completion_ids, skip_special_tokens=True)
        return (
            batch.prompt_ids,
            batch.completion_ids,
            batch.sampled_mask,
            completions,
            batch.logprobs,
            batch.extra_fields,
            None,
            [],
        )

    def _log_rollout(self, trees: list[BranchTree], batch: RolloutBatch) -> None:
        """Log TRL's metrics of a generation, by the status of each rollout, and our own."""
        mode = "train" if self.model.training else "eval"
        rows = gather_object(batch.lengths())
        if mode == "train":
            self.state.num_input_tokens_seen += sum(row.prompt + row.sampled for row in rows)
        metrics = self._metrics[mode]
        metrics["num_tokens"] = [self.state.num_input_tokens_seen]
        for name, value in completion_metrics(rows).items():
            metrics[name].append(value)
        local = rollout_metrics(trees)
        local["rollout/tokens_per_s"] = local["rollout/sampled_tokens"] / self._rollout_s
        for name in sorted(set(gather_object(list(local)))):
            values = [value for value in gather_object([local.get(name)]) if value is not None]
            metrics[name].append(sum(values) / len(values))

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """Keep TRL's result, which attribution and the trajectories need."""
        self._rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._rewards_per_func

    def _generate_and_score_completions(self, inputs):
        """Score as TRL does, then hand each token its advantage."""
        output = super()._generate_and_score_completions(inputs)
        if self.args.mask_truncated_completions:
            trained = mask_rows(output, self._batch.is_truncated)
            output["num_items_in_batch"] = self.accelerator.gather(trained).sum()
        if not self.model.training:
            return output
        start = self.accelerator.process_index * len(inputs)
        rewards_per_func = self._rewards_per_func[start : start + len(inputs)]
        weights = self.reward_weights.to(rewards_per_func.device)
        rewards = (rewards_per_func * weights).nansum(dim=1)  # (B,)
        rewards[rewards_per_func.isnan().all(dim=1)] = torch.nan
        output["advantages"] = self.attribute(rewards, output["advantages"], output["completion_ids"].size(1))
        if not self._has_described:
            describe_first_rows(self._batch, self._tokenizer)
            check_engine(self, output)
            self._has_described = True
        warn_without_spread(self._metrics["train"])
        if self.args.save_trajectories:
            rows = scored_rows(self, rewards_per_func, rewards, output["advantages"])
            self.trajectory_writer.write(self.state.global_step, rows)
        return output

    def _prepare_inputs(self, generation_batch):
        """As in TRL, but whole groups are shuffled, so that a micro-batch holds a contiguous piece of a tree."""
        if not self.model.training:
            return self._generate_and_score_completions(generation_batch)
        steps = self.args.steps_per_generation
        if self._step % (steps * self.num_iterations) == 0 or self._buffered_inputs is None:
            batch = shuffle_groups(self._generate_and_score_completions(generation_batch), self.num_generations)
            self._buffered_inputs = split_tensor_dict(batch, steps)
        return self._buffered_inputs[self._step % steps]

    def train(self, *args, **kwargs):
        """As in [`~transformers.Trainer`]; the engine takes the weights anew, before and after."""
        self._last_loaded_step = -1
        output = super().train(*args, **kwargs)
        self._last_loaded_step = -1  # `load_best_model_at_end` changes them without a step
        return output

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        """Write the card of the run: TRL's, with results, settings, and where the rollouts are."""
        if self.is_world_process_zero():
            write_model_card(self, model_name, dataset_name, [tags] if isinstance(tags, str) else tags or [])
