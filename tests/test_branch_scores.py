import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from trl_agentic.algorithms import branch_candidates, branching_scores, future_values, select_branch_points

NAN, INF = math.nan, math.inf
MODES = ["product", "sum", "entropy"]
quarters = st.integers(-8, 8).map(lambda n: n / 4)
entropies_of_tokens = st.integers(0, 12).map(lambda n: n / 4)
off_mask = st.sampled_from([NAN, INF, -INF, 5.0])


@st.composite
def rollouts(draw, min_rows=1):
    """Log-ratios, entropies, sampled and blank mask; rubbish where nothing was sampled."""
    shape = num_rows, width = draw(st.integers(min_rows, 4)), draw(st.integers(0, 12))
    size = num_rows * width

    def tensor(elements):
        return torch.tensor(draw(st.lists(elements, min_size=size, max_size=size)), dtype=torch.float64).view(shape)

    sampled, blank = tensor(st.booleans()).bool(), tensor(st.booleans()).bool()
    if draw(st.booleans()):  # a mask as it is in practice, with far more sampled tokens than others
        sampled |= tensor(st.booleans()).bool() | tensor(st.booleans()).bool()
    log_ratios = tensor(quarters).where(sampled, tensor(off_mask))
    return log_ratios, tensor(entropies_of_tokens).where(sampled, tensor(off_mask)), sampled, blank


def future_value_by_hand(log_ratios, mask, gamma, i, max_ratio=INF):
    total = 0.0
    for j in range(i, len(mask)):
        if mask[j] and math.exp(log_ratios[j]) <= max_ratio:
            total += gamma ** sum(mask[i:j]) * log_ratios[j]
    return math.exp(total)


def z_by_hand(values, mask, i):
    sampled = [value for value, kept in zip(values, mask, strict=True) if kept]
    mean = sum(sampled) / len(sampled)
    std = math.sqrt(sum((value - mean) ** 2 for value in sampled) / len(sampled))
    return ((values[i] - mean) / std, False) if std >= 1e-6 else (0.0, True)


def score_by_hand(entropies, omegas, mask, i, clip, combine):
    """The score of a sampled token, and whether its statistics allow a branch."""
    uncertainty, _ = z_by_hand(entropies, mask, i)
    promise, flat = z_by_hand([min(max(omega, 1 - clip), 1 + clip) for omega in omegas], mask, i)
    if combine == "entropy" or (combine == "product" and flat):
        return uncertainty, uncertainty > 0
    if combine == "sum":
        return promise + uncertainty, promise + uncertainty > 0
    return promise * uncertainty, promise > 0 and uncertainty > 0


def select_by_hand(scores, candidates, num_points, entropies, eligible):
    """One point after the other: the best that is left among those whose turn it is."""
    rows, width = range(len(scores)), len(scores[0])
    chosen = [[] for _ in rows]

    def take(values, allowed, among, limit):
        taken = 0
        while taken < limit:
            left = [(-values[r][t], t, r) for r in among for t in range(width) if allowed[r][t] and t not in chosen[r]]
            if not left:
                break
            _, t, r = min(left)
            chosen[r].append(t)
            taken += 1
        return taken

    slack = sum(num_points - take(scores, candidates, [row], num_points) for row in rows)
    slack -= take(scores, candidates, rows, slack)
    take(entropies, eligible, rows, slack)
    return chosen


@settings(max_examples=150, deadline=None)
@given(rollouts(), st.sampled_from([0.0, 0.5, 2 ** (-1 / 32), 1.0]), st.sampled_from([None, 0.5, 3.0]))
def test_future_values_match_nested_loops_over_the_tokens(rollout, gamma, max_ratio):
    log_ratios, _, sampled, _ = rollout
    got = future_values(log_ratios, sampled, gamma, max_ratio)
    expected = torch.ones_like(log_ratios)
    for row, (values, mask) in enumerate(zip(log_ratios.tolist(), sampled.tolist(), strict=True)):
        for i in range(len(mask)):
            if mask[i]:
                expected[row, i] = future_value_by_hand(values, mask, gamma, i, max_ratio or INF)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=0)


