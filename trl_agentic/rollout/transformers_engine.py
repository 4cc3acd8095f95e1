"""The engine protocol on a transformers model, for machines without vLLM. Simple and exact, not fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial

import torch
from transformers import (
    DynamicCache,
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ..algorithms.entropy import token_entropies
from .admission import check_request
from .engine import Event, FinishReason, Request, SamplingSettings
from .stop_texts import StopTexts


@dataclass
class _Row:
    """A request in flight and what it has sampled."""

    request: Request
    sampled: list[int] = field(default_factory=list)


@dataclass
class _Cohort:
    """
    Requests that were prefilled together and decode as one left-padded batch.

    Args:
        rows (`list[_Row]`):
            The requests, of length `R`.
        attention_mask (`torch.Tensor`):
            Mask over everything in the cache, of shape `(R, T)`; 0 on padding.
        logits (`torch.Tensor`):
            Logits of each row's next token, of shape `(R, V)`.
        cache ([`~transformers.DynamicCache`]):
            Keys and values of `T` positions.
    """

    rows: list[_Row]
    attention_mask: torch.Tensor
    logits: torch.Tensor
    cache: DynamicCache


@dataclass(frozen=True)
class Sample:
    """One token for each row that was asked for, with its log-prob, and its entropy unless greedy."""

    token_ids: list[int]
    logprobs: list[float]
    entropies: list[float] | None


class TransformersEngine:
    """
    Samples from a transformers model, one token per poll for every request.

    Requests submitted between two polls are prefilled together and decode together from then on, each group with a
    cache of its own. The model may be in the middle of training: it is put into eval mode for a poll and back.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            A causal language model.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer; used for stop texts alone.
        generator (`torch.Generator`, *optional*):
            Source of randomness, on the model's device. `None` for torch's global one.
        max_model_length (`int`, *optional*):
            Most tokens of prefix and continuation together. Defaults to the model's `max_position_embeddings`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        generator: torch.Generator | None = None,
        max_model_length: int | None = None,
    ):
        self.max_model_length: int = max_model_length or model.config.get_text_config().max_position_embeddings
        self._model = model
        self._stop_texts = cache(partial(StopTexts, tokenizer))
        self._generator = generator
        self._waiting: dict[str, Request] = {}
        self._cohorts: list[_Cohort] = []

    @property
    def num_unfinished(self) -> int:
        """Requests submitted and neither finished nor aborted."""
        return len(self._in_flight)

    @property
    def _in_flight(self) -> set[str]:
        return {*self._waiting, *(row.request.id for cohort in self._cohorts for row in cohort.rows)}

    def submit(self, request: Request) -> None:
        """
        Queue a request.

        Raises:
            ValueError: If the id is in flight already, the prefix is empty, prefix and continuation exceed the
                context, or `extra` holds options, which this engine has none of.
        """
        check_request(request, self._in_flight, self.max_model_length)
        if request.sampling.extra:
            raise ValueError(
                f"The generation options {sorted(request.sampling.extra)} are not supported without vLLM. Remove them "
                f"or install vLLM."
            )
        self._waiting[request.id] = request

    def poll(self) -> list[Event]:
        """One new token for every request; `[]` when nothing is in flight."""
        events: list[Event] = []
        with torch.no_grad(), _eval_mode(self._model):
            if self._waiting:
                self._cohorts.append(self._prefill(list(self._waiting.values())))
                self._waiting.clear()
            for cohort in self._cohorts:
                sampled = self._sample(cohort)
                events += sampled
                keep_rows(cohort, [index for index, event in enumerate(sampled) if event.finish_reason is None])
                if cohort.rows:
                    self._advance(cohort)
        self._cohorts = [cohort for cohort in self._cohorts if cohort.rows]
        return events

    def abort(self, request_id: str) -> None:
        """Drop a request; no further event of it arrives. Unknown ids are ignored."""
        self._waiting.pop(request_id, None)
        for cohort in self._cohorts:
            keep_rows(cohort, [index for index, row in enumerate(cohort.rows) if row.request.id != request_id])
        self._cohorts = [cohort for cohort in self._cohorts if cohort.rows]

    def _prefill(self, requests: list[Request]) -> _Cohort:
        width = max(len(request.token_ids) for request in requests)
        padding = [width - len(request.token_ids) for request in requests]
        # Any id pads: padding is masked, and positions count from the first real token.
        ids = [[0] * pad + list(request.token_ids) for pad, request in zip(padding, requests, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in padding]
        cohort = _Cohort(
            rows=[_Row(request) for request in requests],
            attention_mask=torch.tensor(mask, device=self._model.device),
            logits=torch.empty(0),
            cache=DynamicCache(config=self._model.config),
        )
        self._forward(cohort, torch.tensor(ids, device=self._model.device))
        return cohort

    def _advance(self, cohort: _Cohort) -> None:
        """Run the model on the tokens just sampled."""
        ids = torch.tensor([[row.sampled[-1]] for row in cohort.rows], device=self._model.device)  # (R, 1)
        cohort.attention_mask = torch.cat([cohort.attention_mask, torch.ones_like(ids)], dim=1)
        self._forward(cohort, ids)

    def _forward(self, cohort: _Cohort, input_ids: torch.Tensor) -> None:
        positions = (cohort.attention_mask.cumsum(dim=1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]  # (R, t)
        output = self._model(
            input_ids=input_ids,
            attention_mask=cohort.attention_mask,
            position_ids=positions,
            past_key_values=cohort.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cohort.logits = output.logits[:, -1].float()

    def _sample(self, cohort: _Cohort) -> list[Event]:
        """One event per row of the cohort, in its order."""
        events: dict[int, Event] = {}
        kinds = [_distribution(row.request.sampling) for row in cohort.rows]
        for kind in dict.fromkeys(kinds):
            group = [index for index in range(len(kinds)) if kinds[index] == kind]
            rows = [cohort.rows[index] for index in group]
            prefixes = [[*row.request.token_ids, *row.sampled] for row in rows]
            sample = sample_tokens(cohort.logits[group], prefixes, rows[0].request.sampling, self._generator)
            for place, (index, row) in enumerate(zip(group, rows, strict=True)):
                row.sampled.append(sample.token_ids[place])
                events[index] = Event(
                    request_id=row.request.id,
                    token_ids=(sample.token_ids[place],),
                    logprobs=(sample.logprobs[place],),
                    entropies=None if sample.entropies is None else (sample.entropies[place],),
                    finish_reason=self._finish_reason(row),
                )
        return [events[index] for index in range(len(cohort.rows))]

    def _finish_reason(self, row: _Row) -> FinishReason | None:
        settings, sampled = row.request.sampling, row.sampled
        turn_ids = [*row.request.turn_ids, *sampled]
        if sampled[-1] in settings.stop_token_ids or self._stop_texts(settings.stop).find(turn_ids, 1):
            return "stop"
        return "length" if len(sampled) == row.request.max_tokens else None


def keep_rows(cohort: _Cohort, going: list[int]) -> None:
    """Reduce a cohort, in place, to the rows that go on; one without rows is done with."""
    if len(going) == len(cohort.rows):
        return
    cohort.rows = [cohort.rows[index] for index in going]
    if going:
        cohort.attention_mask = cohort.attention_mask[going]
        cohort.logits = cohort.logits[going]
        cohort.cache.batch_select_indices(torch.tensor(going, device=cohort.attention_mask.device))


def sample_tokens(
    logits: torch.Tensor,
    prefixes: Sequence[Sequence[int]],
    settings: SamplingSettings,
    generator: torch.Generator | None,
) -> Sample:
    """
    Sample one token per row.

    Args:
        logits (`torch.Tensor`):
            Logits of shape `(R, V)`.
        prefixes (`Sequence[Sequence[int]]`):
            All tokens before the sampled one, of each row; for the repetition penalty.
        settings ([`SamplingSettings`]):
            How to sample.
        generator (`torch.Generator`, *optional*):
            Source of randomness.

    Returns:
        `Sample`:
            Tokens, log-probs under the distribution sampled from, entropies of `softmax(logits / temperature)`.
    """
    scores = logits
    if settings.repetition_penalty != 1.0:
        penalise = RepetitionPenaltyLogitsProcessor(settings.repetition_penalty)
        ids = [torch.tensor([prefix], device=logits.device) for prefix in prefixes]
        scores = torch.cat([penalise(row, scores[[index]]) for index, row in enumerate(ids)])
    if settings.temperature == 0:
        tokens = scores.argmax(dim=-1, keepdim=True)  # (R, 1)
        logprobs = torch.log_softmax(scores, dim=-1).gather(1, tokens)
        return Sample(tokens[:, 0].tolist(), logprobs[:, 0].tolist(), None)
    entropies = token_entropies(logits / settings.temperature)  # (R,)
    unread = torch.empty(0, dtype=torch.long)  # the warpers' signature has the prefix, but they look at scores alone
    scores = _warpers(settings)(unread, scores / settings.temperature)
    logprobs = torch.log_softmax(scores, dim=-1)  # (R, V)
    tokens = torch.multinomial(logprobs.exp(), 1, generator=generator)  # (R, 1)
    return Sample(tokens[:, 0].tolist(), logprobs.gather(1, tokens)[:, 0].tolist(), entropies.tolist())


def _warpers(settings: SamplingSettings) -> LogitsProcessorList:
    """transformers' own warpers, in vLLM's order: min-p first, then top-k, then top-p."""
    warpers = LogitsProcessorList()
    if settings.min_p > 0:
        warpers.append(MinPLogitsWarper(settings.min_p))
    if settings.top_k > 0:
        warpers.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1:
        warpers.append(TopPLogitsWarper(settings.top_p))
    return warpers


def _distribution(settings: SamplingSettings) -> tuple[float, ...]:
    """What shapes the distribution: rows that agree in this are sampled in one call."""
    return (settings.temperature, settings.top_p, settings.top_k, settings.min_p, settings.repetition_penalty)


@contextmanager
def _eval_mode(model: PreTrainedModel) -> Iterator[None]:
    """Eval mode for a while; the model goes back to the mode it was in, whatever happens."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
