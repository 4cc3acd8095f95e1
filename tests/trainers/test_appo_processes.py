"""APPO on two data-parallel ranks: the same collective calls whatever each can branch from, and one set of weights."""

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from appo_two_processes import STILL, engine, moving
from launching import TWO_PROCESSES, run_script
from tiny import appo_trainer

HERE = Path(__file__).resolve().parent
NAMES = pytest.mark.parametrize("name", ["barren", "fertile"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Output directory of four runs: in `barren`, rank 1 has no token to branch at; `still` learns nothing."""
    folder = tmp_path_factory.mktemp("appo_ranks")
    run_script("appo_two_processes.py", folder, TWO_PROCESSES)
    return folder


def figures(folder):
    return json.loads((folder / "figures.json").read_text())


def table(folder):
    return pq.read_table(folder / "trajectories.parquet").to_pylist()


def trees(folder):
    """The rows of each prompt."""
    by_prompt = {}
    for row in pq.read_table(folder / "trajectories.parquet").to_pylist():
        by_prompt.setdefault(row["prompt_id"], []).append(row)
    return by_prompt


def test_a_rank_without_any_branch_point_does_not_keep_the_other_waiting(runs):
    first, second = figures(runs / "barren")
    assert first["branches"] == [12] * 6 and second["branches"] == [0] * 6
    assert first["missing"] == [0.5] * 6  # of the branches of both ranks together


@NAMES
def test_both_ranks_end_with_the_same_weights(runs, name):
    first, second = figures(runs / name)
    assert first["weights"] == second["weights"]


@NAMES
def test_each_ranks_advantages_follow_from_its_own_trees_and_rewards(runs, name):
    ranks = figures(runs / name)
    assert [len(rank["differences"]) for rank in ranks] == [6, 6]
    assert all(difference < 1e-3 for rank in ranks for difference in rank["differences"])


@pytest.mark.parametrize(("name", "branches"), [("barren", {"0": 12, "1": 0}), ("fertile", {"0": 12, "1": 12})])
def test_the_rows_of_both_ranks_are_kept(runs, name, branches):
    trained = Counter()
    for prompt_id, rows in trees(runs / name).items():
        rank = prompt_id.split("-")[1]
        is_trained = rows[0]["advantages"] is not None
        assert [row["trajectory"] for row in rows] == list(range(len(rows)))
        assert len(rows) - 4 == (branches[rank] if is_trained else 0)
        trained[rank, is_trained] += 1
    # two generations of four prompts on each rank, of which the second was cut off after two
    assert trained == {("0", True): 6, ("0", False): 2, ("1", True): 6, ("1", False): 2}


def test_a_prompt_gets_the_same_branches_and_advantages_on_one_process_and_on_two(runs, tmp_path):
    ours = appo_trainer(tmp_path, engine(is_barren=False), **STILL)
    ours.train()
    alone, together = (
        {tuple(rows[0]["prompt_ids"]): rows for rows in trees(folder).values()}
        for folder in (tmp_path, runs / "still")
    )
    assert len(alone) == 8 and alone.keys() == together.keys()
    for prompt, rows in alone.items():
        assert len(rows) == 16
        for row, other in zip(rows, together[prompt], strict=True):
            for name in ("kind", "parent", "fork", "completion_ids", "status"):
                assert row[name] == other[name]
            assert row["reward"] == pytest.approx(other["reward"])
            assert sampled(row["advantages"]) == pytest.approx(sampled(other["advantages"]), rel=1e-3)


def sampled(advantages):
    """Those of the sampled tokens; none for a branch."""
    return [value for value in advantages or [] if value is not None]


# --- a policy that moves: each optimizer step holds the same prompts on one process and on two


@pytest.fixture(scope="module")
def alone_and_together(runs, tmp_path_factory):
    """The same run on one process, and on two with half the rows each."""
    return (
        [moving(tmp_path_factory.mktemp("alone"), per_device_train_batch_size=8)],
        torch.load(runs / "moving" / "figures.pt"),
    )


def prompts_of_step(ranks, number):
    """What an optimizer step made of each prompt, on whichever rank it was."""
    merged = {}
    for rank in ranks:
        assert not merged.keys() & rank["steps"][number].keys()
        merged |= rank["steps"][number]
    return merged


@pytest.mark.parametrize("number", range(4))
def test_an_optimizer_step_branches_alike_and_gives_the_same_credit_on_one_process_and_on_two(
    alone_and_together, number
):
    alone, together = (prompts_of_step(ranks, number) for ranks in alone_and_together)
    assert len(alone) == 4 and alone.keys() == together.keys()
    for prompt, ours in alone.items():
        theirs = together[prompt]
        assert len(ours["points"]) == 8 and ours["points"] == theirs["points"]
        assert ours["branches"] == theirs["branches"] and ours["rewards"] == theirs["rewards"]
        for name in ("log_ratios", "advantages"):
            for row, other in zip(ours[name], theirs[name], strict=True):
                torch.testing.assert_close(row, other, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("number", [1, 3])
def test_in_the_second_iteration_the_policy_has_moved_and_tokens_of_a_row_differ(alone_and_together, number):
    for ranks in alone_and_together:
        prompts = prompts_of_step(ranks, number).values()
        assert all(row.abs().max() > 0.01 for prompt in prompts for row in prompt["log_ratios"])
        assert sum(bool(row.max() - row.min() > 0.01) for prompt in prompts for row in prompt["advantages"]) >= 2
    first, second = (prompts_of_step(alone_and_together[0], step) for step in (number - 1, number))
    assert any(first[prompt]["points"] != second[prompt]["points"] for prompt in first)


def test_the_weights_after_two_generations_differ_by_the_order_of_sums_alone(alone_and_together):
    """They have moved by between 1e-4 and 0.3, and lie 3e-8 apart."""
    (alone,), (first, second) = alone_and_together
    for name, value in alone["weights"].items():
        assert torch.equal(first["weights"][name], second["weights"][name])
        torch.testing.assert_close(value, first["weights"][name], rtol=0.0, atol=1e-6)
