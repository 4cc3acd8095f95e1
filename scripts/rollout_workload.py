"""
What `bench_rollout.py` runs: scripted trajectories for a real engine, and a meter on that engine.

The model samples every token; a logits processor only decides where a turn ends, so that all loops get the same work:
the same number of turns and tokens, and the same calls with the same latencies.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from vllm import LLM
from vllm.v1.sample.logits_processor import LogitsProcessor, process_dict_updates

TURN_ARG = "scripted_turn"
SIGMA = 0.8  # of the latencies' logarithm
RESULT_WORDS = 50
PROMPT_WORDS = 180


@dataclass(frozen=True)
class Turn:
    """
    One turn of a scripted trajectory.

    Args:
        num_tokens (`int`):
            Tokens to sample, the call or the end token included.
        tail (`tuple[int, ...]`):
            The tokens it ends with.
        label (`str`):
            Input of its call; empty for the last turn.
        latency_s (`float`):
            Seconds that its call takes.
    """

    num_tokens: int
    tail: tuple[int, ...]
    label: str
    latency_s: float


@dataclass(frozen=True)
class Workload:
    """
    Prompts, trajectories and a tool, the same for every loop.

    Args:
        prompts (`list[list[dict]]`):
            One message list per prompt.
        group_size (`int`):
            Rollouts per prompt.
        rollouts (`list[list[Turn]]`):
            The turns of each rollout, the rollouts of a prompt side by side.
        results (`dict[str, str]`):
            What the tool returns, by label.
    """

    prompts: list[list[dict[str, str]]]
    group_size: int
    rollouts: list[list[Turn]]
    results: dict[str, str]

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens that every loop has to sample."""
        return sum(turn.num_tokens for turns in self.rollouts for turn in turns)

    @property
    def num_calls(self) -> int:
        """Tool calls of all rollouts."""
        return sum(len(turns) - 1 for turns in self.rollouts)

    def critical_path_s(self, step_s: float) -> float:
        """Seconds of the rollout that takes longest if it never has to wait: tokens times step time, and latencies."""
        return max(sum(turn.num_tokens * step_s + turn.latency_s for turn in turns) for turns in self.rollouts)

    def tool(self) -> Any:
        """The tool `search`, which sleeps as long as the script says."""
        latencies = {turn.label: turn.latency_s for turns in self.rollouts for turn in turns}

        def search(query: str) -> str:
            """
            Search for a word.

            Args:
                query: The word.

            Returns:
                A text about it.
            """
            time.sleep(latencies[query.strip()])
            return self.results[query.strip()]

        return search


def make_workload(
    tokenizer: PreTrainedTokenizerBase, num_prompts: int, group_size: int, median_s: float, seed: int
) -> Workload:
    """Draw a workload: 1 to 4 turns of 16 to 96 tokens, latencies log-normal; tokens do not depend on `median_s`."""
    rng = np.random.default_rng(seed)
    num_rollouts = num_prompts * group_size
    words = plain_words(tokenizer)
    assert len(words) >= 3 * num_rollouts, f"{len(words)} plain words are too few labels"
    labels = iter(words)
    texts = {label: " ".join(rng.choice(words, RESULT_WORDS)) for label in words[: 3 * num_rollouts]}
    prompts = [[{"role": "user", "content": " ".join(rng.choice(words, PROMPT_WORDS))}] for _ in range(num_prompts)]
    rollouts = []
    for _ in range(num_rollouts):
        num_turns = int(rng.integers(1, 5))
        turns = []
        for number in range(num_turns):
            label = next(labels) if number < num_turns - 1 else ""
            tail = call_tokens(tokenizer, label) if label else (tokenizer.eos_token_id,)
            latency_s = float(rng.lognormal(0.0, SIGMA)) * median_s if label else 0.0
            turns.append(Turn(int(rng.integers(16, 97)), tail, label, latency_s))
        rollouts.append(turns)
    return Workload(prompts, group_size, rollouts, texts)


