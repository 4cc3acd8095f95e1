"""What a branch phase came to, in numbers that can be checked by hand."""

import logging
import math

import pytest
import torch
from word_tokenizer import ids

from trl_agentic.trainers.branch_metrics import (
    ScoreCheck,
    branch_metrics,
    future_metrics,
    outcome_pairs,
    part_of_turn,
    place_metrics,
)
from trl_agentic.trainers.branch_points import Point, PolicyView
from trl_agentic.trainers.generation_log import merge_metrics
from trl_agentic.types import (
    BranchPoint,
    BranchTree,
    CallStatus,
    Kind,
    Segment,
    Status,
    ToolCall,
    ToolResult,
    Trajectory,
    cut,
)

NAN = math.nan


def view(log_ratios, future_values, sampled) -> PolicyView:
    log_ratios, future_values = torch.tensor(log_ratios), torch.tensor(future_values)
    nothing = torch.zeros_like(log_ratios)
    return PolicyView([0, 1], torch.tensor(sampled).bool(), nothing.bool(), log_ratios, nothing, future_values)


# --- how far the policy has moved


def test_ratios_and_future_values_are_those_of_sampled_tokens():
    log2 = math.log(2.0)
    moved = view([[log2, 0.0, 9.0], [-log2, NAN, 0.0]], [[1.5, 1.0, 9.0], [0.5, NAN, 1.1]], [[1, 1, 0], [1, 0, 1]])
    assert future_metrics(moved, score_clip=0.2, future_clip=(1.0, 1.2), is_fresh=False) == pytest.approx(
        {
            "appo/ratio": (2 + 1 + 0.5 + 1) / 4,
            "appo/ratio_std": math.sqrt((0.875**2 + 2 * 0.125**2 + 0.625**2) / 4),
            "appo/future_value": (1.5 + 1.0 + 0.5 + 1.1) / 4,
            "appo/future_value_std": math.sqrt((0.475**2 + 0.025**2 + 0.525**2 + 0.075**2) / 4),
            "appo/score_clip_fraction": 0.5,  # 1.5 and 0.5
            "appo/future_clip_low_fraction": 0.25,  # 0.5
            "appo/future_clip_high_fraction": 0.25,  # 1.5
        },
        abs=1e-6,
    )


def test_before_the_first_step_and_without_sampled_tokens_there_is_nothing_to_measure():
    still = view([[0.0], [0.0]], [[1.0], [1.0]], [[1], [1]])
    assert future_metrics(still, 0.2, (1.0, 1.2), is_fresh=True) == {}
    masked = view([[0.5], [0.5]], [[1.5], [1.5]], [[0], [0]])
    assert future_metrics(masked, 0.2, (1.0, 1.2), is_fresh=False) == {}


# --- branches


def sampled(text: str) -> Segment:
    return Segment(ids(text), True, (-1.0,) * len(text.split()))


def searched(query: str, status=CallStatus.OK, name="search", **more) -> Segment:
    return Segment(
        ids("<result> b </result>"), False, results=(ToolResult(ToolCall(name, more | {"query": query}), "b", status),)
    )


def trajectory(*segments, parent=None, fork=0, kind=Kind.INITIAL) -> Trajectory:
    return Trajectory(tuple(segments), Status.FINISHED, kind, parent, fork)


def branch(parent: Trajectory, place: int, fork: int, *segments) -> Trajectory:
    return trajectory(*cut(parent.segments, fork), *segments, parent=place, fork=fork, kind=Kind.BRANCH)


def searching(name="p", *children) -> BranchTree:
    """Two rollouts, which look for a and for b, and children."""
    first = trajectory(sampled("need a"), searched("a"), sampled("got a"))
    second = trajectory(sampled("need b"), searched("b"), sampled("got b"))
    made = [branch(first, 0, fork, *segments) for fork, *segments in children]
    return BranchTree(name, (1,), (first, second, *made))


def test_branches_are_counted_and_their_rewards_described_without_those_that_have_none():
    tree = searching("p", (1, sampled("b")), (1, sampled("c")), (6, sampled("d")))
    metrics = branch_metrics([tree, searching("q")], [2, 2], torch.tensor([1.0, NAN, 3.0]), wanted=6)
    assert metrics["appo/branches"] == 1.5
    assert metrics["appo/missing_branches"] == 0.5
    assert metrics["appo/branch_reward"] == 2.0 and metrics["appo/branch_reward_std"] == 1.0


