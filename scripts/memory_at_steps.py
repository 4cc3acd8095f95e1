"""[`MemoryAtSteps`]: what optimizer steps add to the memory of a GPU."""

from __future__ import annotations

import torch
from transformers import TrainerCallback


class MemoryAtSteps(TrainerCallback):
    """Notes the memory that is allocated before training, and the peak of each step."""

    def __init__(self):
        self.before = 0
        self.peaks: list[int] = []

    @property
    def added(self) -> int:
        """The most that a step without a rollout, every second one, has had above what was there before."""
        return max(self.peaks[1::2]) - self.before

    def on_train_begin(self, *args, **kwargs):
        self.before = torch.cuda.memory_allocated()

    def on_step_begin(self, *args, **kwargs):
        torch.cuda.reset_peak_memory_stats()

    def on_step_end(self, *args, **kwargs):
        self.peaks.append(torch.cuda.max_memory_allocated())
