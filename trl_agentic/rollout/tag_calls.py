"""What stands between the tags of a tool: how a call is read, and how it is described to the model."""

from __future__ import annotations

import json

from ..types import ToolCall
from .tag_syntax import json_object
from .tool_schemas import ToolSignature


def read_call(tool: ToolSignature, body: str) -> ToolCall:
    """
    Read a call.

    Args:
        tool ([`ToolSignature`]):
            The tool whose tags they are.
        body (`str`):
            The text between them. It becomes the first parameter, or, for a tool that needs several, has to be a JSON
            object.

    Returns:
        [`~trl_agentic.types.ToolCall`]:
            The call, with a `problem` if the text is none.
    """
    name, first, required = tool.name, tool.first, tool.required
    if first is None:
        return ToolCall(name, problem=f"{name} takes no input: write <{name}></{name}>." if body else None)
    if not body:
        return ToolCall(name, problem=f"The call of {name} is empty: write its input ({first}) between the tags.")
    if len(required) < 2:
        return ToolCall(name, {first: body})
    arguments = json_object(body)
    if arguments is None:
        keys = ", ".join(f'"{key}"' for key in required)
        return ToolCall(name, problem=f"{name} needs a JSON object with the keys {keys} between its tags.")
    return ToolCall(name, arguments)


def describe(tool: ToolSignature) -> str:
    """The lines of the system prompt that show how a tool is called."""
    if len(tool.required) > 1:
        body = json.dumps(dict.fromkeys(tool.parameters, "..."))
    else:
        body = tool.first or ""
    lines = [f"<{tool.name}>{body}</{tool.name}>: {tool.description}"]
    shown = tool.parameters if len(tool.required) > 1 else dict(list(tool.parameters.items())[:1])
    lines += [f"  {name}: {description}" for name, description in shown.items()]
    return "\n".join(lines)
