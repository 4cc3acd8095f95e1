"""Formulas joined by commas, "and" or "or", and those that stand for two: `x<1 or x>3`, `2, 3` and `±2`."""

from __future__ import annotations

import re
from collections.abc import Callable

from .notation import unify, unwrapped

_JOINED = re.compile(r"\\[a-z]+\s*\{\s*,?\s*(and|or)\s*\}")
_JOINT = re.compile(r",?\s*\b(?:and|or)\b|(?<!\d),|,(?!\d{3}(?!\d))|[(\[{}\])]")
_CONNECTIVE = re.compile(r"\b(?:and|or)\b")
_PLUS_MINUS = re.compile(r"±|\\pm(?![a-z])")
_INEQUALITY = re.compile(r"[<>≤≥≠]|\\(?:leq?|geq?|neq?)(?![a-z])")


def joined_parts(text: str) -> list[str]:
    """The parts between the commas, "and" and "or" that stand in no bracket."""
    text = _JOINED.sub(r" \1 ", unify(text))
    parts, start, depth = [], 0, 0
    for found in _JOINT.finditer(text):
        if found[0] in "([{":
            depth += 1
        elif found[0] in ")]}":
            depth -= 1
        elif depth == 0:
            parts.append(text[start : found.start()].strip())
            start = found.end()
    return [*parts, text[start:].strip()]


def joins_words(text: str) -> bool:
    """Whether "and" or "or" joins parts of a text."""
    return bool(_CONNECTIVE.search(_JOINED.sub(r" \1 ", text)))


def compounds_equal(left: str, right: str, equal: Callable[[str, str], bool]) -> bool | None:
    """
    Whether two compounds have equal parts, in any order.

    Args:
        left (`str`):
            A formula or several.
        right (`str`):
            Another one.
        equal (`Callable[[str, str], bool]`):
            Compares two parts.

    Returns:
        `bool`, *optional*:
            Whether they are equal; `None` if neither is a compound, or if one is that may be a set in another form.
    """
    ours, theirs = joined_parts(left), joined_parts(right)
    if bool(_PLUS_MINUS.search(left)) != bool(_PLUS_MINUS.search(right)):
        ours, theirs = ([signed for part in side for signed in _both_signs(part)] for side in (ours, theirs))
    words = [set(_CONNECTIVE.findall(unwrapped(side))) for side in (left, right)]
    if len(ours) == len(theirs) == 1:
        return None
    if len(ours) != len(theirs):
        return False if any(words) else None
    if all(words) and words[0] != words[1] and _INEQUALITY.search(left):
        return False
    for part in ours:
        same = next((other for other in theirs if equal(part, other)), None)
        if same is None:
            return False
        theirs.remove(same)
    return True


def _both_signs(part: str) -> list[str]:
    signs = ("+", "-") if _PLUS_MINUS.search(part) else ("",)
    return [_PLUS_MINUS.sub(sign, part) for sign in signs]
