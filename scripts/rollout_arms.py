"""The loops that `bench_rollout.py` compares, all over one colocated vLLM."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from datasets import Dataset
from rollout_workload import Meter, ScriptedTurns, Workload, markup_tokens, metered, script
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from trl import GRPOTrainer
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

from trl_agentic import ARPOConfig
from trl_agentic.rollout.engine import Request, SamplingSettings
from trl_agentic.rollout.limits import Limits
from trl_agentic.rollout.loop import Prompt, RolloutLoop
from trl_agentic.rollout.policy import BranchPolicy, NoBranching
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.rollout.vllm_engine import VLLMEngine
from trl_agentic.rollout.vllm_entropy import EXTRA_ARG, STORE
from trl_agentic.tools import ToolRuntime
from trl_agentic.trainers.colocated import extra_vllm_arguments
from trl_agentic.types import BranchTree

MAX_LENGTH = 1024
BLOCK_SIZE = 32
# TRL's loop wants a template that renders calls and results. A result comes out as in our tag dialect.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'tool' %}\n<result>\n{{ message.content }}\n</result>\n"
    "{% else %}{{ message.role }} {{ message.content }}{% for call in message.tool_calls or [] %}"
    "{{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}\n{% endif %}{% endfor %}"
)
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor_pattern": r"\A|</result>\s*",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<search>\s*",
            "close_pattern": r"\s*</search>\s*",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "search", "arguments": {"query": "{content}"}}},
        },
        "content": {"close_pattern": "$", "content": "text"},
    },
}


@dataclass(frozen=True)
class Bench:
    """One engine, and TRL's trainer that owns it."""

    trainer: GRPOTrainer
    tokenizer: PreTrainedTokenizerBase

    @property
    def llm(self) -> LLM:
        """The colocated engine."""
        return self.trainer.vllm_generation.llm


def build(model: str, num_sequences: int) -> Bench:
    """Let TRL build its trainer and engine for a model."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template, tokenizer.response_template = CHAT_TEMPLATE, RESPONSE_TEMPLATE
    ScriptedTurns.banned = torch.tensor(markup_tokens(tokenizer))
    args = ARPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=num_sequences,
        num_generations=8,
        max_completion_length=MAX_LENGTH - 256,
        vllm_max_model_length=MAX_LENGTH,
        vllm_gpu_memory_utilization=0.3,
        max_tool_calling_iterations=8,
        vllm_engine_kwargs={
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": BLOCK_SIZE,
            "max_num_seqs": num_sequences,
            "logits_processors": [ScriptedTurns],
        },
        model_init_kwargs={"dtype": "float32"},
        use_cpu=True,
        report_to="none",
    )

    args.generation_kwargs = {"stop": ["</search>"], "include_stop_str_in_output": True}  # for TRL's loop alone

    def search(query: str) -> str:
        """
        Search.

        Args:
            query: What for.
        """
        return query

    with extra_vllm_arguments(args):
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=args,
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}]}]),
            processing_class=tokenizer,
            tools=[search],
        )
    return Bench(trainer, tokenizer)


@contextmanager
def scripted_generate(llm: LLM, workload: Workload) -> Iterator[None]:
    """Give each prompt of `LLM.generate` its turn: a call continues the rollouts that have turns left, in order."""
    done = [0] * len(workload.rollouts)
    original = llm.generate

    def generate(prompts: list, sampling_params: SamplingParams, **options: Any) -> list:
        going = [at for at, turns in enumerate(workload.rollouts) if done[at] < len(turns)]
        assert len(going) == len(prompts), f"{len(prompts)} prompts for {len(going)} unfinished rollouts"
        params = []
        for at in going:
            own = sampling_params.clone()
            own.extra_args = script(workload.rollouts[at][done[at]]) | (own.extra_args or {})
            params.append(own)
            done[at] += 1
        return original(prompts, params, **options)

    with patch.object(llm, "generate", generate):
        yield


def row_prompts(workload: Workload) -> list[list[dict[str, str]]]:
    """The prompt of every rollout."""
    return [prompt for prompt in workload.prompts for _ in range(workload.group_size)]


def run_trl(bench: Bench, workload: Workload) -> Meter:
    """TRL's own tool loop."""
    trainer, tool = bench.trainer, workload.tool()
    num_rollouts = len(workload.rollouts)
    trainer.tools = trainer._standalone_tools = [tool]
    trainer._sync_tool_dicts = [{"search": tool}] * num_rollouts  # as `_generate_and_score_completions` leaves them
    trainer._async_tool_dicts = [{}] * num_rollouts
    trainer._last_loaded_step = trainer.state.global_step
    with scripted_generate(bench.llm, workload), metered(bench.llm) as meter:
        trainer._generate(row_prompts(workload))
    return meter