def plain_words(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Words of the vocabulary that survive decoding and encoding, in order."""
    texts = {tokenizer.decode([token]).strip(): None for token in range(len(tokenizer))}
    words = sorted(text for text in texts if text.isascii() and text.isalpha() and 2 < len(text) < 9)
    return [word for word in words if len(tokenizer(f" {word}", add_special_tokens=False)["input_ids"]) == 1]


def call_tokens(tokenizer: PreTrainedTokenizerBase, label: str) -> tuple[int, ...]:
    """Tokens of the call with that input."""
    return tuple(tokenizer(f"<search> {label} </search>", add_special_tokens=False)["input_ids"])


def markup_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that could begin a call or a code fence, or end the message."""
    markup = [token for token in range(len(tokenizer)) if {"<", "`"} & set(tokenizer.decode([token]))]
    return sorted({*markup, *tokenizer.all_special_ids})


class ScriptedTurns(LogitsProcessor):
    """Bans markup until a turn's tail begins, and forces the tail. Idle for requests without [`TURN_ARG`]."""

    banned: torch.Tensor  # set before the engine is built, which makes the instance itself

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool):
        self._rows: dict[int, tuple[int, Sequence[int], Sequence[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        """It is not: it forces tokens."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow the batch."""
        process_dict_updates(self._rows, batch_update, _scripted)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask the logits of scripted rows in place."""
        free = []
        for row, (num_tokens, tail, output_ids) in self._rows.items():
            position = len(output_ids) - (num_tokens - len(tail))
            if position < 0:
                free.append(row)
            elif position < len(tail):
                logits[row] = -torch.inf
                logits[row, tail[position]] = 0.0
        if free:
            logits[torch.tensor(free).unsqueeze(1), self.banned] = -torch.inf
        return logits


def _scripted(params: Any, _prompt_ids: Any, output_ids: Sequence[int]) -> tuple | None:
    script = (params.extra_args or {}).get(TURN_ARG)
    return None if script is None else (*script, output_ids)


def script(turn: Turn) -> dict[str, Any]:
    """Value of `SamplingParams.extra_args` for a turn."""
    return {TURN_ARG: (turn.num_tokens, turn.tail)}


@dataclass
class Meter:
    """
    What an engine did during one run of a loop.

    Args:
        step_s (`list[float]`):
            Duration of each step.
        prefilled (`dict[str, int]`):
            Prompt tokens that were computed, by request.
        num_sampled_tokens (`int`):
            Tokens that were sampled.
        wall_s (`float`):
            Duration of the run.
    """

    step_s: list[float] = field(default_factory=list)
    prefilled: dict[str, int] = field(default_factory=dict)
    num_sampled_tokens: int = 0
    wall_s: float = 0.0

    @property
    def busy_s(self) -> float:
        """Seconds inside the engine."""
        return sum(self.step_s)

    @property
    def num_prefilled_tokens(self) -> int:
        """Prompt tokens that were computed, of all requests."""
        return sum(self.prefilled.values())


@contextmanager
def metered(llm: LLM) -> Iterator[Meter]:
    """Measure every step of `llm` within, whoever calls it; its prefix cache is empty at the beginning."""
    assert llm.reset_prefix_cache()
    meter = Meter()
    engine = llm.llm_engine
    original = engine.step

    def step() -> list:
        start = time.perf_counter()
        outputs = original()
        meter.step_s.append(time.perf_counter() - start)
        for output in outputs:
            meter.num_sampled_tokens += len(output.outputs[0].token_ids)
            if output.request_id not in meter.prefilled:
                meter.prefilled[output.request_id] = len(output.prompt_token_ids) - (output.num_cached_tokens or 0)
        return outputs

    engine.step = step
    start = time.perf_counter()
    try:
        yield meter
    finally:
        meter.wall_s = time.perf_counter() - start
        engine.step = original
