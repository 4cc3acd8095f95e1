#!/usr/bin/env python
"""
Check a machine with GPUs in about ten minutes, and print what can be pasted into an issue.

    python scripts/check_gpu.py
    python scripts/check_gpu.py --only log_probs lora
    python scripts/check_gpu.py --model path/to/model

Uses the tiny model of the package unless told otherwise. Each check prints one line; a failure stops no other, and
neither does a process that dies or hangs: checks run in a few processes, one after another. The exit code is 1 when
one failed. What needs a GPU is skipped on a machine without.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from check_report import Check, Result, exit_code, markdown, read_results, without_result

TIMEOUT_S = 300  # for the checks of one process
ON_ALL_GPUS = ("machine", "fsdp2")  # groups; others would train with `DataParallel` if they saw more than one
ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these checks alone")
    parser.add_argument("--model", metavar="PATH", help="another model than the tiny one of the package")
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def chosen(checks: Sequence[Check], names: Sequence[str] | None) -> list[Check]:
    """
    The checks to make, in their order.

    Raises:
        SystemExit: If a name is unknown.
    """
    known = [check.name for check in checks]
    if unknown := sorted(set(names or ()) - set(known)):
        raise SystemExit(f"There is no check {', '.join(unknown)}. `--only` takes {', '.join(known)}.")
    return [check for check in checks if names is None or check.name in names]


def environment_for(group: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What the process of a group inherits; one GPU, the first that is visible, unless it is about all of them."""
    first = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    one_gpu = {} if group in ON_ALL_GPUS else {"CUDA_VISIBLE_DEVICES": first}
    return ENVIRONMENT | dict(environment) | one_gpu


def run_process(
    command: Sequence[str], checks: Sequence[Check], environment: Mapping[str, str], timeout_s: float
) -> Iterator[Result]:
    """
    Results of a process that makes these checks; where it ends early, failures that say how.

    Args:
        command (`Sequence[str]`):
            Prints results as [`~check_report.Result.dump`] writes them.
        checks (`Sequence[Check]`):
            What it is to make.
        environment (`Mapping[str, str]`):
            Its environment variables.
        timeout_s (`float`):
            Seconds until it is killed.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            process = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, timeout=timeout_s, env=environment
            )
            ended = f"the process ended with code {process.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"the process was killed after {timeout_s:g} s"
        output.seek(0)
        lines = output.read().splitlines()
    results = {result.name: result for result in read_results(lines)}
    last = next((line for line in reversed(lines) if line.strip()), "nothing was printed")
    yield from results.values()
    yield from without_result(checks, results, f"{ended}: {last}")


def run_all(checks: Sequence[Check], model: str | None) -> Iterator[Result]:
    """Make the checks, those of each group in a process of its own."""
    for group, grouped in groupby(checks, key=lambda check: check.group):
        members = list(grouped)
        command = [sys.executable, str(Path(__file__).resolve()), "--process"]
        command += ["--only", *(check.name for check in members), *(["--model", model] if model else [])]
        yield from run_process(command, members, environment_for(group, os.environ), TIMEOUT_S)


def main() -> int:
    """Check, print, and say by the exit code whether all is well."""
    args = parse_args()
    from checked_machine import Machine
    from gpu_checks import CHECKS

    checks = chosen(CHECKS, args.only)
    if args.process:
        with tempfile.TemporaryDirectory() as folder:
            machine = Machine(Path(folder), args.model)
            for check in checks:
                print(check.run(machine).dump(), flush=True)
        return 0
    results = []
    for result in run_all(checks, args.model):
        print(result, flush=True)
        results.append(result)
    print("\n" + markdown(results))
    return exit_code(results)


if __name__ == "__main__":
    sys.exit(main())
