"""Where branches may start, and where they do."""

import dataclasses
import math

import pytest
import torch
from dialect_tokenizers import encode, smollm2
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import appo_config
from tiny_geo import MODEL
from transformers import AutoTokenizer
from word_tokenizer import WORDS, word_tokenizer

from trl_agentic.algorithms import future_values
from trl_agentic.trainers.branch_points import Point, PolicyView, blank_tokens, points_of_branches, points_of_rollouts
from trl_agentic.types import BranchTree, Kind, Segment, Status, ToolCall, ToolResult, Trajectory, cut

NOT_BLANK = torch.zeros(100, dtype=torch.bool)  # a vocabulary in which every token is a word


# --- blank tokens


def test_of_the_word_tokenizer_control_tokens_and_punctuation_are_blank():
    blank = blank_tokens(word_tokenizer(), len(WORDS) + 3)
    assert blank.dtype == torch.bool and blank.shape == (len(WORDS) + 3,)
    assert [WORDS[token] for token in blank.nonzero().flatten().tolist() if token < len(WORDS)] == [
        "<pad>",
        "<eos>",
        "<unk>",
        "}",
    ]
    assert blank[len(WORDS) :].all()  # rows that pad the embedding matrix


def test_a_vocabulary_of_the_model_may_be_smaller_than_the_tokenizers():
    assert blank_tokens(word_tokenizer(), 5).tolist() == [True, True, True, False, False]


def test_of_the_geo_tokenizer_words_tags_and_function_names_are_not_blank():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    blank = blank_tokens(tokenizer, len(tokenizer))
    texts = {tokenizer.decode([token]) for token in blank.nonzero().flatten().tolist()}
    assert texts == {"<pad>", "<eos>", "<unk>", "}", ")", ",", "+", "-", "*", "/", ".", "?"}


def test_of_smollm2_what_holds_no_word_is_blank_and_parts_of_characters_are_not():
    tokenizer = smollm2()
    blank = blank_tokens(tokenizer, len(tokenizer) + 7)
    assert blank[len(tokenizer) :].all()

    for text in ["!", "\n", "\n\n", " ", "    ", "\t", ".", " (", "):", "</", "...", "_", "<|im_end|>", "<repo_name>"]:
        tokens = encode(tokenizer, text)
        assert tokens and blank[tokens].all(), text  # <repo_name> is special, though it looks like a word
    vowel_sign = "\N{DEVANAGARI VOWEL SIGN AA}"  # a mark, which is no letter by itself
    for text in ["a", " the", "7", " Capital", "é", "ß", "не", vowel_sign]:
        assert not blank[encode(tokenizer, text)].any(), text
    pieces = encode(tokenizer, "\N{CJK UNIFIED IDEOGRAPH-9F98}")  # rare: made of pieces
    assert len(pieces) > 1 and not blank[pieces].any()
    for token, text in enumerate(tokenizer.batch_decode([[token] for token in range(17, len(tokenizer))]), start=17):
        if text.isascii():
            assert blank[token] == (not any(character.isalnum() for character in text)), text


class OneCharacterTokenizer:
    """Tokens are characters; the last one is special."""

    TEXTS = ["中", "の", "한", "9", "²", "½", "_", "，", "。", "\u3000", "", "-", "\ufffd", "<end>"]

    def __len__(self):
        return len(self.TEXTS)

    def batch_decode(self, rows, skip_special_tokens=False):
        shown = [*self.TEXTS[:-1], "" if skip_special_tokens else self.TEXTS[-1]]
        return ["".join(shown[token] for token in row) for row in rows]


def test_characters_of_other_scripts_are_words_and_their_punctuation_is_not():
    assert blank_tokens(OneCharacterTokenizer(), 14).tolist() == [False] * 6 + [True] * 6 + [False, True]


# --- points of initial rollouts


def rollout(num_tokens: int, gaps=()) -> Trajectory:
    """Tokens 0, 1, 2, …; those in `gaps` are tool results."""
    parts = []
    for token in range(num_tokens):
        if token in gaps:
            parts.append(Segment((token,), False, results=(ToolResult(ToolCall("search"), "x"),)))
        else:
            parts.append(Segment((token,), True, (-1.0,)))
    return Trajectory(tuple(parts), Status.FINISHED)