@settings(max_examples=200, deadline=None)
@given(rollouts(), st.sampled_from([0.0, 0.2, 0.9]), st.sampled_from(MODES))
def test_scores_and_candidates_match_nested_loops_over_the_tokens(rollout, clip, combine):
    log_ratios, entropies, sampled, blank = rollout
    omegas = future_values(log_ratios, sampled, 0.5)
    scores, candidates = torch.zeros_like(entropies), torch.zeros_like(sampled)
    decided = torch.ones_like(sampled)  # where the sign is no matter of rounding
    for row, mask in enumerate(sampled.tolist()):
        for i in range(len(mask)):
            if mask[i]:
                values = entropies[row].tolist(), omegas[row].tolist(), mask, i, clip, combine
                scores[row, i], allowed = score_by_hand(*values)
                candidates[row, i] = allowed and not blank[row, i]
                decided[row, i] = abs(scores[row, i]) > 1e-9
    got = branching_scores(entropies, omegas, sampled, clip, combine)
    torch.testing.assert_close(got, scores, rtol=1e-7, atol=1e-9)
    got = branch_candidates(entropies, omegas, sampled, blank, clip, combine)
    assert got.dtype == torch.bool
    assert torch.equal(got & decided, candidates & decided)
    assert not (got & (blank | ~sampled)).any()


@settings(max_examples=200, deadline=None)
@given(rollouts(), st.integers(0, 5))
def test_selection_matches_taking_one_point_after_the_other(rollout, num_points):
    log_ratios, entropies, sampled, blank = rollout
    # Multiples of a quarter, so that there are ties within and between rows
    scores, candidates = log_ratios, sampled & ~blank & (entropies > 1)
    eligible = sampled & ~blank
    tables = (table.tolist() for table in (scores, candidates, entropies, eligible))
    table_of_scores, table_of_candidates, table_of_entropies, table_of_eligible = tables
    expected = select_by_hand(table_of_scores, table_of_candidates, num_points, table_of_entropies, table_of_eligible)
    assert select_branch_points(scores, candidates, num_points, entropies, eligible) == expected
    nothing = [[False] * len(row) for row in table_of_eligible]
    expected = select_by_hand(table_of_scores, table_of_candidates, num_points, table_of_entropies, nothing)
    assert select_branch_points(scores, candidates, num_points) == expected


def everything(log_ratios, entropies, sampled, blank):
    """All that the scores rest on, of every token."""
    omegas = future_values(log_ratios, sampled, 2 ** (-1 / 8))
    results = [omegas]
    for combine in MODES:
        results.append(branching_scores(entropies, omegas, sampled, combine=combine))
        results.append(branch_candidates(entropies, omegas, sampled, blank, combine=combine).double())
    return torch.stack(results)


@settings(max_examples=60, deadline=None)
@given(rollouts(), st.integers(0, 12), st.integers(1, 5), st.data())
def test_inserting_or_lengthening_a_tool_result_changes_no_bit(rollout, position, length, data):
    position = min(position, rollout[0].size(1))
    rows, shape = len(rollout[0]), (len(rollout[0]), length)
    rubbish = torch.full(shape, data.draw(off_mask), dtype=torch.float64)
    blank = torch.full(shape, data.draw(st.booleans()))
    inserts = rubbish, rubbish, torch.zeros(shape, dtype=torch.bool), blank
    longer = [
        torch.cat([table[:, :position], insert, table[:, position:]], dim=1)
        for table, insert in zip(rollout, inserts, strict=True)
    ]
    before, after = everything(*rollout), everything(*longer)
    assert after[:, :, position : position + length].tolist() == [
        [[value] * length] * rows for value in (1, 0, 0, 0, 0, 0, 0)
    ]
    assert torch.equal(torch.cat([after[:, :, :position], after[:, :, position + length :]], dim=2), before)


@settings(max_examples=60, deadline=None)
@given(rollouts(min_rows=2), st.data())
def test_neither_padding_nor_the_order_of_the_batch_changes_a_bit(rollout, data):
    order = data.draw(st.permutations(range(len(rollout[0]))))
    padding = data.draw(st.integers(0, 40))
    moved = [torch.nn.functional.pad(table[list(order)], (0, padding)) for table in rollout]
    before, after = everything(*rollout), everything(*moved)
    assert torch.equal(after[:, :, : before.size(2)], before[:, list(order)])


@settings(max_examples=60, deadline=None)
@given(rollouts())
def test_a_row_alone_has_the_values_that_it_has_in_the_batch(rollout):
    together = everything(*rollout)
    for row in range(len(rollout[0])):
        alone = everything(*(table[row : row + 1] for table in rollout))
        torch.testing.assert_close(alone, together[:, row : row + 1], rtol=1e-9, atol=1e-9)


