import importlib.util
import threading
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_agentic.rewards import (
    accepted_answers,
    answer_exact_match,
    answer_f1,
    answer_score,
    answer_tokens,
    extract_answer,
    extract_boxed,
    looks_mathematical,
    math_equal,
    read_number,
)

needs_math_verify = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="math-verify is not installed (extra `math`)"
)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{3}", "3"),
        (r"\boxed{1} or rather \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\{1}", r"\{1"),
        (r"\boxed{4} and \boxed{5", "4"),
        (r"\boxed{\boxed{6}}", "6"),
        (r"\boxed{}", ""),
        ("\\boxed{\n7\n}", "7"),
        (r"a \\\boxed{7}", "7"),
        (r"\\boxed{7}", "7"),
        (r"{ \boxed{7} and }", "7"),
        (r"\boxed{a\boxed{b", None),
        (r"\boxed{\boxed{6} and 5}", "6"),
        (r"\boxed 8", None),
        (r"\boxed{", None),
        ("\x08oxed{9}", None),
        ("", None),
    ],
)
def test_the_last_balanced_box_is_the_answer(text, content):
    assert extract_boxed(text) == content


@given(st.text(alphabet="a{}\\", max_size=8).filter(lambda text: extract_boxed(f"\\boxed{{{text}}}") is not None))
def test_what_comes_out_of_a_box_is_balanced(text):
    content = extract_boxed(f"\\boxed{{{text}}}")
    plain = content.replace("\\\\", "").replace("\\{", "").replace("\\}", "")
    assert plain.count("{") == plain.count("}")


def test_boxes_in_tool_results_are_no_answers():
    messages = [
        {"role": "assistant", "content": r"\boxed{1} <search>x</search>"},
        {"role": "tool", "name": "search", "content": r"\boxed{2}"},
        {"role": "assistant", "content": None},
    ]
    assert extract_answer(messages) == "1"
    assert extract_answer(messages[1:]) is None
    assert extract_answer(r"\boxed{1} <search>x</search><result>\boxed{2}</result> done") == "1"


def test_messages_may_hold_lists_of_parts():
    parts = [{"type": "text", "text": r"\boxed{"}, {"type": "image"}, {"type": "text", "text": "3}"}]
    assert extract_answer([{"role": "assistant", "content": parts}]) == "3"


@pytest.mark.parametrize(
    ("prediction", "answer", "f1"),
    [
        ("-3", "3", 0),
        ("1/2", "12", 0),
        ("10%", "10", 0),
        ("1/2", r"\frac{1}{2}", 1),
        ("A", "A", 1),
        ("A", "B", 0),
        ("a", "the", 0),
        ("1", "10", 0),
        ("12:30", "1230", 0),
        ("1,2", "12", 0),
        ("2010-11-12", "20101112", 0),
        ("110,000", "110000", 1),
        ("0.5", "1/2", 1),
        ("10 %", "0.1", 1),
        ("$1,000", "1000", 1),
        ("\u22123", "-3", 1),
        ("The Beatles!", "beatles", 1),
        ("U.S.", "us", 1),
        (r"\text{Paris}", "Paris", 1),
        ("1990\u20131995", "1990-1995", 1),
        ("Paris, France", "Paris", 2 / 3),
        ("new new york", "new york", 4 / 5),
        ("no one", "no", 0),
        ("no", "no one", 0),
        ("Yes.", "yes", 1),
        ("", "Paris", 0),
        ("!?", "Paris", 0),
        (None, "Paris", 0),
        ("", "", 0),
    ],
)
def test_token_f1(prediction, answer, f1):
    assert answer_f1(prediction, answer) == pytest.approx(f1)
    assert answer_exact_match(prediction, answer) == float(f1 == 1)


def test_articles_are_dropped_unless_nothing_else_is_left():
    assert answer_f1("the answer", "answer") == 1
    assert answer_f1("A Paris", "a") == pytest.approx(2 / 3)
    assert answer_tokens("A Tale of 2 Cities") == ["a", "tale", "of", "2", "cities"]


def test_characters_are_tokens_where_a_script_has_no_spaces():
    assert answer_tokens("2008年 Beijing, 12,000人") == ["2008", "年", "beijing", "12000", "人"]
    assert answer_tokens("서울 특별시") == ["서울", "특별시"]
    assert answer_f1("北京", "北京市") == pytest.approx(2 * 2 / (2 + 3))


def test_the_best_accepted_answer_counts():
    assert answer_f1("Roma", ["Rome", "Roma", "Rom"]) == 1
    assert answer_exact_match("Roma", ["Rome", "Roma"]) == 1
    assert answer_score("7", ["Paris", "7"]) == 1
    assert answer_score("Paris France", ["7", "Paris"]) == pytest.approx(2 / 3)


