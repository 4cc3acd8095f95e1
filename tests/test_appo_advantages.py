import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_agentic.algorithms import (
    dual_group_advantages,
    future_advantages,
    future_values,
    group_advantages,
    prefix_branch_credit,
    released_safeguards,
)

NAN, INF = math.nan, math.inf
rewards_of_rows = st.sampled_from([-1.0, 0.0, 0.1, 0.3, 1.0, 1.1, NAN])


def group(min_size, max_size):
    return st.lists(rewards_of_rows, min_size=min_size, max_size=max_size)


def normalised_by_hand(reward, rewards):
    """The deviation of a reward from a group, in its standard deviations; None when the group says nothing."""
    scored = [each for each in rewards if not math.isnan(each)]
    if len(set(scored)) < 2:
        return None
    mean = sum(scored) / len(scored)
    std = math.sqrt(sum((each - mean) ** 2 for each in scored) / (len(scored) - 1))
    return (reward - mean) / (std + 1e-4)


def dual_by_hand(initial, branches):
    result = []
    for reward in initial:
        terms = [normalised_by_hand(reward, rewards) for rewards in (initial, branches)]
        terms = [term for term in terms if term is not None]
        result.append(sum(terms) / len(terms) if terms and not math.isnan(reward) else 0.0)
    return result


def prefix_by_hand(initial, branches, parents, splits, num_tokens):
    result = [[0.0] * num_tokens for _ in initial]
    for n, reward in enumerate(initial):
        for t in range(num_tokens):
            if math.isnan(reward):
                continue
            behind = [
                normalised_by_hand(branch, branches) or 0.0
                for branch, parent, split in zip(branches, parents, splits, strict=True)
                if parent == n and split > t and not math.isnan(branch)
            ]
            own = normalised_by_hand(reward, initial) or 0.0
            result[n][t] = own + (sum(behind) / len(behind) if behind else 0.0)
    return result


def close(expected):
    return pytest.approx(expected, rel=1e-4, abs=1e-5)


@settings(max_examples=200, deadline=None)
@given(group(1, 6), group(0, 8))
def test_dual_group_advantages_match_the_definition(initial, branches):
    got = dual_group_advantages(torch.tensor(initial), torch.tensor(branches))
    assert got.tolist() == close(dual_by_hand(initial, branches))


@settings(max_examples=150, deadline=None)
@given(group(1, 4), st.integers(0, 7), st.data())
def test_prefix_credit_matches_nested_loops_over_branches_and_tokens(initial, num_tokens, data):
    branches = data.draw(group(0, 6))
    parents = [data.draw(st.integers(0, len(initial) - 1)) for _ in branches]
    splits = [data.draw(st.integers(0, num_tokens)) for _ in branches]
    indices = (torch.tensor(each, dtype=torch.long) for each in (parents, splits))
    got = prefix_branch_credit(torch.tensor(initial), torch.tensor(branches), *indices, num_tokens)
    expected = prefix_by_hand(initial, branches, parents, splits, num_tokens)
    assert got.shape == (len(initial), num_tokens)
    assert got.flatten().tolist() == close(sum(expected, []))


def test_dual_group_advantages_by_hand():
    # Means 1 and 0, standard deviations sqrt(2) and 2: for the reward 2, (1 / 1.41431 + 2 / 2.0001) / 2
    initial, branches = torch.tensor([2.0, 0.0]), torch.tensor([2.0, 0.0, -2.0])
    got = dual_group_advantages(initial, branches)
    assert got.tolist() == pytest.approx([(1 / 1.4143136 + 2 / 2.0001) / 2, (-1 / 1.4143136 + 0) / 2], rel=1e-5)


@pytest.mark.parametrize("branches", [[], [5.0], [0.3, 0.3, 0.3], [NAN, NAN], [NAN, 1.0]])
def test_branches_that_say_nothing_leave_the_advantages_of_the_group_bit_for_bit(branches):
    generator = torch.Generator().manual_seed(0)
    for size in (2, 4, 5, 8, 16):
        rewards = torch.randn(3, size, generator=generator)
        rewards[1, 0] = NAN
        expected = group_advantages(rewards.flatten(), size).view(3, size)
        for row, advantages in zip(rewards, expected, strict=True):
            assert torch.equal(dual_group_advantages(row, torch.tensor(branches)), advantages)


@pytest.mark.parametrize("initial", [[0.3] * 12, [0.3], [0.3, NAN]])
def test_initial_rollouts_without_spread_are_judged_by_the_branches_alone(initial):
    got = dual_group_advantages(torch.tensor(initial), torch.tensor([1.0, 0.0]))
    expected = (0.3 - 0.5) / (math.sqrt(0.5) + 1e-4)
    assert got.tolist() == close([0.0 if math.isnan(reward) else expected for reward in initial])


