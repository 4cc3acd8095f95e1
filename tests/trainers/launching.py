"""Scripts beside the tests, run as a user runs them: in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# `--multi_gpu` is how accelerate says "several processes"; `use_cpu` in the arguments keeps them on the CPU
TWO_PROCESSES = (
    "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no "
    "--dynamo_backend no --num_cpu_threads_per_process 1"
).split()


def run_script(name: str, folder: Path, launcher: list[str] | None = None) -> str:
    """What a script of this folder prints, given a folder to write to; an assertion if it fails."""
    process = subprocess.run(
        [sys.executable, *(launcher or []), str(HERE / name), str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}", "OMP_NUM_THREADS": "1"},
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
    return process.stdout


def measured_by(name: str, folder: Path) -> dict:
    """The figures that a script prints in a line of their own."""
    (line,) = [line for line in run_script(name, folder).splitlines() if line.startswith("FIGURES ")]
    return json.loads(line.removeprefix("FIGURES "))
