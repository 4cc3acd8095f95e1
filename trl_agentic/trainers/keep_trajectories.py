"""`trajectories.parquet`: its rows, when its parts are merged, and which of them a resumed run does again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from ..rollout.trajectory_file import trajectory_rows

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from .agentic_trainer import AgenticTrainer


class KeepTrajectories(TrainerCallback):
    """
    Forgets, at the beginning, the steps that will be done (again), and merges the parts at each save and at the end.

    Args:
        trainer ([`AgenticTrainer`]):
            The trainer whose writer it drives.
    """

    def __init__(self, trainer: AgenticTrainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        """Leave only what lies before the step at which training starts."""
        writer = self.trainer.trajectory_writer
        if state.global_step == 0 and writer.path.is_file() and state.is_world_process_zero:
            logger.warning(f"{writer.path} holds the rollouts of an earlier run, which this one replaces.")
        writer.rewind(state.global_step)
        self.trainer.accelerator.wait_for_everyone()  # nobody writes before everybody has forgotten

    def on_save(self, args, state, control, **kwargs):
        """Merge, so that a checkpoint has its rollouts beside it."""
        self._merge()

    def on_train_end(self, args, state, control, **kwargs):
        """Merge everything."""
        self._merge()

    def _merge(self) -> None:
        self.trainer.accelerator.wait_for_everyone()
        if self.trainer.accelerator.is_main_process:
            self.trainer.trajectory_writer.compact()


def scored_rows(
    trainer: AgenticTrainer, rewards_per_func: torch.Tensor, rewards: torch.Tensor, advantages: torch.Tensor
) -> list[dict[str, Any]]:
    """
    The rows of a generation, scores included.

    Args:
        trainer ([`AgenticTrainer`]):
            The trainer that has just scored it.
        rewards_per_func (`torch.Tensor`):
            Reward of each row by each function, of shape `(B, F)`; NaN where it did not score.
        rewards (`torch.Tensor`):
            Weighted rewards, of shape `(B,)`.
        advantages (`torch.Tensor`):
            Of shape `(B,)` or `(B, T)`.

    Returns:
        `list[dict]`: One row per trajectory; its advantages are null where it is left out of the loss.
    """
    batch = trainer._batch
    if advantages.dim() == 1:
        advantages = advantages.unsqueeze(1).expand(-1, max(map(len, batch.completion_ids)))  # (B, T)
    masks = trainer.args.mask_truncated_completions
    columns = zip(trainer.reward_func_names, rewards_per_func.T.tolist(), strict=True)
    return trajectory_rows(
        trainer._trees,
        step=trainer.state.global_step,
        model_version=trainer._model_version,
        messages=batch.completions,
        rewards=rewards.tolist(),
        reward_functions=dict(columns),
        advantages=[
            None if masks and truncated else row
            for truncated, row in zip(batch.is_truncated, advantages.tolist(), strict=True)
        ],
    )
