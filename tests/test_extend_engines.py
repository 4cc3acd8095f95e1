"""Branches of finished trees on real engines: exact numbers behind any prefix, and stop texts that begin in it."""

from __future__ import annotations

import pytest
import torch
from async_scheduling import SCHEDULINGS
from byte_tokenizer import byte_tokenizer
from engine_checks import exact
from regrown_trees import PROMPT, growing, grown, sampled_positions, search, search_then_answer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from word_tokenizer import word_tokenizer

from trl_agentic.rollout.engine import Script
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.rollout.transformers_engine import TransformersEngine
from trl_agentic.types import Kind, Status

BYTES = byte_tokenizer()
TAIL = BYTES.get_vocab()[">."]  # a token with the last character of a stop text
FORCED = "xyz</search>"  # what the bigram model writes from any character of it on


def bytes_of(text: str) -> tuple[int, ...]:
    """One token per byte, though the tokenizer has longer ones."""
    return tuple(BYTES(character)["input_ids"][0] for character in text)


@pytest.fixture(scope="session")
def bigram_path(tmp_path_factory) -> str:
    """A model that writes `FORCED` on from any of its characters, then `TAIL`; anything else ends its message."""
    config = LlamaConfig(
        vocab_size=len(BYTES),
        hidden_size=320,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=10,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=BYTES.eos_token_id,
        pad_token_id=BYTES.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    following = dict.fromkeys(range(len(BYTES)), BYTES.eos_token_id)
    following |= dict(zip(bytes_of(FORCED), (*bytes_of(FORCED)[1:], TAIL), strict=True))
    with torch.no_grad():
        # Neither attention nor MLP adds anything, so the last token alone decides: its embedding is a unit vector.
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(len(BYTES), config.hidden_size))
        model.lm_head.weight.zero_()
        for last, token in following.items():
            model.lm_head.weight[token, last] = 3.0  # a logit of 3 * sqrt(320), 54
    folder = tmp_path_factory.mktemp("bigram")
    model.save_pretrained(folder)
    BYTES.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def bigram_llms(make_llm, bigram_path):
    return {scheduling: make_llm(bigram_path, scheduling, num_gpu_blocks_override=256) for scheduling in SCHEDULINGS}


def vllm_engine(llm):
    from trl_agentic.rollout.vllm_engine import VLLMEngine

    return VLLMEngine(llm)


@pytest.fixture(params=["transformers", *SCHEDULINGS])
def random_engine(request, random_model):
    """An engine over the random model; a new one for every test."""
    if request.param in SCHEDULINGS:
        return vllm_engine(request.getfixturevalue(f"{request.param}_llm"))
    return TransformersEngine(random_model, word_tokenizer(), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=["transformers", *SCHEDULINGS])
def bigram_engine(request, bigram_path):
    """An engine over the bigram model."""
    if request.param in SCHEDULINGS:
        return vllm_engine(request.getfixturevalue("bigram_llms")[request.param])
    model = AutoModelForCausalLM.from_pretrained(bigram_path, dtype=torch.float32).eval()
    return TransformersEngine(model, BYTES, generator=torch.Generator().manual_seed(0))


def sampled_runs(trajectory, first: int) -> list[tuple[int, int]]:
    """Where runs of sampled tokens begin and end, from a token on."""
    positions = [position for position in sampled_positions(trajectory) if position >= first]
    starts = [position for position in positions if position == first or position - 1 not in positions]
    ends = [position + 1 for position in positions if position + 1 not in positions]
    return list(zip(starts, ends, strict=True))


