"""Is the answer right? Extraction, token F1, exact match, and which comparison an answer asks for."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .answer_tokens import answer_tokens, comparable_tokens
from .choices import labelled_values, read_choice, same_choice
from .completion import Completion, own_text
from .math_equality import looks_mathematical, math_equal, same_notation
from .quantities import read_quantity, same_quantity

_VERDICTS = (["yes"], ["no"], ["noanswer"])
_WORD = re.compile(r"[^\W\d_]{3}|\d")
_BRACE = re.compile(r"(?<!\\)\\+boxed\{|\\.|[{}]", re.DOTALL)


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
    opened: list[tuple[int, bool]] = []
    last = (-1, -1)
    for found in _BRACE.finditer(text):
        if found[0] == "}" and opened:
            start, is_box = opened.pop()
            last = max(last, (start, found.start())) if is_box else last
        elif found[0] == "{" or found[0].endswith("boxed{"):
            opened.append((found.end(), found[0] != "{"))
    return text[last[0] : last[1]].strip() if last[0] >= 0 else None


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
    if answer is None or (isinstance(answer, float) and math.isnan(answer)):  # NaN: an empty cell of a table
        return []
    if isinstance(answer, str | int | float):
        return [str(answer)] if str(answer).strip() else []
    if isinstance(answer, Iterable) and not isinstance(answer, bytes | Mapping):
        return [accepted for entry in answer for accepted in accepted_answers(entry)]
    raise TypeError(
        f"An accepted answer is a text, a number, or a list of them; got {type(answer).__name__}. Convert the "
        "`answer` column of the dataset."
    )


def answer_f1(prediction: str | None, answers: Any) -> float:
    """
    Token F1 of a prediction, the best over all accepted answers.

    Choices, numbers, quantities, formulas, "yes" and "no" are right or wrong as a whole.

    Args:
        prediction (`str`, *optional*):
            What the model answered.
        answers (`str` or `list[str]`):
            Accepted answers.

    Returns:
        `float`:
            F1 in [0, 1]; 0 for a missing or empty prediction.
    """
    return _best(prediction, answers, same_notation, _token_f1)


def answer_exact_match(prediction: str | None, answers: Any) -> float:
    """
    Whether a prediction equals an accepted answer, up to case, punctuation, articles, accents, and the way choices and
    quantities are written. Formulas are not computed.

    Args:
        prediction (`str`, *optional*):
            What the model answered.
        answers (`str` or `list[str]`):
            Accepted answers.

    Returns:
        `float`:
            1 or 0; 0 for a missing or empty prediction.
    """
    return _best(prediction, answers, same_notation, _same_tokens)


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
    return _best(prediction, answers, math_equal, _token_f1)


def _best(
    prediction: str | None,
    answers: Any,
    formulas: Callable[[str, str], bool],
    words: Callable[[str, str], float],
) -> float:
    best = 0.0
    if prediction is None or not prediction.strip():
        return best
    prediction = extract_boxed(prediction) or prediction
    for answer in accepted_answers(answers):
        best = max(best, _compared(prediction, extract_boxed(answer) or answer, formulas, words))
        if best == 1.0:
            break
    return best


def _compared(
    prediction: str, answer: str, formulas: Callable[[str, str], bool], words: Callable[[str, str], float]
) -> float:
    if sides := labelled_values(prediction, answer):
        ours, theirs = sides
        return float(
            ours.keys() == theirs.keys()
            and all(_compared(ours[label], theirs[label], formulas, words) == 1 for label in theirs)
        )
    equal = same_choice(prediction, answer)
    if equal is None:
        _, answer = read_choice(answer)
        equal = same_quantity(prediction, answer)
    if equal is not None:
        return float(equal)
    letters = not _WORD.search(answer)  # unknowns where the prediction is a formula: -x is not x
    if not looks_mathematical(answer) and not (letters and looks_mathematical(prediction)):
        return words(prediction, answer)
    if read_quantity(answer) is None or looks_mathematical(prediction):
        return float(formulas(prediction, answer))
    # "8 children" for "8". A second number would be a second answer: "8 or 9".
    numbers = [token for token in answer_tokens(prediction) if re.search(r"\d", token)]
    return words(prediction, answer) if len(numbers) == 1 else 0.0


def _same_tokens(prediction: str, answer: str) -> float:
    left, right = comparable_tokens(prediction, answer)
    return float(bool(left) and left == right)


def _token_f1(prediction: str, answer: str) -> float:
    left, right = comparable_tokens(prediction, answer)
    if left != right and (left in _VERDICTS or right in _VERDICTS):
        return 0.0
    common = (Counter(left) & Counter(right)).total()
    return 2 * common / (len(left) + len(right)) if common else 0.0
