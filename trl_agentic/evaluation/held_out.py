"""[`HeldOutQuestions`]: how well a trainer's model answers questions that it was not trained on, before and after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import Dataset
from rich.console import Console
from transformers import TrainerCallback, TrainingArguments

from ..rewards import exact_match_reward
from ..rollout.dialect import Dialect
from .report import BeforeAfter
from .runner import Accuracy, Sampler, measure_accuracy


class Rollouts(Protocol):
    """What is needed of a trainer: [`ARPOTrainer`] and [`APPOTrainer`] have it."""

    accelerator: Accelerator
    args: TrainingArguments
    dialect: Dialect
    card_results: str | None

    @property
    def rollout(self) -> Sampler:
        """Samples trajectories with the current weights."""


class HeldOutQuestions(TrainerCallback):
    """
    Answers held-out questions at the start of training, when the model is where it will be trained, and at the end.

    What was measured at the start is kept in `before.json` in the output directory, so that a resumed run compares
    with where the first one began.

    Args:
        trainer ([`ARPOTrainer`] or [`APPOTrainer`]):
            Samples the answers.
        questions (`Dataset`):
            With the columns `prompt`, `answer` and `hops`.
        num_samples (`int`):
            Samples per question at the training temperature; one more is greedy.

    Example:
        ```python
        questions = HeldOutQuestions(trainer, load_geo("test", num_questions=300), num_samples=4)
        trainer.add_callback(questions)
        trainer.train()
        questions.report()
        ```
    """

    def __init__(self, trainer: Rollouts, questions: Dataset, num_samples: int):
        self.trainer, self.questions, self.num_samples = trainer, questions, num_samples
        self.before: dict[str, Accuracy] = {}

    def measure(self) -> dict[str, Accuracy]:
        """
        Answer the questions with the weights of the moment; each process answers its share of them.

        Returns:
            `dict[str, Accuracy]`: Accuracy at the training temperature, `"sampled"`, and `"greedy"`.
        """
        trainer, accelerator = self.trainer, self.trainer.accelerator
        share = self.questions.shard(accelerator.num_processes, accelerator.process_index, contiguous=True)
        shared = (trainer.rollout, trainer.dialect, share, exact_match_reward)
        measured = {
            "sampled": measure_accuracy(*shared, num_samples=self.num_samples),
            "greedy": measure_accuracy(*shared, num_samples=1, temperature=0.0),
        }
        return {name: Accuracy.merged(gather_object([accuracy])) for name, accuracy in measured.items()}

    def on_train_begin(self, args, state, control, **kwargs):
        """
        Measure, or take up the measurement of the run that is resumed.

        Raises:
            ValueError: If that run left none.
        """
        path = Path(args.output_dir) / "before.json"
        if state.global_step > 0:
            if not path.is_file():
                raise ValueError(
                    f"{path} is missing: resume with --num_eval_questions 0, or in the first run's folder."
                )
            self.before = _read(path)
            return
        if state.is_world_process_zero:
            print("Answering the held-out questions before training ...")
        self.before = self.measure()
        if state.is_world_process_zero:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, self.before)

    def report(self) -> None:
        """
        Measure again, print the table of gains, and keep it and its figures.

        They go to the output directory, as `before_after.md` and `scores.npz`, and to the trainer's model card. All
        processes call this; the first one writes.
        """
        is_main = self.trainer.accelerator.is_main_process
        if is_main:
            print("Answering the held-out questions after training ...")
        after = self.measure()
        if not is_main:
            return
        table = BeforeAfter(self.before, after, self.questions["hops"])
        Console().print(table.rich())
        folder = Path(self.trainer.args.output_dir)
        self.trainer.card_results = table.markdown()
        (folder / "before_after.md").write_text(self.trainer.card_results)
        np.savez(
            folder / "scores.npz",
            hops=self.questions["hops"],
            before_sampled=self.before["sampled"].scores,
            before_greedy=self.before["greedy"].scores,
            after_sampled=after["sampled"].scores,
            after_greedy=after["greedy"].scores,
        )


def _write(path: Path, measured: dict[str, Accuracy]) -> None:
    kept = {name: (a.scores.tolist(), a.tool_calls, a.sampled_tokens) for name, a in measured.items()}
    path.write_text(json.dumps(kept))


def _read(path: Path) -> dict[str, Accuracy]:
    kept: dict[str, Any] = json.loads(path.read_text())
    return {name: Accuracy(np.array(scores), *rest) for name, (scores, *rest) in kept.items()}
