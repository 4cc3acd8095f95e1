"""
The grammar of the tag dialect: which text of a turn is a call.

A turn holds at most one call, and a call counts only as the last thing of its turn. Thinking, code, answers and quoted
results are skipped: whatever stands inside them is no call. [`~trl_agentic.rewards.format`] reads by the same rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ..rewards.code_spans import CODE, code_end
from ..rewards.elements import STRUCTURE, find_closing

_MARKER = re.compile(rf"{CODE}|<(?P<slash>/?)(?P<name>[A-Za-z_][\w.-]*)>")
_FOREIGN_CALLS = ("tool_call", "function_call")  # how other dialects open a call


@dataclass(frozen=True)
class Tag:
    """
    Something in a turn that is, or was meant as, a call.

    Args:
        name (`str`):
            Name in the tag.
        body (`str`):
            Text between the tags; empty for a broken call.
        end (`int`):
            Character position behind the closing tag; behind the opening one, or at the end, if it was never closed.
        closed (`bool`):
            Whether it ends with a closing tag.
        problem (`str`, *optional*):
            What is wrong with it.
    """

    name: str
    body: str
    end: int
    closed: bool
    problem: str | None = None


@dataclass(frozen=True)
class Reading:
    """
    What a turn holds.

    Args:
        last (`Tag`, *optional*):
            The last call, behind which no answer stands.
        foreign (`str`, *optional*):
            Name of a tag that looks like a call of a tool that does not exist.
        answered (`bool`):
            Whether an answer was begun behind the last call.
    """

    last: Tag | None
    foreign: str | None
    answered: bool


def read_turn(text: str, tools: Collection[str]) -> Reading:
    """
    Find the last call of a turn.

    Args:
        text (`str`):
            The turn, without the tokens that end it.
        tools (`Collection[str]`):
            Names of the tools.

    Returns:
        [`Reading`]:
            The last call, well-formed or broken, and what else decides whether the turn is final.
    """
    last, foreign, answered = None, None, False
    position, has_thought = 0, False
    while marker := _MARKER.search(text, position):
        name, position = marker["name"], marker.end()
        if marker["code"]:
            position = code_end(text, marker)
        elif name in tools:
            last = _read_call(text, marker, tools)
            answered, position = False, last.end
        elif name == "think" and marker["slash"] and not has_thought:
            last, foreign, answered = None, None, False  # all before it was a thought that the prompt had opened
        elif marker["slash"]:
            continue
        elif name in STRUCTURE:
            answered = answered or name == "answer"
            position = _behind(f"</{name}>", text, position)
        elif name in _FOREIGN_CALLS or f"</{name}>" in text[position:]:
            foreign = name
        has_thought = has_thought or name == "think"
    return Reading(last=None if answered else last, foreign=foreign, answered=answered)


def json_object(text: str) -> dict[str, Any] | None:
    """A JSON object; `None` for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # a thousand opening brackets are no ValueError
        return None
    return value if isinstance(value, dict) else None


def _behind(mark: str, text: str, position: int) -> int:
    found = text.find(mark, position)
    return len(text) if found < 0 else found + len(mark)


def _read_call(text: str, marker: re.Match[str], tools: Collection[str]) -> Tag:
    name = marker["name"]
    if marker["slash"]:
        return Tag(name, "", marker.end(), True, f"</{name}> closes a call that was never opened with <{name}>.")
    names = "|".join(map(re.escape, tools))
    closing = find_closing(text, tools, marker.end())
    if closing is None and re.compile(f"</({names})>").search(text, marker.end()):
        problem = f"The JSON in <{name}> was never closed: close its strings, and end the call with </{name}>."
        return Tag(name, "", len(text), False, problem)
    if closing is None:
        return Tag(name, "", marker.end(), False, f"<{name}> was never closed: end the call with </{name}>.")
    body = text[marker.end() : closing.start()]
    nested = re.search(f"<({names})>", body)
    if nested and json_object(body) is None:
        problem = f"<{nested[1]}> stands inside <{name}>: close one call with </{name}> before you open another."
        return Tag(name, "", closing.end(), True, problem)
    if closing["name"] != name:
        problem = f"<{name}> was closed with </{closing['name']}>: end the call with </{name}>."
        return Tag(name, "", closing.end(), True, problem)
    return Tag(name, body, closing.end(), True)