@pytest.mark.parametrize(("rewards", "wanted"), [([], 6), ([], 0), ([NAN, NAN], 2)])
def test_without_branches_or_rewards_there_is_nothing_to_average_and_no_nan(rewards, wanted):
    children = [(1, sampled("b"))] * len(rewards)
    metrics = branch_metrics([searching("p", *children)], [2], torch.tensor(rewards), wanted)
    assert not {"appo/branch_reward", "appo/branch_reward_std"} & set(metrics)
    assert metrics["appo/branches"] == len(rewards)
    assert metrics["appo/missing_branches"] == float(wanted == 6)
    assert not any(math.isnan(value) for value in metrics.values())
    assert branch_metrics([], [], torch.tensor([]), 0)["appo/branches"] == 0.0


def test_metrics_of_the_loop_count_what_branches_sampled_and_called_themselves():
    # The first child inherits the call and its result (5 tokens), the second makes one of its own.
    tree = searching("p", (5, sampled("got 1 2")), (1, sampled("c"), searched("c"), sampled("got c")))
    metrics = branch_metrics([tree], [2], torch.tensor([0.0, 1.0]), wanted=6)
    assert metrics["branches/rollout/sampled_tokens"] == 3 + 1 + 2
    assert metrics["branches/rollout/executed_calls"] == 0.5 and metrics["branches/tools/search/calls"] == 1.0
    assert metrics["branches/rollout/tool_calls"] == metrics["branches/tools/call_frequency"] == 1.0  # on each path
    assert metrics["branches/rollout/status/finished"] == 1.0
    assert not any(name.startswith(("branches/branch/", "branch/", "rollout/")) for name in metrics)


def test_a_branch_that_says_again_what_its_parent_said_is_an_equal_text():
    tree = searching("p", (6, sampled("a")), (6, sampled("b")), (6, sampled("b")), (6, sampled("c")))
    metrics = branch_metrics([tree], [2], torch.zeros(4), wanted=4)
    assert metrics["branches/rollout/equal_texts"] == 0.5  # the parent's, and one of the two that say b


def duplicates(*trees) -> float | None:
    return branch_metrics(list(trees), [2] * len(trees), torch.tensor([]), 0).get("appo/duplicate_searches")


def test_searches_are_duplicates_within_their_prompt_only():
    again = (1, sampled("b"), searched("a"))
    assert duplicates(searching("p")) == 0.0
    assert duplicates(searching("p"), searching("q")) == 0.0  # the same queries, for another prompt
    assert duplicates(searching("p", again)) == pytest.approx(1 / 3)  # a, b, a
    assert duplicates(searching("p", again, again)) == 0.5  # a, b, a, a
    assert duplicates(searching("p", again), searching("q")) == pytest.approx(1 / 5)


def test_inherited_and_refused_searches_and_other_tools_are_no_duplicates():
    inherited = (5, sampled("got b"))
    refused = (1, sampled("b"), searched("a", CallStatus.BUDGET))
    broken = (1, sampled("c"), searched("a", CallStatus.MALFORMED))
    other = (1, sampled("d"), searched("a", name="python"))
    assert duplicates(searching("p", inherited, refused, broken, other)) == 0.0
    failed = (1, sampled("b"), searched("a", CallStatus.ERROR))
    assert duplicates(searching("p", failed)) == pytest.approx(1 / 3)


def test_the_order_of_arguments_makes_no_other_query():
    call = ToolCall("search", {"query": "a", "top_k": 1})
    swapped = Segment(ids("b"), False, results=(ToolResult(call, "b"),))
    tree = searching("p", (1, sampled("c"), searched("a", top_k=1)), (1, sampled("d"), swapped))
    assert duplicates(tree) == 0.25  # a and b of the rollouts; then one query twice


def test_without_searches_there_is_no_share_of_duplicates():
    tree = BranchTree("p", (1,), (trajectory(sampled("got a")),))
    assert duplicates(BranchTree("p", (1,), (tree.trajectories[0],) * 2)) is None


