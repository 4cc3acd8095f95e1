"""What a tool is called and which arguments it takes, so that a wrong call can be answered before it is made."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

from ..options import ToolOptions

_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True)
class Tool:
    """
    A tool as the runtime sees it.

    Args:
        name (`str`):
            Its `__name__`.
        function (`Callable`):
            The tool, sync or async.
        signature (`inspect.Signature`):
            Its parameters.
        schema (`dict[str, Any]`, *optional*):
            Its JSON schema; `None` where type hints or docstring do not allow to build one.
        options ([`ToolOptions`], *optional*):
            What [`tool_options`] attached to it.
    """

    name: str
    function: Callable[..., Any]
    signature: inspect.Signature
    schema: dict[str, Any] | None
    options: ToolOptions = ToolOptions()

    def check(self, arguments: Any) -> tuple[dict[str, Any], str | None]:
        """
        Check the arguments of a call.

        Args:
            arguments (`Any`):
                What the model wrote: a mapping, or a text that holds one as JSON.

        Returns:
            `tuple[dict[str, Any], str | None]`:
                The arguments, texts in place of numbers, booleans, lists and objects read as JSON, and what is
                wrong with them as a sentence, or `None`.
        """
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):  # a thousand opening brackets are no ValueError
                return {}, self._complain("the arguments are a text, not an object")
        if not isinstance(arguments, dict):
            try:
                arguments = dict(arguments)
            except (TypeError, ValueError):
                return {}, self._complain(f"the arguments are {_json_type(arguments)}, not an object")
        if not all(isinstance(name, str) for name in arguments):
            return {}, self._complain("the names of arguments must be strings")
        try:
            self.signature.bind(**arguments)
        except TypeError as error:
            return {}, self._complain(str(error))
        arguments = {name: self._read(name, value) for name, value in arguments.items()}
        for name, value in arguments.items():
            if problem := self._mismatch(name, value):
                return {}, self._complain(problem)
        return arguments, None

    def _read(self, name: str, value: Any) -> Any:
        """A text where none may stand is read as JSON: a tag holds nothing but text, and models quote numbers."""
        kinds = self._kinds(name)
        if not isinstance(value, str) or not kinds or "string" in kinds:
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value

    def _mismatch(self, name: str, value: Any) -> str | None:
        expected = self._parameters().get(name, {})
        if value is None and expected.get("nullable"):
            return None
        if "enum" in expected and value not in expected["enum"]:
            return f"{name} must be one of {json.dumps(expected['enum'])}, got {json.dumps(value, default=str)[:100]}"
        kinds = self._kinds(name)
        if not kinds or any(_has_type(value, kind) for kind in kinds):
            return None
        allowed = " or ".join(kinds)
        if isinstance(value, str):
            return f"{name} must be {allowed}, got a text that does not read as one: {json.dumps(value)[:100]}"
        return f"{name} must be {allowed}, got {_json_type(value)}"

    def _kinds(self, name: str) -> list[str]:
        """The JSON types that a parameter may have; none if its schema does not say."""
        kinds = self._parameters().get(name, {}).get("type", [])
        return [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind in _JSON_TYPES]

    def _complain(self, problem: str) -> str:
        return f"Wrong arguments for {self.name}: {problem}. Expected {self.name}({self._usage()})."

    def _usage(self) -> str:
        shown = []
        for parameter in self.signature.parameters.values():
            kind = self._parameters().get(parameter.name, {}).get("type")
            kind = " or ".join(kind) if isinstance(kind, list) else kind
            text = f"{parameter.name}: {kind}" if kind else parameter.name
            shown.append(text if parameter.default is parameter.empty else f"{text} = {parameter.default!r}")
        return ", ".join(shown)

    def _parameters(self) -> dict[str, Any]:
        return {} if self.schema is None else self.schema["function"]["parameters"].get("properties", {})


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):  # a bool is an int to Python, but not to JSON
        return kind == "boolean"
    return isinstance(value, _JSON_TYPES[kind])


def _json_type(value: Any) -> str:
    return next((kind for kind in _JSON_TYPES if _has_type(value, kind)), type(value).__name__)


def describe_tools(tools: Sequence[Callable[..., Any]]) -> dict[str, Tool]:
    """
    Read names and signatures of tools.

    Args:
        tools (`Sequence[Callable]`):
            Sync or async functions, or bound methods.

    Returns:
        `dict[str, Tool]`:
            The tools by name, in their order.

    Raises:
        TypeError: If a tool is not callable, or its options are something else.
        ValueError: If a tool has no name of its own, or two share one.
    """
    described: dict[str, Tool] = {}
    for function in tools:
        if not callable(function):
            raise TypeError(f"A tool must be a function, got {type(function).__name__}: {function!r}.")
        name = getattr(function, "__name__", "")  # a partial has none
        if not name.isidentifier():
            raise ValueError(f"A tool is called by its __name__, and {function!r} has none; pass a named function.")
        if name in described:
            raise ValueError(f"Two tools are named {name!r}; rename one of them.")
        options = getattr(function, "tool_options", ToolOptions())  # most tools have none
        if not isinstance(options, ToolOptions):
            raise TypeError(f"{name}.tool_options must be a ToolOptions, got {options!r}. Use @tool_options(...).")
        try:
            signature = inspect.signature(function)
        except ValueError as error:  # some of what is written in C says nothing about its parameters
            raise TypeError(f"{name} does not say which arguments it takes; wrap it in a function.") from error
        described[name] = Tool(name, function, signature, _schema(function), options)
    return described


def _schema(function: Callable[..., Any]) -> dict[str, Any] | None:
    try:
        return get_json_schema(function)
    except (DocstringParsingException, TypeHintParsingException, NameError):  # NameError: a hint that is unknown here
        return None
