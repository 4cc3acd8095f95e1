"""What a generation puts into the trainer's metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object

from ..rollout.batch import RolloutBatch, completion_metrics, rollout_metrics
from ..rollout.trajectory_rows import stored_completion
from ..tools.state_fork import state_metrics
from ..types import BranchTree, CallStatus

if TYPE_CHECKING:
    from .agentic_trainer import AgenticTrainer

COUNTS = (
    "rollout/sampled_tokens",
    "rollout/replay_mismatches",
    "rollout/state/fork",
    "rollout/state/copy",
    "rollout/state/replay",
    "tools/abandoned_threads",
    "tools/cache/hits",
    "tools/cache/misses",
    "tools/cache/errors",
    "/calls",
    "/retries",
    *(f"/failures/{status}" for status in CallStatus),
)
"""How the names of metrics that count something end: they add up over processes. All others are rates or means."""


def merge_metrics(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """
    The metrics of all processes as one.

    Args:
        ranks (`Sequence[Mapping[str, float]]`):
            Metrics of each process by name. One that has had nothing to count or to average lacks the name.

    Returns:
        `dict[str, float]`: The sum of each of [`COUNTS`], and the mean of any other over the processes that have it.

    Example:
        ```python
        >>> merge_metrics([{"tools/failures/timeout": 8.0, "branch/rate": 0.5}, {"branch/rate": 0.25}])
        {'branch/rate': 0.375, 'tools/failures/timeout': 8.0}
        ```
    """
    merged = {}
    for name in sorted({name for rank in ranks for name in rank}):
        values = [rank[name] for rank in ranks if name in rank]
        merged[name] = sum(values) if name.endswith(COUNTS) else sum(values) / len(values)
    return merged


class LoggedCompletions(deque):
    """
    Completions on their way to TRL's table of `log_completions`, in a form that a table can hold.

    Tools differ in the names and types of their arguments, and models write half characters and huge numbers, so
    messages are kept as in `trajectories.parquet`.
    """

    def extend(self, completions: Iterable[str | list[dict[str, Any]]]) -> None:
        """Add completions, as texts or as chat messages."""
        super().extend(stored_completion(completion) for completion in completions)


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
    described = {
        name: value
        for name, value in rollout_metrics(trees).items()
        if trainer.branches_in_rollout or not name.startswith("branch/")
    }
    local = described | state_metrics(trainer.rollout_states.owned) | trainer.runtime.metrics
    local["rollout/tokens_per_s"] = local["rollout/sampled_tokens"] / trainer._rollout_s
    log_merged(trainer, local)


def log_merged(trainer: AgenticTrainer, local: Mapping[str, float]) -> None:
    """
    Log metrics of all processes as one; each of them has to call this.

    Args:
        trainer ([`AgenticTrainer`]):
            The trainer.
        local (`Mapping[str, float]`):
            The metrics of this process.
    """
    metrics = trainer._metrics["train" if trainer.model.training else "eval"]
    for name, value in merge_metrics(gather_object([dict(local)])).items():
        metrics[name].append(value)
