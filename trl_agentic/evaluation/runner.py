"""Accuracy of a policy on questions: sample, score, and keep every sample for paired comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset

from ..rollout.batch import call_record
from ..rollout.dialect import Dialect
from ..types import BranchTree

Sampler = Callable[..., Sequence[BranchTree]]
"""`sample(prompts, num_generations=…, temperature=…, rows=…)`: one tree per prompt, see [`AgenticTrainer.rollout`]."""

Score = Callable[..., list[float | None]]
"""A reward function in TRL's form."""


@dataclass(frozen=True)
class Accuracy:
    """
    Scores of `Q` questions with `S` samples each.

    Args:
        scores (`np.ndarray`):
            Of shape `(Q, S)`, 1 for a right answer.
        tool_calls (`float`):
            Mean calls per sample.
        sampled_tokens (`float`):
            Mean sampled tokens per sample.
    """

    scores: np.ndarray
    tool_calls: float
    sampled_tokens: float

    @classmethod
    def merged(cls, parts: Sequence[Accuracy]) -> Accuracy:
        """Join what several processes measured on consecutive questions."""
        sizes = [len(part.scores) for part in parts]
        return cls(
            scores=np.concatenate([part.scores for part in parts]),
            tool_calls=float(np.average([part.tool_calls for part in parts], weights=sizes)),
            sampled_tokens=float(np.average([part.sampled_tokens for part in parts], weights=sizes)),
        )

    @property
    def mean(self) -> float:
        """Pass@1."""
        return float(self.scores.mean())


def measure_accuracy(
    sample: Sampler,
    dialect: Dialect,
    dataset: Dataset,
    score: Score,
    num_samples: int = 4,
    temperature: float | None = None,
) -> Accuracy:
    """
    Sample answers to every question of a dataset and score them.

    Args:
        sample (`Callable`):
            Such as [`ARPOTrainer.rollout`].
        dialect ([`~trl_agentic.rollout.dialect.Dialect`]):
            Turns trajectories into messages.
        dataset (`Dataset`):
            With the columns `prompt` and `answer`.
        score (`Callable`):
            A reward function in TRL's form; `None` counts as wrong.
        num_samples (`int`, *optional*, defaults to `4`):
            Independent samples `S` per question; nothing branches.
        temperature (`float`, *optional*):
            Sampling temperature, the configured one by default; 0 is greedy.

    Returns:
        [`Accuracy`]: All scores.
    """
    prompts = list(dataset["prompt"])
    trees = sample(prompts, num_generations=num_samples, temperature=temperature, rows=dataset.to_list())
    rows = [(tree, number) for number, tree in enumerate(trees) for _ in tree.trajectories]
    trajectories = [trajectory for tree in trees for trajectory in tree.trajectories]
    columns: dict[str, list[Any]] = {
        name: [values[number] for _, number in rows]
        for name, values in ((name, list(dataset[name])) for name in dataset.column_names if name != "prompt")
    }
    scores = score(
        prompts=[prompts[number] for _, number in rows],
        completions=[
            dialect.messages(trajectory.segments, tree.prompt_ids)
            for tree in trees
            for trajectory in tree.trajectories
        ],
        completion_ids=[trajectory.token_ids for trajectory in trajectories],
        rollout_status=[trajectory.status.value for trajectory in trajectories],
        rollout_calls=[[call_record(result) for result in trajectory.results] for trajectory in trajectories],
        rollout_dialect=[dialect.name] * len(rows),
        **columns,
    )
    values = np.array([0.0 if value is None else float(value) for value in scores])
    return Accuracy(
        scores=values.reshape(len(trees), num_samples),
        tool_calls=float(np.mean([len(trajectory.results) for trajectory in trajectories])),
        sampled_tokens=float(np.mean([sum(trajectory.sampled_mask) for trajectory in trajectories])),
    )
