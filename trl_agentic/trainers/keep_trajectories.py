"""`trajectories.parquet`: its rows, when its parts are merged, and which of them a resumed run does again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from ..rollout.batch import TRUNCATING
from ..rollout.trajectory_rows import trajectory_rows
from ..types import BranchTree
from .scores import Scores

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from .agentic_trainer import AgenticTrainer


class KeepTrajectories(TrainerCallback):
    """
    Forgets, at the beginning, the steps that will be done (again), and merges the parts at the end.

    Args:
        trainer ([`AgenticTrainer`]):
            The trainer whose writer it drives.
    """

    def __init__(self, trainer: AgenticTrainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        """Leave only what lies before the step at which training starts."""
        writer, accelerator = self.trainer.trajectory_writer, self.trainer.accelerator
        if state.global_step == 0 and state.is_world_process_zero and writer.has_rows:
            folder = writer.path.parent
            logger.warning(f"{folder} holds the rollouts of an earlier run, which those of this one replace.")
        accelerator.wait_for_everyone()  # nobody forgets before the first process has looked
        writer.rewind(state.global_step)
        # A run that resumes counts on: there was a synchronisation in each step at the most, and one before the first.
        self.trainer._model_version = max(self.trainer._model_version, state.global_step)
        accelerator.wait_for_everyone()  # nobody writes before everybody has forgotten

    def on_train_end(self, args, state, control, **kwargs):
        """Merge everything, what was rolled out and not trained any more included."""
        self.trainer.finish_training()
        accelerator = self.trainer.accelerator
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            try:
                self.trainer.trajectory_writer.compact()
            except OSError as error:  # such as a full disk: what was trained has still to be saved
                logger.warning(f"The rollouts could not be merged and stay in parts, which can be read: {error}")
        accelerator.wait_for_everyone()  # another call of `train` forgets parts


def scored_rows(
    trainer: AgenticTrainer,
    trees: Sequence[BranchTree],
    messages: Sequence[list[dict[str, Any]]],
    scores: Scores,
    advantages: torch.Tensor | None,
    step: int,
    model_version: int,
    firsts: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """
    The rows of some trees, scores included.

    Args:
        trainer ([`AgenticTrainer`]):
            The trainer that has just scored them.
        trees (`Sequence[BranchTree]`):
            The trees, with `B` trajectories to be kept. Everything below follows their order.
        messages (`Sequence[list[dict]]`):
            Chat messages of each completion.
        scores ([`Scores`]):
            Their rewards.
        advantages (`torch.Tensor`, *optional*):
            Of shape `(B,)` or `(B, T)`; `None` if they are not trained.
        step (`int`), model_version (`int`):
            Generation step at which the trees were planted, and the weights that sampled.
        firsts (`Sequence[int]`, *optional*):
            Trajectories at the beginning of each tree that are left out.

    Returns:
        `list[dict]`: One row per trajectory; its advantages are null where it is left out of the loss.
    """
    kept = [t for number, tree in enumerate(trees) for t in tree.trajectories[firsts[number] if firsts else 0 :]]
    masks = trainer.args.mask_truncated_completions
    per_row: list[list[float] | None] = [None] * len(kept)
    if advantages is not None:
        width = max([1, *(len(trajectory.token_ids) for trajectory in kept)])
        values = advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand(-1, width)  # (B, T)
        trained = [not (masks and trajectory.status in TRUNCATING) for trajectory in kept]
        per_row = [row if is_trained else None for row, is_trained in zip(values.tolist(), trained, strict=True)]
    columns = zip(trainer.reward_func_names, scores.by_function.T.tolist(), strict=True)
    return trajectory_rows(
        trees,
        step=step,
        model_version=model_version,
        messages=messages,
        rewards=scores.weighted.tolist(),
        reward_functions=dict(columns),
        advantages=per_row,
        firsts=firsts,
    )