def planted(rows: int = 2, width: int = 6, branches=(), name: str = "p") -> BranchTree:
    """A tree of equally long rollouts, and branches that end where they fork, given as (parent, fork)."""
    trajectories = [rollout(width) for _ in range(rows)]
    for parent, fork in branches:
        prefix = cut(trajectories[parent].segments, fork)
        trajectories.append(Trajectory(prefix, Status.FINISHED, Kind.BRANCH, parent, fork))
    return BranchTree(name, (1,), tuple(trajectories))


def view_of(entropies, log_ratios=None, sampled=None, blank=None, rows=None, half_life=32.0) -> PolicyView:
    entropies = torch.tensor(entropies)
    sampled = torch.ones_like(entropies) if sampled is None else torch.tensor(sampled)
    log_ratios = torch.zeros_like(entropies) if log_ratios is None else torch.tensor(log_ratios)
    return PolicyView(
        rows=list(range(len(entropies))) if rows is None else rows,
        sampled_mask=sampled.bool(),
        blank_mask=torch.zeros_like(sampled, dtype=torch.bool) if blank is None else torch.tensor(blank).bool(),
        log_ratios=log_ratios,
        entropies=entropies,
        future_values=future_values(log_ratios, sampled.bool(), 2.0 ** (-1.0 / half_life)),
    )


def rule(**options):
    return appo_config("unused", **({"num_generations": 2, "branches_per_rollout": 1} | options))


def places(points: list[Point]) -> list[tuple[int, int]]:
    return [(point.parent, point.position) for point in points]


def test_before_the_first_step_each_rollout_branches_where_it_is_least_certain():
    view = view_of([[0.0, 0, 4, 0, 0, 1], [3.0, 0, 0, 1, 0, 0]])
    (points,) = points_of_rollouts(view, rule(), [planted()], [2])
    assert places(points) == [(0, 2), (1, 0)]
    # mean 5/6, biased deviation sqrt(17/6 - 25/36) = sqrt(77)/6
    assert points[0].score == pytest.approx((4 - 5 / 6) / (math.sqrt(77) / 6), rel=1e-6)


def test_tool_results_and_blank_tokens_are_never_chosen_however_uncertain():
    view = view_of(
        [[9.0, 2, 8, 1, 0, 7], [0.0, 3, 1, 5, 1, 1]],
        sampled=[[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]],
        blank=[[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0]],
    )
    (points,) = points_of_rollouts(view, rule(branches_per_rollout=3), [planted()], [2])
    assert {point.position for point in points if point.parent == 0} <= {1, 3, 4}
    assert {point.position for point in points if point.parent == 1} <= {0, 1, 2, 4, 5}
    assert len(points) == 6 and places(points)[0] == (0, 1)


def test_later_a_point_must_be_uncertain_and_lie_before_what_has_become_likelier():
    # At a half-life of one token the future values of row 0 are exp(1/8, 1/4, 1/2, 0, 0, 0).
    ratios = [[0.0, 0, 0.5, 0, 0, 0], [0.0, 0, 0, 0, 0, 0]]
    view = view_of([[0.0, 3, 0, 0, 3, 0], [1.0, 1, 1, 1, 1, 9]], ratios, half_life=1.0)
    by_product = points_of_rollouts(view, rule(), [planted()], [2])[0]
    by_entropy = points_of_rollouts(view, rule(branch_score="entropy"), [planted()], [2])[0]
    assert places(by_product) == [(0, 1), (1, 5)]  # token 4 is as uncertain, but nothing follows it
    assert places(by_entropy) == [(0, 1), (1, 5)]  # a tie, which goes to the earlier one
    later = view_of([[0.0, 3, 0, 0, 3.5, 0], [1.0, 1, 1, 1, 1, 9]], ratios, half_life=1.0)
    assert places(points_of_rollouts(later, rule(), [planted()], [2])[0])[0] == (0, 1)
    assert places(points_of_rollouts(later, rule(branch_score="entropy"), [planted()], [2])[0])[0] == (0, 4)


def test_what_one_rollout_cannot_use_goes_to_the_others_of_its_prompt_alone():
    # Row 1 of the first prompt is flat. Of the second prompt, every token would be a fine point.
    view = view_of([[0.0, 5, 4, 0], [1.0, 1, 1, 1], [9.0, 8, 0, 0], [9.0, 8, 0, 0]])
    trees = [planted(width=4), planted(width=4, name="q")]
    first, second = points_of_rollouts(view, rule(), trees, [2, 2])
    assert places(first) == [(0, 1), (0, 2)]
    assert places(second) == [(0, 0), (1, 0)]