@pytest.mark.parametrize("branches", [[], [0.7], [0.1] * 12])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 12])
def test_equal_rewards_give_exactly_zero_whatever_their_mean_rounds_to(size, branches):
    assert dual_group_advantages(torch.full((size,), 0.7), torch.tensor(branches)).tolist() == [0.0] * size


def test_changing_the_rewards_of_the_branches_changes_the_advantages():
    initial = torch.tensor([1.0, 0.0, 0.5])
    few_good, many_good = torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert (dual_group_advantages(initial, few_good) > dual_group_advantages(initial, many_good)).all()


def test_permuting_the_rewards_of_the_branches_moves_the_prefix_credit():
    # The dual group knows no positions: which branch had which reward is all the same to it
    initial, rewards = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0])
    parents, splits = torch.tensor([0, 1]), torch.tensor([2, 1])
    here = prefix_branch_credit(initial, rewards, parents, splits, 3)
    there = prefix_branch_credit(initial, rewards.flip(0), parents, splits, 3)
    assert (here - there).sign().tolist() == [[1, 1, 0], [-1, 0, 0]]
    assert torch.equal(dual_group_advantages(initial, rewards), dual_group_advantages(initial, rewards.flip(0)))


def test_prefix_credit_by_hand():
    # Advantages of the branches: 1, 0 and -1 (standard deviation 1); the first row has two, of splits 3 and 1
    got = prefix_branch_credit(
        torch.tensor([2.0, 0.0]), torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 0, 1]), torch.tensor([3, 1, 2]), 4
    )
    own = 1 / (math.sqrt(2) + 1e-4)
    expected = [[own + 0.5, own + 1, own + 1, own], [-own - 1, -own - 1, -own, -own]]
    assert got.flatten().tolist() == pytest.approx(sum(expected, []), abs=2e-4)


def test_a_branch_from_the_first_token_credits_none_and_one_after_the_last_credits_all():
    initial, rewards = torch.tensor([1.0, 1.0]), torch.tensor([1.0, -1.0])
    got = prefix_branch_credit(initial, rewards, torch.tensor([0, 1]), torch.tensor([0, 3]), 3)
    expected = -1 / (math.sqrt(2) + 1e-4)
    assert got.flatten().tolist() == pytest.approx([0, 0, 0] + [expected] * 3)


def test_without_branches_the_prefix_credit_is_the_advantage_of_the_group_bit_for_bit():
    rewards, none = torch.tensor([1.0, 0.0, 0.3, NAN]), torch.tensor([], dtype=torch.long)
    got = prefix_branch_credit(rewards, torch.tensor([]), none, none, 5)
    assert torch.equal(got, group_advantages(rewards, 4).unsqueeze(1).expand(4, 5))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(0, 4)), min_size=1, max_size=8),
    st.floats(0, 2),
    st.sampled_from([(1.0, 1.2), (0.8, 1.2), (1.0, 1.0)]),
)
def test_future_advantages_match_the_definition_for_rows_and_for_tokens(tokens, weight, clip):
    base, omegas = torch.tensor(tokens, dtype=torch.float64).T
    expected = [a * (1 + weight * min(max(omega, clip[0]), clip[1])) for a, omega in tokens]
    assert future_advantages(base, omegas.unsqueeze(1), weight, clip).flatten().tolist() == pytest.approx(expected)
    of_tokens = future_advantages(base.unsqueeze(0), omegas.unsqueeze(0), weight, clip)
    assert of_tokens.flatten().tolist() == pytest.approx(expected)


def test_future_advantages_by_hand():
    got = future_advantages(torch.tensor([2.0, -1.0]), torch.tensor([[0.5, 1.0, 1.1, 9.0, INF]] * 2))
    assert got[0].tolist() == pytest.approx([3.0, 3.0, 3.1, 3.2, 3.2])
    assert got[1].tolist() == pytest.approx([-1.5, -1.5, -1.55, -1.6, -1.6])


def test_a_weight_of_zero_gives_the_base_bit_for_bit_in_its_own_type():
    base = torch.randn(3, generator=torch.Generator().manual_seed(0))
    omegas = torch.tensor([[0.1, 1.07, INF, 3.0]] * 3, dtype=torch.float64)
    got = future_advantages(base, omegas, weight=0)
    assert got.dtype == torch.float32 and torch.equal(got, base.unsqueeze(1).expand(3, 4))
    per_token = base.unsqueeze(1).expand(3, 4)
    assert torch.equal(future_advantages(per_token, omegas, weight=0), per_token)


