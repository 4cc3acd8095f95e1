"""[`BranchPhase`]: grows branches from the rollouts of an optimizer step, rewards them, and keeps both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from trl.data_utils import is_conversational

from ..rollout.batch import RolloutBatch
from ..rollout.policy import NoBranching
from ..rollout.turns import turn_ids
from ..tools.state import ToolState
from ..tools.state_fork import state_metrics
from ..types import BranchTree, Status, Trajectory, cut
from .branch_metrics import ScoreCheck, branch_metrics, outcome_pairs, part_of_turn, place_metrics
from .branch_points import Point, PolicyView, points_of_branches, points_of_rollouts
from .checks import check_engine
from .colocated import awake
from .generation_log import log_merged
from .group_rows import padded_rows
from .keep_trajectories import scored_rows
from .rollout_settings import make_loop
from .scores import Scores

if TYPE_CHECKING:
    from .appo_trainer import APPOTrainer

CUT_OFF = frozenset({Status.DEADLINE, Status.ERROR})  # what such a branch would have come to, nobody knows


@dataclass
class Growing:
    """
    A tree of the generation, while its rollouts are trained.

    Args:
        example (`dict[str, Any]`):
            The row of its prompt.
        tree ([`~trl_agentic.types.BranchTree`]):
            The tree; everything below has one entry per trajectory.
        states (`list[ToolState | None]`):
            Tool states, closed but for their histories.
        messages (`list[list[dict]]`):
            Completions as chat messages.
        scores ([`Scores`]):
            Rewards.
        first (`int`):
            Where the branches of the latest phase begin.
        num_written (`int`, *optional*, defaults to `0`):
            Trajectories that are in `trajectories.parquet` already.
    """

    example: dict[str, Any]
    tree: BranchTree
    states: list[ToolState | None]
    messages: list[list[dict[str, Any]]]
    scores: Scores
    first: int
    num_written: int = 0

    def root(self, place: int) -> tuple[int, int]:
        """The initial rollout that a trajectory descends from, and how many of its tokens they share."""
        fork = self.tree.trajectories[place].fork
        while (parent := self.tree.trajectories[place].parent) is not None:
            fork = min(fork, self.tree.trajectories[place].fork)
            place = parent
        return place, fork


class BranchPhase:
    """
    What APPO does between the optimizer steps of a generation.

    Args:
        trainer ([`APPOTrainer`]):
            The trainer.
    """

    def __init__(self, trainer: APPOTrainer):
        self._trainer = trainer
        self._trees: list[Growing] = []
        self._check = ScoreCheck(warns=trainer.accelerator.is_main_process)
        self._planted_version = self._grown_version = 0
        self.planted_step = -1
        self._has_checked = False
        self.has_run = False

    def begin(self, examples: Sequence[dict[str, Any]], scores: Scores) -> None:
        """
        Take up the generation that the trainer has just scored.

        Args:
            examples (`Sequence[dict[str, Any]]`):
                The row of each prompt.
            scores ([`Scores`]):
                Rewards of the rollouts.
        """
        self.write_rest()
        trainer, size = self._trainer, self._trainer.args.num_generations
        self.planted_step, self._planted_version = trainer.state.global_step, trainer._model_version
        self.has_run = False
        self._trees = []
        for number, (example, tree) in enumerate(zip(examples, trainer._trees, strict=True)):
            rows = slice(number * size, (number + 1) * size)
            messages, states = trainer._batch.completions[rows], trainer._row_states[rows]
            self._trees.append(Growing(example, tree, states, messages, scores[rows], first=size))

    def forget(self) -> None:
        """Drop the generation, whatever is left of it."""
        self._trees = []

    def trees_of(self, rows: Sequence[int]) -> list[Growing]:
        """The tree of each group of rows, which are numbers in the generation."""
        size = self._trainer.args.num_generations
        assert [row % size for row in rows] == [*range(size)] * (len(rows) // size), "groups stay whole"
        return [self._trees[row // size] for row in rows[::size]]

    def run(self, view: PolicyView) -> None:
        """
        Branch from some rollouts with the policy of the moment.

        Args:
            view ([`~trl_agentic.trainers.branch_points.PolicyView`]):
                The rollouts, whole prompts.
        """
        self.has_run = True
        trainer, args = self._trainer, self._trainer.args
        trees = self.trees_of(view.rows)
        for each in trees:
            each.first = len(each.tree.trajectories)
        points: list[list[Point]] = [[] for _ in trees]
        states = trainer.rollout_states
        states.reopen()
        try:
            trainer._sync_weights()
            self._grown_version = trainer._model_version
            with awake(trainer):
                for number in range(args.num_branch_rounds):
                    chosen = self._choose(trees, view, in_branches=number > 0)
                    self._grow(trees, chosen)
                    points = [[*known, *new] for known, new in zip(points, chosen, strict=True)]
            owned_metrics = state_metrics(states.owned)
            with trainer.times.measured("branch_rewards"):
                self._score(trees)
        finally:
            trainer.environments = None
            states.release()
        self._log(trees, points, owned_metrics)

    def _choose(self, trees: list[Growing], view: PolicyView, in_branches: bool) -> list[list[Point]]:
        """The points of a round: in the initial rollouts, and from the second on in the branches, too."""
        trainer, args = self._trainer, self._trainer.args
        firsts = [each.first for each in trees]
        with trainer.times.measured("score"):
            chosen = points_of_rollouts(view, args, [each.tree for each in trees], firsts)
            if in_branches:
                blank = trainer.blank_tokens.cpu()
                for of_tree, each in zip(chosen, trees, strict=True):
                    of_tree += points_of_branches(each.tree, each.first, blank, args.branches_per_rollout)
        return chosen

    def _grow(self, trees: list[Growing], points: list[list[Point]]) -> None:
        """Sample a branch from each point, under the weights of this optimizer step."""
        trainer = self._trainer
        forks = [[(point.parent, point.position) for point in of_tree] for of_tree in points]
        sizes = [len(each.states) for each in trees]
        loop = make_loop(trainer, NoBranching())
        with trainer.times.measured("branch"):
            try:
                grown = loop.extend([each.tree for each in trees], forks, [each.states for each in trees])
            finally:
                new = [states[size:] for size, states in zip(sizes, loop.states, strict=False)]
                trainer.rollout_states.adopt([state for of_tree in new for state in of_tree])
        for each, tree, states in zip(trees, grown, loop.states, strict=True):
            each.tree, each.states = tree, states

    def _score(self, trees: list[Growing]) -> None:
        """Reward the branches through TRL, which gathers: every process scores as many rows, some perhaps twice."""
        trainer, args = self._trainer, self._trainer.args
        tokenizer = trainer._tokenizer
        wanted = len(trees) * (args.num_trajectories - args.num_generations)
        places = [(each, place) for each in trees for place in range(each.first, len(each.tree.trajectories))]
        scored = places + (places[-1:] or [(trees[0], 0)]) * (wanted - len(places))
        rows = [(each.tree, each.tree.trajectories[place]) for each, place in scored]
        batch = RolloutBatch.from_rows(rows, trainer.dialect, tokenizer.eos_token_id)
        columns = [
            dict(zip(batch.extra_fields, row, strict=True)) for row in zip(*batch.extra_fields.values(), strict=True)
        ]
        inputs = [each.example | of_row for (each, _), of_row in zip(scored, columns, strict=True)]
        completions: list[Any] = batch.completions
        if not is_conversational({"prompt": inputs[0]["prompt"]}):
            completions = tokenizer.batch_decode(batch.completion_ids, skip_special_tokens=True)
        trainer.environments = trainer.rollout_states.instances([each.states[place] for each, place in scored])
        prompts = [each["prompt"] for each in inputs]
        scores = Scores.of(trainer, trainer._calculate_rewards(inputs, prompts, completions, batch.completion_ids))
        was_cut = torch.tensor([trajectory.status in CUT_OFF for _, trajectory in rows], device=scores.weighted.device)
        scores = replace(scores, weighted=scores.weighted.masked_fill(was_cut, torch.nan))
        if not self._has_checked and trainer._model_version > self._planted_version:
            self._check_engine(batch, is_branch=bool(places))
        trainer._pending_extra_logs.clear()  # TRL's table and metrics describe the rows that are trained
        trainer._pending_metrics.clear()
        start = 0
        for each in trees:
            end = start + len(each.tree.trajectories) - each.first
            each.scores = each.scores.joined(scores[start:end])
            each.messages = each.messages + batch.completions[start:end]
            start = end

    def _check_engine(self, batch: RolloutBatch, is_branch: bool) -> None:
        """Once, when the policy has moved within a generation: have the branches been sampled by what it is now?"""
        self._has_checked = True
        trainer = self._trainer
        firsts = batch.extra_fields["rollout_fork"] if is_branch else [len(ids) for ids in batch.completion_ids]
        rows = padded_rows(batch, firsts, trainer._tokenizer.pad_token_id)
        rows = {name: value.to(trainer.accelerator.device) for name, value in rows.items()}
        gap = check_engine(trainer, rows, "branches under new weights", trainer.args.per_device_train_batch_size)
        log_merged(trainer, {"appo/branch_logprob_gap": gap} if is_branch else {})

    def _log(self, trees: list[Growing], points: list[list[Point]], owned_metrics: dict[str, float]) -> None:
        """What the phase came to, for the metrics of this optimizer step."""
        trainer, args = self._trainer, self._trainer.args
        is_scored = trainer.state.global_step != self.planted_step  # before, entropy alone has ranked
        pairs = [
            pair
            for each, of_tree in zip(trees, points, strict=True)
            for pair in outcome_pairs(of_tree, each.tree, each.first, each.scores.weighted)
            if is_scored
        ]
        rewards = torch.cat([each.scores.weighted[each.first :] for each in trees])
        wanted = len(trees) * (args.num_trajectories - args.num_generations)
        metrics = branch_metrics([each.tree for each in trees], [each.first for each in trees], rewards, wanted)
        metrics |= {f"branches/{name}": value for name, value in owned_metrics.items()}
        metrics |= place_metrics(
            [
                self._part_of_turn(each.tree.trajectories[point.parent], point.position)
                for each, of_tree in zip(trees, points, strict=True)
                for point in of_tree
            ]
        )
        log_merged(trainer, metrics | self._check.add(gather_object(pairs)))

    def _part_of_turn(self, trajectory: Trajectory, position: int) -> str:
        """Where in its turn a token stands."""
        text = self._trainer._tokenizer.decode(turn_ids(cut(trajectory.segments, position)), skip_special_tokens=False)
        return part_of_turn(text, [tool.__name__ for tool in self._trainer.rollout_tools])

    def write(self, rows: Sequence[int], advantages: torch.Tensor, in_loss: torch.Tensor) -> None:
        """
        Write the rollouts that are trained now, once, and the branches of this optimizer step.

        Args:
            rows (`Sequence[int]`):
                Number of each rollout in the generation.
            advantages (`torch.Tensor`):
                Of shape `(B,)` or `(B, T)`.
            in_loss (`torch.Tensor`):
                Which rows are in the loss, booleans of shape `(B,)`.
        """
        if not self._trainer.args.save_trajectories:
            return
        size = self._trainer.args.num_generations
        written: list[dict[str, Any]] = []
        parts = zip(self.trees_of(rows), advantages.split(size), in_loss.split(size), strict=True)
        for each, of_tree, of_rows in parts:
            if not each.num_written:
                initial = self._rows(each, size, of_tree)
                written += [
                    row if is_in_loss else row | {"advantages": None}
                    for row, is_in_loss in zip(initial, of_rows, strict=True)
                ]
            written += self._rows(each, len(each.tree.trajectories), None)
        # Under the step that is done, so that a run that resumes there does away with them.
        self._trainer.trajectory_writer.write(self._trainer.state.global_step, written)

    def write_rest(self) -> None:
        """Write the rollouts that were never trained, since training ended before."""
        for each in self._trees if self._trainer.args.save_trajectories else ():
            if not each.num_written:
                rows = self._rows(each, len(each.tree.trajectories), None)
                self._trainer.trajectory_writer.write(self.planted_step, rows)
        self.forget()

    def _rows(self, each: Growing, end: int, advantages: torch.Tensor | None) -> list[dict[str, Any]]:
        """Rows of the trajectories up to `end` that are not written yet."""
        first, each.num_written = each.num_written, end
        return scored_rows(
            self._trainer,
            [replace(each.tree, trajectories=each.tree.trajectories[:end], points=())],
            each.messages[first:end],
            each.scores[first:end],
            advantages,
            step=self.planted_step,
            model_version=self._grown_version if first else self._planted_version,
            firsts=[first],
        )
