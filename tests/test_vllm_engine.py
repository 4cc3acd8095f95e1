"""The engine over a real vLLM: stops, budgets, caches, options, and live weights."""

import os
from types import SimpleNamespace

import pytest
import torch
from async_scheduling import SCHEDULINGS
from byte_tokenizer import byte_tokenizer
from engine_checks import ask, assert_exact, drain, prompt
from smollm2_tokenizer import smollm2_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from trl_agentic.rollout.engine import Request, SamplingSettings

pytest.importorskip("vllm", reason="vLLM is not installed")

import vllm._custom_ops
from vllm.exceptions import VLLMValidationError
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind

from trl_agentic.rollout import vllm_engine
from trl_agentic.rollout.vllm_engine import (
    VLLMEngine,
    entropy_engine_kwargs,
    finish_reason,
    prepare_cpu_platform,
    sampling_params,
)
from trl_agentic.rollout.vllm_entropy import EXTRA_ARG, PROCESSOR, STORE

STOP = "</search>"


@pytest.fixture
def engine(vllm_llm):
    return VLLMEngine(vllm_llm)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((make_tokenizer, scheduling), id=f"{make_tokenizer.__name__}-{scheduling}", marks=marks)
        for make_tokenizer, marks in [(byte_tokenizer, ()), (smollm2_tokenizer, pytest.mark.slow)]
        for scheduling in SCHEDULINGS
    ],
)
def tags(request, make_llm, tmp_path_factory):
    """An engine whose tokenizer writes `</search>` in several tokens, and the tokenizer."""
    make_tokenizer, scheduling = request.param
    tokenizer = make_tokenizer()
    folder = str(tmp_path_factory.mktemp("tags"))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return VLLMEngine(make_llm(folder, scheduling, num_gpu_blocks_override=256)), tokenizer


def only(tokenizer, *texts: str) -> dict[str, list[int]]:
    """Options that let the model write nothing but the tokens of these texts."""
    return {"allowed_token_ids": sorted({token for text in texts for token in tokenizer(text)["input_ids"]})}


def test_the_token_that_completes_a_stop_text_is_kept_with_all_it_decodes_to(tags):
    engine, tokenizer = tags
    settings = SamplingSettings(stop=(STOP,), extra=only(tokenizer, "</search>", "</search>.", "a"))
    for number in range(24):
        engine.submit(Request(str(number), (20 + number,), 480, settings))
    endings = set()
    for outcome in drain(engine).values():
        text = tokenizer.decode(outcome.token_ids)
        assert outcome.finish_reason == "stop"
        assert STOP in text and STOP not in tokenizer.decode(outcome.token_ids[:-1])
        assert len(outcome.token_ids) == len(outcome.logprobs) == len(outcome.entropies)
        endings.add(text[text.index(STOP) + len(STOP) :])
    assert endings == {"", "."}  # the token `>.` runs past the end of the text


def test_a_stop_text_that_began_in_the_prefix_is_none(tags):
    engine, tokenizer = tags
    prefix = tuple(tokenizer("</search")["input_ids"])
    outcome = ask(engine, prefix, 5, stop=(STOP,), extra=only(tokenizer, ">"))
    assert (tokenizer.decode(outcome.token_ids), outcome.finish_reason) == (">" * 5, "length")


def test_special_tokens_are_text_to_stop_texts(tags):
    engine, tokenizer = tags
    outcome = ask(engine, (20,), 5, stop=(tokenizer.eos_token,), extra=only(tokenizer, tokenizer.eos_token))
    assert (outcome.token_ids, outcome.finish_reason) == ([tokenizer.eos_token_id], "stop")


def test_a_stop_text_with_a_character_of_two_tokens_waits_for_both(tags):
    engine, tokenizer = tags
    assert len(tokenizer("é")["input_ids"]) in (1, 2)
    outcome = ask(engine, (20,), 400, stop=("aé",), extra=only(tokenizer, "é", "a", "b"))
    assert outcome.finish_reason == "stop"
    assert tokenizer.decode(outcome.token_ids).endswith("aé")
    assert "aé" not in tokenizer.decode(outcome.token_ids[:-1])


def test_a_stop_token_ends_a_request_and_is_kept(engine):
    tokens = ask(engine, prompt(6, 9), 12, temperature=0.0).token_ids
    end = tokens.index(tokens[5]) + 1
    outcome = ask(engine, prompt(6, 9), 12, temperature=0.0, stop_token_ids=(tokens[5],))
    assert (outcome.token_ids, outcome.finish_reason) == (tokens[:end], "stop")
    assert outcome.events[-1].entropies is None


def test_eos_ends_a_request_only_when_it_is_among_the_stop_tokens(engine):
    eos = {"extra": {"allowed_token_ids": [1]}}
    assert ask(engine, prompt(6, 9), 4, **eos).token_ids == [1, 1, 1, 1]
    outcome = ask(engine, prompt(6, 9), 4, stop_token_ids=(1,), **eos)
    assert (outcome.token_ids, outcome.finish_reason) == ([1], "stop")


