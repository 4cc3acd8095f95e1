"""The hierarchical reward of ARPO (https://huggingface.co/papers/2507.19849), as published and as released."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from .answers import accepted_answers, answer_score, extract_boxed
from .completion import Completion, read_steps
from .format import Calls, DialectName, answer_part, format_conditions, resolve_dialect

_ERROR = re.compile(r"\W*error\b", re.IGNORECASE)


def arpo_reward(
    prompts: Sequence[Completion],
    completions: Sequence[Completion],
    answer: Sequence[Any],
    rollout_status: Sequence[str | None] | None = None,
    rollout_calls: Sequence[Calls | None] | None = None,
    rollout_dialect: Sequence[DialectName] | None = None,
    rollout_messages: Sequence[Completion] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """
    Reward function: -1 for a bad format, else the score of the answer, plus 0.1 if search and Python both helped.

    The format is good when all of [`format_conditions`] are met, a finished trajectory among them. The score is
    symbolic equality or token F1, see [`answer_score`]. The bonus needs a score above 0, and a call of `search` and
    one of `python` that were really executed: status `ok` in `rollout_calls`, or a tool message that reports no error.

    Args:
        prompts (`list`):
            The prompts.
        completions (`list`):
            The completions, as chat messages or as texts with results between `<result>` and `</result>`.
        answer (`list`):
            Accepted answer or answers of each row. `None` or an empty list: the row is not scored.
        rollout_status (`list[str]`, *optional*):
            Status of each trajectory; all are taken as finished without it.
        rollout_calls (`list[list[dict]]`, *optional*):
            Tool calls of each trajectory: `name` and `status` are read.
        rollout_dialect (`list[str]`, *optional*):
            How calls were written, `"tags"` or `"template"`; read off the texts without it.
        rollout_messages (`list[list[dict]]`, *optional*):
            The completions as chat messages, which are judged in their place.
        **kwargs:
            Other columns, ignored.

    Returns:
        `list[float | None]`:
            A reward in {-1} or [0, 1.1] per row, `None` where there is nothing to compare with.
    """
    facts = (rollout_status, rollout_calls, rollout_dialect, rollout_messages)
    return make_arpo_reward()(prompts, completions, answer, *facts)


def make_arpo_reward(
    dialect: DialectName = "auto", bonus: float = 0.1, bonus_tools: Sequence[str] = ("search", "python")
) -> Callable[..., list[float | None]]:
    """
    [`arpo_reward`] with other settings.

    Args:
        dialect (`"auto"`, `"tags"` or `"template"`, *optional*, defaults to `"auto"`):
            How calls are written. With `"auto"`, the trainer's `rollout_dialect` decides; without that column, a
            completion without any tag is judged as template text unless the prompt shows the tags.
        bonus (`float`, *optional*, defaults to `0.1`):
            Added to a score above 0 when all bonus tools were executed.
        bonus_tools (`Sequence[str]`, *optional*, defaults to `("search", "python")`):
            Tools that the bonus asks for.

    Returns:
        `Callable`:
            A reward function named `arpo_reward`.
    """

    def judge(
        prompt: Completion,
        completion: Completion,
        answers: Any,
        status: str | None,
        calls: Calls | None,
        written: DialectName | None,
    ) -> float | None:
        if not accepted_answers(answers):
            return None
        form = resolve_dialect(completion, written if written and dialect == "auto" else dialect, prompt)
        if not all(format_conditions(completion, status, calls, form).values()):
            return -1.0
        score = answer_score(extract_boxed(answer_part(completion, form)), answers)
        return score + bonus if score > 0 and executed_tools(completion, calls) >= set(bonus_tools) else score

    def arpo_reward(
        prompts,
        completions,
        answer,
        rollout_status=None,
        rollout_calls=None,
        rollout_dialect=None,
        rollout_messages=None,
        **kwargs,
    ):
        missing = [None] * len(completions)
        facts = (rollout_status or missing, rollout_calls or missing, rollout_dialect or missing)
        return [judge(*row) for row in zip(prompts, rollout_messages or completions, answer, *facts, strict=True)]

    return arpo_reward


def executed_tools(completion: Completion, calls: Calls | None = None) -> set[str]:
    """
    Names of the tools that were really executed.

    Args:
        completion (`str` or `list[dict]`):
            The completion.
        calls (`list[dict]`, *optional*):
            The trajectory's tool calls. Without them, tool messages that do not begin with an error count.

    Returns:
        `set[str]`:
            The names.
    """
    if calls is not None:
        return {call["name"] for call in calls if call["status"] == "ok"}
    results = [result for step in read_steps(completion) for result in step.results]
    return {result.name for result in results if not _ERROR.match(result.content)}


def arpo_reward_released(
    prompts: Sequence[Completion],
    completions: Sequence[Completion],
    answer: Sequence[Any],
    rollout_messages: Sequence[Completion] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """
    Reward function: the string checks of ARPO's released code, for comparison only.

    They see one flat text. So tags and boxes in tool results count, the bonus comes from strings alone, and the score
    drops signs, slashes, percent signs and articles: `-3` equals `3`, `1/2` equals `12`, `10%` equals `10`, `1/2` and
    `\\frac{1}{2}` differ, and the answer `A` can never be right.

    Args:
        prompts (`list`):
            The prompts, ignored.
        completions (`list`):
            The completions, as chat messages or texts. Messages are joined, with `<result>` tags around results.
        answer (`list`):
            Accepted answer or answers of each row. `None` or an empty list: the row is not scored.
        rollout_messages (`list[list[dict]]`, *optional*):
            The completions as chat messages, which are judged in their place.
        **kwargs:
            Other columns, ignored.

    Returns:
        `list[float | None]`:
            A reward in {-1} or [0, 1.1] per row, `None` where there is nothing to compare with.
    """
    accepted = [accepted_answers(entry) for entry in answer]
    rows = zip(map(_flat_text, rollout_messages or completions), accepted, strict=True)
    return [_released(text, answers) if answers else None for text, answers in rows]


def _flat_text(completion: Completion) -> str:
    if isinstance(completion, str):
        return completion
    pieces = []
    for step in read_steps(completion):
        pieces.append(step.text)
        pieces += [f"<result>{result.content}</result>" for result in step.results]
    return "".join(pieces)


def _released(text: str, answers: list[str]) -> float:
    opening, closing = text.find("<answer>"), text.find("</answer>")
    paired = text.count("<think>") == text.count("</think>") > 0
    single = text.count("<answer>") == text.count("</answer>") == 1 and opening < closing
    if not (paired and single and _in_order(text, "search") and _in_order(text, "python")):
        return -1.0
    part = text[opening:closing]
    box = extract_boxed(part[part.rfind("\\boxed{") :]) if "\\boxed{" in part else None
    if box is None:
        return -1.0
    score = max(_released_f1(box, answer) for answer in answers)
    return score + 0.1 if score > 0 and "</search>" in text and "</python>" in text else score


def _in_order(text: str, tool: str) -> bool:
    position = text.find(f"<{tool}>")
    while position >= 0:
        result = text.find("<result>", position)
        places = [position, text.find(f"</{tool}>", position), result, text.find("</result>", result)]
        if -1 in places or places != sorted(places):
            return False
        position = text.find(f"<{tool}>", places[-1])
    return True


def _released_f1(prediction: str, answer: str) -> float:
    left, right = _released_words(prediction), _released_words(answer)
    if left != right and any(words in (["yes"], ["no"], ["noanswer"]) for words in (left, right)):
        return 0.0
    common = (Counter(left) & Counter(right)).total()
    return 2 * common / (len(left) + len(right)) if common else 0.0


def _released_words(text: str) -> list[str]:
    letters = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return [word for word in letters.split() if word not in ("a", "an", "the")]