def test_a_future_value_by_hand():
    # A tool result of two tokens lies between the second and the third sampled token
    log_ratios = torch.tensor([[0.5, 0.0, 9.0, NAN, -1.0, 0.25]])
    sampled = torch.tensor([[1, 1, 0, 0, 1, 1]])
    logs = [0.5 + 0.0 - 0.25 * 1.0 + 0.125 * 0.25, 0.0 - 0.5 * 1.0 + 0.25 * 0.25, 0, 0, -1.0 + 0.5 * 0.25, 0.25]
    got = future_values(log_ratios, sampled, 0.5)
    assert got.dtype == torch.float32
    assert got[0].tolist() == pytest.approx([math.exp(log) for log in logs])
    assert [got[0, 2], got[0, 3]] == [1, 1]


def test_a_change_that_is_one_half_life_away_counts_half():
    log_ratios = torch.zeros(1, 65, dtype=torch.float64)
    log_ratios[0, 64] = 0.8
    got = future_values(log_ratios, torch.ones(1, 65), 2 ** (-1 / 32))[0].log()
    assert [got[0].item(), got[32].item(), got[64].item()] == pytest.approx([0.2, 0.4, 0.8])


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2 ** (-1 / 32), 1.0])
def test_a_policy_that_has_not_moved_has_future_values_of_exactly_one(gamma):
    sampled = torch.rand(3, 500, generator=torch.Generator().manual_seed(0)) < 0.7
    assert torch.equal(future_values(torch.zeros(3, 500), sampled, gamma), torch.ones(3, 500))


def test_the_far_future_reaches_the_first_token_when_nothing_is_discounted():
    log_ratios = torch.full((1, 5000), 1e-3, dtype=torch.float64)
    assert future_values(log_ratios, torch.ones(1, 5000), 1.0)[0, 0].item() == pytest.approx(math.exp(5), rel=1e-12)


def test_ratios_above_the_limit_leave_the_sum_but_still_count_as_a_distance():
    log_ratios = torch.tensor([[0.0, math.log(3.1), 1.0]])
    ones = torch.ones(1, 3)
    limited = future_values(log_ratios, ones, 0.5, max_ratio=3.0)[0].log()
    assert limited.tolist() == pytest.approx([0.25, 0.5, 1.0])
    assert future_values(log_ratios, ones, 0.5)[0, 1].log().item() == pytest.approx(math.log(3.1) + 0.5)


def test_future_values_carry_no_gradient_and_keep_half_precision_out_of_the_sum():
    log_ratios = torch.full((1, 400), 0.01, dtype=torch.bfloat16, requires_grad=True)
    got = future_values(log_ratios, torch.ones(1, 400), 1.0)
    assert not got.requires_grad and got.dtype == torch.float32
    assert got[0, 0].log().item() == pytest.approx(400 * log_ratios[0, 0].item(), rel=1e-5)


def test_a_nan_on_a_sampled_token_reaches_the_tokens_before_it_and_no_other_row():
    got = future_values(torch.tensor([[0.0, NAN, 0.0], [0.0, 0.0, 0.0]]), torch.ones(2, 3), 0.5)
    assert got.isnan().tolist() == [[True, True, False], [False, False, False]]
    entropies = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    assert branching_scores(entropies, got, torch.ones(2, 3)).isnan().tolist() == [[True] * 3, [False] * 3]
    candidates = branch_candidates(entropies, got, torch.ones(2, 3), torch.zeros(2, 3))
    assert candidates.tolist() == [[False] * 3, [False, False, True]]


def test_a_branching_score_by_hand():
    # Clipped future values 0.8, 1.2, 0.8, 1.2 and entropies 3, 3, 1, 1: z-scores of +1 and -1, the tool token apart
    omegas = torch.tensor([[0.5, 7.0, 1.0, 0.8, 1.2]])
    entropies = torch.tensor([[3.0, 3.0, NAN, 1.0, 1.0]])
    sampled, blank = torch.tensor([[1, 1, 0, 1, 1]]), torch.zeros(1, 5)
    assert branching_scores(entropies, omegas, sampled)[0].tolist() == pytest.approx([-1, 1, 0, 1, -1])
    assert branching_scores(entropies, omegas, sampled, combine="sum")[0].tolist() == pytest.approx([0, 2, 0, -2, 0])
    assert branching_scores(entropies, omegas, sampled, combine="entropy")[0].tolist() == pytest.approx(
        [1, 1, 0, -1, -1]
    )
    # The fourth token has the score of the second, but from two negatives
    allowed = {mode: branch_candidates(entropies, omegas, sampled, blank, combine=mode)[0] for mode in MODES}
    assert allowed["product"].nonzero().flatten().tolist() == [1]
    assert allowed["entropy"].nonzero().flatten().tolist() == [0, 1]
    assert allowed["sum"][1] and not allowed["sum"][2:4].any()


