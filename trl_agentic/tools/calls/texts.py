"""What the model gets to read: any value or exception as a bounded text that a tokenizer accepts."""

from __future__ import annotations

import traceback
from typing import Any

from .json_text import has_parts, json_text

MAX_ERROR_CHARS = 500


def result_text(value: Any, max_chars: int = 100_000) -> str:
    """
    Write what a tool returned as a text that is never empty.

    Args:
        value (`Any`):
            Text stays as it is; bytes are read as UTF-8; lists, mappings, sets, arrays, dataclasses and iterators
            become JSON; the rest is `str(value)`.
        max_chars (`int`, *optional*, defaults to `100_000`):
            Most characters to keep; see [`cut_text`]. An iterator is read no further than that.

    Returns:
        `str`:
            Valid Unicode: a lone surrogate is replaced by a question mark, and so is a byte that is no UTF-8.
    """
    return bounded_text(value, max_chars)[0]


def bounded_text(value: Any, max_chars: int) -> tuple[str, bool]:
    """The same as [`result_text`], and whether the text was cut."""
    if value is None:
        return "(the tool returned nothing)", False
    if isinstance(value, str):
        text = value
    elif isinstance(value, (bytes, bytearray, memoryview)):
        text = bytes(value).decode("utf-8", "replace")
    elif has_parts(value):
        text = json_text(value, max_chars)
    else:
        text = str(value)
    bounded = cut_text(text, max_chars).encode("utf-8", "replace").decode("utf-8")
    return bounded if bounded.strip() else "(no output)", len(text) > max_chars


def cut_text(text: str, max_chars: int) -> str:
    """
    Keep head and tail of a text that is too long, and mark the cut.

    Args:
        text (`str`):
            The text.
        max_chars (`int`):
            Most characters of the result, the mark included.

    Returns:
        `str`:
            The text itself if it fits.
    """
    if len(text) <= max_chars:
        return text
    mark = f"\n[... {len(text)} characters, the middle is left out ...]\n"
    kept = max(max_chars - len(mark), 0)
    tail = kept // 2
    return text[: kept - tail] + mark[:max_chars] + text[len(text) - tail :]


def error_line(error: BaseException) -> str:
    """
    Write an exception as one line of bounded length, without a traceback.

    Args:
        error (`BaseException`):
            The exception; one whose own text cannot be had is no problem.

    Returns:
        `str`:
            `"TypeError: message"`, or the name of the class alone if there is no message.
    """
    # `str(error)` runs code of the tool, which may raise anything: the traceback module is prepared for that
    described = traceback.TracebackException(type(error), error, None, lookup_lines=False)
    message = " ".join(str(described).split())
    line = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return line if len(line) <= MAX_ERROR_CHARS else line[: MAX_ERROR_CHARS - 3] + "..."