def test_a_row_with_more_than_one_unlikely_token_that_became_likely_leaves_the_loss():
    # Ratios of 4, 7 and 2; the row with a positive advantage is free to move
    log_ratios = torch.tensor([[4.0, 7.0, 2.0], [4.0, 7.0, 2.0], [4.0, 2.0, 2.0], [3.0, 3.0, 3.0]]).log()
    omegas, sampled = torch.full((4, 3), 1.5), torch.ones(4, 3)
    held, keep = released_safeguards(torch.tensor([-1.0, 1.0, -1.0, -1.0]), log_ratios, omegas, sampled)
    assert keep.tolist() == [False, True, True, True]
    assert held.tolist() == [[1.5, 1.0, 1.5], [1.5] * 3, [1.5] * 3, [1.5] * 3]


@pytest.mark.parametrize(
    ("ratio", "omega", "held"), [(6.1, 0.1, 0.8), (6.1, 0.9, 0.9), (6.1, 1.1, 1), (5.9, 1.1, 1.1)]
)
def test_above_a_ratio_of_six_a_future_value_is_held_between_four_fifths_and_one(ratio, omega, held):
    log_ratios, omegas = torch.tensor([[ratio]]).log(), torch.tensor([[omega]])
    got, keep = released_safeguards(torch.tensor([-1.0]), log_ratios, omegas, torch.ones(1, 1))
    assert got.item() == pytest.approx(held) and keep.tolist() == [True]


def test_safeguards_look_at_sampled_tokens_with_a_negative_advantage_of_their_own():
    log_ratios = torch.tensor([[9.0, 9.0, 9.0, 9.0]]).log()
    advantages = torch.tensor([[-1.0, 1.0, 0.0, -1.0]])
    sampled = torch.tensor([[1, 1, 1, 0]])
    log_ratios[0, 3] = INF
    held, keep = released_safeguards(advantages, log_ratios, torch.full((1, 4), 1.5), sampled)
    assert held.tolist() == [[1.0, 1.5, 1.5, 1.5]] and keep.tolist() == [True]
    sampled[0, 3] = 1
    assert released_safeguards(advantages, log_ratios, torch.full((1, 4), 1.5), sampled)[1].tolist() == [False]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([-1.0, 0.0, 2.0]), st.booleans()), min_size=1, max_size=9),
    st.sampled_from([(1.0, 1.2), (0.8, 1.2), (0.5, 1.0)]),
)
def test_holding_before_the_clip_is_holding_after_it(tokens, clip):
    log_ratios, advantages, sampled = torch.tensor(tokens, dtype=torch.float64).T.unsqueeze(1)
    omegas = future_values(log_ratios, sampled, 0.5, max_ratio=3.0)
    held, _ = released_safeguards(advantages, log_ratios, omegas, sampled)
    for (log_ratio, advantage, mask), omega, got in zip(tokens, omegas[0].tolist(), held[0].tolist(), strict=True):
        clipped = min(max(omega, clip[0]), clip[1])
        if mask and advantage < 0 and math.exp(log_ratio) > 6:
            clipped = min(max(clipped, 0.8), 1.0)
        assert min(max(got, clip[0]), clip[1]) == pytest.approx(clipped)


def test_what_does_not_belong_together_is_refused():
    two, three, none = torch.zeros(2), torch.zeros(3), torch.zeros(0, dtype=torch.long)
    with pytest.raises(ValueError, match=r"at least one initial rollout .* got shapes \(0,\) and \(2,\)"):
        dual_group_advantages(torch.zeros(0), two)
    with pytest.raises(ValueError, match=r"got shapes \(1, 2\) and \(2,\)"):
        prefix_branch_credit(two.unsqueeze(0), two, none, none, 4)
    with pytest.raises(ValueError, match=r"2 branches need as many parents and splits, got shapes \(2,\) and \(3,\)"):
        prefix_branch_credit(two, two, two.long(), three.long(), 4)
    with pytest.raises(ValueError, match=r"indices of the 2 initial rollouts, got \[0, 2\]"):
        prefix_branch_credit(two, two, torch.tensor([0, 2]), torch.tensor([1, 1]), 4)
    with pytest.raises(ValueError, match=r"advantages \(B,\) or \(B, T\), got shapes \(2, 3\) and \(3,\)"):
        future_advantages(three, torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"`clip` is \(low, high\), got \(1.2, 1.0\)"):
        future_advantages(two, torch.ones(2, 3), clip=(1.2, 1.0))
    with pytest.raises(ValueError, match=r"one shape \(B, T\), got \[\(2, 3\), \(2, 3\), \(2, 2\)\]"):
        released_safeguards(two, torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 2))
