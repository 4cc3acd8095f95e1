"""[`AgenticTrainer`]: a [`~trl.GRPOTrainer`] whose rollouts come from the event loop. ARPO and APPO build on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset, DatasetDict, IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOTrainer
from trl.data_utils import is_conversational
from trl.extras.profiling import profiling_context
from trl.trainer.utils import get_config_model_id, split_tensor_dict

from ..rollout.batch import RolloutBatch, depth_first
from ..rollout.engine import Engine
from ..rollout.policy import BranchPolicy, NoBranching
from ..rollout.trajectory_file import TrajectoryWriter
from ..types import BranchTree
from .agentic_config import AgenticConfig
from .checks import check_arguments, check_engine, describe_first_rows, warn_without_spread
from .colocated import awake, build_engine, extra_vllm_arguments
from .dataset_checks import check_datasets
from .environments import Environments, placeholder_dataset, with_weights
from .fsdp2 import keep_float32
from .generation_log import LoggedCompletions, log_rollout
from .group_rows import mask_rows, shuffle_groups
from .keep_trajectories import KeepTrajectories, scored_rows
from .model_card import write_model_card
from .non_finite import SkipNonFiniteSteps
from .phase_times import PhaseTimes
from .reward_guard import RewardGuard
from .rollout_settings import dialect_for, make_loop, make_runtime, planted_prompts, prompt_dialects
from .rollout_states import RolloutStates
from .scores import Scores
from .weight_sync import WeightSync

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import BitsAndBytesConfig


class AgenticTrainer(GRPOTrainer):
    """
    What ARPO and APPO have in common: rollouts by the event loop, masks by rollout status, and groups that stay whole.

    See [`ARPOTrainer`] for the arguments. A subclass says where to branch ([`AgenticTrainer.branch_policy`]) and which
    advantage each token gets ([`AgenticTrainer.attribute`]).
    """

    args: AgenticConfig
    config_class: type[AgenticConfig]
    phases: tuple[str, ...] = ("rollout", "sync")  # of an optimizer step, for the metrics
    branches_in_rollout = True
    card_results: str | None = None  # Markdown for the model card, such as a before/after table
    _last_loaded_step: int  # both of TRL's: the step whose weights the engine has, and the rows of a generation
    _buffered_inputs: list[dict[str, torch.Tensor]] | None

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: Callable | str | PreTrainedModel | list[Any] | None = None,
        args: AgenticConfig | None = None,
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
        environment_factory: Callable[[], Any] | dict[str, Callable[[], Any]] | None = None,
        *,
        engine: Engine | None = None,
    ):
        if args is None:
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = self.config_class(f"{name.split('/')[-1]}-{self._name}")
        check_arguments(type(self), args, tools, rollout_func, environment_factory)
        functions = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs] if reward_funcs else []
        check_datasets(args, functions, train_dataset, eval_dataset)
        environments = Environments(environment_factory, tools or [])
        functions = [*functions, *environments.reward_funcs]
        if train_dataset is None and environments.kinds:
            train_dataset = placeholder_dataset(environments, args)
        self.reward_guard = RewardGuard(args.max_reward_failures)
        with extra_vllm_arguments(args):
            super().__init__(
                model=model,
                reward_funcs=[self.reward_guard.wrap(function) for function in functions],
                args=with_weights(args, len(environments.reward_funcs)),
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                reward_processing_classes=reward_processing_classes,
                callbacks=callbacks,
                optimizers=optimizers,
                quantization_config=quantization_config,
                peft_config=peft_config,
            )
        self._set_up_rollouts(environments, engine)

    def create_accelerator_and_postprocess(self) -> None:
        """As in [`~transformers.Trainer`]; under FSDP2, log-probs and gradient reduction keep float32."""
        super().create_accelerator_and_postprocess()
        keep_float32(self.accelerator)

    def _set_up_rollouts(self, environments: Environments, engine: Engine | None) -> None:
        """Build what stands between TRL's trainer and the loop."""
        args = self.args
        if self._is_vlm:
            raise ValueError(f"{type(self).__name__} trains text models; pass a tokenizer as `processing_class`.")
        self.rollout_tools = environments.tools
        self.dialect = dialect_for(self, self.rollout_tools)
        self._prompt_dialects = prompt_dialects(self, environments)
        self.runtime, self._closing = make_runtime(self)
        self.rollout_states = RolloutStates(environments, self.runtime, args)
        self.engine = build_engine(self) if engine is None else engine
        self.weight_sync = WeightSync(self.vllm_generation) if self.use_vllm else None
        self.mask_truncated_completions = False  # TRL guesses by the last token; the status of a rollout knows
        self._model_version = self._num_rollouts = 0
        self._last_loaded_step = -1
        self._has_described = False
        self._logs["completion"] = LoggedCompletions(maxlen=args.generation_batch_size)
        self.trajectory_writer = TrajectoryWriter(args.output_dir, rank=self.accelerator.process_index)
        self.add_callback(SkipNonFiniteSteps(self))
        self.add_callback(times := PhaseTimes(self, self.phases))
        self.times = times
        if args.save_trajectories:
            self.add_callback(KeepTrajectories(self))

    def rollout(
        self,
        prompts: Sequence[str | list[dict[str, Any]]],
        num_generations: int = 1,
        policy: BranchPolicy | None = None,
        temperature: float | None = None,
        rows: Sequence[dict[str, Any]] | None = None,
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
            rows (`Sequence[dict]`, *optional*):
                The columns of each prompt, with which its environment is reset; the prompt alone by default.

        Returns:
            `list[BranchTree]`: One tree per prompt, rows depth first.
        """
        rows = [{"prompt": prompt} for prompt in prompts] if rows is None else rows
        try:
            return self._grow(self.rollout_states.plant(rows), num_generations, policy, temperature)
        finally:
            self.rollout_states.release()

    def _grow(
        self,
        prompts: Sequence[str | list[dict[str, Any]]],
        num_generations: int,
        policy: BranchPolicy | None,
        temperature: float | None = None,
    ) -> list[BranchTree]:
        """Sample from prompts whose environments are set up."""
        self._num_rollouts += 1
        planted, states = planted_prompts(self, prompts, num_generations), self.rollout_states
        loop = make_loop(self, policy or NoBranching(), temperature)
        self._sync_weights()
        with awake(self), profiling_context(self, "rollout"), self.times.measured("rollout"):
            start = time.perf_counter()
            try:
                trees = loop.run(planted)
            finally:
                states.take(loop.states)
            self._rollout_s = time.perf_counter() - start
        states.keep(trees, loop.states)
        return [depth_first(tree) for tree in trees]

    @property
    def _group_size(self) -> int:
        """Rows of a tree. Evaluation never branches, so every row is a tree of its own there."""
        return self.num_generations if self.model.training else 1

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
        if self.weight_sync is not None:
            with profiling_context(self, "sync_weights"), self.times.measured("sync"):
                self.weight_sync.push()
        self._last_loaded_step = self.state.global_step
        self._model_version += 1

    def _generate(self, prompts: list):
        """Roll out the prompts of this process; see [`~trl.GRPOTrainer`] for the eight values."""
        size = self._group_size
        groups = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        assert all(group == [group[0]] * size for group in groups), "the rows of a group must share their prompt"
        policy = self.branch_policy() if self.model.training else NoBranching()
        trees = self._grow([group[0] for group in groups], size, policy)
        self.environments = self.rollout_states.instances()  # as TRL's `_calculate_rewards` looks for them
        batch = RolloutBatch.from_trees(trees, self.dialect, self._tokenizer.eos_token_id)
        self._trees, self._batch, self._row_states = trees, batch, self.rollout_states.rows
        log_rollout(self, trees, batch)
        completions: list[Any] = batch.completions
        if not is_conversational({"prompt": prompts[0]}):
            completions = self._tokenizer.batch_decode(batch.completion_ids, skip_special_tokens=True)
        tokens = (batch.prompt_ids, batch.completion_ids, batch.sampled_mask)
        return *tokens, completions, batch.logprobs, batch.extra_fields, None, []

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """Keep TRL's result, which attribution and the trajectories need."""
        self._rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._rewards_per_func

    def _generate_and_score_completions(self, inputs):
        """Set up the environments, score as TRL does, then hand each token its advantage."""
        size = self._group_size
        try:
            prompts = self.rollout_states.plant(inputs[::size])
            rows = [{**row, "prompt": prompts[number // size]} for number, row in enumerate(inputs)]
            output = super()._generate_and_score_completions(rows)
        finally:
            self.environments = None
            self.rollout_states.release()
        if self.args.mask_truncated_completions:
            trained = mask_rows(output, self._batch.is_truncated)
            output["num_items_in_batch"] = self.accelerator.gather(trained).sum()
        if not self.model.training:
            return output
        scores = Scores.of(self, self._rewards_per_func)
        output["advantages"] = self.attribute(scores.weighted, output["advantages"], output["completion_ids"].size(1))
        if not self._has_described:
            describe_first_rows(self._batch, self._tokenizer)
            check_engine(self, output)
            self._has_described = True
        self.finish_generation(rows[::size], scores, output)
        return output

    def finish_generation(self, examples: list[dict], scores: Scores, output: dict[str, torch.Tensor]) -> None:
        """Write what a generation came to: the row of each of its prompts, its scores, and what TRL's loss gets."""
        warn_without_spread(self._metrics["train"])
        if self.args.save_trajectories:
            step, messages = self.state.global_step, self._batch.completions
            rows = scored_rows(self, self._trees, messages, scores, output["advantages"], step, self._model_version)
            self.trajectory_writer.write(step, rows)

    def finish_training(self) -> None:
        """Write what [`AgenticTrainer.finish_generation`] has put off."""

    def _prepare_inputs(self, generation_batch):
        """As in TRL, but whole groups are shuffled, so that a micro-batch holds a contiguous piece of a tree."""
        if not self.model.training:
            return self._generate_and_score_completions(generation_batch)
        steps = self.args.steps_per_generation
        if self._step % (steps * self.num_iterations) == 0 or self._buffered_inputs is None:
            batch = shuffle_groups(self._generate_and_score_completions(generation_batch), self.num_generations)
            self._buffered_inputs = split_tensor_dict(batch, steps)
        return self._buffered_inputs[self._step % steps]

    @property
    def step_inputs(self) -> list[dict[str, torch.Tensor]] | None:
        """What the loss has got of the current generation."""
        return self._buffered_inputs

    def train(self, *args, **kwargs):
        """As in [`~transformers.Trainer`]; the engine takes the weights anew, before and after."""
        self._last_loaded_step = -1
        self._step, self._buffered_inputs = 0, None  # an earlier call may have ended in mid-generation
        output = super().train(*args, **kwargs)
        self._last_loaded_step = -1  # `load_best_model_at_end` changes them without a step
        return output

    def close(self) -> None:
        """End the tools' threads and close the result cache, as garbage collection and the interpreter's end do."""
        self._closing()

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        """Write the card of the run: TRL's, with results, settings, and where the rollouts are."""
        if self.is_world_process_zero():
            write_model_card(self, model_name, dataset_name, [tags] if isinstance(tags, str) else tags or [])
