"""Runs tool calls: many at a time, each with a deadline, every failure a readable result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..types import ToolCall, ToolResult


class ToolRuntime:
    """Runs the tool calls of all rollouts."""

    def __init__(
        self,
        tools: Sequence[Callable[..., Any]],
        *,
        num_workers: int = 8,
        timeout_s: float = 30.0,
        max_result_chars: int = 100_000,
    ):
        raise NotImplementedError

    @property
    def names(self) -> list[str]:
        """Names of the tools."""
        raise NotImplementedError

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools."""
        raise NotImplementedError

    @property
    def num_pending(self) -> int:
        """Turns submitted and not yet returned by `poll`."""
        raise NotImplementedError

    def submit(self, key: str, calls: Sequence[ToolCall]) -> None:
        """Start the calls of one turn."""
        raise NotImplementedError

    def poll(self, wait_s: float = 0.0) -> list[tuple[str, list[ToolResult]]]:
        """The turns whose calls have all ended."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop."""
        raise NotImplementedError

    def __enter__(self) -> ToolRuntime:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def result_text(value: Any) -> str:
    """What a tool returned, as a text."""
    raise NotImplementedError


def tool_metrics(results: Sequence[ToolResult]) -> dict[str, float]:
    """Calls, latency and failures of each tool."""
    raise NotImplementedError
