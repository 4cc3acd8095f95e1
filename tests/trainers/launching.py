"""Scripts beside the tests, run as a user runs them: in processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
# `--multi_gpu` is how accelerate says "several processes"; `use_cpu` in the arguments keeps them on the CPU
TWO_PROCESSES = (
    "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no "
    "--dynamo_backend no --num_cpu_threads_per_process 1"
).split()
TWO_SHARDS = "-m torch.distributed.run --standalone --nproc_per_node 2".split()
RECIPE = HERE.parents[1] / "configs" / "accelerate" / "fsdp2_8gpu.yaml"
# What `accelerate launch --config_file` makes of our recipe for 8 GPUs, which it does not do for CPUs
FSDP2 = {name.upper(): str(value) for name, value in yaml.safe_load(RECIPE.read_text())["fsdp_config"].items()} | {
    "ACCELERATE_USE_FSDP": "true",
    "ACCELERATE_USE_CPU": "true",
    "ACCELERATE_MIXED_PRECISION": "bf16",
}


def run_script(
    name: str,
    folder: Path,
    launcher: Sequence[str] = (),
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """What a script of this folder prints, given a folder to write to; an assertion if it fails."""
    process = subprocess.run(
        [sys.executable, *launcher, str(HERE / name), str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}", "OMP_NUM_THREADS": "1", **environment},
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-8000:]
    return process.stdout


def measured_by(name: str, folder: Path, **how: Any) -> Any:
    """The figures that a script prints in a line of their own."""
    (line,) = [line for line in run_script(name, folder, **how).splitlines() if line.startswith("FIGURES ")]
    return json.loads(line.removeprefix("FIGURES "))
