"""Where the time of an optimizer step goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from transformers import TrainerCallback

if TYPE_CHECKING:
    from .agentic_trainer import AgenticTrainer


class PhaseTimes(TrainerCallback):
    """
    Measures the phases of each optimizer step on this process, and logs them as `time/{phase}_s`.

    `time/train_s` is what a step takes beyond the phases: forward, backward, the optimizer, and what TRL does around
    the rollout. Phases that a step does not have are logged as 0, so that means over steps add up.

    Args:
        trainer ([`AgenticTrainer`]):
            The trainer whose metrics they go to.
        phases (`tuple[str, ...]`):
            Names of the phases.
    """

    def __init__(self, trainer: AgenticTrainer, phases: tuple[str, ...]):
        self._trainer = trainer
        self._phases = phases
        self._seconds = dict.fromkeys(phases, 0.0)
        self._start = 0.0

    @contextmanager
    def measured(self, phase: str) -> Iterator[None]:
        """
        Add the seconds within to a phase.

        Args:
            phase (`str`):
                Its name.
        """
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] += time.perf_counter() - start

    def on_step_begin(self, args, state, control, **kwargs):
        """Begin to measure an optimizer step."""
        self._seconds = dict.fromkeys(self._phases, 0.0)
        self._start = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        """Log it."""
        seconds = self._seconds | {"train": time.perf_counter() - self._start - sum(self._seconds.values())}
        for phase, value in seconds.items():
            self._trainer._metrics["train"][f"time/{phase}_s"].append(value)
