"""What can be checked before the first batch, and said right after it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerBase

from ..rollout.batch import RolloutBatch

if TYPE_CHECKING:
    from .agentic_trainer import AgenticTrainer

logger = logging.getLogger(__name__)

MAX_LOGPROB_GAP = 0.05  # nats; a bfloat16 engine beside a bfloat16 trainer stays below it


def check_arguments(
    trainer: type[AgenticTrainer], args: Any, tools: Any, rollout_func: Any, environment_factory: Any
) -> None:
    """
    Refuse at once what a trainer of this package cannot work with.

    Args:
        trainer (`type[AgenticTrainer]`):
            The trainer's class.
        args, tools, rollout_func, environment_factory:
            Arguments of its constructor.

    Raises:
        TypeError: If `args` is not of the trainer's configuration class, or `tools` no list.
        ValueError: If there are neither tools nor environments, or there is a rollout of the user's own.
    """
    if not isinstance(args, trainer.config_class):
        raise TypeError(f"`args` must be an `{trainer.config_class.__name__}`, got `{type(args).__name__}`.")
    if tools and not isinstance(tools, Sequence):
        raise TypeError(f"`tools` must be a list of functions, got `{type(tools).__name__}`. Pass tools=[...].")
    if not tools and not environment_factory:
        raise ValueError(
            f"{trainer.__name__} needs `tools`, a list of functions that the model may call, or an "
            "`environment_factory`: it is made for trajectories with tool calls. Pass tools=[...], or use "
            "trl.GRPOTrainer to train without tools."
        )
    if rollout_func is not None:
        raise ValueError(
            f"{trainer.__name__} brings its own rollout and does not take `rollout_func`. Pass plain functions as "
            "`tools` or an `environment_factory`, or use trl.GRPOTrainer."
        )


def describe_first_rows(batch: RolloutBatch, tokenizer: PreTrainedTokenizerBase) -> None:
    """
    Log the first row of a run with its mask, and its first tool call, so that a wrong format is seen at once.

    Args:
        batch ([`~trl_agentic.rollout.batch.RolloutBatch`]):
            The first batch.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Decodes it.
    """
    parts: list[str] = []
    ids, mask = batch.completion_ids[0], batch.sampled_mask[0]
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or mask[end] != mask[start]:
            text = tokenizer.decode(ids[start:end])
            parts.append(text if mask[start] else f"⟦{text}⟧")
            start = end
    calls = [call for calls in batch.extra_fields["rollout_calls"] for call in calls]
    logger.info(
        "First rollout (⟦…⟧ is context, everything else is trained):\n"
        f"{tokenizer.decode(batch.prompt_ids[0])}\n────\n{''.join(parts)}\n"
        f"────\nFirst tool call: {calls[0] if calls else 'none in this batch'}"
    )


def check_engine(
    trainer: AgenticTrainer, batch: Mapping[str, torch.Tensor], what: str = "rows", num_rows: int = 8
) -> float:
    """
    Log how far the engine's log-probs lie from the trainer's on some rows, and warn if that is far.

    Args:
        trainer ([`AgenticTrainer`]):
            The trainer.
        batch (`Mapping[str, torch.Tensor]`):
            Rows that its engine has sampled: `prompt_ids`, `completion_ids`, their masks, `tool_mask` and
            `sampling_per_token_logps`, as a generation batch has them.
        what (`str`, *optional*, defaults to `"rows"`):
            What they are, for the message.
        num_rows (`int`, *optional*, defaults to `8`):
            Rows to compare.

    Returns:
        `float`: Mean difference on sampled tokens, in nats.
    """
    rows = {name: value[:num_rows] for name, value in batch.items() if value.dim()}
    ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
    attended = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
    with torch.no_grad():
        logps, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, attended, rows["completion_ids"].size(1), trainer.args.per_device_train_batch_size
        )
    sampled = (rows["completion_mask"] * rows["tool_mask"]).bool()  # (B, T)
    gap = (logps - rows["sampling_per_token_logps"])[sampled].abs()
    mean = gap.mean().item() if gap.numel() else 0.0
    logger.info(f"Engine and trainer: log-probs of the first {what} differ by {mean:.2g} nats on average.")
    if mean > MAX_LOGPROB_GAP:
        logger.warning(
            f"The engine's log-probs differ from the trainer's by {mean:.2g} nats on average: the policy that samples "
            "is not quite the one that is trained. Give the engine the trainer's `dtype` in `vllm_engine_kwargs`, or "
            "keep `vllm_importance_sampling_correction` on."
        )
    return mean


def warn_about_dropout(model: torch.nn.Module) -> None:
    """
    Say when log-probs of two forward passes differ by dropout, since ratios of them then measure dropout.

    Args:
        model (`torch.nn.Module`):
            The model that is trained, adapters included.
    """
    probabilities = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    if max(probabilities, default=0.0) > 0:
        logger.warning(
            f"The model has dropout (probability {max(probabilities):g}), so two forward passes differ: ratios, "
            "future values and branch points would measure that. Set disable_dropout=True."
        )


def warn_without_spread(metrics: Mapping[str, list[Any]], name: str = "frac_reward_zero_std") -> None:
    """
    Say when a generation can teach nothing, since all rewards of each group are equal.

    Args:
        metrics (`Mapping[str, list]`):
            The trainer's metrics of the present step.
        name (`str`, *optional*, defaults to `"frac_reward_zero_std"`):
            The one with the share of prompts that teach nothing.
    """
    flat = metrics.get(name, [0.0])[-1]
    clipped = metrics.get("completions/clipped_ratio", [0.0])[-1]
    if flat < 1.0:
        return
    hint = (
        "Most completions are cut off before they end: raise `max_completion_length` or `vllm_max_model_length`."
        if clipped > 0.5
        else "Add a graded reward such as `format_share_reward`, choose easier prompts or raise `num_generations`."
    )
    logger.warning(f"No group of this generation has any spread in its rewards, so it teaches nothing. {hint}")
