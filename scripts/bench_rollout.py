#!/usr/bin/env python
"""
Compare rollout loops over the same colocated vLLM: TRL's own, a barrier with a thread pool, and ours.

    python scripts/bench_rollout.py --model tiny --output_dir runs/bench_rollout
    python scripts/export_smollm2.py runs/smollm2
    python scripts/bench_rollout.py --model runs/smollm2 --output_dir runs/bench_rollout_smollm2

All loops get the same prompts, 64 rollouts of 1 to 4 turns of 16 to 96 tokens, and the same tool latencies
(log-normal, sigma 0.8). No loop can beat the bound: the larger of the engine's time with free tools, in the loop that
needs least, and the longest rollout's own time (its tokens times the median step of our loop, and its latencies).
Figures are medians over workloads, ratios are taken workload by workload; run it alone. Writes `results.json`,
`results.md` and `results.png`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.table import Table
from rollout_arms import BLOCK_SIZE, Bench, build, checkpoint, run_barrier, run_generate, run_ours, run_trl
from rollout_workload import Meter, Workload, make_workload

from trl_agentic.rollout.policy import EntropyBranching
from trl_agentic.types import BranchTree

ARMS = {"trl": "TRL's tool loop", "barrier": "barrier and pool", "ours": "events (ours)"}
GROUP_SIZE = 8
NUM_PROMPTS = 8
NUM_ROLLOUTS = NUM_PROMPTS * GROUP_SIZE
COLUMNS = [
    "tools",
    "loop",
    "seconds",
    "rollouts/s",
    "tokens/s",
    "engine idle",
    "prefilled",
    "x TRL",
    "x barrier",
    "of bound",
]


def parse_args() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="'tiny', or the folder of a checkpoint")
    parser.add_argument(
        "--medians",
        type=float,
        nargs="+",
        default=[0.2, 1.0],
        help="median latencies in seconds; free tools are always measured",
    )
    parser.add_argument("--repeats", type=int, default=3, help="workloads, each run by every loop")
    parser.add_argument("--num_workers", type=int, default=64, help="tool calls at the same time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/bench_rollout"))
    return parser.parse_args()


def needed_tokens(trees: Sequence[BranchTree]) -> int:
    """Tokens that no cache can hold: each prompt and each result once."""
    results = sum(len(s) for tree in trees for t in tree.trajectories for s in t.segments if not s.sampled)
    return sum(len(tree.prompt_ids) for tree in trees) + results


def facts(meter: Meter, workload: Workload, needed: int) -> dict[str, float]:
    """One run in numbers."""
    assert meter.num_sampled_tokens == workload.num_sampled_tokens, "a loop did not run the workload"
    return {
        "wall_s": meter.wall_s,
        "busy_s": meter.busy_s,
        "median_step_s": statistics.median(meter.step_s),
        "rollouts_per_s": len(workload.rollouts) / meter.wall_s,
        "tokens_per_s": meter.num_sampled_tokens / meter.wall_s,
        "engine_idle_share": 1 - meter.busy_s / meter.wall_s,
        "prefilled_over_needed": meter.num_prefilled_tokens / needed,
    }


def run_once(bench: Bench, args: argparse.Namespace, median_s: float, seed: int, free_s: float | None) -> dict:
    """All loops on one workload, one after another, and its bound; `free_s` is the engine's time with free tools."""
    workload = make_workload(bench.tokenizer, NUM_PROMPTS, GROUP_SIZE, median_s, seed)
    ours, trees = run_ours(bench, workload, args.num_workers)
    meters = {
        "ours": ours,
        "barrier": run_barrier(bench, workload, args.num_workers),
        "trl": run_trl(bench, workload),
    }
    runs = {name: facts(meter, workload, needed_tokens(trees)) for name, meter in meters.items()}
    engine_s = min(run["busy_s"] for run in runs.values()) if free_s is None else free_s
    path_s = workload.critical_path_s(runs["ours"]["median_step_s"])
    seconds = ", ".join(f"{ARMS[name]} {run['wall_s']:.2f}" for name, run in runs.items())
    print(f"  {median_s:g} s tools, workload {seed}: {seconds}; bound {max(engine_s, path_s):.2f} s", flush=True)
    return {
        "seed": seed,
        "arms": runs,
        "engine_s": engine_s,
        "critical_path_s": path_s,
        "bound_s": max(engine_s, path_s),
    }


