from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trl_agentic.evaluation import metrics
from trl_agentic.evaluation.metrics import accuracy_by, paired_bootstrap, pass_at_k


def test_one_right_sample_of_four_passes_at_two_in_half_the_draws():
    # C(3, 2) = 3 of the C(4, 2) = 6 pairs miss the right sample.
    assert pass_at_k([[1, 0, 0, 0]], k=2) == 0.5


def test_pass_at_one_is_the_mean():
    assert pass_at_k([[1, 0, 0, 0], [1, 1, 1, 0]], k=1) == 0.5


def test_pass_at_all_samples_asks_whether_any_is_right():
    assert pass_at_k([[0, 0, 1], [0, 0, 0]], k=3) == 0.5


@given(
    arrays(bool, st.tuples(st.integers(1, 4), st.integers(1, 6))),
    st.data(),
)
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_right_sample(correct, data):
    k = data.draw(st.integers(1, correct.shape[1]))
    shares = [np.mean([any(subset) for subset in combinations(question, k)]) for question in correct]

    assert pass_at_k(correct, k) == pytest.approx(np.mean(shares))


@pytest.mark.parametrize("k", [0, 3])
def test_pass_at_more_samples_than_there_are_is_refused(k):
    with pytest.raises(ValueError, match=f"pass@{k} needs k between 1 and the 2 samples"):
        pass_at_k([[1, 0]], k=k)


def test_pass_at_k_refuses_partial_scores():
    with pytest.raises(ValueError, match="right or wrong"):
        pass_at_k([[0.3, 1.0]])


def test_a_gain_that_every_question_shares_has_no_uncertainty():
    before = [[0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]]
    after = [[1, 1], [1, 1], [1, 1]]

    assert paired_bootstrap(before, after) == (0.75, 0.75, 0.75)


def test_two_questions_resample_to_the_four_means_of_their_gains():
    # Gains 0 and 1: the draws (0,0), (0,1), (1,0), (1,1) have means 0, 1/2, 1/2, 1.
    assert paired_bootstrap([[0], [0]], [[0], [1]], level=0.95) == (0.5, 0.0, 1.0)
    assert paired_bootstrap([[0], [0]], [[0], [1]], level=0.4) == (0.5, 0.5, 0.5)


def test_the_interval_of_many_questions_is_the_normal_one():
    # A quarter each of gains -1, 0, 0, 1: mean 0, variance 1/2, so 1.96 * sqrt(0.5 / 400) = 0.0693.
    before, after = [[1], [0], [1], [0]] * 100, [[0], [0], [1], [1]] * 100
    difference, low, high = paired_bootstrap(before, after)

    assert difference == 0
    assert low == pytest.approx(-0.0693, abs=0.005)
    assert high == pytest.approx(0.0693, abs=0.005)


def test_pairing_removes_what_questions_have_in_common():
    easy_and_hard = np.array([[1.0], [0.0]] * 100)
    paired = paired_bootstrap(easy_and_hard, np.clip(easy_and_hard + 0.1, 0, 1.1))
    shuffled = paired_bootstrap(easy_and_hard, np.roll(easy_and_hard, 1) + 0.1)

    assert paired.high - paired.low < 1e-9
    assert shuffled.high - shuffled.low > 0.2


def test_more_samples_of_a_question_do_not_count_as_more_questions():
    few, many = np.array([[0.0], [1.0], [1.0]]), np.repeat([[0.0], [1.0], [1.0]], 50, axis=1)

    assert paired_bootstrap(np.zeros((3, 1)), few) == paired_bootstrap(np.zeros((3, 1)), many)


def test_equal_seeds_give_equal_intervals_and_other_seeds_nearly_so():
    rng = np.random.default_rng(5)
    before, after = rng.random((50, 4)), rng.random((50, 4))

    assert paired_bootstrap(before, after, seed=1) == paired_bootstrap(before, after, seed=1)
    assert paired_bootstrap(before, after, seed=1) != paired_bootstrap(before, after, seed=2)
    assert paired_bootstrap(before, after, seed=1).low == pytest.approx(
        paired_bootstrap(before, after, seed=2).low, abs=0.01
    )


def test_drawing_in_pieces_keeps_the_number_of_resamples(monkeypatch):
    before, after = [[0], [0], [0]], [[0], [1], [1]]
    monkeypatch.setattr(metrics, "DRAWS_AT_ONCE", 7)

    difference, low, high = paired_bootstrap(before, after, num_resamples=2001)
    assert (low, high) == (0.0, 1.0)
    assert difference == pytest.approx(2 / 3)


def test_unequal_numbers_of_questions_are_refused():
    with pytest.raises(ValueError, match="got 2 before and 3 after"):
        paired_bootstrap([[0], [1]], [[0], [1], [1]])


@pytest.mark.parametrize(
    ("scores", "message"),
    [([], "shape"), (np.zeros((2, 2, 2)), "shape"), ([[1.0, float("nan")]], "not finite")],
)
def test_scores_of_another_shape_or_missing_scores_are_refused(scores, message):
    with pytest.raises(ValueError, match=message):
        paired_bootstrap(scores, scores)


@pytest.mark.parametrize("settings", [{"level": 1.0}, {"level": 0.0}, {"num_resamples": 0}])
def test_levels_and_resamples_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match="Expected 0 < level < 1"):
        paired_bootstrap([[0]], [[1]], **settings)


def test_accuracy_is_averaged_inside_each_group():
    correct = [[1, 1], [0, 1], [0, 0], [1, 0]]

    assert accuracy_by(correct, [2, 1, 2, 1]) == {1: 0.5, 2: 0.5}
    assert accuracy_by(correct, ["b", "a", "a", "a"]) == {"a": pytest.approx(1 / 3), "b": 1.0}
    assert list(accuracy_by(correct, [3, 1, 2, 1])) == [1, 2, 3]


def test_every_question_needs_a_group():
    with pytest.raises(ValueError, match="one group for each of 2 questions, got 1"):
        accuracy_by([[1], [0]], [1])
