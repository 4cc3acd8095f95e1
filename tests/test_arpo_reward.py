from pathlib import Path

import pytest

from trl_agentic.rewards import answer_score, arpo_reward, arpo_reward_released, make_arpo_reward
from trl_agentic.types import CallStatus, Status

DATA = Path(__file__).parents[2] / "shared" / "data" / "arpo"


def says(content):
    return {"role": "assistant", "content": content}


def returns(content, name):
    return {"role": "tool", "name": name, "content": content}


def final(answer):
    return says(f"<think>So.</think><answer>\\boxed{{{answer}}}</answer>")


def with_both_tools(answer):
    search, python = says("<think>a</think><search>q</search>"), says("<think>b</think><python>1</python>")
    return [search, returns("found", "search"), python, returns("1", "python"), final(answer)]


def ours(completion, answer, status=None, calls=None, reward=arpo_reward):
    (value,) = reward(["q"], [completion], [answer], [status], [calls])
    return value


def released(completion, answer):
    (value,) = arpo_reward_released(["q"], [completion], [answer])
    return value


def call(name, status=CallStatus.OK):
    return {"name": name, "arguments": {}, "result": "", "status": status.value, "latency_s": 0.1, "cached": False}


def test_a_bad_format_is_minus_one_even_with_the_right_answer():
    assert ours([says(r"<answer>\boxed{Rome}")], "Rome") == -1
    assert ours([final("Rome")], "Rome") == 1


def test_a_wrong_answer_in_a_good_format_is_zero():
    assert ours([final("Paris")], "Rome") == 0
    assert ours(with_both_tools("Paris"), "Rome") == 0


def test_the_score_is_f1_for_words_and_equality_for_mathematics():
    assert ours([final("Rome in Italy")], "Rome") == pytest.approx(0.5)
    assert ours([final("13 or 12")], "13") == 0


def test_search_and_python_together_add_a_tenth():
    assert ours(with_both_tools("Rome"), "Rome") == pytest.approx(1.1)
    assert ours(with_both_tools("Rome in Italy"), "Rome") == pytest.approx(0.6)
    assert ours(with_both_tools("Rome")[:2] + [final("Rome")], "Rome") == 1


def test_the_bonus_needs_calls_that_were_really_executed():
    rows = with_both_tools("Rome")
    assert ours(rows, "Rome", calls=[call("search"), call("python")]) == pytest.approx(1.1)
    assert ours(rows, "Rome", calls=[call("search"), call("python", CallStatus.TIMEOUT)]) == 1
    both_tried = [call("python", CallStatus.ERROR), call("search"), call("python")]
    assert ours(rows, "Rome", calls=both_tried) == pytest.approx(1.1)
    assert ours(rows, "Rome", calls=[]) == 1
    rows[3] = returns("Error: ZeroDivisionError", "python")
    assert ours(rows, "Rome") == 1


@pytest.mark.parametrize("status", list(Status))
def test_a_trajectory_that_did_not_finish_is_bad_format(status):
    assert ours([final("Rome")], "Rome", status.value) == (1 if status is Status.FINISHED else -1)


def test_a_row_without_an_answer_is_not_scored():
    values = arpo_reward(["q"] * 4, [[final("Rome")], [], [final("x")], [final("Rome")]], [None, None, [], "Rome"])
    assert values == [None, None, None, 1]
    assert arpo_reward_released(["q"] * 2, [[final("Rome")], []], [None, []]) == [None, None]


def test_several_accepted_answers_are_taken():
    assert ours([final("Roma")], ["Rome", "Roma"]) == 1
    assert ours([final("1/2")], ["one half", "0.5"]) == 1
    assert ours([final("7")], 7) == 1


def test_an_empty_box_is_a_wrong_answer():
    assert ours([final("")], "Rome") == 0
    assert ours([final("")], "") is None  # a question without an answer


