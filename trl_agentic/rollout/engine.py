"""
The engine protocol: requests in, events out, one step at a time; and [`ScriptedEngine`], the shipped fake.

Example:
    ```python
    engine.submit(Request("a", token_ids=(1, 2, 3), max_tokens=32, sampling=SamplingSettings()))
    while engine.num_unfinished:
        for event in engine.poll():
            ...
    ```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class SamplingSettings:
    """
    How a request is sampled.

    Args:
        temperature (`float`, *optional*, defaults to `1.0`):
            Sampling temperature; 0 is greedy.
        top_p (`float`, *optional*, defaults to `1.0`):
            Nucleus sampling mass.
        top_k (`int`, *optional*, defaults to `0`):
            Number of most probable tokens to sample from; 0 for all.
        min_p (`float`, *optional*, defaults to `0.0`):
            Smallest probability, relative to the most probable token's.
        repetition_penalty (`float`, *optional*, defaults to `1.0`):
            Penalty on tokens that have occurred.
        stop (`tuple[str, ...]`, *optional*, defaults to `()`):
            Texts at which a segment ends. The token that completes the text is kept, with all it decodes to.
        stop_token_ids (`tuple[int, ...]`, *optional*, defaults to `()`):
            Tokens at which a segment ends, eos included; the token is kept.
        extra (`Mapping[str, Any]`, *optional*):
            Further options, passed to the engine as they are (TRL's `generation_kwargs`).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """
    A prefix to be continued.

    Args:
        id (`str`):
            Unique among the requests in flight.
        token_ids (`tuple[int, ...]`):
            The prefix: prompt and completion so far.
        max_tokens (`int`):
            Most tokens to sample; at least 1.
        sampling ([`SamplingSettings`]):
            How to sample.
        num_turn_tokens (`int`, *optional*, defaults to `0`):
            Tokens at the end of the prefix that belong to the turn which is continued: a stop text may begin there.
    """

    id: str
    token_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingSettings
    num_turn_tokens: int = 0

    @property
    def turn_ids(self) -> tuple[int, ...]:
        """What the prefix holds of the turn that is continued."""
        return self.token_ids[len(self.token_ids) - self.num_turn_tokens :]


FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True)
class Event:
    """
    What one step of the engine brought to one request.

    Args:
        request_id (`str`):
            The request.
        token_ids (`tuple[int, ...]`):
            Tokens sampled since the request's last event.
        logprobs (`tuple[float, ...]`):
            Log-probability of each of them.
        entropies (`tuple[float, ...]`, *optional*):
            Exact entropy in nats of the distribution each was sampled from; `None` where the engine has none (greedy).
        finish_reason (`"stop"`, `"length"` or `"error"`, *optional*):
            `None` while the request goes on.
        num_cached_tokens (`int`, *optional*):
            Tokens of the prefix that came from the prefix cache, where the engine tells.
    """

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    entropies: tuple[float, ...] | None = None
    finish_reason: FinishReason | None = None
    num_cached_tokens: int | None = None


class Engine(Protocol):
    """Continues token sequences, many at a time."""

    @property
    def num_unfinished(self) -> int:
        """Requests submitted and neither finished nor aborted."""
        ...

    @property
    def max_model_length(self) -> int:
        """Most tokens of prefix and continuation together."""
        ...

    def submit(self, request: Request) -> None:
        """Queue a request."""
        ...

    def poll(self) -> list[Event]:
        """Advance once and return what happened; an empty list when there is nothing to do."""
        ...

    def abort(self, request_id: str) -> None:
        """Drop a request; no further event of it arrives. Unknown ids are ignored."""
        ...


@dataclass(frozen=True)
class Script:
    """
    What [`ScriptedEngine`] answers to one request.

    Args:
        token_ids (`tuple[int, ...]`):
            The tokens, one per poll.
        finish_reason (`"stop"`, `"length"` or `"error"`, *optional*, defaults to `"stop"`):
            How the request ends, unless its `max_tokens` cut it first.
        entropies (`tuple[float, ...]`, *optional*):
            One per token; zeros by default.
        logprobs (`tuple[float, ...]`, *optional*):
            One per token; -1.0 each by default.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason = "stop"
    entropies: tuple[float, ...] | None = None
    logprobs: tuple[float, ...] | None = None


class ScriptedEngine:
    """
    An engine without a model: every request is answered by a function, one token per poll.

    Args:
        answer (`Callable[[Request], Script]`):
            Called once per request, in the order of submission.
        max_model_length (`int`, *optional*, defaults to `4096`):
            What it claims as its context.

    Attributes:
        requests (`list[Request]`):
            Everything that was ever submitted.
    """

    def __init__(self, answer: Callable[[Request], Script], max_model_length: int = 4096):
        self.requests: list[Request] = []
        self.max_model_length = max_model_length
        self._answer = answer
        self._running: dict[str, tuple[Request, Script, int]] = {}

    @property
    def num_unfinished(self) -> int:
        """Requests in flight."""
        return len(self._running)

    def submit(self, request: Request) -> None:
        """Queue a request and fix its answer."""
        if request.id in self._running:
            raise ValueError(f"Request id {request.id!r} is in flight already; ids must be unique.")
        if len(request.token_ids) + request.max_tokens > self.max_model_length or request.max_tokens < 1:
            raise ValueError(
                f"A prefix of {len(request.token_ids)} tokens and {request.max_tokens} new ones do not fit a context "
                f"of {self.max_model_length}."
            )
        self.requests.append(request)
        self._running[request.id] = (request, self._answer(request), 0)

    def poll(self) -> list[Event]:
        """One token for every request."""
        events = []
        for request_id, (request, script, position) in list(self._running.items()):
            end = position + 1
            reason: FinishReason | None = None
            if end >= len(script.token_ids):
                reason = script.finish_reason
            elif end == request.max_tokens:
                reason = "length"
            events.append(
                Event(
                    request_id=request_id,
                    token_ids=script.token_ids[position:end],
                    logprobs=(script.logprobs or (-1.0,) * len(script.token_ids))[position:end],
                    entropies=(script.entropies or (0.0,) * len(script.token_ids))[position:end],
                    finish_reason=reason,
                )
            )
            if reason is None:
                self._running[request_id] = (request, script, end)
            else:
                del self._running[request_id]
        return events

    def abort(self, request_id: str) -> None:
        """Drop a request."""
        self._running.pop(request_id, None)
