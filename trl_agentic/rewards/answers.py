"""Is the answer right? Extraction, normalisation, token F1, exact match, and which of them an answer asks for."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from .completion import Completion, own_text
from .math_equality import NUMBER, looks_mathematical, math_equal, plain_latex, read_number

_ARTICLES = frozenset(("a", "an", "the"))
_VERDICTS = (["yes"], ["no"], ["noanswer"])
_BOX = "\\boxed{"
_NUMBER_IN_TEXT = re.compile(rf"(?<![\w%])(?<!\d[.,/:-]){NUMBER}(?!\w|[.,/:-]\d)")
_TOKEN_NUMBER = re.compile(r"-?\d+(?:/\d+)?")


def extract_boxed(text: str) -> str | None:
    """
    Content of the last balanced `\\boxed{...}`.

    Args:
        text (`str`):
            Any text. Braces may be nested; escaped ones do not count.

    Returns:
        `str`, *optional*:
            The content without surrounding white space, possibly empty; `None` if no box is closed.
    """
    start = text.rfind(_BOX)
    while start >= 0:
        content = _balanced(text, start + len(_BOX))
        if content is not None:
            return content.strip()
        start = text.rfind(_BOX, 0, start)
    return None


def _balanced(text: str, start: int) -> str | None:
    depth = 1
    for brace in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start : brace.start()]
    return None


def extract_answer(completion: Completion) -> str | None:
    """
    The answer of a completion: the last balanced `\\boxed{...}` in the model's own text.

    Args:
        completion (`str` or `list[dict]`):
            Chat messages, or a text whose tool results stand between `<result>` and `</result>`.

    Returns:
        `str`, *optional*:
            Content of the box; `None` if the model closed none. Boxes in tool results are no answers.
    """
    return extract_boxed(own_text(completion))


def accepted_answers(answer: Any) -> list[str]:
    """
    The accepted answers in one entry of the `answer` column.

    Args:
        answer (`str`, `int`, `float`, a list of these, or `None`):
            The entry.

    Returns:
        `list[str]`:
            The answers; empty if there are none, so that the row cannot be scored.

    Raises:
        TypeError: If the entry is anything else.
    """
    if answer is None:
        return []
    if isinstance(answer, str | int | float):
        return [str(answer)]
    if isinstance(answer, Iterable) and not isinstance(answer, bytes | Mapping):
        return [accepted for entry in answer for accepted in accepted_answers(entry)]
    raise TypeError(
        f"An accepted answer is a text, a number, or a list of them; got {type(answer).__name__}. Convert the "
        "`answer` column of the dataset."
    )


def answer_tokens(text: str) -> list[str]:
    """
    Tokens of an answer, for comparison: lower case, no punctuation, numbers as values.

    Words are treated as in SQuAD's F1, but a number keeps its sign, decimals, slash and percent sign: `-3`, `1/2` and
    `10%` differ from `3`, `12` and `10`, while `110,000` equals `110000` and `0.5` equals `\\frac{1}{2}`.

    Args:
        text (`str`):
            An answer.

    Returns:
        `list[str]`:
            The tokens, articles included.
    """
    text = plain_latex(unicodedata.normalize("NFKC", text)).lower()
    text = _NUMBER_IN_TEXT.sub(lambda found: f" {_canonical(found[0])} ", text)
    tokens: list[str] = []
    for word in text.split():
        if _TOKEN_NUMBER.fullmatch(word):
            tokens.append(word)
            continue
        word = re.sub(r"(?<=\d)[^\w\s](?=\d)", " ", word)  # 12:30 is not 1230
        tokens += "".join(letter for letter in word if not _is_punctuation(letter)).split()
    return tokens


def _canonical(number: str) -> str:
    value = read_number(number)
    return number if value is None else str(value)


def _is_punctuation(letter: str) -> bool:
    return unicodedata.category(letter)[0] in "PS"


def _comparable(prediction: str, answer: str) -> tuple[list[str], list[str]]:
    sides = answer_tokens(prediction), answer_tokens(answer)
    words = tuple([token for token in side if token not in _ARTICLES] for side in sides)
    # The answer "A" is a letter: articles are dropped only where both sides keep something.
    return (words[0], words[1]) if all(words) else sides


def answer_f1(prediction: str | None, answers: Any) -> float:
    """
    Token F1 of a prediction, the best over all accepted answers.

    Args:
        prediction (`str`, *optional*):
            What the model answered.
        answers (`str` or `list[str]`):
            Accepted answers.

    Returns:
        `float`:
            F1 in [0, 1]; 0 for a missing or empty prediction. "Yes" and "no" are right or wrong as a whole.
    """
    return max((_f1(*_comparable(prediction or "", answer)) for answer in accepted_answers(answers)), default=0.0)


def _f1(prediction: list[str], answer: list[str]) -> float:
    if prediction != answer and (prediction in _VERDICTS or answer in _VERDICTS):
        return 0.0
    common = (Counter(prediction) & Counter(answer)).total()
    return 2 * common / (len(prediction) + len(answer)) if common else 0.0


def answer_exact_match(prediction: str | None, answers: Any) -> float:
    """
    Whether a prediction equals an accepted answer, up to case, punctuation, articles and the way numbers are written.

    Args:
        prediction (`str`, *optional*):
            What the model answered.
        answers (`str` or `list[str]`):
            Accepted answers.

    Returns:
        `float`:
            1 or 0; 0 for a missing or empty prediction.
    """
    pairs = [_comparable(prediction or "", answer) for answer in accepted_answers(answers)]
    return float(any(bool(left) and left == right for left, right in pairs))


def answer_score(prediction: str | None, answers: Any) -> float:
    """
    Score of a prediction: symbolic equality for accepted answers that are mathematics, token F1 for others.

    Args:
        prediction (`str`, *optional*):
            What the model answered.
        answers (`str` or `list[str]`):
            Accepted answers; the best one counts.

    Returns:
        `float`:
            Score in [0, 1]; 0 for a missing or empty prediction.

    Raises:
        ImportError: If a formula has to be compared and math-verify is not installed.
    """
    if prediction is None or not prediction.strip():
        return 0.0
    best = 0.0
    for answer in accepted_answers(answers):
        if looks_mathematical(answer):
            best = max(best, float(math_equal(prediction, answer)))
        else:
            best = max(best, answer_f1(prediction, answer))
        if best == 1.0:
            break
    return best
