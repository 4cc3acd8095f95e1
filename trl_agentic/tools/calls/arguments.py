"""Arguments as a tool's type hints want them: checked and converted by `pydantic`, as JSON and no further."""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from .schemas import type_adapter
from .texts import error_line

_MAX_PROBLEMS, _MAX_VALUE_CHARS = 3, 100
_CLASSES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}
_SHOULD_BE = "Input should be "
# What the code of a dataclass or an enumeration may raise; it runs where nothing else shields from it.
_ERRORS_OF_TYPES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def argument_types(function: Callable[..., Any], schema: Mapping[str, Any]) -> dict[str, TypeAdapter[Any]]:
    """
    Read what the arguments of a tool must be.

    Args:
        function (`Callable`):
            The tool.
        schema (`Mapping[str, Any]`):
            Its JSON schema, whose choices (`(choices: ["a", "b"])` in a docstring) count too.

    Returns:
        `dict[str, TypeAdapter]`:
            The types by parameter, without those that may be anything.
    """
    hints = get_type_hints(function, include_extras=True)
    properties = schema["function"]["parameters"]["properties"]
    adapters = {name: _adapter(hints[name], described) for name, described in properties.items()}
    return {name: adapter for name, adapter in adapters.items() if adapter is not None}


def _adapter(hint: Any, described: Mapping[str, Any]) -> TypeAdapter[Any] | None:
    if hint in (Any, object):
        return None
    if (get_origin(hint) or hint) is Iterable:
        hint = types.GenericAlias(list, get_args(hint) or Any)  # an iterable would be checked while it is read
    if "enum" in described and _is_simple(hint):
        hint = Literal[(*described["enum"], *([None] if described.get("nullable") else []))]
    try:
        return type_adapter(hint)
    except (PydanticUserError, NameError):  # it holds a class of the tool's own
        return _rough_adapter(described)


def _rough_adapter(described: Mapping[str, Any]) -> TypeAdapter[Any] | None:
    kinds = described.get("type", [])
    classes = [_CLASSES[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind in _CLASSES]
    if not classes:
        return None
    hint: Any = functools.reduce(operator.or_, classes)
    return TypeAdapter(hint | None if described.get("nullable") else hint)


def _is_simple(hint: Any) -> bool:
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return all(member in (str, int, float, type(None)) for member in members)


def read_argument(name: str, adapter: TypeAdapter[Any], written: Any) -> tuple[Any, Any, str | None]:
    """
    Check and convert an argument.

    Where a text is no value of the type, at any depth, it is read as JSON: a tag holds nothing but text, and models
    quote numbers. So is a whole number that is written with a point.

    Args:
        name (`str`):
            The parameter.
        adapter (`TypeAdapter`):
            Its type.
        written (`Any`):
            What the model wrote.

    Returns:
        `tuple[Any, Any, str | None]`:
            The argument as JSON, as the tool takes it, and what is wrong with it, if anything.
    """
    while True:
        try:
            text = json.dumps(written, ensure_ascii=False).encode("utf-8", "replace")
            return written, adapter.validate_json(text, strict=True), None
        except ValidationError as error:
            problems = error.errors(include_url=False)
        except (RecursionError, *_ERRORS_OF_TYPES) as error:
            return None, None, f"{name} could not be read: {error_line(error)}"
        if problems[0]["type"] == "json_invalid":  # it nests deeper than anybody reads
            return None, None, _complaint(name, None, problems)
        written, is_new = _read_anew(written, problems)
        if not is_new:
            return None, None, _complaint(name, written, problems)


def _read_anew(value: Any, problems: Sequence[ErrorDetails]) -> tuple[Any, bool]:
    """The value with what is wrong in it read as JSON, and whether that changes anything."""
    root: Any = [deepcopy(value)]
    is_new = False
    for problem in problems:
        *way, last = [0, *_place(value, problem["loc"])]
        holder = functools.reduce(operator.getitem, way, root)
        read = _as_json(holder[last])
        is_new |= read is not holder[last]
        holder[last] = read
    return root[0], is_new


def _as_json(value: Any) -> Any:
    """What a text or a whole number stands for; any other value itself."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            read = json.loads(value)
            return value if isinstance(read, str) else read
    return value


def _place(value: Any, path: Sequence[int | str]) -> list[int | str]:
    """The steps of a path that lead through the value: those that name a type of a union do not."""
    steps = []
    for step in path:
        is_item = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if is_item or (isinstance(value, dict) and step in value):
            steps.append(step)
            value = value[step]
    return steps


def _complaint(name: str, value: Any, problems: Sequence[ErrorDetails]) -> str:
    """`"items[1] must be a valid integer or null, got \"a\""`."""
    by_place: dict[str, list[ErrorDetails]] = {}
    for problem in problems:
        steps = _place(value, problem["loc"])
        if problem["type"] == "missing":
            steps.append(problem["loc"][-1])
        place = name + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
        by_place.setdefault(place, []).append(problem)
    return "; ".join(_sentence(place, found) for place, found in list(by_place.items())[:_MAX_PROBLEMS])


def _sentence(place: str, problems: Sequence[ErrorDetails]) -> str:
    wanted = [problem["msg"].removeprefix(_SHOULD_BE) for problem in problems if problem["msg"].startswith(_SHOULD_BE)]
    if not wanted:
        return f"{place}: {problems[0]['msg']}"
    got = json.dumps(problems[0]["input"])[:_MAX_VALUE_CHARS]
    return f"{place} must be {' or '.join(dict.fromkeys(wanted))}, got {got}"