def measure_cases(bench: Bench, args: argparse.Namespace) -> dict[float, list[dict]]:
    """Every latency with the same workloads; free tools come first, since they say what the engine alone needs."""
    cases: dict[float, list[dict]] = {}
    for median_s in sorted({0.0, *args.medians}):
        cases[median_s] = []
        for repeat in range(args.repeats):
            free_s = cases[0.0][repeat]["engine_s"] if median_s else None
            cases[median_s].append(run_once(bench, args, median_s, args.seed + repeat, free_s))
    return cases


def measure_overhead(bench: Bench, args: argparse.Namespace) -> dict[str, Any]:
    """Our loop without a tool call against `LLM.generate` with and without text, entropies on in all, in turns."""
    workload = make_workload(bench.tokenizer, NUM_PROMPTS, GROUP_SIZE, 0.0, args.seed)
    last = [replace(turns[-1], num_tokens=96) for turns in workload.rollouts]
    workload = replace(workload, rollouts=[[turn] for turn in last])
    rounds = [
        {
            "tokens": run_generate(bench, workload, with_text=False).wall_s,
            "ours": run_ours(bench, workload, args.num_workers)[0].wall_s,
            "text": run_generate(bench, workload, with_text=True).wall_s,
        }
        for _ in range(3 * args.repeats)
    ]
    ratios = {name: sorted(each["ours"] / each[name] for each in rounds) for name in ("tokens", "text")}
    return {"rounds_s": rounds, "over_tokens": ratios["tokens"], "over_text": ratios["text"]}


def measure_branching(bench: Bench, args: argparse.Namespace) -> dict[str, Any]:
    """What branches prefill: at every tool result one child, as long as the budget lasts."""
    workload = make_workload(bench.tokenizer, NUM_PROMPTS, GROUP_SIZE, 0.0, args.seed)
    policy = EntropyBranching(
        initial_rollouts=GROUP_SIZE // 2,
        beam_size=2,
        window=10,
        vocab_size=len(bench.tokenizer),
        alpha=1.0,
        threshold=0.0,
    )
    meter, trees = run_ours(bench, workload, args.num_workers, policy)
    children = [
        (tree.prompt_id, number)
        for tree in trees
        for number, trajectory in enumerate(tree.trajectories)
        if trajectory.parent is not None
    ]
    first = [meter.prefilled[f"{prompt}/{number}/1"] for prompt, number in children]
    unique = sum(
        len(tree.prompt_ids) + sum(len(trajectory) - trajectory.fork for trajectory in tree.trajectories)
        for tree in trees
    )
    return {
        "num_branches": len(children),
        "block_size": BLOCK_SIZE,
        "most_tokens_prefilled_by_a_branch": max(first),
        "prefilled_tokens": meter.num_prefilled_tokens,
        "unique_tokens": unique,
        "prefilled_over_unique": meter.num_prefilled_tokens / unique,
    }


def middle(runs: list[dict], arm: str, name: str) -> float:
    """Median of a figure over the workloads."""
    return statistics.median(run["arms"][arm][name] for run in runs)


def ratio(runs: list[dict], above: str, below: str) -> str:
    """Seconds of one loop over those of another, workload by workload: median, and lowest to highest."""

    def seconds(run: dict, arm: str) -> float:
        return run["bound_s"] if arm == "bound" else run["arms"][arm]["wall_s"]

    return spread(sorted(seconds(run, above) / seconds(run, below) for run in runs))


def spread(ratios: list[float]) -> str:
    """Median of sorted ratios, and the lowest and highest where they differ."""
    around = f" ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios[0] != ratios[-1] else ""
    return f"{statistics.median(ratios):.2f}{around}"


