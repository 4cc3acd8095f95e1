from fractions import Fraction

import pytest

from trl_agentic.rewards import read_number, same_choice, same_quantity
from trl_agentic.rewards.choices import read_choice
from trl_agentic.rewards.quantities import read_quantity
from trl_agentic.rewards.typed_formulas import as_latex
from trl_agentic.rewards.units import read_units


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"3\frac{1}{4}", Fraction(13, 4)),
        ("-3 1/4", Fraction(-13, 4)),
        ("3½", Fraction(7, 2)),
        (r"3\frac{5}{4}", None),  # neither a mixed number nor plainly a product
        (r"10\,000", 10000),
        ("1.234.567,89", Fraction(123456789, 100)),
        ("1.234", Fraction(1234, 1000)),
        ("12,34,567", 1234567),
        ("1,23,4", None),
        (r"1.6\times10^{-19}", Fraction(16, 10**20)),
        ("10⁻³", Fraction(1, 1000)),
        ("7.5 million", 7500000),
        ("12 per cent", Fraction(3, 25)),
        ("-£20", -20),
        ("$3.5M", 3500000),
        (r"0.1\overline{6}", Fraction(1, 6)),
        ("1990s", None),
        ("5 km", None),
        ("9**9**9", None),
        ("1" * 1001, None),
        (r"0.\overline{" + "3" * 5000 + "}", None),
    ],
)
def test_numbers_are_read_in_the_ways_of_several_countries(text, value):
    assert read_number(text) == value


@pytest.mark.parametrize(
    ("name", "factor", "powers"),
    [
        ("km", 1000, {("m", 1)}),
        ("kilometres", 1000, {("m", 1)}),
        ("sq mi", Fraction("1609.344") ** 2, {("m", 2)}),
        ("cm^3", Fraction(1, 10**6), {("m", 3)}),
        ("mL", Fraction(1, 10**6), {("m", 3)}),
        ("km/h", Fraction(5, 18), {("m", 1), ("s", -1)}),
        ("m s^{-2}", 1, {("m", 1), ("s", -2)}),
        ("metres per second squared", 1, {("m", 1), ("s", -2)}),
        ("US dollars", 1, {("USD", 1)}),
        ("_4", 1, {("base 4", 1)}),
    ],
)
def test_a_unit_is_a_factor_of_its_base_units(name, factor, powers):
    (unit,) = read_units(name)
    assert (unit.factor, unit.powers) == (factor, powers)


def test_pounds_are_weight_or_money_and_children_are_no_unit():
    assert [unit.powers for unit in read_units("pounds")] == [{("g", 1)}, {("GBP", 1)}]
    assert read_units("children") == read_units("") == read_units("m/children") == ()


def test_a_letter_behind_a_number_needs_a_unit_on_the_other_side():
    assert same_quantity("5m", "5 metres") and same_quantity("5 m", "5")
    assert same_quantity("5m", "5") is None
    assert same_quantity("1990s", "1990") is None and same_quantity("1990s", "1980s") is False


def test_only_quantities_are_compared_as_quantities():
    assert same_quantity("5", "five") is same_quantity("Paris", "Paris") is same_quantity("", "") is None
    assert read_quantity("5 km 300 m") is read_quantity("3:1") is read_quantity("20th") is None


@pytest.mark.parametrize(
    ("answer", "letters", "text"),
    [
        ("B", "B", ""),
        (r"\textbf{(B)}", "B", ""),
        ("A, C", "AC", ""),
        ("(A) and (C)", "AC", ""),
        ("B) Rome", "B", "Rome"),
        (r"C. \frac{1}{2}", "C", r"\frac{1}{2}"),
        ("C. S. Lewis", "", "C. S. Lewis"),
        ("D.C.", "", "D.C."),
        ("b", "", "b"),
        ("Paris", "", "Paris"),
    ],
)
def test_capital_letters_from_a_to_j_are_choices(answer, letters, text):
    assert read_choice(answer) == (set(letters), text)


def test_an_answer_without_letters_is_no_choice():
    assert same_choice("B", "Rome") is None
    assert same_choice("Rome", "B) Rome") is None  # the text decides
    assert same_choice("Rome", "B") is False


@pytest.mark.parametrize(
    ("typed", "latex"),
    [
        ("sqrt((1+2)/3)", r"\sqrt{(1+2)/3}"),
        ("2√3", r"2\sqrt{3}"),
        ("∛(x+1)", r"\sqrt[3]{x+1}"),
        ("2^10", "2^{10}"),
        ("e^-x", "e^{-x}"),
        ("2^(n+1)", "2^{n+1}"),
        ("asin(x)", r"\arcsin(x)"),
        ("3 1/4", r"\frac{13}{4}"),
        ("-1≤x", r"-1\le x"),
        ("x=50%", r"x=\frac{50}{100}"),
        ("sqrt(2", "sqrt(2"),
    ],
)
def test_what_one_types_becomes_latex(typed, latex):
    assert as_latex(typed, "") == latex
