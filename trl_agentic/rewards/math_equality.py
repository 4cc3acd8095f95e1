"""Equality of mathematical answers: quantities exactly, everything else symbolically with math-verify."""

from __future__ import annotations

import re

from .compounds import compounds_equal, joined_parts, joins_words
from .math_process import symbolically_equal
from .notation import WRAPPERS, plain_latex, unify
from .quantities import LONGEST, NUMBER, read_number, read_quantity, same_quantity
from .typed_formulas import FUNCTIONS, as_latex
from .units import Unit, read_units

# Dates, scores, versions, decades; names such as U2 and H2O
_NO_FORMULA = re.compile(r"\d+(?:[-:]\d+)+|\d+(?:/\d+){2,}|\d+(?:\.\d+){2,}|\d+'?s|[A-Za-z]+\d[A-Za-z\d]*")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_]{2,}|[^\W\d_A-Za-zΑ-Ωα-ω]")  # one character may be a word in other scripts
_OPERATION = re.compile(r"\d|[\w)}\]!]\s*[\^=<>≤≥≠+*]\s*[-\w({\[]|^-\s*[^\W\d_]$|[∞π√∛∅±]|infinity")
# Formulas of letters alone: one or two letters a name, as in ab; N/A is a name, and so are co-op and to/do
_LETTERS = re.compile(r"(?!N/A$)(?:(?![^\W\d_]{3}|\d).)+", re.DOTALL)
_LETTER_OPERATION = re.compile(
    r"[∩∪∧∨¬∈∉⊂⊆⊃⊇∖→⇒⇔∘⊕⊗^_]|\|.+\||[(\[{]\s*\w\s*,\s*\w.*[)\]}]|(?<!\w)\w'+\s*(?:\(|$)|(?<!\w)\w!$|^-\s*\w{1,2}(?!\w)"
    r"|(?<!\w)\w\s*[-/]\s*\w{1,2}(?!\w)|\w\s*[-/]\s*\w(?!\w)|[)\]|]\s*[-/]\s*[\w(\[|]|\w\s*[-/]\s*[(\[|]"
)
_CALL = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(sorted(FUNCTIONS))})\s*(?:\(|[a-z]\b)")
_INNER_SPACE = re.compile(r"\s+(?!\w)|(?<!\w)\s+")
_DELIMITERS = re.compile(r"^(?:\\[(\[]|\$+)|(?:\\[)\]]|\$+)$|[.,;]$")
_EQUALS = re.compile(r"≈|\\approx(?![a-z])")
_NAME = r"\\?[A-Za-z]\w*(?:_\{\w+\})?(?:\^\{?-1\}?)?'*(?:\(\w+\))?"
_NAMED = re.compile(
    rf"({_NAME}|\\[A-Za-z]+(?:\s+[A-Za-z]+|\{{[A-Za-z ]+\}})|\\frac\{{d\w*\}}\{{d\w+\}})\s*=\s*([^=<>]+)"
)
_EQUAL_SIGN = re.compile(r"(?<![<>!=:])=(?!=)")
_SET = re.compile(r"\\?\{(?:(?!\\mid)[^()\[\]|:])*\\?\}")
_TUPLE = re.compile(r"[(\[].*,.*[)\]]", re.DOTALL)
_RELATION = re.compile(r"[=<>≤≥≠∈]|\\(?:leq?|geq?|leqslant|geqslant|neq?|in|equiv)(?![A-Za-z])")
_NUMBER = re.compile(NUMBER)
_UNIT_START = re.compile(rf"(?:\\[,;: ]|\s|~|(?<=[\d)}}]))(?=\\(?:{WRAPPERS})\s*\{{|[A-Za-zµ°]{{2}})")
_BRACKETS = re.compile(r"[()\[\]{}\\±]")
_COMMA = re.compile(r",\s*(?:and|or)\b|,|\b(?:and|or)\b")
_LONGEST_UNIT = 40
_DEGREES = (r"\cdot\frac{\pi}{180}", "")


def looks_mathematical(text: str) -> bool:
    """
    Whether an accepted answer is to be compared as mathematics, not as words.

    Numbers, quantities and formulas are; names, single letters, dates, times and scores such as `3-1` are not.

    Args:
        text (`str`):
            The accepted answer.

    Returns:
        `bool`:
            `True` for mathematics.
    """
    if len(text) > LONGEST:
        return False
    plain = plain_latex(text)
    if _NO_FORMULA.fullmatch(plain):
        return False
    if read_quantity(text) is not None:
        return True
    if _COMMAND.search(plain):
        return True
    parts = joined_parts(plain)
    if len(parts) > 1 and joins_words(plain):
        return all(map(looks_mathematical, parts))
    if _LETTERS.fullmatch(plain) and _LETTER_OPERATION.search(plain):
        return True
    if any(word.lower() not in FUNCTIONS for word in _WORD.findall(plain)):
        return False
    return bool(_OPERATION.search(plain) or _CALL.search(plain))


def math_equal(prediction: str, answer: str) -> bool:
    """
    Whether two mathematical answers are equal.

    Quantities are compared exactly, see [`same_quantity`]. Formulas are compared symbolically by math-verify, in a
    process of its own: a comparison that takes longer than two seconds, or too much memory, counts as unequal, in
    whatever thread it is asked for.

    Args:
        prediction (`str`):
            What the model answered.
        answer (`str`):
            The accepted answer.

    Returns:
        `bool`:
            Whether they are equal.

    Raises:
        ImportError: If a formula has to be compared and math-verify is not installed.
    """
    if not prediction.strip() or not answer.strip():
        return False
    if max(len(prediction), len(answer)) > LONGEST:
        return False
    if _one_notation(prediction) == _one_notation(answer):
        return True
    equal = compounds_equal(prediction, answer, math_equal)
    return _parts_equal(prediction, answer) if equal is None else equal


def same_notation(prediction: str, answer: str) -> bool:
    """
    Whether two formulas are the same but for the way of writing: `√2` and `\\sqrt{2}`, not `1+x` and `x+1`. Capital
    and small letters are the same.

    Args:
        prediction (`str`):
            What the model answered.
        answer (`str`):
            The accepted answer.

    Returns:
        `bool`:
            Whether they are the same.
    """
    if max(len(prediction), len(answer)) > LONGEST:
        return False
    return _one_notation(prediction).casefold() == _one_notation(answer).casefold()


def _one_notation(text: str) -> str:
    plain = plain_latex(as_latex(_DELIMITERS.sub("", text.strip()), "°"))
    return _INNER_SPACE.sub("", _NUMBER.sub(_as_value, " ".join(plain.split())))


def _as_value(found: re.Match[str]) -> str:
    value = read_number(found[0])
    return found[0] if value is None else str(value)


def _without_the_same_name(left: str, right: str) -> tuple[str, str]:
    """`x = 5` and `5`, or `x = 5` and `x = 6`, without `x =`."""
    left, right = (_EQUALS.sub("=", _DELIMITERS.sub("", unify(side).strip()).strip()) for side in (left, right))
    one, other = _NAMED.fullmatch(left), _NAMED.fullmatch(right)
    if one and other and one[1] == other[1]:
        return one[2], other[2]
    if one and not _RELATION.search(right):
        return one[2], right
    if other and not _RELATION.search(left):
        return left, other[2]
    return left, right


def _parts_equal(left: str, right: str) -> bool:
    left, right = _without_the_same_name(left, right)
    equal = same_quantity(left, right)
    if equal is not None:
        return equal
    ours, theirs = _EQUAL_SIGN.split(left), _EQUAL_SIGN.split(right)
    if (len(ours) > 1) != (len(theirs) > 1):  # 2 + 3 = 5 is 5, x + y = 2 is not 2
        return all(math_equal(one, other) for one in ours for other in theirs)
    return _formulas_equal(left, right)


def _formulas_equal(left: str, right: str) -> bool:
    degrees = _DEGREES if "°" in left + right else _DEGREES[-1:]
    (left, left_units), (right, right_units) = _without_unit(left), _without_unit(right)
    if left_units and right_units and left_units != right_units:
        return False
    if any(_SET.fullmatch(one) and _TUPLE.fullmatch(other) for one, other in ((left, right), (right, left))):
        return False
    if left.count("'") != right.count("'"):
        return False  # math-verify drops primes
    if len({len(_COMMA.split(side)) for side in (left, right) if not _BRACKETS.search(side)}) > 1:
        return False  # math-verify would take the list 1, 1, 2 for the set of 1 and 2
    return any(symbolically_equal(as_latex(right, degree), as_latex(left, degree)) for degree in degrees)


def _without_unit(text: str) -> tuple[str, tuple[Unit, ...]]:
    for found in _UNIT_START.finditer(text, max(0, len(text) - _LONGEST_UNIT)):
        if units := read_units(plain_latex(text[found.end() :])):
            return text[: found.start()], units
    return text, ()
