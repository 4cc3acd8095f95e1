"""What reward functions said about rows."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .agentic_trainer import AgenticTrainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scores:
    """
    Rewards of `B` rows of this process.

    Args:
        by_function (`torch.Tensor`):
            Reward of each row by each function, of shape `(B, F)`; NaN where it did not score.
        weighted (`torch.Tensor`):
            Weighted rewards, of shape `(B,)`; NaN where nothing scored.
    """

    by_function: torch.Tensor
    weighted: torch.Tensor

    @classmethod
    def of(cls, trainer: AgenticTrainer, gathered: torch.Tensor) -> Scores:
        """
        This process' part of what TRL has gathered.

        Args:
            trainer ([`AgenticTrainer`]):
                Its `reward_weights` are used.
            gathered (`torch.Tensor`):
                Rewards of the rows of all processes, equally many of each, of shape `(num_processes * B, F)`.

        Returns:
            [`Scores`]: The rewards of this process' rows; one that is infinite counts as none, with a warning.
        """
        own = gathered.chunk(trainer.accelerator.num_processes)[trainer.accelerator.process_index]
        if own.isinf().any():
            names = [trainer.reward_func_names[column] for column in own.isinf().any(dim=0).nonzero().flatten()]
            logger.warning(f"Infinite rewards of {', '.join(names)} count as none: let it return None where it fails.")
            own = own.masked_fill(own.isinf(), torch.nan)
        weighted = (own * trainer.reward_weights.to(own.device)).nansum(dim=1)
        return cls(own, weighted.masked_fill(own.isnan().all(dim=1), torch.nan))

    def __getitem__(self, rows: slice) -> Scores:
        """Those of some rows."""
        return Scores(self.by_function[rows], self.weighted[rows])

    def joined(self, others: Scores) -> Scores:
        """These rows, and others behind them."""
        by_function = torch.cat([self.by_function, others.by_function])
        return Scores(by_function, torch.cat([self.weighted, others.weighted]))
