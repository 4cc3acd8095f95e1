"""Formulas as one types them, rewritten as the LaTeX that math-verify reads."""

from __future__ import annotations

import re

from .notation import unify

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
    "×": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "∙": r"\cdot ",
    "**": "^",
    "*": r"\cdot ",
    "÷": r"\div ",
    "±": r"\pm ",
    "≤": r"\le ",
    "⩽": r"\le ",
    r"\leqslant": r"\le ",
    "≥": r"\ge ",
    "⩾": r"\ge ",
    r"\geqslant": r"\ge ",
    "≠": r"\ne ",
    "!=": r"\ne ",
    "π": r"\pi ",
    "∞": r"\infty ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "∉": r"\notin ",
    "∅": r"\emptyset ",
    r"\cfrac": r"\frac",
    r"\tfrac": r"\frac",
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
    text = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})(?!\w)", r"\1\\cdot 10^{\2}", text)
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
