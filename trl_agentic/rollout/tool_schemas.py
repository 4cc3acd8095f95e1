"""What the dialects know of a tool: its name, its JSON schema and its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..tools.calls.schemas import UNREADABLE, tool_schema


@dataclass(frozen=True)
class ToolSignature:
    """
    A tool as the model sees it.

    Args:
        name (`str`):
            Name to call it by.
        description (`str`):
            What it does.
        parameters (`dict[str, str]`):
            Description of each parameter, in order.
        required (`tuple[str, ...]`):
            The parameters without a default.
        schema (`dict[str, Any]`):
            Its JSON schema.
    """

    name: str
    description: str
    parameters: dict[str, str]
    required: tuple[str, ...]
    schema: dict[str, Any]

    @property
    def first(self) -> str | None:
        """The first parameter, `None` for a tool without any."""
        return next(iter(self.parameters), None)


def read_signatures(tools: Sequence[Callable[..., Any]]) -> dict[str, ToolSignature]:
    """
    Read names, docstrings and type hints of tools.

    Args:
        tools (`Sequence[Callable]`):
            Functions or bound methods with type hints and Google docstrings.

    Returns:
        `dict[str, ToolSignature]`:
            The tools by name, in order.

    Raises:
        TypeError: If a tool is neither a function nor a method.
        ValueError: If two tools have one name, or a docstring or type hint can't be read.
    """
    signatures: dict[str, ToolSignature] = {}
    for tool in tools:
        if not (inspect.isfunction(tool) or inspect.ismethod(tool)):
            raise TypeError(
                f"A tool has to be a function or a bound method, got {tool!r}. Wrap it in a function with type hints "
                "and a docstring."
            )
        try:
            schema = tool_schema(tool)
        except UNREADABLE as error:
            raise ValueError(
                f"The tool {tool!r} can't be described to the model: {error} Give it type hints and a Google "
                "docstring with an `Args:` entry for every parameter."
            ) from error
        function = schema["function"]
        name = function["name"]
        if name in signatures:
            raise ValueError(f"Two tools are called {name!r}. Rename one: a call has to name exactly one tool.")
        signatures[name] = ToolSignature(
            name=name,
            description=function["description"],
            parameters={key: value["description"] for key, value in function["parameters"]["properties"].items()},
            required=_required(tool),
            schema=schema,
        )
    return signatures


def _required(tool: Callable[..., Any]) -> tuple[str, ...]:
    optional_kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(
        name
        for name, parameter in inspect.signature(tool).parameters.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind not in optional_kinds
    )