def test_greedy_tokens_are_those_of_transformers(engine, random_model):
    for seed in range(3):
        prefix = prompt(seed, 10 + seed)
        outcome = ask(engine, prefix, 15, temperature=0.0)
        with torch.no_grad():
            logits = random_model(torch.tensor([[*prefix, *outcome.token_ids]])).logits[0, len(prefix) - 1 : -1]
        assert outcome.token_ids == logits.argmax(dim=-1).tolist()


def test_a_repeated_prefix_comes_from_the_cache_until_it_is_reset(engine):
    engine.reset_prefix_cache()
    cold = ask(engine, prompt(11, 100), 2).events[0].num_cached_tokens
    warm = ask(engine, prompt(11, 100), 2).events[0].num_cached_tokens
    engine.reset_prefix_cache()
    assert (cold, warm, ask(engine, prompt(11, 100), 2).events[0].num_cached_tokens) == (0, 96, 0)


def test_the_cache_is_not_reset_under_running_requests(engine):
    engine.submit(Request("running", prompt(12, 50), 20, SamplingSettings()))
    engine.poll()
    with pytest.raises(RuntimeError, match="with 1 requests in flight"):
        engine.reset_prefix_cache()
    engine.abort("running")
    engine.reset_prefix_cache()


def test_without_entropies_there_are_none(vllm_llm):
    outcome = ask(VLLMEngine(vllm_llm, with_entropies=False), prompt(1, 5), 3)
    assert [event.entropies for event in outcome.events] == [None] * 3
    assert len(outcome.logprobs) == 3


def test_an_empty_prefix_is_refused(engine):
    with pytest.raises(ValueError, match="empty prefix; give it at least one token"):
        engine.submit(Request("empty", (), 3, SamplingSettings()))


def test_a_full_context_is_refused_with_the_way_out(engine):
    with pytest.raises(ValueError, match="End the rollout as truncated"):
        engine.submit(Request("full", prompt(1, 512), 1, SamplingSettings()))


def test_a_request_that_vllm_refuses_leaves_nothing_behind(engine):
    with pytest.raises(VLLMValidationError, match="out of vocabulary"):
        engine.submit(Request("unknown", (10_000,), 3, SamplingSettings()))
    assert engine.num_unfinished == 0
    assert len(ask(engine, prompt(1, 5), 2).token_ids) == 2


def test_engines_that_report_other_logprobs_are_refused():
    llm = SimpleNamespace(model_config=SimpleNamespace(logprobs_mode="raw_logprobs"))
    with pytest.raises(ValueError, match="logprobs_mode='raw_logprobs'. Build it with logprobs_mode='processed_log"):
        VLLMEngine(llm)


def test_engines_that_draft_tokens_are_refused_where_entropies_are_asked_for():
    llm = ManyTokensAtOnce(None)
    llm.vllm_config = SimpleNamespace(speculative_config=SimpleNamespace(method="ngram"))
    with pytest.raises(ValueError, match="Build it without `speculative_config`, or pass with_entropies=False"):
        VLLMEngine(llm)
    assert VLLMEngine(llm, with_entropies=False).num_unfinished == 0


class ManyTokensAtOnce:
    """The parts of `vllm.LLM` that the engine drives, handing out several tokens of a request at once."""

    model_config = SimpleNamespace(logprobs_mode="processed_logprobs", max_model_len=512)
    vllm_config = SimpleNamespace(speculative_config=None)

    def __init__(self, tokenizer):
        self.get_tokenizer = lambda: tokenizer
        self.llm_engine = self
        self.aborted = []
        self.steps = []

    def add_request(self, request_id, prompt, params):
        self.key = params.extra_args[EXTRA_ARG]
        return f"{request_id}-internal"

    def abort_request(self, ids, internal):
        assert internal
        self.aborted += ids

    def step(self):
        return self.steps.pop(0)

    def will_sample(self, request_id, token_ids, finish_reason=None):
        logprobs = [{token: SimpleNamespace(logprob=-float(place))} for place, token in enumerate(token_ids)]
        completion = CompletionOutput(0, "", list(token_ids), None, logprobs, finish_reason=finish_reason)
        finished = finish_reason is not None
        output = SimpleNamespace(request_id=request_id, outputs=[completion], finished=finished, num_cached_tokens=0)
        self.steps.append([output])


