"""The words of an answer, for comparison."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from ..words import space_characters
from .notation import plain_latex
from .quantities import NUMBER, read_number

_ARTICLES = frozenset(("a", "an", "the"))
_NUMBER_IN_TEXT = re.compile(rf"(?<![\w%])(?<!\d[.,/:-]){NUMBER}(?!\w|[.,/:-]\d)")
_TOKEN_NUMBER = re.compile(r"-?\d+(?:/\d+)?")
_SEPARATOR_OR_LETTER = re.compile(r"(?<=\d)[./:-](?=\d)|(.)")
_ACCENTS = re.compile("[\u0300-\u036f]")
_SPELLINGS: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"(?<=[^\W\d_])[_^]\{(\d+)\}"), r"\1"),  # H₂O is H2O, and km² is km2
    (re.compile(r"-\s?([$€£¥₹])(?=\d)"), r"\1-"),
    (re.compile(r"(?<=\d0)'(?=s\b)"), ""),  # 1990's
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
    (re.compile(r"(?<=\d)\s+to\s+(?=\d)"), "-"),  # 3 to 2 is not 2 to 3
    (re.compile(r"(?<=\d)\s*:\s*(?=\d)"), ":"),
    (re.compile(r"(?<=\s)&(?=\s)"), "and"),
    (re.compile(r"(?<=[^\W\d_])\++(?!\w)"), lambda found: " plus" * len(found[0])),  # C++ is not C
    (re.compile(r"(?<=\b[a-z])-(?!\w)"), " minus"),  # a grade
    (re.compile(r"(?<=[^\W\d_])[#♯](?!\w)"), " sharp"),
    (re.compile(r"(?<=[^\W\d_])♭(?!\w)"), " flat"),
]


def answer_tokens(text: str) -> list[str]:
    """
    Tokens of an answer, for comparison: no case, accents or punctuation, numbers as values.

    Words are treated as in SQuAD's F1, but a number keeps its sign, decimals, slash and percent sign: `-3`, `1/2` and
    `10%` differ from `3`, `12` and `10`, while `110,000` equals `110000` and `0.5` equals `\\frac{1}{2}`. Where a
    script has no spaces between words, as in Chinese, every character is a token.

    Args:
        text (`str`):
            An answer.

    Returns:
        `list[str]`:
            The tokens, articles included.
    """
    text = unicodedata.normalize("NFD", plain_latex(text).casefold())
    text = space_characters(unicodedata.normalize("NFC", _ACCENTS.sub("", text)))
    for pattern, written in _SPELLINGS:
        text = pattern.sub(written, text)
    text = _NUMBER_IN_TEXT.sub(lambda found: f" {_canonical(found[0])} ", text)
    tokens: list[str] = []
    for word in text.split():
        if _TOKEN_NUMBER.fullmatch(word):
            tokens.append(word)
            continue
        word = re.sub(r"(?<=\d)[^\w\s./:-](?=\d)", " ", word)  # 1,2 is a list, 12:30 one time
        tokens += _SEPARATOR_OR_LETTER.sub(_spoken, word).split()
    return tokens


def comparable_tokens(prediction: str, answer: str) -> tuple[list[str], list[str]]:
    """
    Tokens of two answers without their articles, which stay where nothing else is left: the answer "A" is a letter.

    Args:
        prediction (`str`):
            What the model answered.
        answer (`str`):
            The accepted answer.

    Returns:
        `tuple[list[str], list[str]]`:
            The tokens of both.
    """
    sides = answer_tokens(prediction), answer_tokens(answer)
    words = tuple([token for token in side if token not in _ARTICLES] for side in sides)
    return (words[0], words[1]) if all(words) else sides


def _canonical(number: str) -> str:
    value = read_number(number)
    return number if value is None else str(value)


def _spoken(found: re.Match[str]) -> str:
    return "" if found[1] and _is_silent(found[1]) else found[0]


def _is_silent(letter: str) -> bool:
    """Whether a character is punctuation, a symbol, or invisible."""
    return unicodedata.category(letter)[0] in "PS" or unicodedata.category(letter) == "Cf"
