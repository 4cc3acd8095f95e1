"""Plain accuracy as a reward function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .answers import accepted_answers, answer_exact_match, extract_answer
from .completion import Completion


def exact_match_reward(
    completions: Sequence[Completion],
    answer: Sequence[Any],
    rollout_messages: Sequence[Completion] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """
    Reward function: 1 if the model's own boxed answer equals an accepted one, else 0.

    Args:
        completions (`list`):
            The completions, as chat messages or as texts with results between `<result>` and `</result>`.
        answer (`list`):
            Accepted answer or answers of each row. `None` or an empty list: the row is not scored.
        rollout_messages (`list[list[dict]]`, *optional*):
            The completions as chat messages, which are judged in their place.
        **kwargs:
            Other columns, ignored.

    Returns:
        `list[float | None]`: 0 or 1 per row, `None` where there is nothing to compare with.
    """
    return [
        float(answer_exact_match(extract_answer(completion), accepted)) if accepted_answers(accepted) else None
        for completion, accepted in zip(rollout_messages or completions, answer, strict=True)
    ]