def test_slack_goes_to_tokens_that_are_no_candidates_only_when_those_run_out_and_is_lost_in_the_end():
    # Candidates: (0, 0) alone. Then by entropy: (1, 2), blank; (0, 1) and (1, 0) to (1, 3) hold 2, 1, 1, 1.
    view = view_of(
        [[9.0, 2, 0, 0], [1.0, 1, 1, 1]], sampled=[[1, 1, 1, 0], [1, 1, 1, 1]], blank=[[0, 0, 1, 0], [0, 0, 1, 0]]
    )
    (points,) = points_of_rollouts(view, rule(branches_per_rollout=2), [planted(width=4)], [2])
    assert places(points) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    (all_of_them,) = points_of_rollouts(view, rule(branches_per_rollout=9), [planted(width=4)], [2])
    assert places(all_of_them) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 3)]  # 18 asked for, 5 there


def test_where_a_branch_of_this_phase_starts_no_other_does_but_those_of_an_earlier_phase_do_not_count():
    view = view_of([[0.0, 5, 4, 0, 0, 0], [0.0, 0, 0, 6, 5, 0]])
    tree = planted(branches=[(0, 1), (1, 3)])
    (fresh,) = points_of_rollouts(view, rule(), [tree], [4])
    assert places(fresh) == [(0, 1), (1, 3)]
    (second_round,) = points_of_rollouts(view, rule(), [tree], [2])
    assert places(second_round) == [(0, 2), (1, 4)]
    (between,) = points_of_rollouts(view, rule(), [tree], [3])
    assert places(between) == [(0, 1), (1, 4)]
    assert fresh[0].score > second_round[0].score > 0


def test_taken_points_are_no_slack_either():
    view = view_of([[9.0, 1.0], [1.0, 1.0]])
    tree = planted(width=2, branches=[(0, 0), (1, 0)])
    (points,) = points_of_rollouts(view, rule(branches_per_rollout=5), [tree], [2])
    assert places(points) == [(0, 1), (1, 1)]


def test_a_prompt_without_sampled_tokens_has_no_points_and_does_not_disturb_its_neighbour():
    view = view_of([[5.0, 0], [5.0, 0], [0.0, 5], [5.0, 0]], sampled=[[0, 0], [0, 0], [1, 1], [1, 1]])
    trees = [planted(width=2), planted(width=2, name="q")]
    nothing, something = points_of_rollouts(view, rule(), trees, [2, 2])
    assert nothing == [] and places(something) == [(0, 1), (1, 0)]


def test_a_rollout_that_is_masked_out_gives_its_points_to_the_others():
    view = view_of([[0.0, 5, 4, 0], [9.0, 9, 0, 0]], sampled=[[1, 1, 1, 1], [0, 0, 0, 0]])
    assert places(points_of_rollouts(view, rule(), [planted(width=4)], [2])[0]) == [(0, 1), (0, 2)]


def test_without_branches_there_are_no_points():
    view = view_of([[0.0, 5], [5.0, 0]])
    assert points_of_rollouts(view, rule(branches_per_rollout=0), [planted(width=2)], [2]) == [[]]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_groups_may_stand_in_any_order_and_parents_are_positions_in_their_own_tree(order):
    entropies = [[[0.0, 5, 1], [4.0, 0, 1]], [[7.0, 0, 1], [0.0, 1, 9]], [[0.0, 2, 8], [0.0, 3, 1]]]
    trees = [planted(width=3, branches=[(0, 1)]), planted(width=3, name="q"), planted(width=3, name="r")]
    expected = {0: [(0, 2), (1, 0)], 1: [(0, 0), (1, 2)], 2: [(0, 2), (1, 1)]}  # (0, 1) of the first tree is taken
    view = view_of(
        [row for number in order for row in entropies[number]],
        rows=[2 * number + place for number in order for place in range(2)],
    )
    chosen = points_of_rollouts(view, rule(), [trees[number] for number in order], [2] * 3)
    assert [places(points) for points in chosen] == [expected[number] for number in order]


# --- a tool result changes nothing


