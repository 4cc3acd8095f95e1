"""What a tool is called and which arguments it takes, so that a wrong call can be answered before it is made."""

from __future__ import annotations

import inspect
import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from ..options import ToolOptions
from .arguments import argument_types, read_argument
from .schemas import UNREADABLE, tool_schema


class Arguments(NamedTuple):
    """
    The arguments of a call that have been checked.

    Attributes:
        values (`dict[str, Any]`):
            As the tool takes them, such as a member of an `Enum`.
        plain (`dict[str, Any]`):
            The same as JSON, such as its value.
    """

    values: dict[str, Any]
    plain: dict[str, Any]


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
        types (`Mapping[str, TypeAdapter]`, *optional*):
            What its arguments must be, by parameter; nothing without a schema.
    """

    name: str
    function: Callable[..., Any]
    signature: inspect.Signature
    schema: dict[str, Any] | None
    options: ToolOptions = ToolOptions()
    types: Mapping[str, TypeAdapter[Any]] = field(default_factory=dict)

    def check(self, written: Any) -> Arguments | str:
        """
        Check the arguments of a call.

        Args:
            written (`Any`):
                What the model wrote: a mapping, or a text that holds one as JSON.

        Returns:
            [`Arguments`] or `str`:
                The arguments, or what is wrong with them as a sentence.
        """
        if isinstance(written, str):
            try:
                written = json.loads(written)
            except (ValueError, RecursionError):  # a thousand opening brackets are no ValueError
                return self._complain("the arguments are a text, not an object")
        try:
            written = dict(written)
        except (TypeError, ValueError):
            return self._complain(f"the arguments are {reprlib.repr(written)}, not an object")
        if not all(isinstance(name, str) for name in written):
            return self._complain("the names of arguments must be strings")
        try:
            self.signature.bind(**written)
        except TypeError as error:
            return self._complain(str(error))
        arguments = Arguments(dict(written), dict(written))
        for name, value in written.items():
            if name in self.types and not (value is None and self.signature.parameters[name].default is None):
                arguments.plain[name], arguments.values[name], problem = read_argument(name, self.types[name], value)
                if problem is not None:
                    return self._complain(problem)
        return arguments

    def _complain(self, problem: str) -> str:
        return f"Wrong arguments for {self.name}: {problem}. Expected {self.name}({self._usage()})."

    def _usage(self) -> str:
        properties = {} if self.schema is None else self.schema["function"]["parameters"]["properties"]
        shown = []
        for parameter in self.signature.parameters.values():
            kind = _kind(properties.get(parameter.name, {}))
            text = f"{parameter.name}: {kind}" if kind else parameter.name
            shown.append(text if parameter.default is parameter.empty else f"{text} = {parameter.default!r}")
        return ", ".join(shown)


def _kind(schema: Mapping[str, Any]) -> str:
    """The JSON types that a schema allows, such as `integer or string`."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return " or ".join([*kinds, *filter(None, map(_kind, schema.get("anyOf", [])))])


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
        described[name] = _described(name, function, signature, options)
    return described


def _described(name: str, function: Callable[..., Any], signature: inspect.Signature, options: ToolOptions) -> Tool:
    try:
        schema = tool_schema(function)
    except UNREADABLE:
        return Tool(name, function, signature, None, options)
    return Tool(name, function, signature, schema, options, argument_types(function, schema))