def test_the_answer_column_holds_texts_numbers_or_lists():
    assert accepted_answers("Rome") == ["Rome"]
    assert accepted_answers(["Rome", 3, None, ("a",)]) == ["Rome", "3", "a"]
    assert accepted_answers(2.5) == ["2.5"]
    assert accepted_answers(None) == accepted_answers([]) == accepted_answers([None]) == []
    with pytest.raises(TypeError, match="got dict. Convert the `answer` column"):
        accepted_answers({"target": "Rome"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-3", Fraction(-3)),
        ("110,879", Fraction(110879)),
        ("1/2", Fraction(1, 2)),
        (r"\frac{1}{2}", Fraction(1, 2)),
        (r"$\dfrac12$", Fraction(1, 2)),
        (r"-\$1,000.50", Fraction(-2001, 2)),
        ("10%", Fraction(1, 10)),
        (r"10\%", Fraction(1, 10)),
        (".5", Fraction(1, 2)),
        ("1.5e3", Fraction(1500)),
        ("+7", Fraction(7)),
        ("1/0", None),
        ("1,2", None),
        ("1e999999999", None),
        ("12 or 13", None),
        ("", None),
        ("%", None),
    ],
)
def test_plain_numbers_have_a_value(text, value):
    assert read_number(text) == value


def test_formulas_are_told_from_words():
    formulas = [
        "5",
        "1/2",
        "x+1",
        r"\frac{\pi}{3}",
        "n(n+1)/2",
        r"2\sqrt{3}",
        "(1,2)",
        "sqrt(2)",
        "2pi",
        "x^2",
        "$-x^2$",
    ]
    words = ["A", "Paris", "3-1", "2010-11-12", "5/12/2010", "12:30", "C++", "AT&T", r"\text{A}", "5 August", "1990s"]
    assert [text for text in formulas if not looks_mathematical(text)] == []
    assert [text for text in [*words, "20th", "1.2.3", "N/A", "U.S.", ""] if looks_mathematical(text)] == []


@pytest.mark.parametrize(
    ("prediction", "answer", "equal"),
    [
        ("10%", "10", False),
        ("10%", "0.1", True),
        ("-3", "3", False),
        ("1/2", "12", False),
        ("1", "10", False),
        ("3.0", "3", True),
        ("0.333333", "1/3", True),
        ("0.33", "1/3", False),
        ("110000001", "110000000", False),
        ("", "3", False),
    ],
)
def test_plain_numbers_need_no_math_verify(monkeypatch, prediction, answer, equal):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert math_equal(prediction, answer) is equal
    assert answer_score(prediction, answer) == float(equal)


def test_a_formula_without_math_verify_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert answer_score("Paris", "Paris") == 1
    with pytest.raises(ImportError, match=r"`pip install trl-agentic\[math\]`"):
        answer_score("x + 101", "101 + x")


@needs_math_verify
@pytest.mark.parametrize(
    ("prediction", "answer", "equal"),
    [
        (r"-6+3\sqrt3", r"3\sqrt{3} - 6", True),
        ("2pi", r"2\pi", True),
        (r"\frac{n^2+n}{2}", "n(n+1)/2", True),
        ("1+x^2", "x^2+1", True),
        ("x-3", "x+3", False),
        ("12 or 13", "13", False),
        ("12, 13", "13", False),
        (r"\frac{10\%}{1}", "10", False),
        (r"\{2,1\}", r"\{1,2\}", True),
        ("[0,1]", "(0,1)", False),
        ("the answer", "x^2", False),
        ("\\frac{", "x^2", False),
    ],
)
def test_formulas_are_compared_symbolically(prediction, answer, equal):
    assert math_equal(prediction, answer) is equal


@needs_math_verify
def test_a_comparison_without_end_is_cut_off_in_any_thread(monkeypatch):
    verdicts = []

    def compare():
        with monkeypatch.context() as patch:
            patch.setattr("trl_agentic.rewards.math_process._ANSWER_S", 0.5)
            verdicts.append(math_equal(r"\prod_{n=1}^{10^8} n", "x"))
        verdicts.append(math_equal("y+1", "1+y"))

    thread = threading.Thread(target=compare)
    thread.start()
    thread.join(60)
    assert verdicts == [False, True]


@needs_math_verify
def test_many_threads_share_the_comparing_process():
    verdicts = {}
    threads = [
        threading.Thread(target=lambda n=n: verdicts.update({n: math_equal(f"{n}+z", f"z+{n - n % 2}")}))
        for n in range(100, 108)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert verdicts == {n: n % 2 == 0 for n in range(100, 108)}


@given(st.text(alphabet="()[]{}, =:'\"\\±<>*ABxa12Kor", max_size=12))
def test_an_answer_of_any_shape_can_be_compared_and_equals_itself_behind_a_word(text):
    assert answer_f1(text, "x or y") <= 1
    assert answer_exact_match(f"Rome {text}", f"Rome {text}") == 1