def test_the_numbers_of_a_branch_are_those_of_a_plain_forward_behind_any_prefix(random_engine, random_model):
    trees = grown(search_then_answer, size=1, prompts=2)
    positions = sampled_positions(trees[0].trajectories[0])
    assert positions == [*range(5), *range(10, 18)]  # the first token, a call, behind its result, the eos
    with growing(None, engine=random_engine, max_completion_length=40) as loop:
        grown_on = loop.extend(trees, [[(0, position) for position in positions]] * 2, [[None]] * 2)
    lengths, spread = [], []
    for before, tree in zip(trees, grown_on, strict=True):
        parent = tree.trajectories[0]
        assert parent == before.trajectories[0]
        for branch, position in zip(tree.trajectories[1:], positions, strict=True):
            assert (branch.kind, branch.parent, branch.fork) == (Kind.BRANCH, 0, position)
            assert branch.token_ids[:position] == parent.token_ids[:position]
            assert branch.logprobs[:position] == parent.logprobs[:position]
            for start, end in sampled_runs(branch, position):
                prefix = (*PROMPT, *branch.token_ids[:start])
                logprobs, entropies = exact(random_model, prefix, branch.token_ids[start:end], 1.0)
                for ours, expected in (
                    (branch.logprobs[start:end], logprobs),
                    (branch.entropies[start:end], entropies),
                ):
                    torch.testing.assert_close(torch.tensor(ours).double(), expected, atol=1e-4, rtol=0)
                spread += entropies.tolist()
            lengths.append(len(branch) - position)
    assert min(lengths) >= 1 and sum(lengths) > 100
    assert torch.tensor(spread).std() > 0.05, "entropies that hardly differ would hide a shift"


def test_a_stop_text_that_begins_in_the_prefix_ends_the_segment_and_its_call_is_run(bigram_engine):
    turn, dialect = f"hm <search>{FORCED}", TagDialect(BYTES, [search])

    def written(request):
        done = "<result>" in BYTES.decode(request.token_ids)
        return Script((BYTES.eos_token_id,) if done else bytes_of(turn))

    (tree,) = grown(written, prompt=[40, 41], dialect=dialect, max_completion_length=200)
    (parent,) = tree.trajectories
    first = len("hm <search>x")
    positions = [*range(first, len(turn)), len(parent) - 1]
    kept = [BYTES.decode(parent.token_ids[:position]).removeprefix("hm <search>") for position in positions]
    assert kept[:4] == ["x", "xy", "xyz", "xyz<"] and kept[-3:-1] == ["xyz</searc", "xyz</search"]
    with growing(None, engine=bigram_engine, dialect=dialect, max_completion_length=200) as loop:
        (grown_on,) = loop.extend([tree], [[(0, position) for position in positions]], [[None]])
    for branch, position in zip(grown_on.trajectories[1:], positions, strict=True):
        assert branch.token_ids == parent.token_ids and branch.status is Status.FINISHED
        assert [result.call.arguments for result in branch.results] == [{"query": "xyz"}]
        assert [result.content for result in branch.results] == ["xyz is b"]
        assert branch.logprobs[:position] == parent.logprobs[:position]
        own = [value for value in branch.logprobs[position:] if value is not None]
        assert own == pytest.approx([0.0] * len(own), abs=1e-4)
    messages = dialect.messages(grown_on.trajectories[1].segments)
    assert [message["role"] for message in messages] == ["assistant", "tool", "assistant"]


def test_a_stop_text_that_the_prefix_has_completed_does_not_end_the_branch(bigram_engine):
    turn, dialect = "<think>as in <search>a</search>", TagDialect(BYTES, [search])

    def written(request):
        return Script((*bytes_of(turn), *bytes_of("</think>b"), BYTES.eos_token_id))

    (tree,) = grown(written, prompt=[40, 41], dialect=dialect)
    requests, submit = [], bigram_engine.submit

    def noting_submit(request):
        requests.append(request.id)
        submit(request)

    bigram_engine.submit = noting_submit
    with growing(None, engine=bigram_engine, dialect=dialect) as loop:
        (grown_on,) = loop.extend([tree], [[(0, len(turn)), (0, len(turn) - 1)]], [[None]])
    for branch in grown_on.trajectories[1:]:
        assert BYTES.decode(branch.token_ids) == f"{turn}>.<eos>"
        assert branch.results == [] and branch.status is Status.FINISHED
    # The text stops the branch that completes it, which goes on since that is no call; the other one is never stopped.
    assert sorted(requests) == ["0/1/1", "0/2/1", "0/2/2"]
