"""From segments to turns."""

from trl_agentic.rollout.turns import turn_ids
from trl_agentic.types import Segment, ToolCall, ToolResult, cut

RESULT = ToolResult(ToolCall("search"), "x")


def sampled(*tokens: int) -> Segment:
    return Segment(tokens, True, (-1.0,) * len(tokens))


def result(*tokens: int) -> Segment:
    return Segment(tokens, False, results=(RESULT,))


def test_a_turn_is_what_was_sampled_since_the_last_results_in_however_many_segments():
    assert turn_ids([sampled(1, 2), result(3), sampled(4, 5), sampled(6)]) == [4, 5, 6]
    assert turn_ids([sampled(1), sampled(2, 3)]) == [1, 2, 3]


def test_right_behind_results_and_at_the_beginning_a_turn_is_empty():
    assert turn_ids([sampled(1, 2), result(3)]) == []
    assert turn_ids([result(1), result(2)]) == []
    assert turn_ids([]) == []


def test_a_turn_that_is_cut_in_the_middle_holds_what_is_left():
    segments = (sampled(1, 2), result(3), sampled(4, 5), sampled(6, 7))
    turns = [turn_ids(cut(segments, length)) for length in (0, 1, 2, 3, 4, 5, 6, 7)]
    assert turns == [[], [1], [1, 2], [], [4], [4, 5], [4, 5, 6], [4, 5, 6, 7]]