def laid_out(rows, gaps, fill, padding):
    """
    A view of rows of (entropy, log-ratio, blank), with `gaps[r][i]` tool tokens before the i-th token of row r, all
    of which hold `fill`, and the index of each sampled token.
    """
    width = max(len(row) + sum(lengths) for row, lengths in zip(rows, gaps, strict=True)) + padding
    shape = (len(rows), width)
    tensors = [torch.full(shape, fill), torch.full(shape, fill), torch.zeros(shape), torch.ones(shape)]
    index = [[] for _ in rows]
    for row, (tokens, lengths) in enumerate(zip(rows, gaps, strict=True)):
        place = 0
        for token, gap in zip(tokens, lengths, strict=True):
            place += gap
            for tensor, value in zip(tensors, (token[0], token[1], 1.0, float(token[2])), strict=True):
                tensor[row, place] = value
            index[row].append(place)
            place += 1
    entropies, log_ratios, sampled, blank = tensors
    values = future_values(log_ratios, sampled.bool(), 2.0 ** (-1.0 / 4.0))
    return PolicyView(list(range(len(rows))), sampled.bool(), blank.bool(), log_ratios, entropies, values), index


def by_rank(rows, gaps, fill=0.0, padding=0, order=(0, 1)):
    """Chosen points, as (row, number of the sampled token, score), prompts and rows in their first order."""
    ordered = [row for prompt in order for row in rows[2 * prompt : 2 * prompt + 2]]
    of_rows = [gap for prompt in order for gap in gaps[2 * prompt : 2 * prompt + 2]]
    view, index = laid_out(ordered, of_rows, fill, padding)
    width = view.entropies.size(1)
    trees = [planted(width=width, name=str(prompt)) for prompt in order]
    chosen = points_of_rollouts(view, rule(branches_per_rollout=2), trees, [2, 2])
    return {
        prompt: [
            (point.parent, index[2 * place + point.parent].index(point.position), point.score) for point in of_tree
        ]
        for place, (prompt, of_tree) in enumerate(zip(order, chosen, strict=True))
    }


def test_a_longer_or_earlier_tool_result_changes_no_score_and_no_token():
    rows = [[(0.0, 0.1, False), (3.0, 0.0, False), (1.0, 0.4, False), (0.5, -0.2, False)]] * 2
    rows = [*rows, *[row[::-1] for row in rows]]
    plain = by_rank(rows, [[0, 0, 0, 0]] * 4)
    assert {(row, token) for row, token, _ in plain[0]} == {(0, 1), (0, 2), (1, 1), (1, 2)}
    assert by_rank(rows, [[0, 0, 1, 0]] * 4) == plain
    assert by_rank(rows, [[0, 0, 50, 0]] * 4, fill=math.nan) == plain  # fifty times as long, and full of NaN
    assert by_rank(rows, [[0, 50, 0, 0]] * 4, fill=9.0) == plain  # moved
    assert by_rank(rows, [[0, 0, 0, 0]] * 4, padding=20, order=(1, 0)) == plain


tokens = st.tuples(st.floats(0, 4, width=32), st.floats(-0.5, 0.5, width=32), st.booleans())


def test_a_tie_between_rows_does_not_go_by_the_length_of_a_tool_result():
    flat = (0.0, 0.0, False)
    rows = [[], [], [flat] * 5, [flat]]
    plain = by_rank(rows, [[], [], [0] * 5, [0]])
    assert {(row, token) for row, token, _ in plain[1]} == {(0, 0), (0, 1), (0, 2), (1, 0)}
    assert by_rank(rows, [[], [], [0] * 5, [3]]) == plain


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(tokens, min_size=0, max_size=7), min_size=4, max_size=4),
    data=st.data(),
    fill=st.sampled_from([0.0, 7.5, math.nan, math.inf]),
    padding=st.integers(0, 5),
    order=st.sampled_from([(0, 1), (1, 0)]),
)
def test_length_place_and_content_of_tool_results_padding_and_batch_order_change_nothing(
    rows, data, fill, padding, order
):
    gaps = [[data.draw(st.integers(0, 3)) for _ in row] for row in rows]
    plain = by_rank(rows, [[0] * len(row) for row in rows], padding=1)
    assert by_rank(rows, gaps, fill, padding, order) == plain
    for prompt, points in plain.items():
        chosen = [(row, token) for row, token, _ in points]
        free = sum(not blank for row in rows[2 * prompt : 2 * prompt + 2] for _, _, blank in row)
        assert len(chosen) == len(set(chosen)) == min(4, free)
        assert not any(rows[2 * prompt + row][token][2] for row, token in chosen)


# --- points of branches


