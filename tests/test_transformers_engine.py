"""Sampling from a transformers model: equal to `generate`, exact in its numbers, harmless to the model."""

import math
from dataclasses import replace

import pytest
import torch
from byte_tokenizer import byte_tokenizer
from engine_checks import ask, assert_exact, drain, exact, prompt
from word_tokenizer import WORDS, word_tokenizer

from trl_agentic.rollout.engine import Request, SamplingSettings
from trl_agentic.rollout.transformers_engine import TransformersEngine, sample_tokens

BYTES = byte_tokenizer()


def seeded(model, seed: int = 0, **kwargs) -> TransformersEngine:
    return TransformersEngine(model, word_tokenizer(), generator=torch.Generator().manual_seed(seed), **kwargs)


def generated(model, prefix: tuple[int, ...], max_tokens: int, **kwargs) -> list[int]:
    """What `model.generate` makes of a prefix, greedily; eos is a token like any other here."""
    ids = torch.tensor([prefix])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        **kwargs,
    )
    return output[0, len(prefix) :].tolist()


def test_greedy_equals_generate_for_prefixes_of_different_lengths(random_model):
    engine = seeded(random_model)
    lengths = {"a": (5, 12), "b": (31, 20), "c": (2, 7)}
    for seed, (name, (length, new)) in enumerate(lengths.items()):
        engine.submit(Request(name, prompt(seed, length), new, SamplingSettings(temperature=0.0)))
    outcomes = drain(engine)
    for seed, (name, (length, new)) in enumerate(lengths.items()):
        assert outcomes[name].token_ids == generated(random_model, prompt(seed, length), new)
        assert outcomes[name].entropies == []


def test_greedy_with_a_repetition_penalty_equals_generate(random_model):
    engine = seeded(random_model)
    greedy = SamplingSettings(temperature=0.0, repetition_penalty=1.7)
    for seed, length in enumerate((6, 13)):
        engine.submit(Request(str(seed), prompt(seed, length), 15, greedy))
    outcomes = drain(engine)
    for seed, length in enumerate((6, 13)):
        expected = generated(random_model, prompt(seed, length), 15, repetition_penalty=1.7)
        assert outcomes[str(seed)].token_ids == expected


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_logprobs_and_entropies_are_those_of_a_plain_forward(random_model, temperature):
    engine = seeded(random_model)
    for seed in range(4):
        engine.submit(Request(str(seed), prompt(seed, 3 + 9 * seed), 12 + seed, SamplingSettings(temperature)))
    for name, outcome in drain(engine).items():
        assert_exact(random_model, prompt(int(name), 3 + 9 * int(name)), outcome, temperature)


def test_requests_that_join_and_leave_midway_keep_exact_numbers(random_model):
    engine = seeded(random_model)
    warm = SamplingSettings(temperature=0.9)
    engine.submit(Request("0", prompt(0, 8), 14, warm))
    engine.submit(Request("1", prompt(1, 3), 3, warm))
    engine.submit(Request("2", prompt(2, 17), 14, warm))
    early = [event for _ in range(5) for event in engine.poll()]
    engine.abort("2")
    engine.submit(Request("3", prompt(3, 5), 6, warm))
    outcomes = drain(engine)
    outcomes["0"].events[:0] = [event for event in early if event.request_id == "0"]
    assert set(outcomes) == {"0", "3"}
    assert (len(outcomes["0"].token_ids), len(outcomes["3"].token_ids)) == (14, 6)
    assert_exact(random_model, prompt(0, 8), outcomes["0"], 0.9)
    assert_exact(random_model, prompt(3, 5), outcomes["3"], 0.9)


def test_rows_of_one_batch_may_be_sampled_differently(random_model):
    engine = seeded(random_model)
    engine.submit(Request("greedy", prompt(1, 6), 8, SamplingSettings(temperature=0.0)))
    engine.submit(Request("warm", prompt(2, 9), 8, SamplingSettings(temperature=1.3)))
    engine.submit(Request("first", prompt(3, 4), 8, SamplingSettings(temperature=1.3, top_k=1)))
    outcomes = drain(engine)
    assert outcomes["greedy"].token_ids == generated(random_model, prompt(1, 6), 8)
    assert outcomes["first"].token_ids == generated(random_model, prompt(3, 4), 8)
    assert outcomes["first"].logprobs == pytest.approx([0.0] * 8)
    assert_exact(random_model, prompt(2, 9), outcomes["warm"], 1.3)


def test_a_seeded_generator_repeats_a_run_and_leaves_the_global_one_alone(random_model):
    state = torch.get_rng_state()
    first, second, other = (
        ask(seeded(random_model, seed), prompt(1, 8), 30, temperature=1.5).token_ids for seed in (3, 3, 4)
    )
    assert first == second != other
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_used_in_eval_mode_and_handed_back_as_it_was(random_model, training):
    seen = []
    hook = random_model.register_forward_pre_hook(lambda module, _: seen.append(module.training))
    try:
        random_model.train(training)
        outcome = ask(seeded(random_model), prompt(1, 8), 3)
        assert random_model.training is training
        assert all(module.training is training for module in random_model.modules())
    finally:
        hook.remove()
        random_model.eval()
    assert seen == [False] * 3
    assert len(outcome.token_ids) == 3
    assert all(parameter.grad is None for parameter in random_model.parameters())


