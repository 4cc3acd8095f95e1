"""Rewards of the rows of one process, and the rows of `trajectories.parquet` that they stand in."""

import math
from types import SimpleNamespace

import pytest
import torch

from trl_agentic.trainers.keep_trajectories import scored_rows
from trl_agentic.trainers.scores import Scores
from trl_agentic.types import BranchTree, Kind, Segment, Status, Trajectory

NAN = math.nan


def process(index: int, weights=(1.0, 1.0), processes: int = 2):
    """As much of a trainer as rewards need."""
    accelerator = SimpleNamespace(num_processes=processes, process_index=index)
    return SimpleNamespace(accelerator=accelerator, reward_weights=torch.tensor(weights))


GATHERED = torch.tensor([[1.0, 2.0], [NAN, 3.0], [4.0, NAN], [NAN, NAN]])


def test_each_process_takes_its_own_rows_and_weighs_them():
    first, second = (Scores.of(process(index, (1.0, 0.5)), GATHERED) for index in (0, 1))
    assert first.by_function.tolist()[0] == [1.0, 2.0] and first.weighted.tolist() == [2.0, 1.5]
    assert second.by_function[0].tolist()[0] == 4.0
    assert second.weighted[0] == 4.0


def test_a_row_that_no_function_scored_has_no_reward_rather_than_zero():
    alone = Scores.of(process(0, processes=1), GATHERED)
    assert alone.weighted.isnan().tolist() == [False, False, False, True]
    assert alone.weighted[:3].tolist() == [3.0, 3.0, 4.0]
    assert Scores.of(process(0, (0.0, 0.0), processes=1), GATHERED).weighted.tolist()[:3] == [0.0, 0.0, 0.0]


def test_scores_are_cut_and_joined_in_both_parts_together():
    alone = Scores.of(process(0, processes=1), GATHERED)
    head, tail = alone[0:1], alone[2:3]
    assert head.by_function.tolist() == [[1.0, 2.0]] and head.weighted.tolist() == [3.0]
    joined = head.joined(tail)
    assert joined.weighted.tolist() == [3.0, 4.0] and joined.by_function.shape == (2, 2)
    assert joined.by_function[1, 0] == 4.0 and joined.by_function[1, 1].isnan()
    assert head.weighted.tolist() == [3.0]  # joining makes a new one
    empty = head.joined(alone[4:])  # a prompt without branches
    assert empty.weighted.tolist() == [3.0] and empty.by_function.tolist() == [[1.0, 2.0]]


# --- rows of the file


def trajectory(num_tokens: int, status=Status.FINISHED, parent=None, fork=0) -> Trajectory:
    kind = Kind.INITIAL if parent is None else Kind.BRANCH
    parts = (Segment(tuple(range(num_tokens)), True, (-1.0,) * num_tokens),) if num_tokens else ()
    return Trajectory(parts, status, kind, parent, fork)


def tree(*trajectories: Trajectory, name="p") -> BranchTree:
    return BranchTree(name, (1,), trajectories)


def rows_of(trees, advantages, masks=False, firsts=None, functions=("f", "g")):
    count = sum(len(tree.trajectories) for tree in trees) - sum(firsts or [])
    by_function = torch.arange(count * len(functions), dtype=torch.float32).view(count, len(functions))
    owner = SimpleNamespace(args=SimpleNamespace(mask_truncated_completions=masks), reward_func_names=list(functions))
    scores = Scores(by_function, by_function.sum(dim=1) if functions else torch.full((count,), NAN))
    messages = [[{"role": "assistant", "content": str(number)}] for number in range(count)]
    return scored_rows(owner, trees, messages, scores, advantages, 7, 3, firsts)


def test_every_token_of_a_row_has_its_advantage_and_the_row_its_rewards():
    rows = rows_of([tree(trajectory(2), trajectory(3)), tree(trajectory(1), name="q")], torch.tensor([0.5, -1.0, 2.0]))
    assert [row["advantages"] for row in rows] == [[0.5, 0.5], [-1.0, -1.0, -1.0], [2.0]]
    assert [row["reward"] for row in rows] == [1.0, 5.0, 9.0]
    assert [row["rewards"] for row in rows] == [{"f": 0.0, "g": 1.0}, {"f": 2.0, "g": 3.0}, {"f": 4.0, "g": 5.0}]
    assert [(row["prompt_id"], row["trajectory"]) for row in rows] == [("p", 0), ("p", 1), ("q", 0)]
    assert {(row["step"], row["model_version"]) for row in rows} == {(7, 3)}
    assert [row["messages"][0]["content"] for row in rows] == ["0", "1", "2"]


def test_advantages_of_tokens_lose_their_padding():
    advantages = torch.tensor([[0.5, 1.0, 9.0, 9.0], [1.0, 2.0, 3.0, 9.0]])
    rows = rows_of([tree(trajectory(2), trajectory(3))], advantages)
    assert [row["advantages"] for row in rows] == [[0.5, 1.0], [1.0, 2.0, 3.0]]


@pytest.mark.parametrize("status", Status)
def test_a_row_that_a_budget_cut_off_has_no_advantages_where_such_rows_are_masked(status):
    trees = [tree(trajectory(2), trajectory(2, status))]
    is_masked = status in (Status.TRUNCATED, Status.DEADLINE, Status.ERROR)
    rows = rows_of(trees, torch.tensor([0.5, 1.0]), masks=True)
    assert [row["advantages"] for row in rows] == [[0.5, 0.5], None if is_masked else [1.0, 1.0]]
    assert [row["advantages"] for row in rows_of(trees, torch.tensor([0.5, 1.0]))] == [[0.5, 0.5], [1.0, 1.0]]


def test_rows_that_are_not_trained_have_rewards_but_no_advantages():
    rows = rows_of([tree(trajectory(2), trajectory(3, parent=0, fork=1))], None)
    assert [row["advantages"] for row in rows] == [None, None]
    assert [row["reward"] for row in rows] == [1.0, 5.0]


def test_what_is_left_out_at_the_beginning_shifts_nothing():
    trees = [
        tree(trajectory(2), trajectory(2), trajectory(3, parent=1, fork=1)),
        tree(
            trajectory(1), trajectory(4, parent=0, fork=1), trajectory(5, Status.TRUNCATED, parent=1, fork=2), name="q"
        ),
    ]
    rows = rows_of(trees, None, firsts=[2, 1])
    places = [(row["prompt_id"], row["trajectory"], row["parent"], row["fork"]) for row in rows]
    assert places == [("p", 2, 1, 1), ("q", 1, 0, 1), ("q", 2, 1, 2)]
    assert [row["messages"][0]["content"] for row in rows] == ["0", "1", "2"]
    assert [row["reward"] for row in rows] == [1.0, 5.0, 9.0]
    trained = rows_of(trees, torch.tensor([0.5, 1.0, 2.0]), masks=True, firsts=[2, 1])
    assert [row["advantages"] for row in trained] == [[0.5] * 3, [1.0] * 4, None]
    assert rows_of(trees, None, firsts=[3, 3]) == []
    assert [row["trajectory"] for row in rows_of(trees, None, firsts=[3, 2])] == [2]


def test_a_rollout_without_tokens_and_a_run_without_reward_functions_have_rows_too():
    (row,) = rows_of([tree(trajectory(0, Status.ERROR))], torch.tensor([0.5]), functions=())
    assert (row["advantages"], row["reward"], row["rewards"], row["completion_ids"]) == ([], None, {}, [])
