"""A gradient that is not finite must not reach the weights, and the batch that made it must not be lost."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import TrainerCallback

if TYPE_CHECKING:
    from .agentic_trainer import AgenticTrainer

logger = logging.getLogger(__name__)


class SkipNonFiniteSteps(TrainerCallback):
    """
    Skips an optimizer step whose gradient holds NaN or infinity, on every process together, and keeps its batch.

    Args:
        trainer ([`AgenticTrainer`]):
            The trainer it watches; the batch is written to `non_finite/` in its output directory.

    Attributes:
        num_skipped (`int`):
            Steps skipped so far.
    """

    def __init__(self, trainer: AgenticTrainer):
        self.trainer = trainer
        self.num_skipped = 0

    def on_pre_optimizer_step(self, args, state, control, model=None, optimizer=None, **kwargs):
        """Drop the gradients if any process has one that is not finite."""
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        accelerator = self.trainer.accelerator
        is_bad = sum((~torch.isfinite(grad)).any().to(accelerator.device, torch.float32) for grad in local(grads))
        if accelerator.reduce(torch.as_tensor(is_bad, device=accelerator.device), reduction="sum") == 0:
            return
        self.num_skipped += 1
        folder = Path(args.output_dir) / "non_finite"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"step-{state.global_step}-{accelerator.process_index}.pt"
        torch.save(self.trainer.step_inputs, path)
        optimizer.zero_grad(set_to_none=True)
        logger.warning(
            f"The gradient of step {state.global_step} is not finite, so the step is skipped ({self.num_skipped} so "
            f"far); its batch is kept in {path}. Lower `learning_rate` or `max_grad_norm` if this goes on."
        )


def local(grads: list[torch.Tensor]) -> list[torch.Tensor]:
    """The part of each gradient that lives on this process (FSDP2 shards are DTensors)."""
    from torch.distributed.tensor import DTensor

    return [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]
