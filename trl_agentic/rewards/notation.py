"""One way of writing for what can be written in many: signs, fractions, digit groups, and LaTeX without its markup."""

from __future__ import annotations

import re
import unicodedata

_SIGNS = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-")
    | {"º": "°", "’": "'"}
    | {letter: rf"\mathbb{{{unicodedata.normalize('NFKC', letter)}}}" for letter in "ℂℕℚℝℤ"}
)
_SUPERSCRIPT = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+|[⁺⁻]?[ⁿⁱ]")
_SUBSCRIPT = re.compile("[₀-₉]+")
_VULGAR = re.compile(r"(\w?)([¼½¾⅐-⅞])")
_CIRCLED = re.compile("[①-⑳](?=[①-⑳])")
_GROUP_MARK = re.compile(r"(?<=\d)(?:\{[,\s]\}|\{\\,\}|,\\!|\\[,; ]|[~\u00a0\u2009\u202f])(?=\d{3}(?!\d))")
_REPEATING = re.compile(r"(?<!\d)(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?(\d+)\}?")
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
    return _DEGREE.sub("°", _REPEATING.sub(_as_fraction, text))


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


_FUNCTION_NAMES = "arccos|arcsin|arctan|cosh|cos|cot|csc|exp|gcd|lcm|ln|log|max|min|sec|sinh|sin|tanh|tan"
FUNCTIONS = frozenset([*_FUNCTION_NAMES.split("|"), "pi", "sqrt", "cbrt", "infinity", "inf", "mod"])
_FUNCTION = re.compile(rf"(?<![\\A-Za-z])({_FUNCTION_NAMES})(?![A-Za-z])")
_INVERSE = re.compile(r"(?<![\\A-Za-z])a(?=(?:cos|sin|tan)(?![A-Za-z]))")
_PARENTHESIS = re.compile(r"(?:\\?(sqrt|cbrt)|([√∛])|\^)\s*\(")
_ROOTS = {"sqrt": r"\sqrt", "√": r"\sqrt", "cbrt": r"\sqrt[3]", "∛": r"\sqrt[3]"}
_MIXED = re.compile(
    r"(?<![\w.^/)}\]])(\d+)(?:\s*\\[dtc]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|\s+(\d+)\s*/\s*(\d+))(?![\w/])"
)
_SET_BUILDER = re.compile(
    r"\\?\{\s*[A-Za-z]\s*(?:\\in\s*(?:\\mathbb\s*\{R\}|\\R|R)\s*)?(?:\\mid|\||:)\s*(.*?)\s*\\?\}"
)
_SYMBOLS = {
    **{"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": r"\div ", "±": r"\pm ", "π": r"\pi "},
    **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in "},
    **{"∅": r"\emptyset ", "≈": "=", r"\approx": "=", "**": "^", "*": r"\cdot ", "⩽": r"\le ", "⩾": r"\ge "},
    **{r"\leqslant": r"\le ", r"\geqslant": r"\ge ", r"\cfrac": r"\frac", r"\tfrac": r"\frac", "!=": r"\ne "},
}
_SYMBOL = re.compile("|".join(map(re.escape, _SYMBOLS)))


def as_latex(text: str, degree: str) -> str:
    """
    Write a formula as LaTeX: `sqrt(2)`, `√2`, `ln(2)`, `10^-3`, `x≥2`, `2pi` and `3 1/4` as one types them.

    Args:
        text (`str`):
            A formula, in LaTeX or not.
        degree (`str`):
            What a degree sign stands for, as LaTeX that follows the number.

    Returns:
        `str`:
            The formula in LaTeX.
    """
    text = _MIXED.sub(_improper, unify(text))
    # math-verify takes 10% for 10 as well as for 0.1
    text = re.sub(r"(\d+(?:\.\d+)?)\s*\\?%", r"\\frac{\1}{100}", text)
    text = re.sub(r"(\d+(?:\.\d+)?)\s*°", lambda found: f"({found[1]}{degree})", text)
    text = _SYMBOL.sub(lambda found: _SYMBOLS[found[0]], text)
    text = _FUNCTION.sub(r"\\\1", _INVERSE.sub("arc", _braces(text)))
    text = re.sub(r"([√∛])\s*(\d+(?:\.\d+)?|[A-Za-z])", lambda found: f"{_ROOTS[found[1]]}{{{found[2]}}}", text)
    text = re.sub(r"\^\s*([-+]?(?:\d+(?:\.\d+)?|[A-Za-z]))", r"^{\1}", text)
    text = re.sub(r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi ", text)
    text = re.sub(r"(?<![\\A-Za-z])inf(?:inity)?(?![A-Za-z])", r"\\infty ", text)
    return _SET_BUILDER.sub(r"\1", text)


def _improper(found: re.Match[str]) -> str:
    whole, numerator, denominator = int(found[1]), int(found[2] or found[4]), int(found[3] or found[5])
    if numerator >= denominator:
        return found[0]
    return rf"\frac{{{whole * denominator + numerator}}}{{{denominator}}}"


def _braces(text: str) -> str:
    """Parentheses behind a root or a power become braces, the innermost first."""
    for found in reversed(list(_PARENTHESIS.finditer(text))):
        depth, end = 1, found.end()
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if depth == 0:
            opening = _ROOTS.get(found[1] or found[2], "^")
            text = f"{text[: found.start()]}{opening}{{{text[found.end() : end - 1]}}}{text[end:]}"
    return text
