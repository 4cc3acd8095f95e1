import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_agentic.algorithms import spearman

NAN = math.nan


def ranks_by_hand(values):
    return [sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values]


def spearman_by_hand(pairs):
    x, y = (ranks_by_hand(list(side)) for side in zip(*pairs, strict=True))
    mean = (len(pairs) + 1) / 2
    covariance = sum((a - mean) * (b - mean) for a, b in zip(x, y, strict=True))
    return covariance / math.sqrt(sum((a - mean) ** 2 for a in x) * sum((b - mean) ** 2 for b in y))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(*[st.sampled_from([-1.5, 0.0, 0.1, 0.2, 1.0, 7.0, NAN])] * 2), max_size=12))
def test_rank_correlation_matches_the_definition(pairs):
    got = spearman(*torch.tensor(pairs).view(-1, 2).unbind(1))
    whole = [pair for pair in pairs if not any(map(math.isnan, pair))]
    if any(len(set(side)) < 2 for side in zip(*whole, strict=True)) or not whole:
        assert math.isnan(got)
    else:
        assert got == pytest.approx(spearman_by_hand(whole), abs=1e-12)


def test_rank_correlation_by_hand():
    scores = torch.tensor([0.1, 0.2, 0.3, 40.0])
    assert spearman(scores, torch.tensor([1.0, 2.0, 3.0, 4.0])) == 1
    assert spearman(scores, torch.tensor([5.0, 2.0, 1.0, 0.0])) == -1
    # Ranks 1, 2, 3, 4 against 1.5, 1.5, 3, 4: covariance 4.5, squares 5 and 4.5
    assert spearman(scores, torch.tensor([0.0, 0.0, 0.1, 0.2])) == pytest.approx(4.5 / math.sqrt(5 * 4.5))
    assert spearman(torch.tensor([1, 2, 3]), torch.tensor([1, 3, 2])) == pytest.approx(0.5)


@pytest.mark.parametrize("sample", [[], [1.0], [2.0, 2.0], [1.0, NAN]])
def test_a_sample_without_an_order_has_no_rank_correlation(sample):
    assert math.isnan(spearman(torch.tensor(sample), torch.arange(float(len(sample)))))


def test_samples_of_two_lengths_are_refused():
    with pytest.raises(ValueError, match=r"one length, got shapes \(2,\) and \(3,\)"):
        spearman(torch.zeros(2), torch.zeros(3))
