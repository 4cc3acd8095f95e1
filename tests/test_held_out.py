"""Held-out questions are answered before and after training, and the table says what that came to."""

import json
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset
from transformers import TrainerControl, TrainerState
from word_tokenizer import ids, word_tokenizer

from trl_agentic.evaluation import HeldOutQuestions
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.types import BranchTree, Segment, Status, Trajectory

QUESTIONS = Dataset.from_dict(
    {"prompt": ["what is a", "what is b", "what is c", "what is d"], "answer": [["a"], ["b"], ["c"], ["d"]]}
    | {"hops": [1, 1, 2, 2]}
)


def search(query: str) -> str:
    """
    Look something up.

    Args:
        query: What to look for.
    """
    return query


@dataclass
class KnowingTrainer:
    """Answers the questions that it knows, and writes down what it was asked."""

    output_dir: str
    knows: str = ""
    num_processes: int = 1
    process_index: int = 0
    card_results: str | None = None
    asked: list[tuple[list[str], int, float | None]] = field(default_factory=list)

    def __post_init__(self):
        self.args = SimpleNamespace(output_dir=self.output_dir)
        self.dialect = TagDialect(word_tokenizer(), [search])
        self.accelerator = SimpleNamespace(
            num_processes=self.num_processes,
            process_index=self.process_index,
            is_main_process=self.process_index == 0,
        )

    def rollout(self, prompts, num_generations, temperature, rows):
        self.asked.append((prompts, num_generations, temperature))
        trees = []
        for number, prompt in enumerate(prompts):
            letter = prompt[-1]
            tokens = ids(f"<answer> \\boxed{{ {letter if letter in self.knows else 'h'} }} </answer> <eos>")
            one = Trajectory((Segment(tokens, True, (-1.0,) * len(tokens)),), Status.FINISHED)
            trees.append(BranchTree(str(number), (3,), (one,) * num_generations))
        return trees


def begin(questions: HeldOutQuestions, global_step: int = 0) -> None:
    state = TrainerState(global_step=global_step, is_world_process_zero=True)
    questions.on_train_begin(questions.trainer.args, state, TrainerControl())


def test_each_question_is_sampled_and_answered_greedily(tmp_path):
    trainer = KnowingTrainer(str(tmp_path), knows="abc")
    measured = HeldOutQuestions(trainer, QUESTIONS, num_samples=2).measure()
    assert {name: accuracy.mean for name, accuracy in measured.items()} == {"sampled": 0.75, "greedy": 0.75}
    assert measured["sampled"].scores.shape == (4, 2) and measured["greedy"].scores.shape == (4, 1)
    assert trainer.asked == [(QUESTIONS["prompt"][:], 2, None), (QUESTIONS["prompt"][:], 1, 0.0)]


@pytest.mark.parametrize(("process", "share"), [(0, ["what is a", "what is b"]), (1, ["what is c", "what is d"])])
def test_a_process_answers_its_share_of_consecutive_questions(tmp_path, process, share):
    trainer = KnowingTrainer(str(tmp_path), num_processes=2, process_index=process)
    HeldOutQuestions(trainer, QUESTIONS, num_samples=2).measure()
    assert [asked for asked, _, _ in trainer.asked] == [share, share]


def test_the_report_compares_before_with_after_and_keeps_all_scores(tmp_path, capsys):
    trainer = KnowingTrainer(str(tmp_path / "run"), knows="a")
    questions = HeldOutQuestions(trainer, QUESTIONS, num_samples=2)
    begin(questions)
    trainer.knows = "abc"
    questions.report()

    table = (tmp_path / "run" / "before_after.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:6]] for line in table.splitlines()[2:]]
    assert rows == [
        ["pass@1, sampled", "4", "25.0 %", "75.0 %", "+50.0"],
        ["pass@1, greedy", "4", "25.0 %", "75.0 %", "+50.0"],
        ["pass@1, sampled, 1 hop", "2", "50.0 %", "100.0 %", "+50.0"],
        ["pass@1, sampled, 2 hops", "2", "0.0 %", "50.0 %", "+50.0"],
    ]
    assert trainer.card_results == table
    printed = capsys.readouterr().out
    assert "before training ..." in printed and "after training ..." in printed and "+50.0" in printed
    with np.load(tmp_path / "run" / "scores.npz") as scores:
        assert scores["before_sampled"].tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]
        assert scores["after_greedy"].tolist() == [[1], [1], [1], [0]]
        assert scores["hops"].tolist() == [1, 1, 2, 2]


def test_a_process_that_is_not_the_first_measures_and_writes_nothing(tmp_path, capsys):
    trainer = KnowingTrainer(str(tmp_path), num_processes=2, process_index=1)
    questions = HeldOutQuestions(trainer, QUESTIONS, num_samples=2)
    questions.on_train_begin(trainer.args, TrainerState(is_world_process_zero=False), TrainerControl())
    questions.report()
    assert len(trainer.asked) == 4
    assert list(tmp_path.iterdir()) == [] and capsys.readouterr().out == ""
    assert trainer.card_results is None


def test_a_resumed_run_compares_with_where_the_first_one_began(tmp_path):
    first = HeldOutQuestions(KnowingTrainer(str(tmp_path), knows="a"), QUESTIONS, num_samples=2)
    begin(first)
    trainer = KnowingTrainer(str(tmp_path), knows="abc")
    resumed = HeldOutQuestions(trainer, QUESTIONS, num_samples=2)
    begin(resumed, global_step=40)
    assert trainer.asked == [], "the model has moved on: there is nothing to measure"
    for name, accuracy in first.before.items():
        assert resumed.before[name].scores.tolist() == accuracy.scores.tolist()
        assert resumed.before[name].tool_calls == accuracy.tool_calls
        assert resumed.before[name].sampled_tokens == accuracy.sampled_tokens == 6.0
    resumed.report()
    assert "| 25.0 % | 75.0 % |" in (tmp_path / "before_after.md").read_text()


def test_a_resumed_run_without_the_first_measurement_says_what_to_do(tmp_path):
    questions = HeldOutQuestions(KnowingTrainer(str(tmp_path)), QUESTIONS, num_samples=2)
    with pytest.raises(ValueError, match="before.json is missing: resume with --num_eval_questions 0"):
        begin(questions, global_step=40)


def test_what_is_kept_of_the_first_measurement_is_plain_json(tmp_path):
    begin(HeldOutQuestions(KnowingTrainer(str(tmp_path), knows="ab"), QUESTIONS, num_samples=1))
    kept = json.loads((tmp_path / "before.json").read_text())
    assert kept["greedy"] == [[[1.0], [1.0], [0.0], [0.0]], 0.0, 6.0]
