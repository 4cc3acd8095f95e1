"""
Which text of a turn is a call, in the syntax of a response template.

Thinking, code and made-up tool results are skipped: whatever stands inside them is no call. Where calls are JSON, the
JSON decides where one ends, so a tag inside a string is text. [`~trl_agentic.rewards.format`] reads by the same rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..rewards.code_spans import CODE, code_end

_CALL_TAG, _STRAY_TAG = "<tool_call>", "</tool_call>"  # most templates write calls so, whatever stands inside
_RESULT_CLOSING = re.compile("</tool_response>")
_THINKING = {"open": "<think>", "close": "</think>"}
_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class Piece:
    """
    Something in a turn that is, or was meant as, a call.

    Args:
        start (`int`), end (`int`):
            Its position in the turn.
        text (`str`, *optional*):
            What a parser of the response template can read; `None` if it is broken.
    """

    start: int
    end: int
    text: str | None = None


@dataclass(frozen=True)
class Reading:
    """
    What a turn holds.

    Args:
        calls (`list[Piece]`):
            The calls in order.
        quoted (`list[tuple[int, int]]`):
            Where text stands in which a parser of the response template would look for calls in vain.
        is_thought (`bool`, *optional*, defaults to `False`):
            Whether it ends in the thought that the template has opened.
    """

    calls: list[Piece]
    quoted: list[tuple[int, int]]
    is_thought: bool = False


class TemplateSyntax:
    """
    The grammar of a response template.

    Args:
        fields (`Mapping[str, Any]`):
            Its fields, `tool_calls` among them.
        turn_opening (`str`):
            A prompt that ends with what the chat template writes before a turn of the model.
    """

    def __init__(self, fields: Mapping[str, Any], turn_opening: str):
        calls = fields["tool_calls"]
        self._holds_json = calls["content"] == "json" and not calls.get("content_args")
        call_opening = f"{_pattern(calls, 'open')}|{_CALL_TAG}"
        self._call_opening = re.compile(call_opening, re.DOTALL)
        self._argument = calls.get("content_args", {}).get("tag_pattern")
        self._call_closing = re.compile(_pattern(calls, "close"), re.DOTALL)
        thinking = fields.get("reasoning_content") or fields.get("thinking") or _THINKING
        opening, closing = _pattern(thinking, "open"), _pattern(thinking, "close")
        if opening.startswith("(?="):  # it looks ahead for the end of a thought that the template has opened
            opening = _THINKING["open"]
        self._begins_inside = re.search(rf"(?:{opening})\s*\Z", turn_opening) is not None
        self._thought_closing = re.compile(closing, re.DOTALL)
        self._marker = re.compile(
            rf"{CODE}|(?P<thought>{opening})|(?P<thought_end>{closing})|(?P<result><tool_response>)"
            rf"|(?P<call>{call_opening})|(?P<stray>{_STRAY_TAG})",
            re.DOTALL,
        )

    def read(self, text: str) -> Reading:
        """
        Find the calls of a turn.

        Args:
            text (`str`):
                The turn.

        Returns:
            [`Reading`]:
                The calls, well-formed or broken. A closing tag that was never opened is a broken call if there are no
                others.
        """
        if self._begins_inside and not self._thought_closing.search(text):
            return Reading([], [], is_thought=True)
        calls: list[Piece] = []
        quoted: list[tuple[int, int]] = []
        stray: Piece | None = None
        has_thought = self._begins_inside
        position = _behind(self._thought_closing, text, 0) if has_thought else 0
        while position < len(text) and (found := self._marker.search(text, position)):
            start, position = found.span()
            if found["code"]:
                position = code_end(text, found)
                quoted.append((start, position))
            elif found["result"]:
                position = _behind(_RESULT_CLOSING, text, position)
                quoted.append((start, position))
            elif found["call"]:
                calls.append(self._read_call(text, found))
                position = calls[-1].end
            elif found["stray"]:
                stray = Piece(start, position)
            elif found["thought"]:
                has_thought, position = True, _behind(self._thought_closing, text, position)
            elif not has_thought:  # all before it was a thought that the prompt had opened
                has_thought, calls, stray, quoted = True, [], None, [(0, position)]
        return Reading(calls or ([stray] if stray else []), quoted)

    def _read_call(self, text: str, opening: re.Match[str]) -> Piece:
        start, body = opening.span()
        if not self._holds_json:
            closing = self._call_closing.search(text, body)
            if closing is None or self._holds_more(text[body : closing.start()]):
                return Piece(start, self._end_of_broken(text, body))
            return Piece(start, closing.end(), text[start : closing.end()])
        try:
            _, end = _DECODER.raw_decode(text, _behind(_SPACE, text, body))
        except (ValueError, RecursionError):  # deeply nested JSON is no ValueError
            return Piece(start, self._end_of_broken(text, body))
        closing = self._call_closing.match(text, _behind(_SPACE, text, end))
        if closing is None:
            return Piece(start, self._end_of_broken(text, body))
        # In valid JSON a `<` stands in a string only; written like this, a parser can't take it for a tag.
        escaped = text[body:end].replace("<", "\\u003c")
        return Piece(start, closing.end(), text[start:body] + escaped + text[end : closing.end()])

    def _holds_more(self, body: str) -> bool:
        """Whether there are words in a call that belong to no argument, which a parser would pass over."""
        if self._argument is None:
            return False
        rest = re.sub(self._argument, "", body, flags=re.DOTALL).replace("</function>", "")
        return re.search(r"\w", rest) is not None

    def _end_of_broken(self, text: str, position: int) -> int:
        opening = self._call_opening.search(text, position)
        end = len(text) if opening is None else opening.start()
        return min(end, _behind(self._call_closing, text, position))


def _behind(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.search(text, position)
    return len(text) if found is None else found.end()


def _pattern(field: Mapping[str, Any], side: str) -> str:
    # A response template gives each side as a pattern, as a literal or as a list of them, or leaves it to the end.
    if f"{side}_pattern" in field:
        return str(field[f"{side}_pattern"])
    literals = field.get(side, [])
    literals = [literals] if isinstance(literals, str) else literals
    return "|".join(map(re.escape, sorted(literals, key=len, reverse=True))) or r"\Z"
