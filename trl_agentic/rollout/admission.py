"""Which requests an engine accepts: the checks that are the same for every engine with a model behind it."""

from __future__ import annotations

from collections.abc import Container

from .engine import Request


def check_request(request: Request, in_flight: Container[str], max_model_length: int) -> None:
    """
    Refuse what no engine can serve.

    Args:
        request ([`Request`]):
            The request.
        in_flight (`Container[str]`):
            Ids that are taken.
        max_model_length (`int`):
            Most tokens of prefix and continuation together.

    Raises:
        ValueError: If the id is in flight already, the prefix is empty, or prefix and continuation exceed the context.
    """
    if request.id in in_flight:
        raise ValueError(f"Request id {request.id!r} is in flight already; ids must be unique.")
    if not request.token_ids:
        raise ValueError(f"Request {request.id!r} has an empty prefix; give it at least one token, such as bos.")
    room = max_model_length - len(request.token_ids)
    if not 1 <= request.max_tokens <= room:
        raise ValueError(
            f"A prefix of {len(request.token_ids)} tokens and {request.max_tokens} new ones do not fit a context of "
            f"{max_model_length}. "
            + (
                f"Ask for 1 to {room} new tokens."
                if room > 0
                else "End the rollout as truncated, or shorten the prefix."
            )
        )
