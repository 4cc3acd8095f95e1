"""What the cache keeps: the key of a call, and its result."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..types import CallStatus


class CacheKey(NamedTuple):
    """What a result is stored under: the tool, its version, and its arguments as JSON in one fixed way of writing."""

    tool: str
    version: str
    arguments: str

    @property
    def digest(self) -> bytes:
        """SHA-256 of the three."""
        return hashlib.sha256(json.dumps(self).encode()).digest()


@dataclass(frozen=True)
class CachedResult:
    """
    A result out of the cache.

    Args:
        content (`str`), negative (`bool`), truncated (`bool`):
            The text, whether the tool had found nothing, and whether the text had been cut.
        status ([`~trl_agentic.types.CallStatus`], *optional*, defaults to `CallStatus.OK`):
            What became of the call. A failure answers nothing but a replay.
    """

    content: str
    negative: bool
    truncated: bool
    status: CallStatus = CallStatus.OK


def normalised(value: Any) -> Any:
    """The value with its texts in NFC; raises `TypeError` where two different values would be written alike."""
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("names of arguments must be strings")
        return {name: normalised(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [normalised(item) for item in value]
    return value
