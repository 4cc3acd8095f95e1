"""Answers to multiple-choice questions: letters, alone or in front of the text they stand for."""

from __future__ import annotations

import re

from .notation import plain_latex, unify, unwrapped
from .quantities import LONGEST

_LETTER = re.compile(r"(?<![A-Z])[A-J](?![A-Z])")
_LIST = r"[\s(\[]*[A-J](?:[\s,;:&/()\[\]%s]+(?:(?i:and)[\s(]+)?[A-J])*[\s.:)\]]*"
_ACCEPTED = re.compile(_LIST % "")  # D.C. is a name
_PREDICTED = re.compile(_LIST % ".")
_LABEL = re.compile(r"[(\[]?([A-J])(?:[)\]][.:]?|\s*:|(\.)(?=\s))\s*(\S.*)", re.DOTALL)
_NEXT_LABEL = re.compile(r"(?<!\w)([A-J])[):]")
_RUN_TOGETHER = re.compile(r"[A-J]{2,}")
_INTRODUCTION = re.compile(
    r"(?:the )?(?:correct |right |final )?(?:answers?|options?|choices?)(?: is| are)?\s*:?\s+", re.IGNORECASE
)
_STARTS_MATHEMATICAL = re.compile(r"[-+$(\[\\√\d]|\w\s*[\^=<>+]")


def same_choice(prediction: str, answer: str) -> bool | None:
    """
    Whether a prediction chooses what the accepted answer chooses, all or nothing.

    Args:
        prediction (`str`):
            What the model answered, such as `"B"`, `"(b)"`, `"B. Rome"`, `"option B"` or `"A and C"`.
        answer (`str`):
            The accepted answer. Capital letters from A to J are a choice (`"B"`, `"(B)"`, `"A, C"`), and so is one in
            front of a text (`"B) Rome"`).

    Returns:
        `bool`, *optional*:
            Whether both name the same letters; `None` if the answer is no choice, or if it holds a text as well and
            the prediction names no letter.
    """
    letters, text = read_choice(answer)
    chosen = _chosen(prediction) if letters else frozenset()
    return None if not letters or (text and not chosen) else chosen == letters


def read_choice(answer: str) -> tuple[frozenset[str], str]:
    """
    The letters of an accepted answer, and the text behind them.

    Args:
        answer (`str`):
            The accepted answer. `C. S. Lewis` is no choice: behind a full stop only mathematics counts as its text.

    Returns:
        `tuple[frozenset[str], str]`:
            Letters and text. Of an answer that is no choice, no letters and the whole answer.
    """
    if len(answer) <= LONGEST:
        if _ACCEPTED.fullmatch(plain_latex(answer)):
            return frozenset(_LETTER.findall(plain_latex(answer))), ""
        label = _LABEL.fullmatch(unwrapped(unify(answer)).strip())
        if label and (not label[2] or _STARTS_MATHEMATICAL.match(label[3])):
            return frozenset(label[1]), label[3]
    return frozenset(), answer


def _chosen(prediction: str) -> frozenset[str]:
    plain = _INTRODUCTION.sub("", plain_latex(prediction[:LONGEST]), count=1)
    if _RUN_TOGETHER.fullmatch(plain):
        return frozenset(plain)
    plain = plain.upper()
    if _PREDICTED.fullmatch(plain):
        return frozenset(_LETTER.findall(plain))
    label = _LABEL.fullmatch(plain)
    return frozenset([label[1], *_NEXT_LABEL.findall(label[3])]) if label else frozenset()
