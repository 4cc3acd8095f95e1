"""Trees that are grown, and grown on, by scripted engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trl
from byte_tokenizer import byte_tokenizer
from transformers import PreTrainedTokenizerFast
from word_tokenizer import ids, word_tokenizer, words

from trl_agentic.rollout.engine import Request, SamplingSettings, Script, ScriptedEngine
from trl_agentic.rollout.limits import Limits
from trl_agentic.rollout.loop import RolloutLoop
from trl_agentic.rollout.path import Fork, Prompt
from trl_agentic.rollout.policy import NoBranching
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.tools.runtime import ToolRuntime
from trl_agentic.types import BranchTree, Status, Trajectory

PROMPT = ids("what is a")
CALL = ids("need a <search> a </search>")
ANSWER = ids("found b <answer> \\boxed{ b } </answer> <eos>")

Answer = Callable[[Request], Script]


def search(query: str) -> str:
    """
    Look something up.

    Args:
        query: What to look for.
    """
    return f"{query} is b"


@contextmanager
def growing(
    answer: Answer,
    *,
    tools=(search,),
    dialect=None,
    policy=None,
    workers: int = 0,
    engine=None,
    context: int = 4096,
    clock: Callable[[], float] = time.monotonic,
    tool_timeout_s: float = 20.0,
    **limits,
) -> Iterator[RolloutLoop]:
    """A loop on a scripted engine; in the end nothing may be left in engine and runtime, whatever happened."""
    engine = engine or ScriptedEngine(answer, max_model_length=context)
    with ToolRuntime(list(tools), num_workers=workers, timeout_s=tool_timeout_s) as runtime:
        try:
            yield RolloutLoop(
                engine,
                runtime,
                dialect or TagDialect(word_tokenizer(), tools),
                policy or NoBranching(),
                SamplingSettings(),
                Limits(**({"max_completion_length": 100} | limits)),
                clock,
            )
        finally:
            assert engine.num_unfinished == 0 and runtime.num_pending == 0


def grown(answer: Answer, size: int = 1, prompts: int = 1, prompt: Sequence[int] = PROMPT, **options):
    """Trees from the prompt on."""
    with growing(answer, **options) as loop:
        return loop.run([Prompt(str(number), tuple(prompt), size) for number in range(prompts)])


def regrown(answer: Answer, trees: Sequence[BranchTree], forks: Sequence[Sequence[Fork]], **options):
    """Trees without tool states, with branches from these forks; and the engine's requests."""
    with growing(answer, **options) as loop:
        grown_on = loop.extend(trees, forks, [[None] * len(tree.trajectories) for tree in trees])
        return grown_on, loop.engine.requests


def search_then_answer(request: Request) -> Script:
    """One call and the answer: 18 tokens, those from 5 to 9 its result."""
    return Script(ANSWER if "<result>" in words(request.token_ids) else CALL)


def searched_tree(**options) -> BranchTree:
    """A tree with one trajectory of [`search_then_answer`]."""
    return grown(search_then_answer, **options)[0]


def as_their_parents(trees: Sequence[BranchTree], forks: Sequence[Sequence[Fork]]) -> Answer:
    """Lets every branch sample what its parent sampled: it has to become its parent."""

    def answer(request: Request) -> Script:
        number, index, _ = map(int, request.id.split("/"))
        tree = trees[number]
        parent = tree.trajectories[forks[number][index - len(tree.trajectories)][0]]
        start = end = len(request.token_ids) - len(tree.prompt_ids)
        while end < len(parent) and parent.sampled_mask[end]:
            end += 1
        assert end > start, "the branch is asked to go on where its parent did not"
        reasons = {Status.TRUNCATED: "length", Status.ERROR: "error"}
        is_last = (
            end == len(parent) and parent.segments[-1].sampled
        )  # else a result without room for any token follows
        return Script(
            token_ids=tuple(parent.token_ids[start:end]),
            finish_reason=reasons.get(parent.status, "stop") if is_last else "stop",
            entropies=tuple(parent.entropies[start:end]),
            logprobs=tuple(parent.logprobs[start:end]),
        )

    return answer


def content_of(trajectory: Trajectory) -> tuple:
    """All that a trajectory is made of, but for where it was started and how long its tools took."""
    results = [(result.call, result.content, result.status, result.truncated) for result in trajectory.results]
    return (
        trajectory.token_ids,
        trajectory.sampled_mask,
        trajectory.logprobs,
        trajectory.entropies,
        results,
        trajectory.status,
    )


def sampled_positions(trajectory: Trajectory) -> list[int]:
    """Where a branch can start."""
    return [position for position, sampled in enumerate(trajectory.sampled_mask) if sampled]


def chat_byte_tokenizer() -> PreTrainedTokenizerFast:
    """The byte-level tokenizer with Qwen3's chat template, whose calls are many tokens long."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return tokenizer
