"""One way of writing for what can be written in many: signs, fractions, digit groups, and LaTeX without its markup."""

from __future__ import annotations

import re
import unicodedata

_SIGNS = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-")
    | {"º": "°", "’": "'", "′": "'", "″": '"'}
    | {letter: rf"\mathbb{{{unicodedata.normalize('NFKC', letter)}}}" for letter in "ℂℕℚℝℤ"}
)
_SUPERSCRIPT = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+|[⁺⁻]?[ⁿⁱ]")
_SUBSCRIPT = re.compile("[₀-₉]+")
_VULGAR = re.compile(r"(\w?)([¼½¾⅐-⅞])")
_CIRCLED = re.compile("[①-⑳](?=[①-⑳])")
_GROUP_MARK = re.compile(r"(?<=\d)(?:\{[,\s]\}|\{\\,\}|,?\\!\s?|\\[,; ]|[~\u00a0\u2009\u202f])(?=\d{3}(?!\d))")
_REPEATING = re.compile(r"(?<!\d)(\d{0,99})\.(\d{0,99})\\(?:overline|bar|dot)\s*\{?(\d{1,99})\}?")
_PRIME = re.compile(r"\^\s*\{?\s*\\prime\s*\}?")
_DEGREE = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degrees?(?![a-z])|\\circ(?![A-Za-z])(?=\s*$)")

WRAPPERS = "text|textbf|textit|textrm|textup|textsf|emph|mathrm|mathbf|mathit|mathsf|operatorname|mbox|bm|boldsymbol"
_WRAPPED = re.compile(rf"\\(?:{WRAPPERS})\s*\{{([^{{}}]*)\}}")
_SPACING = re.compile(
    r"\\[,;:> ]|\\(?:left|right|[bB]igg?[lr]?|q?quad|displaystyle|thinspace|limits)(?![A-Za-z])|~|\\[()\[\]]"
)
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*(-?\d+(?:\.\d+)?)\s*\}|(\d))\s*(?:\{\s*(\d+(?:\.\d+)?)\s*\}|(\d))")
_ESCAPED = re.compile(r"\\([%$&#_])")


def unify(text: str) -> str:
    """
    Write alike what differs in spelling alone: minus signs, `½` as `1/2`, `x²` as `x^{2}`, `10\\,000` as `10000`.

    Args:
        text (`str`):
            An answer.

    Returns:
        `str`:
            The same answer; LaTeX stays LaTeX.
    """
    text = _GROUP_MARK.sub("", text.translate(_SIGNS)).replace("\\!", "").replace("{,}", ".").replace(r"\colon", ":")
    text = _CIRCLED.sub(r"\g<0>, ", text)
    text = _VULGAR.sub(lambda found: f"{found[1]} {unicodedata.normalize('NFKC', found[2])}".lstrip(), text)
    text = _SUPERSCRIPT.sub(lambda found: f"^{{{unicodedata.normalize('NFKC', found[0])}}}", text)
    text = _SUBSCRIPT.sub(lambda found: f"_{{{unicodedata.normalize('NFKC', found[0])}}}", text)
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS).replace("\u2044", "/")
    return _DEGREE.sub("°", _PRIME.sub("'", _REPEATING.sub(_as_fraction, text)))


def _as_fraction(found: re.Match[str]) -> str:
    # 0.1(6) is (16 - 1) / 90
    before, period = found[1] + found[2], found[3]
    numerator = int(before + period) - int(before or 0)
    return rf"\frac{{{numerator}}}{{{'9' * len(period)}{'0' * len(found[2])}}}"


def unwrapped(text: str) -> str:
    """A text without the LaTeX commands that set its font: `\\text{(A)}` becomes `(A)`."""
    return _WRAPPED.sub(r"\1", text)


def plain_latex(text: str) -> str:
    """
    Remove LaTeX that carries no meaning: delimiters, text wrappers, spacing, escapes; `\\frac{1}{2}` becomes `1/2`.

    Args:
        text (`str`):
            An answer.

    Returns:
        `str`:
            The same answer with less markup.
    """
    text = _SPACING.sub(" ", unwrapped(unify(text)))
    text = _FRACTION.sub(_slashed, text)
    return re.sub(r"(?<!\\)\$(?!\d)|^\$(?=.*\$$)", "", _ESCAPED.sub(r"\1", text).strip()).strip()


def _slashed(found: re.Match[str]) -> str:
    apart = " " if found.string[: found.start()][-1:].isalnum() else ""  # 3\frac{1}{4} is a mixed number
    return f"{apart}{found[1] or found[2]}/{found[3] or found[4]}"