def test_the_template_dialect_is_scored_by_its_final_message():
    calls = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in ("search", "python")]
    turn = {"role": "assistant", "content": r"<think>\boxed{Oslo}</think>", "tool_calls": calls}
    rows = [turn, returns("found", "search"), returns("1", "python"), says(r"It is \boxed{Rome}.")]
    assert ours(rows, "Rome") == pytest.approx(1.1)
    assert ours(rows[:3], "Oslo") == -1


def test_a_text_with_results_is_scored_like_messages():
    text = "".join(m["content"] if m["role"] == "assistant" else f"<result>{m['content']}</result>"
                   for m in with_both_tools("Rome"))  # fmt: skip
    assert ours(text, "Rome") == released(text, "Rome") == pytest.approx(1.1)


def test_a_known_dialect_leaves_no_way_around_its_tags():
    bare = [says(r"\boxed{Rome}")]
    assert ours(bare, "Rome") == 1
    assert ours(bare, "Rome", reward=make_arpo_reward("tags")) == -1
    assert ours(with_both_tools("Rome"), "Rome", reward=make_arpo_reward(bonus=0.5)) == 1.5


def test_it_is_a_reward_function_for_trl(capsys):
    keywords = {"completion_ids": [[1]], "trainer_state": None, "log_metric": print, "rollout_parent": [None]}
    assert arpo_reward(prompts=["q"], completions=[[final("Rome")]], answer=["Rome"], **keywords) == [1]
    assert arpo_reward_released(prompts=["q"], completions=[[final("Rome")]], answer=["Rome"], **keywords) == [1]
    assert arpo_reward.__name__ == make_arpo_reward().__name__ == "arpo_reward"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("prediction", "answer", "right", "as_released"),
    [
        ("-3", "3", 0, 1),
        ("1/2", "12", 0, 1),
        ("10%", "10", 0, 1),
        (r"10\%", "10", 0, 1),
        ("1/2", r"\frac{1}{2}", 1, 0),
        ("A", "A", 1, 0),
    ],
)
def test_the_released_scores_are_wrong_where_ours_are_right(prediction, answer, right, as_released):
    assert ours([final(prediction)], answer) == right
    assert released([final(prediction)], answer) == as_released


def test_released_counts_tags_that_stand_in_tool_results():
    rows = with_both_tools("Rome")
    rows[1] = returns("a page about <think> and <answer>", "search")
    assert ours(rows, "Rome") == pytest.approx(1.1)
    assert released(rows, "Rome") == -1
    # ... and an answer that only a tool gave
    given_by_a_tool = [*with_both_tools("Rome")[:1], returns(r"<answer>\boxed{Rome}</answer>", "search"), says("So.")]
    assert ours(given_by_a_tool, "Rome") == -1
    assert released(given_by_a_tool, "Rome") == 1


def test_released_gives_the_bonus_for_strings_alone():
    rows = [says(r"<think>I could use </search> and </python>.</think><answer>\boxed{Rome}</answer>")]
    assert ours(rows, "Rome") == 1
    assert released(rows, "Rome") == pytest.approx(1.1)


def test_released_asks_for_pairs_and_order():
    assert released([says(r"<answer>\boxed{Rome}</answer>")], "Rome") == -1  # no thinking
    assert released([final("Rome"), final("Rome")], "Rome") == -1
    assert released([says(r"<think></think><search>q</search><answer>\boxed{Rome}</answer>")], "Rome") == -1
    assert released([says(r"<think></think><answer>Rome</answer>")], "Rome") == -1
    assert released([says(r"<think></think><answer>\boxed{Rome</answer>")], "Rome") == -1
    assert released([final("Paris")], "Rome") == 0
    assert released([final("no one")], "no") == 0


def test_every_published_answer_is_right_when_repeated():
    path = DATA / "train_10k.parquet"
    if not path.exists():
        pytest.skip("the published ARPO data (../shared/data/arpo/train_10k.parquet) is not here")
    parquet = pytest.importorskip("pyarrow.parquet")
    column = parquet.read_table(path, columns=["reward_model"])["reward_model"].slice(0, 3000)
    answers = [entry["ground_truth"] for entry in column.to_pylist()]
    wrong = [answer for answer in answers if answer_score(str(answer), answer) != 1]
    assert wrong == []