def sampling() -> SamplingParams:
    """Settings of a turn for `LLM.generate`."""
    return SamplingParams(
        max_tokens=MAX_LENGTH - 256, stop=["</search>"], include_stop_str_in_output=True, logprobs=0, temperature=1.0
    )


def run_barrier(bench: Bench, workload: Workload, num_workers: int) -> Meter:
    """All rollouts decode, then all calls run in a pool, then all decode again."""
    dialect = TagDialect(bench.tokenizer, [workload.tool()])
    tool = workload.tool()
    sequences = [encode(dialect, prompt) for prompt in row_prompts(workload)]
    going = list(range(len(sequences)))
    llm = bench.llm
    with scripted_generate(llm, workload), ThreadPoolExecutor(num_workers) as pool, metered(llm) as meter:
        while going:
            prompts = [TokensPrompt(prompt_token_ids=sequences[at]) for at in going]
            outputs = llm.generate(prompts, sampling_params=sampling(), use_tqdm=False)
            turns = [list(output.outputs[0].token_ids) for output in outputs]
            for at, turn in zip(going, turns, strict=True):
                sequences[at] += turn
            calls = [dialect.parse(turn).calls for turn in turns]
            going = [at for at, call in zip(going, calls, strict=True) if call]
            queries = [call[0].arguments["query"] for call in calls if call]
            for at, text in zip(going, pool.map(tool, queries), strict=True):
                opening, closing = (bench.tokenizer(tag)["input_ids"] for tag in ("<result>\n", "\n</result>\n"))
                sequences[at] += opening + bench.tokenizer(text)["input_ids"] + closing
    return meter


def encode(dialect: TagDialect, prompt: list[dict[str, str]]) -> list[int]:
    """Tokens of a prompt, without the dialect's instructions, which no scripted model reads."""
    return dialect.encode_prompt([{"role": "system", "content": "x"}, *prompt])


class ScriptedRequests(VLLMEngine):
    """Our engine, which gives each request the turn that its id names: `prompt/trajectory/request`."""

    def __init__(self, llm: LLM, workload: Workload):
        super().__init__(llm)
        self._workload = workload

    def submit(self, request: Request) -> None:
        """Queue a request with its script."""
        prompt, trajectory, number = map(int, request.id.split("/"))
        turns = self._workload.rollouts[prompt * self._workload.group_size + trajectory]
        turn = turns[min(number, len(turns)) - 1]
        super().submit(replace(request, sampling=replace(request.sampling, extra={"extra_args": script(turn)})))


def run_ours(
    bench: Bench, workload: Workload, num_workers: int, policy: BranchPolicy | None = None
) -> tuple[Meter, list[BranchTree]]:
    """The event loop."""
    dialect = TagDialect(bench.tokenizer, [workload.tool()])
    prompts = [
        Prompt(str(number), tuple(encode(dialect, prompt)), workload.group_size)
        for number, prompt in enumerate(workload.prompts)
    ]
    with ToolRuntime([workload.tool()], num_workers=num_workers) as runtime:
        loop = RolloutLoop(
            ScriptedRequests(bench.llm, workload),
            runtime,
            dialect,
            policy or NoBranching(),
            SamplingSettings(),
            Limits(MAX_LENGTH - 256, max_tool_turns=8),
        )
        with metered(bench.llm) as meter:
            trees = loop.run(prompts)
    return meter, trees


def run_generate(bench: Bench, workload: Workload, with_text: bool) -> Meter:
    """Plain `LLM.generate` of the first turns, entropies measured as in our loop, with or without decoding to text."""
    dialect = TagDialect(bench.tokenizer, [workload.tool()])
    prompts = [TokensPrompt(prompt_token_ids=encode(dialect, prompt)) for prompt in row_prompts(workload)]
    params = []
    for at, turns in enumerate(workload.rollouts):
        extra = script(turns[0]) | {EXTRA_ARG: f"plain/{at}"}
        params.append(SamplingParams(max_tokens=MAX_LENGTH - 256, logprobs=0, detokenize=with_text, extra_args=extra))
        STORE.open(f"plain/{at}")
    with metered(bench.llm) as meter:
        outputs = bench.llm.generate(prompts, params, use_tqdm=False)
        for at, output in enumerate(outputs):
            STORE.take(f"plain/{at}", 0, len(output.outputs[0].token_ids))
            STORE.close(f"plain/{at}")
    return meter


def checkpoint(name: str) -> str:
    """Folder of a model: the embedded tiny agent, or what `scripts/export_smollm2.py` wrote."""
    from trl_agentic.tasks import TINY_GEO

    return str(TINY_GEO) if name == "tiny" else str(Path(name))
