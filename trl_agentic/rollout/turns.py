"""Segments to turns: what the model said between two tool results is one turn, however many segments hold it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, takewhile
from typing import Any

from ..types import Segment
from .dialect import Turn


def turn_ids(segments: Sequence[Segment]) -> list[int]:
    """
    The tokens that the model has sampled since the last tool results.

    Args:
        segments (`Sequence[Segment]`):
            A completion so far.

    Returns:
        `list[int]`: The tokens, which may stand in several segments.
    """
    run = list(takewhile(lambda segment: segment.sampled, reversed(segments)))
    return [token for segment in reversed(run) for token in segment.token_ids]


def read_messages(
    segments: Sequence[Segment], parse: Callable[..., Turn], prompt_ids: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """
    A completion as chat messages.

    Args:
        segments (`Sequence[Segment]`):
            The completion; adjacent sampled segments are one turn.
        parse (`Callable[[Sequence[int], Sequence[int] | None], Turn]`):
            Reads the tokens of one turn, given what stands in front of them.
        prompt_ids (`Sequence[int]`, *optional*):
            The prompt, by default one of the chat template.

    Returns:
        `list[dict]`:
            One `assistant` message per turn and one `tool` message per result.
    """
    messages: list[dict[str, Any]] = []
    before = None if prompt_ids is None else list(prompt_ids)
    for sampled, run in groupby(segments, key=lambda segment: segment.sampled):
        parts = list(run)
        token_ids = [token for segment in parts for token in segment.token_ids]
        if sampled:
            messages.append(parse(token_ids, before).message)
        for result in (result for segment in parts for result in segment.results):
            messages.append({"role": "tool", "name": result.call.name, "content": result.content})
        before = [*(before or ()), *token_ids]
    return messages
