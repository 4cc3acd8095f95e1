"""What a generation puts into the trainer's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelerate.utils import gather_object

from ..rollout.batch import RolloutBatch, completion_metrics, rollout_metrics
from ..tools.state_fork import state_metrics
from ..types import BranchTree

if TYPE_CHECKING:
    from .agentic_trainer import AgenticTrainer


def log_rollout(trainer: AgenticTrainer, trees: list[BranchTree], batch: RolloutBatch) -> None:
    """
    Log TRL's metrics of a generation, by the status of each rollout, and our own.

    Args:
        trainer ([`AgenticTrainer`]):
            The trainer that has just rolled out.
        trees (`list[BranchTree]`):
            The trees of this process.
        batch ([`~trl_agentic.rollout.batch.RolloutBatch`]):
            Their rows.
    """
    mode = "train" if trainer.model.training else "eval"
    rows = gather_object(batch.lengths())
    if mode == "train":
        trainer.state.num_input_tokens_seen += sum(row.prompt + row.sampled for row in rows)
    metrics = trainer._metrics[mode]
    metrics["num_tokens"] = [trainer.state.num_input_tokens_seen]
    for name, value in completion_metrics(rows).items():
        metrics[name].append(value)
    local = rollout_metrics(trees) | state_metrics(trainer.rollout_states.owned) | trainer.runtime.metrics
    local["rollout/tokens_per_s"] = local["rollout/sampled_tokens"] / trainer._rollout_s
    for name in sorted(set(gather_object(list(local)))):
        values = [value for value in gather_object([local.get(name)]) if value is not None]
        metrics[name].append(sum(values) / len(values))