def case_rows(median_s: float, runs: list[dict]) -> list[list[str]]:
    """Table rows of one latency."""
    tools = f"{median_s:g} s" if median_s else "free"
    rows = [
        [
            tools,
            title,
            f"{middle(runs, name, 'wall_s'):.2f}",
            f"{middle(runs, name, 'rollouts_per_s'):.2f}",
            f"{middle(runs, name, 'tokens_per_s'):.0f}",
            f"{100 * middle(runs, name, 'engine_idle_share'):.0f} %",
            f"{middle(runs, name, 'prefilled_over_needed'):.2f}",
            ratio(runs, "trl", name),
            ratio(runs, "barrier", name),
            ratio(runs, "bound", name),
        ]
        for name, title in ARMS.items()
    ]
    by_engine = sum(run["engine_s"] >= run["critical_path_s"] for run in runs)
    title = f"bound (engine in {by_engine} of {len(runs)}, else longest rollout)"
    bound_s = statistics.median(run["bound_s"] for run in runs)
    speedups = [ratio(runs, "trl", "bound"), ratio(runs, "barrier", "bound")]
    return [*rows, [tools, title, f"{bound_s:.2f}", f"{NUM_ROLLOUTS / bound_s:.2f}", "", "", "", *speedups, "1.00"]]


def markdown(results: dict[str, Any]) -> str:
    """The tables of a run."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for median_s, runs in results["cases"].items():
        lines += ["| " + " | ".join(row) + " |" for row in case_rows(median_s, runs)]
    overhead, branching = results["overhead"], results["branching"]
    lines += [
        "",
        f"Without tool calls, in {len(overhead['rounds_s'])} rounds with entropies on in all: "
        f"{spread(overhead['over_tokens'])} of the time of `LLM.generate(detokenize=False)`, "
        f"{spread(overhead['over_text'])} of that of `LLM.generate` with its defaults.",
        "",
        f"Branching: {branching['num_branches']} branches, each prefilled at most "
        f"{branching['most_tokens_prefilled_by_a_branch']} tokens (blocks of {branching['block_size']}); "
        f"{branching['prefilled_tokens']} tokens prefilled for {branching['unique_tokens']} unique ones "
        f"({branching['prefilled_over_unique']:.2f}).",
    ]
    return "\n".join(lines) + "\n"


def plot(results: dict[str, Any], path: Path) -> None:
    """Rollouts per second of each loop, and the bound."""
    cases = results["cases"]
    figure, axes = plt.subplots(1, len(cases), figsize=(3.2 * len(cases), 3.4), squeeze=False)
    for axis, (median_s, runs) in zip(axes[0], cases.items(), strict=True):
        heights = [middle(runs, name, "rollouts_per_s") for name in ARMS]
        bars = axis.bar(list(ARMS.values()), heights, color=["#9aa5b1", "#6b7c93", "#1f6feb"])
        axis.bar_label(bars, fmt="%.3g", padding=2)
        bound_s = statistics.median(run["bound_s"] for run in runs)
        axis.axhline(NUM_ROLLOUTS / bound_s, color="#d1242f", linestyle="--", linewidth=1.2, zorder=0, label="bound")
        axis.set_title(f"tools of {median_s:g} s" if median_s else "free tools")
        axis.tick_params(axis="x", labelrotation=20)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(y=0.25)
    axes[0][0].set_ylabel("rollouts per second")
    axes[0][-1].legend(frameon=False)
    figure.suptitle(f"64 rollouts, {results['model']}, one engine")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, print, write."""
    args = parse_args()
    logging.getLogger("trl_agentic").setLevel(logging.ERROR)
    bench = build(checkpoint(args.model), NUM_ROLLOUTS)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "model": args.model if args.model == "tiny" else Path(args.model).name,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "overhead": measure_overhead(bench, args),
        "branching": measure_branching(bench, args),
        "cases": measure_cases(bench, args),
    }
    table = Table(*COLUMNS)
    for median_s, runs in results["cases"].items():
        for row in case_rows(median_s, runs):
            table.add_row(*row)
        table.add_section()
    Console(width=150).print(table)
    text = markdown(results)
    print(text[text.index("\n\n") :])
    (args.output_dir / "results.json").write_text(json.dumps(results, indent=1))
    (args.output_dir / "results.md").write_text(text)
    plot(results, args.output_dir / "results.png")


if __name__ == "__main__":
    main()