@pytest.mark.parametrize("finish_reason", [None, "length"])
def test_a_stop_inside_several_tokens_cuts_ids_logprobs_and_entropies_alike(finish_reason):
    tokenizer = byte_tokenizer()
    llm = ManyTokensAtOnce(tokenizer)
    engine = VLLMEngine(llm)
    engine.submit(Request("a", (1, 2), 200, SamplingSettings(stop=(STOP,))))
    first, rest = tokenizer("ab</sea")["input_ids"], tokenizer("rch>more")["input_ids"]
    llm.will_sample("a", first)
    llm.will_sample("a", rest, finish_reason)
    llm.will_sample("a", [1])  # a step that was under way already
    for position in range(len(first) + len(rest)):
        STORE.file(llm.key, position, SimpleNamespace(values=[float(position)]), 0)
    (begun,), (ended,) = engine.poll(), engine.poll()
    kept = len(tokenizer("rch>")["input_ids"])
    assert (begun.token_ids, begun.finish_reason) == (tuple(first), None)
    assert (ended.token_ids, ended.finish_reason) == (tuple(rest[:kept]), "stop")
    assert ended.logprobs == tuple(-float(place) for place in range(kept))
    assert ended.entropies == tuple(float(len(first) + place) for place in range(kept))
    assert llm.aborted == ([] if finish_reason else ["a-internal"])
    STORE.file(llm.key, len(first) + kept, SimpleNamespace(values=[0.0]), 0)
    assert engine.num_unfinished == 0 and len(STORE) == 0
    engine.submit(Request("b", (1, 2), 200, SamplingSettings()))
    assert engine.poll() == []  # what comes late for "a" is nobody's
    engine.abort("b")


def test_settings_become_vllms():
    settings = SamplingSettings(0.6, 0.95, 20, 0.05, 1.1, (STOP,), (1, 7), {"min_tokens": 3, "extra_args": {"own": 1}})
    params = sampling_params(settings, 9, "key")
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.6, 0.95, 20, 0.05)
    assert (params.repetition_penalty, params.stop, params.stop_token_ids) == (1.1, [], [1, 7])
    assert (params.max_tokens, params.min_tokens, params.logprobs) == (9, 3, 0)
    assert (params.output_kind, params.detokenize) == (RequestOutputKind.DELTA, False)
    assert params.extra_args == {"own": 1, EXTRA_ARG: "key"}


def test_vllm_decodes_no_text():
    params = sampling_params(SamplingSettings(), 9, None)
    assert (params.detokenize, params.extra_args, params.ignore_eos) == (False, None, True)


@pytest.mark.parametrize("option", ["n", "seed", "logprobs", "output_kind"])
def test_options_that_the_engine_sets_itself_are_refused(option):
    with pytest.raises(ValueError, match=rf"\['{option}'\] are set by the engine. Remove them"):
        sampling_params(SamplingSettings(extra={option: 1}), 9, None)


@pytest.mark.parametrize(
    ("theirs", "ours"), [("stop", "stop"), ("length", "length"), ("abort", "error"), ("error", "error")]
)
def test_finish_reasons(theirs, ours):
    assert finish_reason(CompletionOutput(0, "", [1], None, None, finish_reason=theirs)) == ours


@pytest.mark.parametrize(
    ("installed", "needed"),
    [
        ([PROCESSOR], {}),
        (["other:Processor"], {"logits_processors": [PROCESSOR]}),
        ([], {"logits_processors": [PROCESSOR]}),
    ],
)
def test_the_processor_is_named_only_where_no_entry_point_brings_it(monkeypatch, installed, needed):
    points = [SimpleNamespace(value=value) for value in installed]
    monkeypatch.setattr(vllm_engine, "entry_points", lambda group: points)
    assert entropy_engine_kwargs() == needed


def test_other_platforms_than_cpu_are_left_alone(monkeypatch):
    monkeypatch.setattr(vllm_engine, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    monkeypatch.setattr(vllm._custom_ops, "_supports_onednn", True)
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING", raising=False)
    prepare_cpu_platform()
    assert vllm._custom_ops._supports_onednn is True
    assert not {"VLLM_CPU_KVCACHE_SPACE", "VLLM_ENABLE_V1_MULTIPROCESSING"} & os.environ.keys()


def test_variables_that_are_set_keep_their_values(monkeypatch):
    monkeypatch.setattr(vllm_engine, "current_platform", SimpleNamespace(is_cpu=lambda: True))
    monkeypatch.setattr(vllm._custom_ops, "_supports_onednn", True)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    prepare_cpu_platform(kv_cache_gib=2)
    assert os.environ["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert vllm._custom_ops._supports_onednn is False


@pytest.mark.parametrize("scheduling", SCHEDULINGS)
def test_new_weights_take_effect_everywhere_tied_embeddings_included(make_llm, random_model_path, scheduling):
    llm = make_llm(random_model_path, scheduling, num_gpu_blocks_override=64)
    engine = VLLMEngine(llm)
    model = AutoModelForCausalLM.from_pretrained(random_model_path, dtype=torch.float32).eval()
    assert model.config.tie_word_embeddings
    assert_exact(model, prompt(1, 40), ask(engine, prompt(1, 40), 20, temperature=1.0), 1.0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    stale = ask(engine, prompt(1, 40), 20, temperature=1.0)
    with pytest.raises(AssertionError):
        assert_exact(model, prompt(1, 40), stale, 1.0)
    runner = llm.llm_engine.model_executor.driver_worker.model_runner
    runner.model.load_weights(list(model.named_parameters()))
    engine.reset_prefix_cache()
    assert_exact(model, prompt(1, 40), ask(engine, prompt(1, 40), 20, temperature=1.0), 1.0)