@pytest.mark.parametrize("combine", MODES)
def test_before_the_first_step_the_score_is_the_z_score_of_the_entropy(combine):
    entropies = torch.tensor([[1.0, 2.0, 3.0, 2.0]])
    score = branching_scores(entropies, torch.ones(1, 4), torch.ones(1, 4), combine=combine)
    assert score[0].tolist() == pytest.approx([-(2**0.5), 0, 2**0.5, 0])
    candidates = branch_candidates(entropies, torch.ones(1, 4), torch.ones(1, 4), torch.zeros(1, 4), combine=combine)
    assert candidates.tolist() == [[False, False, True, False]]


def test_future_values_beyond_the_clip_are_as_flat_as_equal_ones():
    entropies = torch.tensor([[1.0, 3.0]])
    assert branching_scores(entropies, torch.tensor([[1.3, 2.5]]), torch.ones(1, 2)).tolist() == [[-1.0, 1.0]]
    assert branching_scores(entropies, torch.tensor([[1.1, 1.0]]), torch.ones(1, 2))[0].tolist() == pytest.approx(
        [-1, -1]
    )


def test_one_flat_rollout_does_not_make_the_others_flat():
    entropies = torch.tensor([[1.0, 3.0], [1.0, 3.0]])
    omegas = torch.tensor([[1.0, 1.0], [1.1, 1.0]])
    assert branching_scores(entropies, omegas, torch.ones(2, 2)).tolist() == [[-1.0, 1.0], [-1.0, -1.0]]


@pytest.mark.parametrize("combine", MODES)
@pytest.mark.parametrize("mask", [[0, 0, 0], [0, 1, 0], [1, 1, 1]])
def test_no_token_one_token_or_equal_tokens_have_score_zero_and_no_candidate(mask, combine):
    entropies, omegas, sampled = torch.full((1, 3), 0.7), torch.full((1, 3), 1.1), torch.tensor([mask])
    assert branching_scores(entropies, omegas, sampled, combine=combine).tolist() == [[0, 0, 0]]
    assert not branch_candidates(entropies, omegas, sampled, torch.zeros(1, 3), combine=combine).any()
    assert select_branch_points(torch.zeros(1, 3), torch.zeros(1, 3), 3) == [[]]


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_an_empty_batch_is_no_error(shape):
    empty = torch.zeros(shape)
    assert future_values(empty, empty, 0.5).shape == shape
    assert branching_scores(empty, empty, empty).shape == shape
    assert branch_candidates(empty, empty, empty, empty).shape == shape
    assert select_branch_points(empty, empty, 3, empty, empty) == [[]] * shape[0]


def test_the_best_candidates_come_first_and_ties_go_to_the_earlier_position():
    scores = torch.tensor([[0.5, 2.0, 9.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0, 3.0]])
    candidates = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 1, 1]])
    assert select_branch_points(scores, candidates, 3) == [[1, 3, 4], [0, 1, 2]]
    assert select_branch_points(scores, candidates, 0) == [[], []]


def test_slack_goes_to_the_next_best_candidates_of_the_prompt_then_to_entropy_then_nowhere():
    # The first row has one candidate, the last no sampled token: 3 points to give away at 2 a row
    scores = torch.tensor([[5.0, 0, 0, 0], [4.0, 3.0, 2.0, 1.0], [0, 0, 0, 0]])
    candidates = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]])
    entropies = torch.tensor([[0.1, 0.3, NAN, 0.2], [0.1, 0.1, 0.1, 0.3], [9.0, 9.0, 9.0, 9.0]])
    eligible = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]])
    assert select_branch_points(scores, candidates, 2) == [[0], [0, 1, 2], []]
    # Entropy 0.3 at position 1 of the first row comes before 0.3 at position 3 of the second
    assert select_branch_points(scores, candidates, 2, entropies, eligible) == [[0, 1], [0, 1, 2, 3], []]
    # 9 points for 7 tokens: the entropy of one is unknown
    assert select_branch_points(scores, candidates, 3, entropies, eligible) == [[0, 1, 3], [0, 1, 2, 3], []]


def test_equal_scores_in_two_rows_give_the_slack_to_the_earlier_position():
    scores = torch.tensor([[9.0, 9.0, 1.0, 1.0], [9.0, 1.0, 9.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    candidates = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]])
    assert select_branch_points(scores, candidates, 2) == [[0, 1, 2], [0, 2, 1], []]