def branch_of(parent: Trajectory, place: int, fork: int, entropies, first_token=50, gaps=()) -> Trajectory:
    """A child with tokens of its own, one segment each; those in `gaps` (positions) are tool results."""
    parts = list(cut(parent.segments, fork))
    for position, value in enumerate(entropies, start=fork):
        token = (first_token + position,)
        if position in gaps:
            parts.append(Segment(token, False, results=(ToolResult(ToolCall("search"), "x"),)))
        else:
            parts.append(Segment(token, True, (-1.0,), None if value is None else (value,)))
    return Trajectory(tuple(parts), Status.FINISHED, Kind.BRANCH, place, fork)


def certain(num_tokens: int) -> Trajectory:
    parts = tuple(Segment((token,), True, (-1.0,), (9.0,)) for token in range(num_tokens))
    return Trajectory(parts, Status.FINISHED)


def grown(*children, width=4) -> BranchTree:
    """An initial rollout whose tokens all have entropy 9, and children given as (parent, fork, entropies, options)."""
    trajectories = [certain(width)]
    for parent, fork, entropies, *options in children:
        trajectories.append(branch_of(trajectories[parent], parent, fork, entropies, **dict(*options)))
    return BranchTree("p", (1,), tuple(trajectories))


def test_a_branch_is_branched_from_in_its_own_tokens_at_the_highest_entropies_among_them():
    # Own entropies 1, 2, 6: mean 3, biased deviation sqrt(14/3). The parent's 9s before the fork are no matter.
    tree = grown((0, 2, [1.0, 2.0, 6.0]))
    points = points_of_branches(tree, 1, NOT_BLANK, 1)
    assert places(points) == [(1, 4)]
    assert points[0].score == pytest.approx(3 / math.sqrt(14 / 3), rel=1e-6)


def test_where_a_branch_itself_starts_it_is_not_branched_from_again():
    tree = grown((0, 2, [8.0, 5.0, 0.0]))  # the first token is where the policy was uncertain: that is why it is here
    assert places(points_of_branches(tree, 1, NOT_BLANK, 1)) == [(1, 3)]
    assert places(points_of_branches(tree, 1, NOT_BLANK, 9)) == [(1, 3), (1, 4)]


def test_results_and_blank_tokens_of_a_branch_are_not_chosen():
    tree = grown((0, 1, [0.0, None, 5.0, 4.0, 1.0], {"gaps": [2]}))  # tokens 51 … 55 at the positions 1 … 5
    assert places(points_of_branches(tree, 1, NOT_BLANK, 9)) == [(1, 3), (1, 4), (1, 5)]
    blank = NOT_BLANK.clone()
    blank[53] = True
    assert places(points_of_branches(tree, 1, blank, 9)) == [(1, 4), (1, 5)]


def test_a_token_whose_entropy_the_engine_did_not_tell_is_no_certain_one():
    tree = grown((0, 1, [1.0, None, None, 3.0, 2.0]))
    points = points_of_branches(tree, 1, NOT_BLANK, 9)
    assert places(points) == [(1, 4), (1, 5)]
    assert points[0].score == pytest.approx(1 / math.sqrt(2 / 3), rel=1e-6)  # of 1, 3, 2 alone
    assert points_of_branches(grown((0, 1, [None] * 5)), 1, NOT_BLANK, 9) == []


def test_slack_stays_among_the_branches_of_the_prompt():
    tree = grown((0, 1, [1.0, 1.0]), (0, 2, [0.0, 5.0, 4.0, 0.0]))
    points = points_of_branches(tree, 1, NOT_BLANK, 1)
    assert places(points) == [(2, 3), (2, 4)]  # the first branch is flat


def test_branches_of_branches_are_branched_from_and_where_they_start_is_taken():
    # 1 grows from 0 at 2; 2 grows from 1 at 4, its most uncertain token.
    tree = grown((0, 2, [0.0, 3.0, 7.0]), (1, 4, [0.0, 2.0, 6.0]))
    assert places(points_of_branches(tree, 1, NOT_BLANK, 1)) == [(1, 3), (2, 6)]
    # One phase later, only what the latest branch has sampled itself counts, and nothing is taken.
    assert places(points_of_branches(tree, 2, NOT_BLANK, 9)) == [(2, 6), (2, 5)]


def test_branches_that_end_where_they_start_have_no_points():
    tree = grown((0, 4, []), (0, 0, [1.0]))
    assert points_of_branches(tree, 1, NOT_BLANK, 3) == []
    assert points_of_branches(grown(), 1, NOT_BLANK, 3) == []


def test_a_point_is_a_fact_that_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Point(0, 1, 0.5).position = 2
