"""When the parts of `trajectories.parquet` are merged, and which of them a resumed run does again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import TrainerCallback

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
        self.trainer.trajectory_writer.rewind(state.global_step)

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
