"""Data-parallel ranks: no deadlock, groups intact, one set of weights."""

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest
from launching import TWO_PROCESSES, run_script


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Output directory of two steps on two processes."""
    folder = tmp_path_factory.mktemp("ranks")
    run_script("two_processes.py", folder, TWO_PROCESSES)
    return folder


def test_ranks_with_unequal_turns_do_not_wait_for_each_other(run):
    ranks = json.loads((run / "figures.json").read_text())
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert all(len(rank["turns"]) == 2 for rank in ranks)
    assert sum(ranks[0]["turns"]) != sum(ranks[1]["turns"])


def test_both_ranks_end_with_the_same_weights(run):
    first, second = json.loads((run / "figures.json").read_text())
    assert first["weights"] == second["weights"]


def test_groups_are_whole_and_both_ranks_rollouts_are_kept(run):
    table = pq.read_table(run / "trajectories.parquet").to_pylist()
    sizes = Counter(row["prompt_id"] for row in table)
    assert set(sizes.values()) == {4} and len(sizes) == 8
    assert {prompt_id.split("-")[1] for prompt_id in sizes} == {"0", "1"}
    for prompt_id in sizes:
        rows = [row for row in table if row["prompt_id"] == prompt_id]
        assert len({tuple(row["prompt_ids"]) for row in rows}) == 1
