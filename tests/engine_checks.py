"""What the tests of the engines share: draining an engine, and the exact numbers from a plain forward."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from trl_agentic.rollout.engine import Engine, Event, Request, SamplingSettings


@dataclass
class Outcome:
    """Everything that came for one request."""

    events: list[Event] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        return [token for event in self.events for token in event.token_ids]

    @property
    def logprobs(self) -> list[float]:
        return [value for event in self.events for value in event.logprobs]

    @property
    def entropies(self) -> list[float]:
        return [value for event in self.events for value in event.entropies or ()]

    @property
    def finish_reason(self) -> str | None:
        return self.events[-1].finish_reason


def drain(engine: Engine) -> dict[str, Outcome]:
    """Poll until nothing is in flight."""
    outcomes: dict[str, Outcome] = {}
    for _ in range(2000):
        if not engine.num_unfinished:
            return outcomes
        for event in engine.poll():
            outcomes.setdefault(event.request_id, Outcome()).events.append(event)
    raise AssertionError(f"{engine.num_unfinished} requests are still in flight after 2,000 polls")


def ask(engine: Engine, prefix: tuple[int, ...], max_tokens: int, **settings: object) -> Outcome:
    """Run one request alone."""
    engine.submit(Request("alone", prefix, max_tokens, SamplingSettings(**settings)))
    return drain(engine)["alone"]


def exact(model: torch.nn.Module, prefix: tuple[int, ...], token_ids: list[int], temperature: float):
    """Log-probs and entropies of `token_ids` after `prefix`, from one plain forward; both of shape `(T,)`."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prefix, *token_ids]])).logits[0, len(prefix) - 1 : -1]  # (T, V)
    logprobs = torch.log_softmax(logits.double() / temperature, dim=-1)
    entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(1, torch.tensor(token_ids)[:, None])[:, 0], entropies


def assert_exact(model: torch.nn.Module, prefix: tuple[int, ...], outcome: Outcome, temperature: float) -> None:
    """The engine's numbers are the model's own, within 1e-3."""
    logprobs, entropies = exact(model, prefix, outcome.token_ids, temperature)
    torch.testing.assert_close(torch.tensor(outcome.logprobs).double(), logprobs, atol=1e-3, rtol=0)
    torch.testing.assert_close(torch.tensor(outcome.entropies).double(), entropies, atol=1e-3, rtol=0)
    assert entropies.std() > 0.05, "entropies that hardly differ would hide a shift"


def prompt(seed: int, length: int, num_words: int = 40) -> tuple[int, ...]:
    """A prefix that differs from that of any other seed in its first token already."""
    return tuple(3 + (seed + 7 * position) % num_words for position in range(length))
