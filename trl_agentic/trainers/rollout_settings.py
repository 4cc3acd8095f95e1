"""What a trainer's configuration means for the loop, the engine and the dialects."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ..rollout.dialect import Dialect
from ..rollout.dialects import make_dialect
from ..rollout.engine import SamplingSettings
from ..rollout.limits import Limits
from ..rollout.loop import RolloutLoop
from ..rollout.path import Prompt
from ..rollout.policy import BranchPolicy
from ..tools import ResultCache, ToolRuntime

if TYPE_CHECKING:
    from .agentic_trainer import AgenticTrainer
    from .environments import Environments


def sampling_settings(trainer: AgenticTrainer, temperature: float | None = None) -> SamplingSettings:
    """How to sample; the configured temperature unless another is given."""
    return SamplingSettings(
        temperature=trainer.temperature if temperature is None else temperature,
        top_p=trainer.top_p,
        top_k=trainer.top_k,
        min_p=trainer.min_p or 0.0,
        repetition_penalty=trainer.repetition_penalty,
        extra=trainer.args.generation_kwargs or {},
    )


def rollout_limits(trainer: AgenticTrainer) -> Limits:
    """What a trajectory may use, of the phase what the environments' resets have left."""
    return Limits(
        max_completion_length=trainer.max_completion_length,
        max_tool_turns=trainer.max_tool_calling_iterations,
        max_calls=trainer.args.max_tool_calls,
        max_invalid_turns=trainer.args.max_invalid_tool_calls,
        timeout_s=trainer.rollout_states.remaining_s,
    )


def make_loop(trainer: AgenticTrainer, policy: BranchPolicy, temperature: float | None = None) -> RolloutLoop:
    """The loop of one rollout phase."""
    return RolloutLoop(
        trainer.engine,
        trainer.runtime,
        trainer.dialect,
        policy,
        sampling_settings(trainer, temperature),
        rollout_limits(trainer),
    )


def planted_prompts(trainer: AgenticTrainer, prompts: Sequence[Any], num_generations: int) -> list[Prompt]:
    """The prompts of the rollout that begins, under ids that are unique in the run, with their environments' roots."""
    prefix = f"{trainer.state.global_step}-{trainer.accelerator.process_index}-{trainer._num_rollouts}"
    dialects, states = trainer._prompt_dialects, trainer.rollout_states
    return [
        Prompt(f"{prefix}-{number}", tuple(dialects[name].encode_prompt(prompt)), num_generations, root)
        for number, (prompt, name, root) in enumerate(zip(prompts, states.names, states.roots, strict=True))
    ]


def dialect_for(trainer: AgenticTrainer, tools: Sequence[Callable[..., Any]]) -> Dialect:
    """The dialect that the trainer's tokenizer speaks, for some tools."""
    return make_dialect(
        trainer.args.tool_dialect,
        trainer._tokenizer,
        tools,
        max_result_tokens=trainer.args.max_tool_result_tokens,
        eos_token_ids=trainer.eos_token_ids,
        chat_template_kwargs=trainer.chat_template_kwargs,
    )


def prompt_dialects(trainer: AgenticTrainer, environments: Environments) -> dict[str | None, Dialect]:
    """The dialect of each environment's prompts, which show its own tools; calls are read alike in all."""
    return {
        name: dialect_for(trainer, environments.tools_of(name)) if len(environments.kinds) > 1 else trainer.dialect
        for name in environments.kinds or [None]
    }


def make_runtime(trainer: AgenticTrainer) -> tuple[ToolRuntime, Callable[[], object]]:
    """
    What runs the tool calls of a trainer, with a cache if the configuration names one, and what closes both.

    They are closed when that is called, when the trainer is garbage-collected, or when the interpreter ends: a runtime
    is held by its threads, so it would not end with its trainer by itself.
    """
    args = trainer.args
    with ExitStack() as opened:
        folder, mode = args.tool_cache_dir, args.tool_cache_mode
        cache = opened.enter_context(ResultCache(folder, mode=mode)) if folder else None
        workers, timeout_s = args.num_tool_workers, args.tool_timeout_s
        runtime = ToolRuntime(trainer.rollout_tools, num_workers=workers, timeout_s=timeout_s, cache=cache)
        opened.push(runtime)
        return runtime, weakref.finalize(trainer, opened.pop_all().close)
