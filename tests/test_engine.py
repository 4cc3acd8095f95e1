"""One suite for all engines: whatever the loop relies on holds for the scripted engine, transformers and vLLM."""

import pytest
import torch
from engine_checks import ask, drain, prompt
from word_tokenizer import word_tokenizer

from trl_agentic.rollout.engine import Request, SamplingSettings, Script, ScriptedEngine

SAMPLED = SamplingSettings(temperature=0.8)
GREEDY = SamplingSettings(temperature=0.0)


def count_up(request: Request) -> Script:
    """An answer that goes on as long as it may: the last prefix token, and then one more each time."""
    return Script(token_ids=tuple(request.token_ids[-1] + step for step in range(1, 512)))


@pytest.fixture(params=["scripted", "transformers", "sync_llm", "async_llm"])
def engine(request):
    if request.param == "scripted":
        return ScriptedEngine(count_up, max_model_length=512)
    if request.param == "transformers":
        from trl_agentic.rollout.transformers_engine import TransformersEngine

        model = request.getfixturevalue("random_model")
        return TransformersEngine(model, word_tokenizer(), generator=torch.Generator().manual_seed(0))
    llm = request.getfixturevalue(request.param)
    from trl_agentic.rollout.vllm_engine import VLLMEngine

    return VLLMEngine(llm)


def test_every_request_gets_its_tokens_and_ends_once(engine):
    for number in range(5):
        engine.submit(Request(f"r{number}", prompt(number, 4 + number), 3 + number, SAMPLED))
    assert engine.num_unfinished == 5
    outcomes = drain(engine)
    assert [len(outcomes[f"r{number}"].token_ids) for number in range(5)] == [3, 4, 5, 6, 7]
    for outcome in outcomes.values():
        assert [event.finish_reason for event in outcome.events[:-1]] == [None] * (len(outcome.events) - 1)
        assert outcome.finish_reason == "length"


def test_every_event_has_as_many_logprobs_and_entropies_as_tokens(engine):
    for number in range(3):
        engine.submit(Request(f"r{number}", prompt(number, 9), 6, SAMPLED))
    for outcome in drain(engine).values():
        for event in outcome.events:
            assert len(event.token_ids) == len(event.logprobs) == len(event.entropies) >= 1
            assert all(value <= 0 for value in event.logprobs) and all(value >= 0 for value in event.entropies)


def test_polling_an_idle_engine_brings_nothing(engine):
    assert engine.num_unfinished == 0
    assert engine.poll() == []
    assert engine.poll() == []


def test_one_token_is_the_smallest_request(engine):
    outcome = ask(engine, prompt(1, 5), 1)
    assert (len(outcome.token_ids), outcome.finish_reason) == (1, "length")


def test_a_request_may_fill_the_context_to_the_last_token(engine):
    outcome = ask(engine, prompt(2, engine.max_model_length - 2), 2)
    assert (len(outcome.token_ids), outcome.finish_reason) == (2, "length")


@pytest.mark.parametrize("max_tokens", [0, -1, 510])
def test_a_request_that_does_not_fit_the_context_is_refused(engine, max_tokens):
    with pytest.raises(ValueError, match="A prefix of 3 tokens and .* do not fit a context of 512"):
        engine.submit(Request("long", (3, 4, 5), max_tokens, SAMPLED))
    assert engine.num_unfinished == 0


def test_an_id_in_flight_is_refused_and_free_again_when_the_request_has_ended(engine):
    engine.submit(Request("same", prompt(1, 4), 2, SAMPLED))
    with pytest.raises(ValueError, match="'same' is in flight already"):
        engine.submit(Request("same", prompt(2, 4), 2, SAMPLED))
    assert len(drain(engine)["same"].token_ids) == 2
    assert len(ask(engine, prompt(3, 4), 3).token_ids) == 3
    engine.submit(Request("same", prompt(2, 4), 4, SAMPLED))
    assert len(drain(engine)["same"].token_ids) == 4


def test_no_event_of_an_aborted_request_arrives(engine):
    for name in ("kept", "dropped"):
        engine.submit(Request(name, prompt(len(name), 6), 8, SAMPLED))
    engine.poll()
    engine.abort("dropped")
    assert engine.num_unfinished == 1
    outcomes = drain(engine)
    assert set(outcomes) == {"kept"}


def test_aborting_what_is_unknown_or_has_ended_is_ignored(engine):
    engine.abort("never heard of")
    assert len(ask(engine, prompt(4, 4), 2).token_ids) == 2
    engine.abort("alone")
    assert engine.num_unfinished == 0


def test_a_request_may_be_aborted_before_the_first_poll_and_its_id_used_again(engine):
    engine.submit(Request("early", prompt(1, 6), 8, SAMPLED))
    engine.abort("early")
    assert engine.num_unfinished == 0
    assert engine.poll() == []
    engine.submit(Request("early", prompt(1, 6), 2, SAMPLED))
    assert len(drain(engine)["early"].token_ids) == 2


def test_a_request_that_joins_midway_neither_disturbs_nor_is_disturbed(engine):
    alone = ask(engine, prompt(1, 20), 12, temperature=0.0), ask(engine, prompt(2, 7), 9, temperature=0.0)
    engine.submit(Request("first", prompt(1, 20), 12, GREEDY))
    early = [event for _ in range(4) for event in engine.poll()]
    engine.submit(Request("second", prompt(2, 7), 9, GREEDY))
    outcomes = drain(engine)
    tokens = [token for event in early for token in event.token_ids] + outcomes["first"].token_ids
    assert len(early) >= 3
    assert tokens == alone[0].token_ids
    assert outcomes["second"].token_ids == alone[1].token_ids


def test_the_fake_ends_with_its_script_or_with_the_budget_whichever_comes_first():
    engine = ScriptedEngine(lambda request: Script((7, 8, 9), logprobs=(-1.0, -2.0, -3.0), entropies=(0.1, 0.2, 0.3)))
    whole = ask(engine, (1,), 5)
    assert (whole.token_ids, whole.finish_reason) == ([7, 8, 9], "stop")
    assert (whole.logprobs, whole.entropies) == ([-1.0, -2.0, -3.0], [0.1, 0.2, 0.3])
    cut = ask(engine, (1,), 2)
    assert (cut.token_ids, cut.finish_reason) == ([7, 8], "length")
    assert [request.max_tokens for request in engine.requests] == [5, 2]
