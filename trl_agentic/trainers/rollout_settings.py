"""What a trainer's configuration means for the loop, the engine and the dialects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..rollout.dialect import Dialect
from ..rollout.dialects import make_dialect
from ..rollout.engine import SamplingSettings
from ..rollout.limits import Limits
from ..tools import ResultCache, ToolRuntime
from .agentic_config import AgenticConfig

if TYPE_CHECKING:
    from .agentic_trainer import AgenticTrainer


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


def make_runtime(args: AgenticConfig, tools: Sequence[Callable[..., Any]]) -> ToolRuntime:
    """What runs the tool calls; the processes of a machine share the cache, if there is one."""
    cache = ResultCache(args.tool_cache_dir, mode=args.tool_cache_mode) if args.tool_cache_dir else None
    return ToolRuntime(tools, num_workers=args.num_tool_workers, timeout_s=args.tool_timeout_s, cache=cache)
