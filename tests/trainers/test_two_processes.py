"""Data-parallel ranks: no deadlock, groups intact, one set of weights."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Output directory of two steps on two processes."""
    folder = tmp_path_factory.mktemp("ranks")
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
            str(HERE / "two_processes.py"),
            str(folder),
        ],
        capture_output=True,
        text=True,
        timeout=540,
        env=environment,
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
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
