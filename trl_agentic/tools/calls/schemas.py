"""The JSON schema of a tool: what `transformers` reads of it, and what it does not."""

from __future__ import annotations

import functools
import inspect
import operator
import re
import types
from collections.abc import Callable
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import PydanticUserError, TypeAdapter
from pydantic_core import PydanticSerializationError
from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException
from typing_extensions import TypedDict

# The last three: a hint that names nothing here, or an object that has no hints.
UNREADABLE = (DocstringParsingException, TypeHintParsingException, NameError, AttributeError, TypeError)

_KNOWN_CLASSES = (int, float, str, bool, dict, Any, type(None))


def type_adapter(hint: Any) -> TypeAdapter[Any]:
    """
    Make what checks and describes values of a type.

    Args:
        hint (`Any`):
            The type hint. It may hold a `typing.TypedDict`, which `pydantic` itself takes from Python 3.12 on.

    Returns:
        `TypeAdapter`

    Raises:
        PydanticUserError: If `pydantic` does not know the type.
        NameError: If it names something that is not defined.
    """
    return TypeAdapter(_with_extended_dicts(hint))


def _with_extended_dicts(hint: Any, outer: tuple[Any, ...] = ()) -> Any:
    """Each `TypedDict` as one of `typing_extensions`; inside itself, it is any dictionary."""
    if hint in outer:
        return dict
    if is_typeddict(hint):
        fields = {
            name: (Required if name in hint.__required_keys__ else NotRequired)[
                _with_extended_dicts(field, (*outer, hint))
            ]
            for name, field in get_type_hints(hint).items()
        }
        return TypedDict(hint.__name__, fields)  # type: ignore[operator]
    origin, members = get_origin(hint), tuple(_with_extended_dicts(member, outer) for member in get_args(hint))
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, members)
    return types.GenericAlias(origin, members) if members and origin in (list, tuple, dict, set) else hint


def tool_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """
    Describe a tool to the model.

    This is `transformers`' `get_json_schema`, for more tools: parameters may be written `name (type): ...` in the
    docstring, and hints that it does not know (an `Enum`, a `list` of anything, a `set`, `tuple[int, ...]`, a
    dataclass) are described by `pydantic`.

    Args:
        function (`Callable`):
            A function or bound method with type hints and a Google docstring.

    Returns:
        `dict[str, Any]`:
            The schema.

    Raises:
        DocstringParsingException: If a parameter is not described.
        TypeHintParsingException: If a parameter has no type hint, or one that JSON cannot express.
        NameError, AttributeError, TypeError: If a type hint cannot be resolved.
    """
    hints = get_type_hints(function)
    signature = inspect.signature(function)
    further = {name: schema for name, hint in hints.items() if (schema := _further(hint)) is not None}
    if get_origin(hints.get("return")) is not None and not _is_known(hints["return"]):
        further.setdefault("return", {})  # such as an iterator: no reason to refuse the tool

    def described() -> None: ...

    described.__name__ = function.__name__
    described.__doc__ = _without_types(inspect.getdoc(function) or "", list(signature.parameters))
    described.__annotations__ = {name: Any if name in further else hint for name, hint in hints.items()}
    vars(described)["__signature__"] = signature
    schema = get_json_schema(described)
    properties = schema["function"]["parameters"]["properties"]
    for name in further.keys() & properties.keys():
        properties[name] = further[name] | properties[name]
    if "return" in further:
        schema["function"]["return"] = further["return"] | schema["function"]["return"]
    return schema


def _without_types(docstring: str, names: list[str]) -> str:
    """`name (type): ...` as `name: ...`, the only form that is read."""
    if not names:
        return docstring
    return re.sub(rf"^(\s*)({'|'.join(names)})[ \t]*\(.*?\)[ \t]*:", r"\1\2:", docstring, flags=re.MULTILINE)


def _further(hint: Any) -> dict[str, Any] | None:
    """The schema of a hint that `transformers` does not know, or takes for an object; `None` for all others."""
    if _is_known(hint):
        return None
    members = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType) and len(members) == 2 and type(None) in members:
        (member,) = (each for each in members if each is not type(None))
        schema = _further(member)
        return None if schema is None else schema | {"nullable": True}
    try:
        schema = type_adapter(hint).json_schema()
    except (PydanticUserError, NameError):
        return None
    except PydanticSerializationError as error:  # of an `Enum` or a default
        raise TypeHintParsingException(f"The type hint {hint} has values that JSON does not know. {error}.") from error
    return _inlined(schema, schema.get("$defs", {}))


def _is_known(hint: Any) -> bool:
    origin, members = get_origin(hint), get_args(hint)
    if origin is None:
        return hint in _KNOWN_CLASSES
    if origin is tuple and (len(members) < 2 or ... in members):
        return False
    return origin is Literal or (
        origin in (Union, types.UnionType, list, tuple, dict) and all(_is_known(member) for member in members)
    )


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """A schema without references and titles; what contains itself is an object of any kind inside itself."""
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        rest = {other: schema for other, schema in definitions.items() if other != name}
        node = definitions.get(name, {"type": "object"}) | {key: node[key] for key in node if key != "$ref"}
        return _inlined(node, rest)
    return {
        key: _inlined(item, definitions)
        for key, item in node.items()
        if key != "$defs" and not (key == "title" and isinstance(item, str))
    }
