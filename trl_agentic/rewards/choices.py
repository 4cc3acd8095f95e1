"""Answers to multiple-choice questions: letters, alone or in front of the text they stand for."""

from __future__ import annotations

import re

from .notation import plain_latex, unify, unwrapped
from .quantities import LONGEST

_LETTER = re.compile(r"(?<![A-Z])[A-J](?![A-Z])")
_LIST = r"[\s(\[]*[A-J](?:[\s,;:&/()\[\]%s]+(?:(?i:and)[\s(]+)?[A-J])*[\s.,;:)\]]*"
_ACCEPTED = re.compile(_LIST % "")  # D.C. is a name
_PREDICTED = re.compile(_LIST % ".")
_LABEL = r"[(\[]?([%s])(?:[)\]][.:]?|\s*:|(\.)(?=\s))\s*(\S.*)"
_ACCEPTED_LABEL = re.compile(_LABEL % "A-J", re.DOTALL)
_PREDICTED_LABEL = re.compile(_LABEL % "A-Ja-j", re.DOTALL)
# More letters behind the first choice. A small "a" is an article, "F." an initial unless the first label has a stop.
_NEXT = (
    r"(?<!\w)[(\[][A-Ja-j][)\]]|(?<![\w(\[])[A-Ja-j][):]"
    r"|(?:\b(?:or|and)\b|[,;/&])(?:\s+[a-z]{2,})?\s*[(\[]?[A-Jb-j](?![\w'.]\w|\w)"
)
_NEXT_CHOICE = re.compile(_NEXT)
_NEXT_STOPPED_CHOICE = re.compile(rf"{_NEXT}|(?<![\w.])[A-J]\.(?!\w)")
_RUN_TOGETHER = re.compile(r"[A-J]{2,}")
_INTRODUCTION = re.compile(
    r"(?:(?:the )?(?:correct |right |final |best )?(?:answers?|options?|choices?)(?: is| are)?\s*:?\s+)+",
    re.IGNORECASE,
)
_CONFIRMATION = re.compile(
    r"\s+(?:is|are)\s+(?:the\s+)?(?:correct|right|best)(?:\s+(?:answers?|options?|choices?|one))?[.!]?\s*$",
    re.IGNORECASE,
)
_EMPHASIS = re.compile(r"(?<!\w)(\*{1,3})(?!\*)(.+?)\1(?!\w)")
_STARTS_MATHEMATICAL = re.compile(r"[-+$(\[\\√\d]|\w\s*[\^=<>+]")
_VALUE_LABEL = re.compile(r"(?:^|[,;\n]|\band\b)\s*(?:\(([A-Za-z])\)|([A-Za-z])\s*[:)])\s*(?=[^\s,;])")
_COLON_LABEL = re.compile(r"[A-Za-z]\s*:")


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
    if not letters or (text and not chosen):
        return None
    return chosen == letters or plain_latex(prediction) == plain_latex(answer)


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
        label = _ACCEPTED_LABEL.fullmatch(unwrapped(unify(answer)).strip())
        if label and (not label[2] or _STARTS_MATHEMATICAL.match(label[3])):
            return frozenset(label[1]), label[3]
    return frozenset(), answer


def labelled_values(prediction: str, answer: str) -> tuple[dict[str, str], dict[str, str]] | None:
    """
    The values of two answers by their labels, where the accepted one is labelled values rather than a choice.

    Args:
        prediction (`str`):
            What the model answered.
        answer (`str`):
            The accepted answer, such as `"A: 60"`, `"H: 1, T: 2"` or `"(A) True, (B) False"`.

    Returns:
        `tuple[dict[str, str], dict[str, str]]`, *optional*:
            Both sides; `None` if the accepted answer has no such values, or one with a label that the prediction
            lacks, which may be a choice.
    """
    ours, theirs = _by_label(prediction), _by_label(answer)
    if len(theirs) > 1 or (theirs and ours and _COLON_LABEL.match(unwrapped(unify(answer)).strip())):
        return ours, theirs
    return None


def _by_label(text: str) -> dict[str, str]:
    plain = unwrapped(unify(text[:LONGEST])).strip()
    labels = list(_VALUE_LABEL.finditer(plain))
    if not labels or labels[0].start():
        return {}
    ends = [label.start() for label in labels[1:]] + [len(plain)]
    values = {
        (label[1] or label[2]).casefold(): plain[label.end() : end] for label, end in zip(labels, ends, strict=True)
    }
    return values if len(values) == len(labels) else {}


def _chosen(prediction: str) -> frozenset[str]:
    plain = _CONFIRMATION.sub("", _INTRODUCTION.sub("", _plain(prediction[:LONGEST]), count=1))
    if _RUN_TOGETHER.fullmatch(plain):
        return frozenset(plain) if len(set(plain)) == len(plain) else frozenset()  # II is a numeral
    if _PREDICTED.fullmatch(plain.upper()):
        return frozenset(_LETTER.findall(plain.upper()))
    label = _PREDICTED_LABEL.fullmatch(plain)
    if not label:
        return frozenset()
    following = (_NEXT_STOPPED_CHOICE if label[2] else _NEXT_CHOICE).finditer(label[3])
    letters = [label[1], *(found[0].strip("()[]:. ")[-1] for found in following)]
    return frozenset(letter.upper() for letter in letters)


def _plain(text: str) -> str:
    return _EMPHASIS.sub(r"\2", plain_latex(text)).strip()
