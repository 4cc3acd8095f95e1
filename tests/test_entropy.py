import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_agentic.algorithms import branch_probability, entropy, entropy_change, token_entropies, topk_entropies

real = st.floats(-20, 20, width=32)


def entropy_by_hand(logits):
    largest = max(logits)
    weights = [math.exp(z - largest) for z in logits]
    return -sum(w / sum(weights) * math.log(w / sum(weights)) for w in weights if w > 0)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 6).flatmap(lambda v: st.lists(st.lists(real, min_size=v, max_size=v), min_size=1, max_size=5))
)
def test_token_entropies_match_the_definition(rows):
    expected = torch.tensor([entropy_by_hand(row) for row in rows])
    torch.testing.assert_close(token_entropies(torch.tensor(rows)), expected, atol=2e-6, rtol=1e-5)


def test_a_uniform_distribution_has_the_logarithm_of_its_size():
    assert token_entropies(torch.zeros(4)).item() == pytest.approx(math.log(4))
    torch.testing.assert_close(token_entropies(torch.full((2, 3, 8), 100.0)), torch.full((2, 3), math.log(8)))


def test_tokens_that_are_ruled_out_add_nothing():
    logits = torch.tensor([[0.0, 0.0, -math.inf, -math.inf], [5.0, -math.inf, -math.inf, -math.inf]])
    assert token_entropies(logits).tolist() == pytest.approx([math.log(2), 0.0])


def test_the_gradient_is_finite_where_tokens_are_ruled_out():
    logits = torch.tensor([[0.0, 1.0, -math.inf]], requires_grad=True)
    token_entropies(logits).sum().backward()
    p = torch.tensor([1.0, math.e]) / (1 + math.e)
    entropy_of_two = -(p * p.log()).sum()
    torch.testing.assert_close(logits.grad[0, :2], -p * (p.log() + entropy_of_two))
    assert logits.grad[0, 2] == 0


def test_a_row_without_a_finite_logit_is_not_a_number():
    assert token_entropies(torch.tensor([[-math.inf, -math.inf], [0.0, 0.0]])).isnan().tolist() == [True, False]


def test_half_precision_logits_give_the_entropies_of_their_float32_values():
    logits = torch.randn(3, 5, 1000).bfloat16()
    entropies = token_entropies(logits)
    assert entropies.dtype == torch.float32
    torch.testing.assert_close(entropies, token_entropies(logits.float()), atol=0, rtol=0)
    assert token_entropies(logits.double()).dtype == torch.float64


def test_rows_are_worked_off_in_chunks_of_bounded_size(monkeypatch):
    logits = torch.randn(2, 7, 11)
    whole = token_entropies(logits)
    sizes = []

    def record(logprobs, measure=entropy._expected_surprise):
        sizes.append(logprobs.numel())
        return measure(logprobs)

    monkeypatch.setattr(entropy, "_CHUNK_ELEMENTS", 25)
    monkeypatch.setattr(entropy, "_expected_surprise", record)
    torch.testing.assert_close(token_entropies(logits), whole, atol=0, rtol=0)
    assert max(sizes) == 22 and sum(sizes) == logits.numel()
    monkeypatch.setattr(entropy, "_CHUNK_ELEMENTS", 1)  # a row is never cut, however large the vocabulary
    torch.testing.assert_close(token_entropies(logits), whole, atol=0, rtol=0)


def test_slices_and_empty_batches_are_fine():
    logits = torch.randn(3, 4, 6)
    torch.testing.assert_close(token_entropies(logits[:, :-1]), token_entropies(logits)[:, :-1], atol=0, rtol=0)
    assert token_entropies(torch.zeros(2, 0, 6)).shape == (2, 0)
    assert token_entropies(torch.zeros(0, 4, 6)).shape == (0, 4)


def test_the_missing_mass_is_one_bucket():
    logprobs = torch.tensor([0.5, 0.25]).log()  # a quarter is missing
    by_hand = 0.5 * math.log(2) + 0.25 * math.log(4) + 0.25 * math.log(4)
    assert topk_entropies(logprobs).item() == pytest.approx(by_hand)


@settings(max_examples=60, deadline=None)
@given(logits=st.lists(real, min_size=2, max_size=8), k=st.integers(1, 8))
def test_topk_entropies_never_exceed_the_exact_one_and_meet_it_when_nothing_is_missing(logits, k):
    exact = entropy_by_hand(logits)
    logprobs = torch.tensor(logits, dtype=torch.float64).log_softmax(-1).sort(descending=True).values
    assert topk_entropies(logprobs[:k]).item() <= exact + 1e-6
    assert topk_entropies(logprobs).item() == pytest.approx(exact, abs=1e-6)


def test_topk_entropies_survive_rounding_and_impossible_tokens():
    rounded_up = torch.tensor([[0.7, 0.3000001], [1.0, 0.0]]).log()
    expected = -(0.7 * math.log(0.7) + 0.3 * math.log(0.3))
    assert topk_entropies(rounded_up).tolist() == pytest.approx([expected, 0.0], abs=1e-6)
    assert topk_entropies(rounded_up.bfloat16()).dtype == torch.float32


def test_the_entropy_change_is_relative_to_the_largest_entropy():
    assert entropy_change(0.0, math.log(50), 50) == 1.0
    assert entropy_change(math.log(50), 0.0, 50) == -1.0
    assert entropy_change(1.0, 1.5, 100) == pytest.approx(0.5 / math.log(100))
    assert isinstance(entropy_change(1.0, 1.5, 100), float)


def test_the_change_and_the_probability_accept_tensors():
    change = entropy_change(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0]), 10)
    torch.testing.assert_close(change, torch.tensor([1.0, -1.0]) / math.log(10))
    torch.testing.assert_close(branch_probability(change), 0.5 + 0.2 * change)
    assert branch_probability(torch.tensor([9.0, -9.0])).tolist() == [1.0, 0.0]


def test_rounding_cannot_push_the_change_out_of_its_range():
    assert entropy_change(0.0, math.log(50) + 1e-6, 50) == 1.0


def test_with_the_defaults_the_probability_exceeds_one_half_exactly_when_entropy_rises():
    assert branch_probability(1e-9) > 0.5
    assert branch_probability(0.0) == 0.5
    assert branch_probability(-1e-9) < 0.5


def test_the_probability_is_clipped():
    assert branch_probability(1.0, alpha=0.9, weight=0.4) == 1.0
    assert branch_probability(-1.0, alpha=0.1, weight=0.4) == 0.0
    assert branch_probability(0.5, alpha=0.5, weight=0.4) == pytest.approx(0.7)


def test_missing_entropies_stay_visible():
    assert math.isnan(branch_probability(entropy_change(math.nan, 1.0, 10)))
    assert branch_probability(entropy_change(torch.tensor(math.nan), torch.tensor(1.0), 10)).isnan()


def test_a_vocabulary_of_one_token_is_refused():
    with pytest.raises(ValueError, match="at least 2 tokens, got `vocab_size=1`"):
        entropy_change(0.0, 0.0, 1)
