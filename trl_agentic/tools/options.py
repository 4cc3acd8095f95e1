"""
What a tool tells the runtime about itself: limits, retries, caching, and that it found nothing.

Example:
    ```python
    @tool_options(rate_per_s=5.0, num_retries=3, cached=True, version="2")
    def search(query: str) -> str:
        \"\"\"
        Search the web.

        Args:
            query: What to look for.
        \"\"\"
        response = client.get("/search", params={"q": query})
        if response.status_code == 429:
            raise TransientToolError("the search engine is busy")
        return response.text or NoResult("Nothing was found.")
    ```
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

AnyTool = TypeVar("AnyTool", bound=Callable[..., Any])


@dataclass(frozen=True)
class ToolOptions:
    """
    How the runtime treats the calls of one tool.

    Args:
        timeout_s (`float`, *optional*):
            Deadline of a call in seconds, all its attempts included; the runtime's `timeout_s` if not given.
        max_concurrency (`int`, *optional*):
            Most calls that run at the same time; no limit but the number of workers if not given. A call that was
            given up at its deadline no longer counts.
        rate_per_s (`float`, *optional*):
            Most starts a second, evenly spaced: with 2.0 one every 0.5 s. Retries count as starts.
        num_retries (`int`, *optional*, defaults to `0`):
            Attempts after the first. Only a [`TransientToolError`] or one of `transient` is tried again, never a call
            on the state of a trajectory, and never because a result is empty.
        transient (`tuple[type[BaseException], ...]`, *optional*, defaults to `()`):
            Further exceptions that are worth another attempt; a single class is taken as well.
        cached (`bool`, *optional*, defaults to `False`):
            Whether equal calls may be answered from the runtime's [`ResultCache`]. For tools without side effects.
        version (`str`, *optional*, defaults to `""`):
            Part of the key in the cache: change it when equal arguments no longer give equal results, be it by the
            code, the index or the default of a parameter.

    Raises:
        ValueError: If a limit is out of range.
        TypeError: If `transient` holds something else than exception classes, or `version` is no text.
    """

    timeout_s: float | None = None
    max_concurrency: int | None = None
    rate_per_s: float | None = None
    num_retries: int = 0
    transient: tuple[type[BaseException], ...] = ()
    cached: bool = False
    version: str = ""

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not is_duration(self.timeout_s):
            raise ValueError(
                f"timeout_s must be positive, finite, and at most {threading.TIMEOUT_MAX:g} s, or None for the "
                f"runtime's own; got {self.timeout_s}."
            )
        if self.rate_per_s is not None and not (0 < self.rate_per_s < math.inf and is_duration(1 / self.rate_per_s)):
            raise ValueError(f"rate_per_s must be positive and finite, or None for no limit; got {self.rate_per_s}.")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1, or None for no limit; got {self.max_concurrency}.")
        if self.num_retries < 0:
            raise ValueError(f"num_retries must be 0 or more, got {self.num_retries}.")
        if isinstance(self.transient, type):  # one class, as `except` takes it too
            object.__setattr__(self, "transient", (self.transient,))
        if not isinstance(self.transient, tuple) or not all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in self.transient
        ):
            raise TypeError(
                f"transient must hold exception classes, such as (ConnectionError,); got {self.transient}."
            )
        if not isinstance(self.version, str):
            raise TypeError(f'version must be a text, such as "2"; got {self.version!r}.')
        try:
            self.version.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"version must be a text that UTF-8 can write; got {self.version!r}.") from error


def is_duration(seconds: float) -> bool:
    """Whether a thread can wait for so many seconds: more than none, and no more than the system can count."""
    return 0 < seconds <= threading.TIMEOUT_MAX


def tool_options(*misplaced: Any, **options: Any) -> Callable[[AnyTool], AnyTool]:
    """
    Attach [`ToolOptions`] to a function, as its attribute `tool_options`.

    Args:
        **options (`Any`):
            The fields of [`ToolOptions`].

    Returns:
        `Callable`:
            A decorator that returns the function itself.

    Raises:
        TypeError: If it is used without parentheses and options.
    """
    if misplaced:
        raise TypeError(
            f"tool_options takes nothing but named options, got {misplaced[0]!r}. Write it with parentheses above the "
            "tool: @tool_options(cached=True)."
        )
    settings = ToolOptions(**options)

    def attach(tool: AnyTool) -> AnyTool:
        setattr(tool, "tool_options", settings)  # noqa: B010 (a function has no such attribute to a type checker)
        return tool

    return attach


class TransientToolError(RuntimeError):
    """
    A failure that may be gone in a moment: too many requests, a server's error, a lost connection.

    Args:
        message (`str`):
            What happened, as the model gets to read it when no attempt is left.
        retry_after_s (`float`, *optional*):
            Seconds to wait at least, if the other side said so.
    """

    def __init__(self, message: str, retry_after_s: float | None = None):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NoResult(str):
    """
    A text that says that nothing was found. The model reads it like any other; the cache forgets it sooner.

    A tool returns `NoResult("No passage matches.")` where it would return a text.
    """