def test_the_model_is_handed_back_in_train_mode_when_it_fails(random_model):
    engine = seeded(random_model)
    engine.submit(Request("unknown token", (len(WORDS) + 5,), 3, SamplingSettings()))
    random_model.train()
    try:
        with pytest.raises(IndexError):
            engine.poll()
        assert random_model.training
    finally:
        random_model.eval()


LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()


@pytest.mark.parametrize(
    ("options", "kept"),
    [({"top_k": 2}, 2), ({"top_p": 0.7}, 2), ({"min_p": 0.2}, 3), ({"min_p": 0.2, "top_k": 1}, 1), ({}, 4)],
)
def test_cut_distributions_are_renormalised_while_the_entropy_is_of_the_whole(options, kept):
    generator = torch.Generator().manual_seed(0)
    rows = LOGITS.expand(200, -1)
    sample = sample_tokens(rows, [(1,)] * 200, SamplingSettings(**options), generator)
    assert set(sample.token_ids) == set(range(kept))
    mass = LOGITS[0, :kept].exp().sum().log()
    for token, logprob in zip(sample.token_ids, sample.logprobs, strict=True):
        assert logprob == pytest.approx(float(LOGITS[0, token] - mass), abs=1e-5)
    whole = -sum(p * math.log(p) for p in (0.5, 0.3, 0.15, 0.05))
    assert sample.entropies == pytest.approx([whole] * 200, abs=1e-5)


def test_the_entropy_is_that_of_the_tempered_distribution():
    sample = sample_tokens(torch.tensor([[math.log(3.0), 0.0]]), [(1,)], SamplingSettings(temperature=0.5), None)
    assert sample.entropies == pytest.approx([-(0.9 * math.log(0.9) + 0.1 * math.log(0.1))])  # 3 ** 2 to 1


def test_the_token_that_completes_a_stop_text_is_kept(random_model):
    greedy = SamplingSettings(temperature=0.0)
    tokens = ask(seeded(random_model), prompt(5, 9), 12, temperature=0.0).token_ids
    stop = f"{WORDS[tokens[3]]} {WORDS[tokens[4]]}"
    engine = seeded(random_model)
    engine.submit(Request("stopped", prompt(5, 9), 12, replace(greedy, stop=("nowhere", stop))))
    outcome = drain(engine)["stopped"]
    assert outcome.finish_reason == "stop"
    assert outcome.token_ids == tokens[: len(outcome.token_ids)]
    assert stop in " ".join(WORDS[token] for token in outcome.token_ids)
    assert stop not in " ".join(WORDS[token] for token in outcome.token_ids[:-1])


def test_a_stop_token_ends_a_request_and_is_kept_and_eos_is_one_only_when_named(random_model):
    tokens = ask(seeded(random_model), prompt(6, 9), 12, temperature=0.0).token_ids
    last = tokens.index(tokens[5])
    outcome = ask(seeded(random_model), prompt(6, 9), 12, temperature=0.0, stop_token_ids=(tokens[5],))
    assert (outcome.token_ids, outcome.finish_reason) == (tokens[: last + 1], "stop")


def test_a_stop_at_the_last_token_of_the_budget_counts_as_a_stop(random_model):
    tokens = ask(seeded(random_model), prompt(6, 9), 3, temperature=0.0).token_ids
    assert tokens[2] not in tokens[:2]
    outcome = ask(seeded(random_model), prompt(6, 9), 3, temperature=0.0, stop_token_ids=(tokens[2],))
    assert (outcome.token_ids, outcome.finish_reason) == (tokens, "stop")


def test_a_stop_text_that_began_in_the_prefix_is_none(random_model):
    tokens = ask(seeded(random_model), prompt(7, 9), 4, temperature=0.0).token_ids
    across = f"{WORDS[prompt(7, 9)[-1]]} {WORDS[tokens[0]]}"
    outcome = ask(seeded(random_model), prompt(7, 9), 4, temperature=0.0, stop=(across,))
    assert (outcome.token_ids, outcome.finish_reason) == (tokens, "length")


def test_an_empty_prefix_is_refused(random_model):
    with pytest.raises(ValueError, match="empty prefix; give it at least one token"):
        seeded(random_model).submit(Request("empty", (), 3, SamplingSettings()))


def test_options_of_vllm_are_refused_and_not_ignored(random_model):
    with pytest.raises(ValueError, match=r"\['min_tokens'\] are not supported without vLLM"):
        seeded(random_model).submit(Request("more", (3,), 3, SamplingSettings(extra={"min_tokens": 2})))


def test_the_context_is_the_models_own_unless_it_is_given(random_model):
    assert seeded(random_model).max_model_length == 512
    assert seeded(random_model, max_model_length=64).max_model_length == 64


def test_logprobs_under_top_p_are_those_of_the_cut_distribution(random_model):
    prefix = prompt(8, 6)
    outcome = ask(seeded(random_model), prefix, 10, temperature=1.2, top_p=0.6)
    whole, entropies = exact(random_model, prefix, outcome.token_ids, 1.2)
    assert all(cut >= value - 1e-4 for cut, value in zip(outcome.logprobs, whole.tolist(), strict=True))
    assert sum(outcome.logprobs) > whole.sum() + 0.5
    torch.testing.assert_close(torch.tensor(outcome.entropies).double(), entropies, atol=1e-3, rtol=0)