def test_every_point_of_rollouts_with_tool_results_is_sampled_and_not_blank():
    generator = torch.Generator().manual_seed(7)
    shape = (4, 300)
    sampled = torch.rand(shape, generator=generator) < 0.6
    blank = torch.rand(shape, generator=generator) < 0.4
    sampled[2, :298] = False  # too few tokens of its own
    entropies = torch.rand(shape, generator=generator).where(sampled, torch.tensor(NAN))
    omegas = future_values(torch.randn(shape, generator=generator) / 20, sampled, 2 ** (-1 / 32))
    scores = branching_scores(entropies, omegas, sampled)
    candidates = branch_candidates(entropies, omegas, sampled, blank)
    points = select_branch_points(scores, candidates, 5, entropies, sampled & ~blank)
    assert sum(map(len, points)) == 20 and len(points[2]) < 5
    for row, positions in enumerate(points):
        assert len(set(positions)) == len(positions)
        assert all(candidates[row, position] for position in positions)
        assert scores[row, positions].tolist() == sorted(scores[row, positions].tolist(), reverse=True)


class LargestTensor(TorchDispatchMode):
    """Remembers how many elements the largest tensor had that any operation returned."""

    def __init__(self):
        super().__init__()
        self.num_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.num_elements = max(self.num_elements, tensor.numel())
        return result


def test_thirty_two_thousand_tokens_need_no_tensor_larger_than_their_coordinates():
    generator = torch.Generator().manual_seed(0)
    shape = (4, 32768)
    sampled = torch.rand(shape, generator=generator) < 0.8
    log_ratios, entropies = torch.randn(shape, generator=generator) / 10, torch.rand(shape, generator=generator)
    with LargestTensor() as largest:
        omegas = future_values(log_ratios, sampled, 2 ** (-1 / 32))
        scores = branching_scores(entropies, omegas, sampled)
        candidates = branch_candidates(entropies, omegas, sampled, ~sampled)
        points = select_branch_points(scores, candidates, 3, entropies, sampled)
    # `nonzero` holds the row and the column of each sampled token
    assert 4 * 32768 <= largest.num_elements <= 2 * 4 * 32768
    assert [len(positions) for positions in points] == [3, 3, 3, 3]
    # The oracle at a few places; 2,000 tokens on, the discount is below 1e-18
    for i in sampled[1].nonzero().flatten()[[0, 5000, -3]].tolist():
        end = i + 3000
        values, mask = log_ratios[1, i:end].tolist(), sampled[1, i:end].tolist()
        assert omegas[1, i].item() == pytest.approx(future_value_by_hand(values, mask, 2 ** (-1 / 32), 0), rel=1e-5)


def test_what_does_not_belong_together_is_refused():
    ones = torch.ones(2, 3)
    with pytest.raises(
        ValueError, match=r"one shape \(B, T\), got {'log_ratios': \(2, 3\), 'sampled_mask': \(2, 2\)}"
    ):
        future_values(ones, torch.ones(2, 2), 0.5)
    with pytest.raises(ValueError, match=r"one shape \(B, T\), got {'log_ratios': \(3,\), 'sampled_mask': \(3,\)}"):
        future_values(torch.ones(3), torch.ones(3), 0.5)
    with pytest.raises(ValueError, match=r"`gamma` is a discount in \[0, 1\], got 32"):
        future_values(ones, ones, 32)
    with pytest.raises(ValueError, match="`max_ratio` is a ratio of probabilities, got 0"):
        future_values(ones, ones, 0.5, max_ratio=0)
    with pytest.raises(ValueError, match="'future_values': \\(3, 2\\)"):
        branching_scores(ones, torch.ones(3, 2), ones)
    with pytest.raises(ValueError, match="`combine` must be one of product, sum, entropy; got 'mean'"):
        branching_scores(ones, ones, ones, combine="mean")
    with pytest.raises(ValueError, match="`clip` is a distance from 1, got -0.2"):
        branching_scores(ones, ones, ones, clip=-0.2)
    with pytest.raises(ValueError, match="'blank_mask': \\(1, 3\\)"):
        branch_candidates(ones, ones, ones, torch.ones(1, 3))
    with pytest.raises(ValueError, match="`num_points` is a count, got -1"):
        select_branch_points(ones, ones, -1)
    with pytest.raises(ValueError, match="'candidates': \\(2, 2\\)"):
        select_branch_points(ones, torch.ones(2, 2), 1)
    with pytest.raises(ValueError, match="Pass both `entropies` and `eligible`, or neither"):
        select_branch_points(ones, ones, 1, entropies=ones)
    with pytest.raises(ValueError, match="'eligible': \\(2, 2\\)"):
        select_branch_points(ones, ones, 1, entropies=ones, eligible=torch.ones(2, 2))
