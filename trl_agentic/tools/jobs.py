"""What the runtime knows of a call that waits or runs, and of the turn it belongs to."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ..types import ToolCall, ToolResult
from .signatures import Tool


@dataclass
class Turn:
    """The calls of one turn; `results` fills up in any order."""

    key: str
    results: list[ToolResult | None]

    @property
    def is_done(self) -> bool:
        """Whether every call has its result."""
        return None not in self.results


@dataclass
class Job:
    """One call that is waiting or running."""

    turn: Turn
    position: int
    call: ToolCall
    tool: Tool
    arguments: dict[str, Any]
    started: float = 0.0  # `time.monotonic()`, once it runs
    future: Future[Any] | None = None  # set while an async tool runs
    expired: bool = False
