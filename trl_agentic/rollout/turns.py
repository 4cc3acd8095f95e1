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


def read_messages(segments: Sequence[Segment], parse: Callable[[Sequence[int]], Turn]) -> list[dict[str, Any]]:
    """
    A completion as chat messages.

    Args:
        segments (`Sequence[Segment]`):
            The completion; adjacent sampled segments are one turn.
        parse (`Callable[[Sequence[int]], Turn]`):
            Reads the tokens of one turn.

    Returns:
        `list[dict]`:
            One `assistant` message per turn and one `tool` message per result.
    """
    messages: list[dict[str, Any]] = []
    for sampled, run in groupby(segments, key=lambda segment: segment.sampled):
        if sampled:
            messages.append(parse([token for segment in run for token in segment.token_ids]).message)
        else:
            messages.extend(
                {"role": "tool", "name": result.call.name, "content": result.content}
                for segment in run
                for result in segment.results
            )
    return messages
