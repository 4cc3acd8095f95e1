"""Values of any kind as JSON, read no further than a result may be long."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set, ValuesView
from typing import Any

import numpy as np

_MORE, _ITSELF = "... and more, which was not read", "[...]"
# Some of these never end, and some are far larger than a result.
_READ_ONE_BY_ONE = (Set, ValuesView, range, deque, np.ndarray, Iterator)


def has_parts(value: Any) -> bool:
    """
    Whether a value consists of others, which a reader wants to see.

    Args:
        value (`Any`):
            The value.

    Returns:
        `bool`:
            `True` for lists, mappings, sets, arrays, iterators and so on, and for a dataclass that does not say itself
            how it is shown.
    """
    return isinstance(value, (list, tuple, Mapping, *_READ_ONE_BY_ONE)) or _is_record(value)


def json_text(value: Any, max_chars: int) -> str:
    """
    Write a value as JSON.

    Args:
        value (`Any`):
            The value. What JSON does not know becomes a list (an iterator, a set, an array), an object (a dataclass)
            or a text.
        max_chars (`int`):
            What has no known end is read until its text is longer than this; a last item says that there is more.

    Returns:
        `str`:
            The text; that of Python where keys are no strings.

    Raises:
        Exception: Whatever an iterator raises.
    """
    return _dumped(_plain(value, max_chars, ()))


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except TypeError:  # keys that are no strings
        return str(value)


def _plain(value: Any, max_chars: int, holders: tuple[int, ...]) -> Any:
    """The value with its parts as JSON has them; `holders` are the identities of what it is a part of."""
    if id(value) in holders:
        return _ITSELF
    holders = (*holders, id(value))
    if _is_record(value):
        value = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        plain = {key: _plain(item, max_chars, holders) for key, item in value.items()}
        return {key.item() if isinstance(key, np.generic) else key: item for key, item in plain.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, max_chars, holders) for item in value]
    if isinstance(value, np.floating):
        return float(str(value))  # 0.1 in 32 bits, and not 0.10000000149011612
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return value.item()
    if isinstance(value, _READ_ONE_BY_ONE):
        return _read(value, max_chars, holders)
    return value


def _read(values: Iterable[Any], max_chars: int, holders: tuple[int, ...]) -> list[Any]:
    items: list[Any] = []
    num_chars = 0
    for value in values:
        if num_chars > max_chars:
            return [*items, _MORE]
        items.append(_plain(value, max_chars, holders))
        num_chars += len(_dumped(items[-1]))
    return items


def _is_record(value: Any) -> bool:
    is_instance = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_instance and type(value).__str__ is object.__str__
