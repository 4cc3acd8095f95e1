"""What a trajectory may use, and what it is told when that is used up."""

from __future__ import annotations

from dataclasses import dataclass

from ..types import CallStatus, ToolCall, ToolResult

BUDGET_NOTE = "No tool calls are left. Give the final answer now."


@dataclass(frozen=True)
class Limits:
    """
    What a trajectory may use.

    Args:
        max_completion_length (`int`):
            Tokens of the completion, tool results included.
        max_tool_turns (`int`, *optional*, defaults to `5`):
            Turns with tool calls. One further turn is answered with a note that none are left.
        max_calls (`int`, *optional*):
            Calls in all, where a turn may hold several. Those beyond are answered with the same note.
        max_invalid_turns (`int`, *optional*, defaults to `3`):
            Turns in a row whose calls are all broken.
        timeout_s (`float`, *optional*):
            Seconds for the whole rollout phase; what is unfinished then ends with [`Status.DEADLINE`].
    """

    max_completion_length: int
    max_tool_turns: int = 5
    max_calls: int | None = None
    max_invalid_turns: int = 3
    timeout_s: float | None = None


def refusal(call: ToolCall) -> ToolResult:
    """The result of a call that the budget of its trajectory does not allow."""
    return ToolResult(call, BUDGET_NOTE, CallStatus.BUDGET)
