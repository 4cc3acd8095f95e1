"""
What the model wrote in a completion, apart from what its tools returned.

A completion is a list of chat messages or a plain text. Only the model's own text is ever judged: a tag or a box in a
tool result counts for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Completion = str | Sequence[Mapping[str, Any]]

_RESULT = re.compile(r"<result>(.*?)(?:</result>|\Z)", re.DOTALL)  # the last one may be cut off
_LAST_CALL = re.compile(r".*</([A-Za-z_][\w.-]*)>", re.DOTALL)


@dataclass(frozen=True)
class Result:
    """
    A tool result in a completion.

    Args:
        name (`str`):
            Name of the tool; empty when it is not known.
        content (`str`):
            Text of the result.
    """

    name: str
    content: str


@dataclass(frozen=True)
class Step:
    """
    One turn of the model and the results that follow it.

    Args:
        text (`str`):
            What the model wrote.
        calls (`tuple[str, ...]`, *optional*, defaults to `()`):
            Names of the calls that its message lists under `tool_calls`.
        results (`tuple[Result, ...]`, *optional*, defaults to `()`):
            The results that follow, in order.
    """

    text: str
    calls: tuple[str, ...] = ()
    results: tuple[Result, ...] = ()


def read_steps(completion: Completion) -> list[Step]:
    """
    Split a completion into turns of the model.

    Args:
        completion (`str` or `list[dict]`):
            Chat messages, or a text whose tool results stand between `<result>` and `</result>`.

    Returns:
        `list[Step]`:
            The turns, at least one. A result before the first turn follows an empty one.
    """
    messages: Iterable[Mapping[str, Any]] = (
        _messages_of_text(completion) if isinstance(completion, str) else completion
    )
    steps: list[Step] = []
    for message in messages:
        text = message_text(message)
        if message["role"] == "assistant":
            calls = tuple(str(call.get("function", call).get("name", "")) for call in message.get("tool_calls") or ())
            steps.append(Step(text, calls))
            continue
        before = steps.pop() if steps else Step("")
        result = Result(str(message.get("name") or ""), text)
        steps.append(Step(before.text, before.calls, (*before.results, result)))
    return steps or [Step("")]


def message_text(message: Mapping[str, Any]) -> str:
    """Text of a chat message, whose `content` is a text, a list of parts, or nothing."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(str(part.get("text") or "") for part in content)


def own_text(completion: Completion) -> str:
    """All that the model wrote itself, its turns on lines of their own."""
    return "\n".join(step.text for step in read_steps(completion))


def _messages_of_text(text: str) -> Iterable[dict[str, Any]]:
    pieces = _RESULT.split(text)  # model, result, model, result, ..., model
    for index, piece in enumerate(pieces):
        if index % 2:
            call = _LAST_CALL.match(pieces[index - 1])
            yield {"role": "tool", "name": call[1] if call else "", "content": piece}
        elif piece.strip() or not index:
            yield {"role": "assistant", "content": piece}