def test_branch_points_of_the_loop_and_state_metrics_do_not_enter():
    point = BranchPoint(0, 5, 1.0, 2.0, 0.1, 0.6, 1, 1)
    tree = BranchTree("p", (1,), searching().trajectories, (point,))
    assert not any("branch/" in name for name in branch_metrics([tree], [2], torch.tensor([]), 0))


def test_over_processes_counts_of_branches_add_up_and_rates_are_averaged():
    first = {
        "branches/rollout/sampled_tokens": 10.0,
        "branches/tools/search/calls": 3.0,
        "branches/tools/failures/timeout": 1.0,
        "branches/rollout/state/replay": 2.0,
        "branches/rollout/replay_mismatches": 1.0,
        "branches/rollout/tool_calls": 2.0,
        "branches/rollout/state/fork_s": 0.5,
        "branches/tools/search/latency_s": 0.2,
        "appo/branches": 12.0,
        "appo/branch_reward": 1.0,
        "appo/duplicate_searches": 0.5,
    }
    second = {name: value for name, value in first.items() if "search" not in name and "failures" not in name}
    assert merge_metrics([first, second]) == first | {
        "branches/rollout/sampled_tokens": 20.0,
        "branches/rollout/state/replay": 4.0,
        "branches/rollout/replay_mismatches": 2.0,
    }
    assert merge_metrics([first, first])["branches/tools/search/calls"] == 6.0
    assert merge_metrics([first, first])["branches/tools/failures/timeout"] == 2.0
    third = first | {"appo/branches": 10.0, "appo/branch_reward": 0.0}
    assert merge_metrics([first, third])["appo/branches"] == 11.0
    assert merge_metrics([first, third])["appo/branch_reward"] == 0.5


# --- places


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "text"),
        ("so", "text"),
        ("<think> so", "thinking"),
        ("<think> so </think>", "text"),
        ("<think> so </think> <search> capital of", "call"),
        ("<think> so </think> <search> capital of </search>", "text"),
        ("<think> so </think> <answer> \\boxed{", "answer"),
        ("<answer> b </answer> <eos>", "text"),
        ("<python>print(1 < 2)", "call"),
        ('<tool_call>\n{"name": "search"', "call"),
        ("<think> the <b> tag, x </b> and", "thinking"),  # no tag of ours
        ("<think> I could <search> x </search> and then", "thinking"),  # what was opened first is still open
        ("<think> an <answer> without an end </think> so", "text"),
        ("</think> <think> so", "thinking"),
        ("</search> so", "text"),
        ("<search> a <search> b </search>", "text"),
        ("< think> so", "text"),
        ("<result> a", "text"),
    ],
)
def test_a_text_ends_in_the_part_whose_tag_is_open(text, part):
    assert part_of_turn(text, ["search", "python"]) == part


def test_a_tag_is_a_call_only_if_a_tool_has_its_name():
    assert part_of_turn("<lookup> a", ["lookup"]) == "call"
    assert part_of_turn("<lookup> a", ["search"]) == "text"
    assert part_of_turn("<think> a", []) == "thinking"


def test_places_are_shares_that_add_up_to_one():
    assert place_metrics(["thinking", "call", "thinking", "text"]) == {
        "appo/points/thinking": 0.5,
        "appo/points/call": 0.25,
        "appo/points/answer": 0.0,
        "appo/points/text": 0.25,
    }
    assert place_metrics([]) == {}


# --- does the reward vary where the score is high?


def test_the_variance_at_a_point_is_half_the_squared_difference_of_its_two_outcomes():
    tree = searching("p", (1, sampled("b")), (6, sampled("c")))
    points = [Point(0, 1, 2.5), Point(0, 6, -1.0)]
    rewards = torch.tensor([1.0, 9.0, 0.5, 1.0])
    assert outcome_pairs(points, tree, 2, rewards) == [(2.5, 0.125), (-1.0, 0.0)]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([NAN, 9.0, 0.5, 1.0], []),  # the parent of both has none
        ([1.0, NAN, NAN, 3.0], [(-1.0, 2.0)]),
        ([1.0, NAN, 0.0, NAN], [(2.5, 0.5)]),
    ],
)
def test_a_point_without_both_outcomes_says_nothing(rewards, expected):
    tree = searching("p", (1, sampled("b")), (6, sampled("c")))
    assert outcome_pairs([Point(0, 1, 2.5), Point(0, 6, -1.0)], tree, 2, torch.tensor(rewards)) == expected


