"""[`BranchPhase`]: grows branches from the rollouts of an optimizer step, rewards them, and keeps what they came to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from trl.data_utils import is_conversational

from ..algorithms import spearman
from ..rollout.batch import RolloutBatch, rollout_metrics
from ..rollout.loop import RolloutLoop
from ..rollout.policy import NoBranching
from ..rollout.trajectory_file import trajectory_rows
from ..tools.state import ToolState
from ..types import BranchTree
from .branch_points import StepRows, choose_in_branches, choose_points
from .colocated import awake
from .generation_log import log_means
from .rollout_settings import rollout_limits, sampling_settings

if TYPE_CHECKING:
    from .appo_trainer import APPOTrainer


@dataclass(frozen=True)
class Branches:
    """
    The branches of one prompt in one phase.

    Args:
        rewards (`torch.Tensor`):
            Weighted rewards, of shape `(K,)`; NaN where nothing scored.
        parents (`list[int]`), splits (`list[int]`):
            Place of the initial rollout that each descends from, and the first of its tokens that it does not share.
    """

    rewards: torch.Tensor
    parents: list[int]
    splits: list[int]


class BranchPhase:
    """
    What APPO does between the optimizer steps of a generation.

    Args:
        trainer ([`APPOTrainer`]):
            The trainer.
    """

    def __init__(self, trainer: APPOTrainer):
        self._trainer = trainer
        self._metrics: dict[str, float] = {}
        self.planted_at = -1
        self.has_run = False

    def begin(self, rewards: torch.Tensor) -> None:
        """
        Take up a new generation.

        Args:
            rewards (`torch.Tensor`):
                Weighted rewards of its rows, of shape `(B,)`.
        """
        trainer = self._trainer
        self.planted_at = trainer.state.global_step
        self.planted_version = trainer._model_version
        self.has_run = False
        self._rewards = rewards
        size = trainer.args.num_generations
        self._trees: list[BranchTree] = list(trainer._trees)
        states = trainer.rollout_states.rows
        self._states = [states[start : start + size] for start in range(0, len(states), size)]
        self._branches: dict[int, Branches] = {}
        self._written: dict[int, int] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds within to the metric `time/{name}_s` of this optimizer step."""
        start = time.perf_counter()
        yield
        key = f"time/{name}_s"
        self._metrics[key] = self._metrics.get(key, 0.0) + time.perf_counter() - start

    def note_ratios(self, differences: torch.Tensor, is_fresh: bool) -> None:
        """Log how far the policy has moved; before the first optimizer step, how far two forwards differ."""
        if is_fresh:
            self._metrics["appo/ratio_noise_floor"] = float(differences.abs().mean()) if len(differences) else 0.0
        elif len(differences):
            self._metrics["appo/log_ratio_std"] = float(differences.std(correction=0))

    def rewards_of(self, rows: list[int]) -> tuple[torch.Tensor, Branches]:
        """Rewards of the rows of one prompt, of shape `(N,)`, and its branches."""
        number = rows[0] // len(rows)
        assert {row // len(rows) for row in rows} == {number}, "rows of one prompt stand together"
        return self._rewards[rows], self._branches[number]

    def run(self, step: StepRows) -> None:
        """
        Branch from some rollouts with the policy of the moment.

        Args:
            step ([`~trl_agentic.trainers.branch_points.StepRows`]):
                The rollouts, whole prompts.
        """
        trainer, args = self._trainer, self._trainer.args
        self.has_run = True
        numbers = [row // args.num_generations for row in step.rows[:: args.num_generations]]
        first = {number: len(self._trees[number].trajectories) for number in numbers}
        used: list[set[int]] = [set() for _ in step.rows]
        scores: dict[tuple[int, int, int], float] = {}
        missing = 0
        with self.timed("sync"):
            trainer._sync_weights()
        for _ in range(args.num_branch_rounds):
            choice = choose_points(step, args, used)
            missing += choice.num_missing
            forks = dict(zip(numbers, choice.forks, strict=True))
            self._note_used(step, choice.forks, used)
            for number, places, values in zip(numbers, choice.forks, choice.scores, strict=True):
                scores |= {(number, *place): value for place, value in zip(places, values, strict=True)}
            for number in numbers:
                forks[number] = forks[number] + choose_in_branches(
                    self._trees[number], first[number], trainer.blank_tokens, args.branches_per_rollout
                )
            with self.timed("branch"):
                self._grow(forks)
        with self.timed("branch_rewards"):
            self._score(numbers, first)
        self._log(numbers, first, scores, missing)

    def _note_used(self, step: StepRows, forks: list[list[tuple[int, int]]], used: list[set[int]]) -> None:
        size = self._trainer.args.num_generations
        for group, places in enumerate(forks):
            order = {row % size: row_at for row_at, row in enumerate(step.rows[group * size : (group + 1) * size])}
            for parent, position in places:
                used[group * size + order[parent]].add(position)

    def _grow(self, forks: dict[int, list[tuple[int, int]]]) -> None:
        trainer = self._trainer
        loop = RolloutLoop(
            trainer.engine,
            trainer.runtime,
            trainer.dialect,
            NoBranching(),
            sampling_settings(trainer),
            replace(rollout_limits(trainer), timeout_s=trainer.args.rollout_timeout_s),
        )
        numbers = list(forks)
        with awake(trainer):
            trees = loop.extend(
                [self._trees[number] for number in numbers],
                list(forks.values()),
                [self._states[number] for number in numbers],
            )
        for number, tree, states in zip(numbers, trees, loop.states, strict=True):
            self._trees[number], self._states[number] = tree, states

    def _score(self, numbers: list[int], first: dict[int, int]) -> None:
        """Reward the branches through TRL; every process scores as many rows, since the result is gathered."""
        trainer, args = self._trainer, self._trainer.args
        places = [(n, at) for n in numbers for at in range(first[n], len(self._trees[n].trajectories))]
        room = len(numbers) * (args.num_trajectories - args.num_generations)
        padded = places + [(numbers[0], 0)] * (room - len(places))
        eos = trainer._tokenizer.eos_token_id
        batches = {n: RolloutBatch.from_trees([self._trees[n]], trainer.dialect, eos) for n in numbers}
        inputs, completions = [], []
        for number, at in padded:
            fields = {name: values[at] for name, values in batches[number].extra_fields.items()}
            inputs.append({**trainer.examples[number], **fields})
            completions.append(batches[number].completions[at])
        ids = [batches[number].completion_ids[at] for number, at in padded]
        if not is_conversational({"prompt": inputs[0]["prompt"]}):
            completions = trainer._tokenizer.batch_decode(ids, skip_special_tokens=True)
        owned = [self._states[number][at] for number, at in padded]
        trainer.rollout_states.adopt(owned)
        trainer.environments = trainer.rollout_states.instances()
        try:
            gathered = trainer._calculate_rewards(inputs, [each["prompt"] for each in inputs], completions, ids)
        finally:
            trainer.environments = None
            trainer.rollout_states.release()
            trainer._pending_extra_logs.clear()  # TRL's table of completions shows the rows that are trained
        start = trainer.accelerator.process_index * len(padded)
        per_func = gathered[start : start + len(places)]  # (K, F)
        rewards = trainer.weighted(per_func)
        self._take(places, per_func, rewards, numbers, first)

    def _take(
        self,
        places: list[tuple[int, int]],
        per_func: torch.Tensor,
        rewards: torch.Tensor,
        numbers: list[int],
        first: dict[int, int],
    ) -> None:
        self._per_func = {place: per_func[row] for row, place in enumerate(places)}
        for number in numbers:
            rows = [row for row, (owner, _) in enumerate(places) if owner == number]
            roots = [self._root(number, places[row][1]) for row in rows]
            self._branches[number] = Branches(rewards[rows], [root for root, _ in roots], [at for _, at in roots])

    def _root(self, number: int, at: int) -> tuple[int, int]:
        """The initial rollout that a branch descends from, and the first token that it does not share with it."""
        trajectories = self._trees[number].trajectories
        fork = trajectories[at].fork
        while (parent := trajectories[at].parent) is not None:
            fork = min(fork, trajectories[at].fork)
            at = parent
        return at, fork

    def _log(
        self, numbers: list[int], first: dict[int, int], scores: dict[tuple[int, int, int], float], missing: int
    ) -> None:
        """What the phase came to, for the metrics of this optimizer step."""
        rewards = torch.cat([self._branches[number].rewards for number in numbers])
        deviations = []
        for (number, parent, position), score in scores.items():
            for at, trajectory in enumerate(self._trees[number].trajectories[first[number] :], start=first[number]):
                if (trajectory.parent, trajectory.fork) == (parent, position):
                    own = self._branches[number].rewards[at - first[number]]
                    before = self._rewards[number * self._trainer.args.num_generations + parent]
                    deviations.append((score, float(own - before) ** 2 / 2))
        self._metrics |= {
            "appo/branch_reward": float(rewards.nanmean()),
            "appo/branch_reward_std": float(rewards.std()) if len(rewards) > 1 else 0.0,
            "appo/branches": len(rewards) / len(numbers),
            "appo/missing_points": float(missing),
        }
        if len(deviations) > 1:
            pairs = torch.tensor(deviations)
            self._metrics["appo/score_variance_correlation"] = spearman(pairs[:, 0], pairs[:, 1])

    def keep(self, step: StepRows, advantages: torch.Tensor) -> None:
        """
        Log the phase, and write the rollouts that are trained now and their branches.

        Args:
            step ([`~trl_agentic.trainers.branch_points.StepRows`]):
                The rollouts.
            advantages (`torch.Tensor`):
                Of shape `(B,)` or `(B, T)`.
        """
        log_means(self._trainer, self._metrics)
        self._metrics = {}
