"""Tagged pieces of what a model wrote in one turn."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from .code_spans import CODE, code_end

STRUCTURE = ("think", "answer", "result")
"""The tags that are no calls."""

_JSON_OBJECT = re.compile(r'\s*\{\s*"')
_JSON_STRING = r'"(?:[^"\\\n]|\\.)*(?:"|\Z)'


@dataclass(frozen=True)
class Element:
    """
    A tagged piece of a text.

    Args:
        name (`str`):
            Name of the tag.
        body (`str`):
            Text between the tags, or to the end where it is never closed.
        start (`int`), end (`int`):
            Its position in the text, tags included.
        opened (`bool`), closed (`bool`):
            Whether it has each of its tags.
    """

    name: str
    body: str
    start: int
    end: int
    opened: bool = True
    closed: bool = True


def find_closing(text: str, names: Collection[str], position: int) -> re.Match[str] | None:
    """
    The tag that closes a call.

    Args:
        text (`str`):
            The text.
        names (`Collection[str]`):
            Names of the tags that may close it.
        position (`int`):
            Where its body begins. In a body that is a JSON object, a tag inside a string is text.

    Returns:
        `re.Match`, *optional*:
            The closing tag, its `name` among the groups; `None` if there is none.
    """
    closing = rf"</(?P<name>{'|'.join(map(re.escape, names))})>"
    if not _JSON_OBJECT.match(text, position):
        return re.compile(closing).search(text, position)
    found = re.compile(f"{_JSON_STRING}|{closing}").finditer(text, position)
    return next((match for match in found if match["name"]), None)


def read_elements(text: str, names: Collection[str]) -> list[Element]:
    """
    The tagged pieces of a turn in order.

    What stands inside one, or in code (see [`code_spans`]), is no piece of its own. A first `</think>` that was never
    opened closes a thought that the chat template has opened in the prompt: all before it is that thought.

    Args:
        text (`str`):
            The turn.
        names (`Collection[str]`):
            Names of the tags.

    Returns:
        `list[Element]`:
            The pieces, stray closing tags among them.
    """
    marker = re.compile(rf"{CODE}|<(?P<slash>/?)(?P<name>{'|'.join(map(re.escape, names))})>")
    elements: list[Element] = []
    position, has_thought = 0, False
    while found := marker.search(text, position):
        name, start, position = found["name"], found.start(), found.end()
        if found["code"]:
            position = code_end(text, found)
        elif not found["slash"]:
            is_call = name not in STRUCTURE
            closing = (
                find_closing(text, [name], position) if is_call else re.compile(f"</{name}>").search(text, position)
            )
            if closing is None and not has_thought and "</think>" in text[position:]:
                continue  # a thought that the prompt has opened may speak of a tag
            end, position = (closing.start(), closing.end()) if closing else (len(text), len(text))
            elements.append(Element(name, text[found.end() : end], start, position, closed=closing is not None))
        elif name == "think" and not has_thought:
            elements = [Element(name, text[:start], 0, position)]
        else:
            elements.append(Element(name, "", start, position, opened=False))
        has_thought = has_thought or name == "think"
    return elements


def outside_thinking(text: str) -> str:
    """What a turn says outside of its thoughts. All before a stray `</think>` counts as one."""
    kept, position = "", 0
    for thought in read_elements(text, ["think"]):
        kept = kept + text[position : thought.start] if thought.opened else ""
        position = thought.end
    return kept + text[position:]