def test_points_in_branches_have_no_branching_score_and_are_left_out():
    first = trajectory(sampled("need a got a"))
    child = branch(first, 0, 2, sampled("b c"))
    tree = BranchTree("p", (1,), (first, child, branch(child, 1, 3, sampled("d"))))
    pairs = outcome_pairs([Point(0, 2, 1.0), Point(1, 3, 2.0)], tree, 1, torch.tensor([0.0, 1.0, 4.0]))
    assert pairs == [(1.0, 0.5)]


def test_points_in_another_order_than_the_branches_are_a_bug():
    tree = searching("p", (1, sampled("b")), (6, sampled("c")))
    with pytest.raises(AssertionError, match="order of points"):
        outcome_pairs([Point(0, 6, -1.0), Point(0, 1, 2.5)], tree, 2, torch.zeros(4))


NAME = "appo/score_variance_correlation"


def test_the_correlation_is_that_of_ranks_over_all_points_so_far(caplog):
    check = ScoreCheck()
    assert check.add([]) == {}
    assert check.add([(1.0, 0.0)]) == {}  # one point has no rank
    assert check.add([(2.0, 10.0)]) == {NAME: pytest.approx(1.0)}
    # scores 1 2 3 have the variances 0 10 5: ranks 1 3 2, and 1 - 6 * 2 / (3 * 8) = 0.5
    assert check.add([(3.0, 5.0)]) == {NAME: pytest.approx(0.5)}
    assert check.add([]) == {NAME: pytest.approx(0.5)}
    assert not caplog.records


def test_equal_outcomes_everywhere_have_no_correlation():
    assert ScoreCheck().add([(float(score), 0.0) for score in range(200)]) == {}


def falling(count: int) -> list[tuple[float, float]]:
    return [(float(number), float(-number)) for number in range(count)]


def test_the_warning_needs_a_hundred_points_and_comes_once_with_the_figure(caplog):
    check = ScoreCheck()
    with caplog.at_level(logging.WARNING):
        assert check.add(falling(99)) == {NAME: pytest.approx(-1.0)}
        assert not caplog.records
        check.add([(99.0, -99.0)])
        (record,) = caplog.records
        for words in ("last 100 branch points", "rank correlation -1.00", "another `branch_score`"):
            assert words in record.getMessage()
        check.add(falling(50))
    assert len(caplog.records) == 1


def test_chance_is_no_reason_to_warn(caplog):
    # Every score with every variance: correlation 0. At 100 points three deviations are 3 / sqrt(99) = 0.30.
    independent = [(float(a), float(b)) for a in range(10) for b in range(10)]
    tilted = [(a, b - 0.35 * a) for a, b in independent]
    check = ScoreCheck()
    with caplog.at_level(logging.WARNING):
        assert check.add(independent) == {NAME: pytest.approx(0.0, abs=1e-9)}
        weak = ScoreCheck().add([(a, b - 0.15 * a) for a, b in independent])[NAME]
        assert -0.3 < weak < -0.1 and not caplog.records
        strong = ScoreCheck().add(tilted)[NAME]
        assert strong < -0.31 and len(caplog.records) == 1
        assert f"{strong:.2f}" in caplog.text


def test_the_more_points_the_smaller_a_correlation_says_something(caplog):
    weakly = [(float(a), float(b) - 0.15 * a) for a in range(10) for b in range(10)] * 8
    with caplog.at_level(logging.WARNING):
        correlation = ScoreCheck().add(weakly)[NAME]
    assert -0.3 < correlation < -3 / math.sqrt(799) and len(caplog.records) == 1


def test_only_the_last_thousand_points_count(caplog):
    check = ScoreCheck()
    with caplog.at_level(logging.WARNING):
        check.add(falling(1000))
        assert check.add([(float(number), float(number)) for number in range(1000)]) == {NAME: pytest.approx(1.0)}


def test_a_correlation_that_is_positive_warns_of_nothing(caplog):
    with caplog.at_level(logging.WARNING):
        ScoreCheck().add([(float(number), float(number)) for number in range(500)])
    assert not caplog.records
