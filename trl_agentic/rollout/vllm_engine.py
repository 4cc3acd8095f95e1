"""The trainer's colocated vLLM behind the [`Engine`] protocol, driven step by step."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from itertools import count
from typing import Any

import vllm._custom_ops
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.sample.logits_processor import LOGITSPROCS_GROUP

from .admission import check_request
from .engine import Event, FinishReason, Request, SamplingSettings
from .stop_texts import StopTexts
from .vllm_entropy import EXTRA_ARG, PROCESSOR, STORE

RESERVED_OPTIONS = frozenset(
    {
        "n",
        "seed",
        "stop",
        "logprobs",
        "prompt_logprobs",
        "detokenize",
        "output_kind",
        "skip_special_tokens",
        "stream_interval",
    }
)
"""Sampling options that the engine sets itself, or that would make the requests of a group equal (`seed`)."""

_serial = count()  # keys of entropies are unique in the process, since engines share one store


def entropy_engine_kwargs() -> dict[str, Any]:
    """
    What `vllm.LLM` has to be given so that [`VLLMEngine`] gets entropies.

    Returns:
        `dict`:
            Empty when our entry point is installed, since vLLM then loads the processor by itself (and, unlike for
            processors named in arguments, does not wait for the last step's tokens before each step).
    """
    if any(point.value == PROCESSOR for point in entry_points(group=LOGITSPROCS_GROUP)):
        return {}
    return {"logits_processors": [PROCESSOR]}


def prepare_cpu_platform(kv_cache_gib: int = 1) -> None:
    """
    Make a colocated vLLM on CPU keep live weights and stay in this process. Does nothing on other platforms.

    To be called before the engine is built. oneDNN packs the weights of linear layers and drops the originals, after
    which loading new weights fails, or misses tied embeddings in silence; so it is switched off. So is the compilation
    of the few tensor operations around sampling, which takes a C++ compiler and half a minute on a fresh machine and
    gains nothing there. Threads are not bound to cores, since trainer and engine take turns on the same ones, and
    several processes may share a machine. Environment variables that are set already are left alone.

    Args:
        kv_cache_gib (`int`, *optional*, defaults to `1`):
            Size of the KV cache in GiB.
    """
    if not current_platform.is_cpu():
        return
    vllm._custom_ops._supports_onednn = False
    current_platform.simple_compile_backend = "eager"
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(kv_cache_gib))


@dataclass
class _Running:
    """A request in flight: vLLM's id for it, the key of its entropies if it has any, and the turn so far."""

    internal_id: str
    entropy_key: str | None
    stop: tuple[str, ...]
    turn_ids: list[int]
    num_sampled: int = 0


class VLLMEngine:
    """
    Drives a `vllm.LLM` of this process one step at a time.

    Requests end at the stop texts and stop tokens of their settings and at nothing else: the model's eos has to be
    among `stop_token_ids`. Log-probs are those of the distribution that was sampled from, after temperature and, where
    used, top-p, top-k and min-p (then renormalised); entropies are those of `softmax(logits / temperature)`.

    Args:
        llm (`vllm.LLM`):
            Built with `logprobs_mode="processed_logprobs"` (as TRL does) and [`entropy_engine_kwargs`].
        with_entropies (`bool`, *optional*, defaults to `True`):
            Whether to measure entropies. Greedy requests never have any.

    Raises:
        ValueError: If `llm` reports another kind of log-probs, or decodes speculatively.
    """

    def __init__(self, llm: LLM, with_entropies: bool = True):
        mode = llm.model_config.logprobs_mode
        if mode != "processed_logprobs":
            raise ValueError(
                f"The engine's log-probs have to be those it samples from, but this one was built with "
                f"logprobs_mode={mode!r}. Build it with logprobs_mode='processed_logprobs'."
            )
        if with_entropies and llm.llm_engine.vllm_config.speculative_config is not None:
            raise ValueError(
                "The engine decodes speculatively, and entropies of drafted tokens cannot be measured. Build it "
                "without `speculative_config`, or pass with_entropies=False."
            )
        self._llm = llm
        self._with_entropies = with_entropies
        self._stop_texts = cache(partial(StopTexts, llm.get_tokenizer()))
        self._running: dict[str, _Running] = {}

    @property
    def num_unfinished(self) -> int:
        """Requests submitted and neither finished nor aborted."""
        return len(self._running)

    @property
    def max_model_length(self) -> int:
        """Most tokens of prefix and continuation together."""
        return self._llm.model_config.max_model_len

    def submit(self, request: Request) -> None:
        """
        Queue a request.

        Raises:
            ValueError: If the id is in flight already, the prefix is empty, prefix and continuation exceed the model's
                context, or the settings hold an option that the engine sets itself.
        """
        check_request(request, self._running, self.max_model_length)
        entropy_key = None
        if self._with_entropies and request.sampling.temperature > 0:
            entropy_key = f"{next(_serial)}/{request.id}"
        params = sampling_params(request.sampling, request.max_tokens, entropy_key)
        prompt = TokensPrompt(prompt_token_ids=list(request.token_ids))
        internal_id = self._llm.llm_engine.add_request(request.id, prompt, params)
        if entropy_key is not None:
            STORE.open(entropy_key)
        self._running[request.id] = _Running(internal_id, entropy_key, request.sampling.stop, list(request.turn_ids))

    def poll(self) -> list[Event]:
        """One step of vLLM: at most one new token for every running request; `[]` when nothing is in flight."""
        if not self._running:
            return []
        outputs = self._llm.llm_engine.step()
        events = [self._event(output) for output in outputs if output.request_id in self._running]
        return [event for event in events if event.token_ids or event.finish_reason is not None]

    def abort(self, request_id: str) -> None:
        """Drop a request; no further event of it arrives. Unknown ids are ignored."""
        if (running := self._running.get(request_id)) is not None:
            self._llm.llm_engine.abort_request([running.internal_id], internal=True)
            self._forget(request_id)

    def reset_prefix_cache(self) -> None:
        """
        Forget cached prefixes, as is due after every change of the weights.

        Raises:
            RuntimeError: If requests are in flight, whose blocks cannot be dropped.
        """
        if not self._llm.reset_prefix_cache():
            raise RuntimeError(
                f"vLLM could not reset its prefix cache, with {self.num_unfinished} requests in flight. Let them "
                "finish, or abort them, before the weights change."
            )

    def _event(self, output: RequestOutput) -> Event:
        running = self._running[output.request_id]
        completion = output.outputs[0]
        token_ids, logprobs = tuple(completion.token_ids), sampled_logprobs(completion)
        reason = finish_reason(completion) if output.finished else None
        if running.stop:
            running.turn_ids.extend(token_ids)
            if end := self._stop_texts(running.stop).find(running.turn_ids, len(token_ids)):
                token_ids, logprobs, reason = token_ids[:end], logprobs[:end], "stop"
        entropies = None
        if running.entropy_key is not None:
            entropies = STORE.take(running.entropy_key, running.num_sampled, len(token_ids))
        running.num_sampled += len(token_ids)
        if reason is not None:
            if not output.finished:
                self._llm.llm_engine.abort_request([running.internal_id], internal=True)
            self._forget(output.request_id)
        return Event(
            request_id=output.request_id,
            token_ids=token_ids,
            logprobs=logprobs,
            entropies=entropies,
            finish_reason=reason,
            num_cached_tokens=output.num_cached_tokens,
        )

    def _forget(self, request_id: str) -> None:
        running = self._running.pop(request_id)
        if running.entropy_key is not None:
            STORE.close(running.entropy_key)


def sampling_params(settings: SamplingSettings, max_tokens: int, entropy_key: str | None) -> SamplingParams:
    """
    vLLM's form of our settings.

    Args:
        settings ([`SamplingSettings`]):
            How to sample; `extra` holds further fields of `SamplingParams`.
        max_tokens (`int`):
            Most tokens to sample.
        entropy_key (`str`, *optional*):
            Where to file the entropies, or `None` to measure none.

    Raises:
        ValueError: If `extra` holds an option that the engine sets itself.
    """
    if reserved := sorted(RESERVED_OPTIONS & settings.extra.keys()):
        raise ValueError(
            f"The generation options {reserved} are set by the engine. Remove them; a run repeats by the seed of the "
            f"engine, not by one per request."
        )
    extra = dict(settings.extra)
    marks = dict(extra.pop("extra_args", None) or {})
    if entropy_key is not None:
        marks[EXTRA_ARG] = entropy_key
    options: dict[str, Any] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "min_p": settings.min_p,
        "repetition_penalty": settings.repetition_penalty,
        "stop_token_ids": list(settings.stop_token_ids),
        "ignore_eos": True,
        "skip_special_tokens": False,
        "detokenize": False,  # stop texts are ours to find
        "max_tokens": max_tokens,
        "logprobs": 0,
        "output_kind": RequestOutputKind.DELTA,
        "extra_args": marks or None,
    }
    return SamplingParams(**(options | extra))


def sampled_logprobs(completion: CompletionOutput) -> tuple[float, ...]:
    """Log-probability of each sampled token. vLLM's entries are sorted by rank, so the token's own is looked up."""
    values = []
    for token, entry in zip(completion.token_ids, completion.logprobs or [], strict=True):
        assert entry is not None, "only the first prompt token goes without log-probs"
        values.append(entry[token].logprob)
    return tuple(values)


def finish_reason(completion: CompletionOutput) -> FinishReason:
    """Why a request ended; whatever is neither a stop nor the budget is an error of the engine."""
    if completion.finish_reason == "stop":
        return "stop"
    return "length" if completion.finish_reason == "length" else "error"
