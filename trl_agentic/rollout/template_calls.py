"""Reads the calls of one turn with the tokenizer's response template, broken ones included."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..types import ToolCall
from .dialect import Turn
from .template_syntax import Piece, Reading, TemplateSyntax
from .tool_schemas import ToolSignature

NO_NAME = "tool_call"  # name of a call so broken that no tool can be made out
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
        self._turn_opening = str(tokenizer.decode(list(turn_opening)))
        self._syntax = TemplateSyntax(tokenizer.response_template["fields"], self._turn_opening)

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
        text = str(self._tokenizer.decode(list(token_ids)))
        reading = self._syntax.read(text)
        parsed = [self._parse_calls(piece) for piece in reading.calls]
        message = self._parse_message(text, reading) if all(parsed) else None
        if message is None:  # as in TRL
            message = {
                "role": "assistant",
                "content": self._tokenizer.decode(list(token_ids), skip_special_tokens=True),
            }
        calls = tuple(
            call
            for piece, found in zip(reading.calls, parsed, strict=True)
            for call in found or [self._broken_call(text[piece.start : piece.end])]
        )
        if calls:
            functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
            message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        return Turn(message=message, calls=calls)

    def _parse_calls(self, piece: Piece) -> list[ToolCall]:
        """The calls of a piece, none if it is broken."""
        if piece.text is None:
            return []
        try:
            message = self._tokenizer.parse_response(piece.text, prefix="", tools=self._schemas)
            return [self._read_call(call) for call in message["tool_calls"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            return []

    def _broken_call(self, text: str) -> ToolCall:
        return ToolCall(next((name for name in self._tools if name in text), NO_NAME), problem=_BROKEN)

    def _parse_message(self, text: str, reading: Reading) -> dict[str, Any] | None:
        """The message apart from its calls; `None` if it can't be parsed."""
        if reading.is_thought:  # some response templates know a thought by its end alone
            thought = text.removesuffix(self._tokenizer.eos_token).strip()
            return {"role": "assistant", "content": "", "reasoning_content": thought}
        hidden = {f"\ue000{start}\ue001": text[start:end] for start, end in reading.quoted}
        replaced = [(piece.start, piece.end, "") for piece in reading.calls]
        replaced += [(*span, mark) for span, mark in zip(reading.quoted, hidden, strict=True)]
        for start, end, mark in sorted(replaced, reverse=True):
            text = text[:start] + mark + text[end:]
        try:
            message = dict(self._tokenizer.parse_response(text, prefix=self._turn_opening))
        except (ValueError, TypeError):
            return None
        content = message.get("content") or ""
        for mark, quoted in hidden.items():
            content = content.replace(mark, quoted)
        return message | {"content": content.removesuffix(self._tokenizer.eos_token)}

    def _read_call(self, call: Mapping[str, Any]) -> ToolCall:
        function = dict(call.get("function", call))
        name = function.pop("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name.")
        keys = self._tools[name].parameters if name in self._tools else ("name",)
        example = json.dumps(dict.fromkeys(keys, "..."))
        arguments = _unwrap(function.pop("arguments" if "arguments" in function else "parameters", None))
        if surplus := ", ".join(f'"{key}"' for key in function if key not in ("type", "id")):
            problem = f'The call of {name} holds {surplus}. Write all its arguments as "arguments": {example}.'
            return ToolCall(name, problem=problem)
        if arguments is None:
            return ToolCall(name)
        if not isinstance(arguments, dict):
            return ToolCall(name, problem=f"The arguments of {name} have to be a JSON object such as {example}.")
        return ToolCall(name, arguments)


def _unwrap(arguments: Any) -> Any:
    """Arguments that were written as JSON text, or as JSON text in JSON text."""
    while isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            break
    return arguments
