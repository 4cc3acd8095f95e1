"""APPO on two data-parallel ranks: the same collective calls whatever each can branch from, and one set of weights."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from appo_two_processes import STILL, engine
from tiny import appo_trainer

HERE = Path(__file__).resolve().parent
NAMES = pytest.mark.parametrize("name", ["barren", "fertile"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Output directory of three runs: in `barren`, rank 1 has no token to branch at; `still` learns nothing."""
    folder = tmp_path_factory.mktemp("appo_ranks")
    environment = os.environ | {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}", "OMP_NUM_THREADS": "1"}
    # `--multi_gpu` is how accelerate says "several processes"; `use_cpu` in the arguments keeps them on the CPU
    flags = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "accelerate.commands.launch",
            *flags.split(),
            "--num_cpu_threads_per_process",
            "1",
            str(HERE / "appo_two_processes.py"),
            str(folder),
        ],
        capture_output=True,
        text=True,
        timeout=540,
        env=environment,
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
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
