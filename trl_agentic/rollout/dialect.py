"""How tool calls are written and how tool results are rendered: the protocol. [`make_dialect`] builds one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..types import Segment, ToolCall, ToolResult


@dataclass(frozen=True)
class Turn:
    """
    What the model said in one turn (everything it sampled between two tool results).

    Args:
        message (`dict`):
            The turn as a chat message: `role`, `content`, and `tool_calls` in TRL's format if there are calls.
        calls (`tuple[ToolCall, ...]`):
            The calls in the order in which they were written, broken ones included (their `problem` is set). Empty for
            a final message.
    """

    message: dict[str, Any]
    calls: tuple[ToolCall, ...]


class Dialect(Protocol):
    """How calls are written and results rendered."""

    @property
    def name(self) -> str:
        """`"tags"` or `"template"`."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end a segment."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a segment."""
        ...

    def encode_prompt(self, prompt: str | list[dict[str, Any]]) -> list[int]:
        """Tokens of a prompt, tool descriptions and generation prompt included."""
        ...

    def parse(self, token_ids: Sequence[int], before: Sequence[int] | None = None) -> Turn:
        """Read the tokens of one turn, which stand behind those of `before`: by default a prompt of the template."""
        ...

    def render(self, turn_ids: Sequence[int], results: Sequence[ToolResult], room: int | None = None) -> Segment:
        """
        What follows the turn `turn_ids`: all its results, and whatever opens the model's next turn, in `room` tokens.

        The segment's `results` are what the model gets to see. Of one that is cut, `content` is what is left and
        `truncated` is set.
        """
        ...

    def messages(self, segments: Sequence[Segment], prompt_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """The completion of a prompt as chat messages: assistant turns, and one `tool` message per result."""
        ...
