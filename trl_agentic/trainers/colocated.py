"""The colocated vLLM: TRL builds it, and what TRL does not pass on or do is here."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trl.generation import vllm_generation

from ..rollout.engine import Engine
from ..rollout.transformers_engine import TransformersEngine
from .agentic_config import AgenticConfig

if TYPE_CHECKING:
    from .agentic_trainer import AgenticTrainer


@contextmanager
def extra_vllm_arguments(args: AgenticConfig) -> Iterator[None]:
    """
    Bind `vllm_engine_kwargs`, and what exact entropies need, to the engine that TRL builds within.

    Args:
        args ([`AgenticConfig`]):
            Configuration of the trainer.
    """
    if not args.use_vllm:
        yield
        return
    from ..rollout.vllm_engine import entropy_engine_kwargs, prepare_cpu_platform

    prepare_cpu_platform()
    original = vllm_generation.LLM
    assert not isinstance(args.vllm_engine_kwargs, str), "the configuration parses JSON at construction"
    bound = entropy_engine_kwargs() | (args.vllm_engine_kwargs or {})

    @functools.wraps(original)
    def build(seed: int, **kwargs):
        # TRL seeds each engine with its rank alone, so that runs of different seeds would sample alike.
        with warnings.catch_warnings():  # vLLM's own, which no user of ours can do anything about
            warnings.filterwarnings("ignore", message=".*torch.distributed.reduce_op.*", category=FutureWarning)
            return original(**{**kwargs, "seed": (1000 * args.seed + seed) % 2**32, **bound})

    vllm_generation.LLM = build
    try:
        yield
    finally:
        vllm_generation.LLM = original


def build_engine(trainer: AgenticTrainer) -> Engine:
    """
    The engine of a trainer: its colocated vLLM, or its own model through `transformers`.

    Args:
        trainer ([`AgenticTrainer`]):
            A trainer whose base constructor has run.

    Returns:
        [`~trl_agentic.rollout.engine.Engine`]: The engine.
    """
    if trainer.use_vllm:
        from ..rollout.vllm_engine import VLLMEngine

        return VLLMEngine(trainer.vllm_generation.llm)
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ValueError(
            "Without vLLM the policy itself generates, which does not work on sharded parameters. Set use_vllm=True."
        )
    if trainer.args.generation_kwargs:
        raise ValueError(
            f"`generation_kwargs` ({trainer.args.generation_kwargs}) go to vLLM. Without it, use `temperature`, "
            "`top_p`, `top_k`, `min_p` and `repetition_penalty`."
        )
    return TransformersEngine(trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class)


@contextmanager
def awake(trainer: AgenticTrainer) -> Iterator[None]:
    """
    Keep a sleeping engine awake for a whole rollout, and put it to sleep after it.

    Args:
        trainer ([`AgenticTrainer`]):
            Its trainer; nothing happens unless it uses vLLM with `vllm_enable_sleep_mode`.
    """
    if trainer.weight_sync is None or not trainer.args.vllm_enable_sleep_mode:
        yield
        return
    generation = trainer.vllm_generation
    if generation._llm_weights_sleeping:
        with trainer.times.measured("sync"):
            trainer.weight_sync.push()
    generation.llm.wake_up(tags=["kv_cache"])
    try:
        yield
    finally:
        generation.llm.sleep(level=2)
        generation._llm_weights_sleeping = True
