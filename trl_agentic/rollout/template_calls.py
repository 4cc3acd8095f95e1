"""Reads the calls of one turn with TRL's response parser, broken ones included."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import parse_response

from ..types import ToolCall
from .dialect import Turn
from .tool_schemas import ToolSignature

NO_NAME = "tool_call"  # name of a call so broken that no tool can be made out
_CALL_TAG, _STRAY_TAG = "<tool_call>", "</tool_call>"  # most templates write calls so, whatever stands inside
_NAME = re.compile(r"[\w.:/-]{1,64}")  # whatever else stands where a name belongs is no name
_BROKEN = (
    "The tool call could not be parsed. Write it exactly in the format given with the tools, with valid JSON where "
    "JSON is asked for, and close it."
)


class TemplateCalls:
    """
    Reads turns that are written in the tokenizer's chat template.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            A tokenizer with a `response_template`.
        tools (`Mapping[str, ToolSignature]`):
            The tools by name.
        schemas (`Sequence[dict]`):
            JSON schemas of the tools.
        turn_opening (`Sequence[int]`):
            A prompt that ends with what the template writes before a turn of the model.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tools: Mapping[str, ToolSignature],
        schemas: Sequence[dict[str, Any]],
        turn_opening: Sequence[int],
    ):
        self._tokenizer = tokenizer
        self._tools = tools
        self._schemas = list(schemas)
        self._turn_opening = list(turn_opening)
        fields = tokenizer.response_template["fields"]
        self._call_opening = re.compile(f"{_pattern(fields['tool_calls'], 'open')}|{_CALL_TAG}")
        self._thinking = _Thinking.of(fields, str(tokenizer.decode(self._turn_opening)))

    def read(self, token_ids: Sequence[int]) -> Turn:
        """
        Read one turn.

        Args:
            token_ids (`Sequence[int]`):
                Its tokens, without padding.

        Returns:
            [`Turn`]:
                With all calls in order. A call that can't be parsed has a `problem`.
        """
        if not token_ids:
            return Turn(message={"role": "assistant", "content": ""}, calls=())
        message = self._parse_message(list(token_ids))
        calls = tuple(self._calls(message, str(self._tokenizer.decode(list(token_ids)))))
        message.pop("tool_calls", None)
        if calls:
            functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
            message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        return Turn(message=message, calls=calls)

    def _parse_message(self, token_ids: list[int]) -> dict[str, Any]:
        try:
            return dict(parse_response(self._tokenizer, token_ids, prefix=self._turn_opening, tools=self._schemas))
        except RecursionError:  # deeply nested JSON; TRL expects a ValueError
            return {"role": "assistant", "content": self._tokenizer.decode(token_ids, skip_special_tokens=True)}

    def _calls(self, message: Mapping[str, Any], text: str) -> list[ToolCall]:
        if message.get("tool_calls"):
            return [self._read_call(call) for call in message["tool_calls"]]
        # TRL found none: either there is none, or one of them could not be parsed and all were dropped for it.
        start = self._thinking.end(text) if self._thinking else 0
        openings = [match.start() for match in self._call_opening.finditer(text, start)]
        if not openings and _STRAY_TAG in text[start:]:
            openings = [start]
        pieces = zip(openings, [*openings[1:], len(text)], strict=True) if openings else ()
        return [call for start, end in pieces for call in self._read_piece(text[start:end])]

    def _read_piece(self, text: str) -> list[ToolCall]:
        try:
            parsed = self._tokenizer.parse_response(text, prefix="", tools=self._schemas)
            return [self._read_call(call) for call in parsed["tool_calls"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            name = next((name for name in self._tools if name in text), NO_NAME)
            return [ToolCall(name, problem=_BROKEN)]

    def _read_call(self, call: Mapping[str, Any]) -> ToolCall:
        function = call.get("function", call)
        name, arguments = function["name"], _unwrap(function.get("arguments"))
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return ToolCall(NO_NAME, problem=_BROKEN)
        if arguments is None:
            return ToolCall(name)
        if not isinstance(arguments, dict):
            keys = self._tools[name].parameters if name in self._tools else ("name",)
            example = json.dumps(dict.fromkeys(keys, "..."))
            return ToolCall(name, problem=f"The arguments of {name} have to be a JSON object such as {example}.")
        return ToolCall(name, arguments)


@dataclass(frozen=True)
class _Thinking:
    """Where thinking ends, by the rules of a response template."""

    opening: re.Pattern[str]
    closing: re.Pattern[str]
    opened: bool  # the template itself opens it, in the prompt

    @classmethod
    def of(cls, fields: Mapping[str, Any], turn_opening: str) -> _Thinking | None:
        field = fields.get("reasoning_content") or fields.get("thinking")
        if field is None:
            return None
        opening = _pattern(field, "open")
        opened = re.search(rf"(?:{opening})\s*$", turn_opening) is not None
        return cls(re.compile(opening), re.compile(_pattern(field, "close")), opened)

    def end(self, text: str) -> int:
        closings = list(self.closing.finditer(text))
        if closings:
            return closings[-1].end()
        return len(text) if self.opened or self.opening.search(text) else 0


def _pattern(field: Mapping[str, Any], side: str) -> str:
    # A response template gives each side as a literal or as a pattern.
    return str(field[f"{side}_pattern"]) if f"{side}_pattern" in field else re.escape(field[side])


def _unwrap(arguments: Any) -> Any:
    """Arguments that were written as JSON text, or as JSON text in JSON text."""
    while isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            break
    return arguments
