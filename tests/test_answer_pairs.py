"""The table in the docs: each row of it holds, and the guide shows rows of it."""

import csv
import importlib.util
import time
from pathlib import Path

import pytest

from trl_agentic.rewards import answer_exact_match, answer_f1, answer_score, math_equal

DOCS = Path(__file__).resolve().parent.parent / "docs"
with (DOCS / "answer_pairs.tsv").open(encoding="utf-8", newline="") as table:
    PAIRS = list(csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE))
has_math_verify = importlib.util.find_spec("math_verify") is not None


@pytest.mark.skipif(not has_math_verify, reason="math-verify is not installed (extra `math`)")
@pytest.mark.parametrize("kind", dict.fromkeys(pair["kind"] for pair in PAIRS))
def test_every_pair_of_the_table_scores_as_it_says(kind):
    wrong = []
    for pair in PAIRS:
        if pair["kind"] == kind:
            accepted, prediction = pair["accepted answer"].split(" || "), pair["prediction"]
            score, match = answer_score(prediction, accepted), answer_exact_match(prediction, accepted)
            if (round(score, 2), match) != (float(pair["score"]), float(pair["exact match"])):
                wrong.append((pair["accepted answer"], prediction, score, match))
    assert wrong == []


def test_exact_match_and_f1_of_the_table_need_no_math_verify(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    wrong = []
    for pair in PAIRS:
        accepted, prediction = pair["accepted answer"].split(" || "), pair["prediction"]
        match, f1 = answer_exact_match(prediction, accepted), answer_f1(prediction, accepted)
        if match != float(pair["exact match"]) or not match <= f1 <= float(pair["score"]) + 0.005:
            wrong.append((pair["accepted answer"], prediction, match, f1))
    assert wrong == []


def test_every_accepted_answer_of_the_table_equals_itself():
    accepted = {answer for pair in PAIRS for answer in pair["accepted answer"].split(" || ")}
    for answer in accepted:
        assert answer_exact_match(answer, answer) == answer_f1(answer, answer) == 1, answer


def test_the_table_has_no_row_twice_and_each_kind_has_right_and_wrong_predictions():
    assert len(PAIRS) >= 400
    assert len({(pair["accepted answer"], pair["prediction"]) for pair in PAIRS}) == len(PAIRS)
    for kind in {pair["kind"] for pair in PAIRS}:
        scores = {float(pair["score"]) for pair in PAIRS if pair["kind"] == kind}
        assert 1 in scores and min(scores) < 1, kind


def test_the_guide_shows_rows_of_the_table():
    columns = ["accepted answer", "prediction", "score", "exact match", "note"]
    rows = ["| `{}` | `{}` | {} | {} | {} |".format(*(pair[name] for name in columns)) for pair in PAIRS]
    guide = (DOCS / "answers.md").read_text(encoding="utf-8")
    shown = [line for line in guide.splitlines() if line.startswith("| `")]
    assert len(shown) >= 20
    assert set(shown) <= {row.replace("  |", " |") for row in rows}


@pytest.mark.parametrize(
    "piece", ["1", "1,", "1 ", "a ", "北", "(", "\\boxed{", "\\frac{", "e\u0301", "-", "$", "A, ", "\\"]
)
def test_a_very_long_prediction_is_scored_in_time_proportional_to_its_length(piece):
    text = piece * 10_000
    start = time.process_time()
    assert answer_score(text, "5") == answer_exact_match(text, "x+1") == 0
    assert answer_f1(text, "Rome") < 0.01
    assert time.process_time() - start < 2


def test_a_very_long_answer_is_compared_as_words():
    assert answer_score("1" * 5000, "1" * 5000) == 1
    assert answer_score("1" * 5000, "2" * 5000) == 0
    assert math_equal("x+" * 600 + "x", "601x") is False
