#!/usr/bin/env python
"""
Compare rollout loops over the same colocated vLLM: TRL's own, a barrier with a thread pool, and ours.

    python scripts/bench_rollout.py --model tiny --output_dir runs/bench_rollout
    python scripts/export_smollm2.py runs/smollm2
    python scripts/bench_rollout.py --model runs/smollm2 --output_dir runs/bench_rollout_smollm2

All loops get the same prompts, 64 rollouts of 1 to 4 turns of 16 to 96 tokens, and the same tool latencies
(log-normal, sigma 0.8). No loop can beat the bound: the larger of the engine's time with free tools and the longest rollout's own
time (its tokens times the median step, and its latencies). Every figure is of one run on one machine, loops taking
turns; run it alone. Writes `results.json`, `results.md` and `results.png`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
from collections.abc import Callable
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

ARMS = {"trl": "TRL's tool loop", "barrier": "barrier and pool", "ours": "events (ours)"}
GROUP_SIZE = 8
NUM_PROMPTS = 8


def parse_args() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="'tiny', or the folder of a checkpoint")
    parser.add_argument("--medians", type=float, nargs="+", default=[0.0, 0.2, 1.0], help="median latencies, seconds")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each loop")
    parser.add_argument("--trl_repeats", type=int, default=1, help="runs of TRL's loop where tools take time")
    parser.add_argument("--num_workers", type=int, default=64, help="tool calls at the same time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/bench_rollout"))
    return parser.parse_args()


def needed_tokens(bench: Bench, workload: Workload) -> int:
    """Tokens that no cache can hold: each prompt and each result once."""
    _, trees = run_ours(bench, without_latency(workload), 0)
    prompts = sum(len(tree.prompt_ids) for tree in trees)
    results = sum(len(s) for tree in trees for t in tree.trajectories for s in t.segments if not s.sampled)
    return prompts + results


def without_latency(workload: Workload) -> Workload:
    """The same workload with tools that answer at once."""
    return replace(workload, rollouts=[[replace(turn, latency_s=0.0) for turn in t] for t in workload.rollouts])


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


def measure_case(bench: Bench, args: argparse.Namespace, median_s: float, needed: int) -> dict[str, list]:
    """All loops in turn, several times."""
    workload = make_workload(bench.tokenizer, NUM_PROMPTS, GROUP_SIZE, median_s, args.seed)
    arms: dict[str, Callable[[], Meter]] = {
        "ours": lambda: run_ours(bench, workload, args.num_workers)[0],
        "barrier": lambda: run_barrier(bench, workload, args.num_workers),
        "trl": lambda: run_trl(bench, workload),
    }
    runs: dict[str, list] = {name: [] for name in arms}
    for repeat in range(args.repeats):
        for name, run in arms.items():
            if name == "trl" and median_s > 0 and repeat >= args.trl_repeats:
                continue
            runs[name].append(facts(run(), workload, needed))
            print(f"  {ARMS[name]:18s} {median_s:4.1f} s tools: {runs[name][-1]['wall_s']:7.2f} s", flush=True)
    return runs


def add_bounds(cases: dict[float, dict], bench: Bench, seed: int) -> None:
    """Seconds that no loop can beat, per case."""
    free = min(cases, key=abs)
    engine_s = statistics.median(run["busy_s"] for run in cases[free]["arms"]["ours"])
    for median_s, case in cases.items():
        workload = make_workload(bench.tokenizer, NUM_PROMPTS, GROUP_SIZE, median_s, seed)
        step_s = statistics.median(run["median_step_s"] for run in case["arms"]["ours"])
        case["engine_s"], case["critical_path_s"] = engine_s, workload.critical_path_s(step_s)
        case["bound_s"] = max(case["engine_s"], case["critical_path_s"])


def measure_overhead(bench: Bench, args: argparse.Namespace) -> dict[str, Any]:
    """Our loop without a tool call against `LLM.generate`, entropies on in both, in turns."""
    workload = make_workload(bench.tokenizer, NUM_PROMPTS, GROUP_SIZE, 0.0, args.seed)
    last = [replace(turns[-1], num_tokens=96) for turns in workload.rollouts]
    workload = replace(workload, rollouts=[[turn] for turn in last])
    pairs = []
    for _ in range(max(2 * args.repeats, 5)):
        plain, ours = run_generate(bench, workload), run_ours(bench, workload, args.num_workers)[0]
        pairs.append((ours.wall_s, plain.wall_s))
    ratios = sorted(ours / plain for ours, plain in pairs)
    return {"pairs_s": pairs, "ratio": statistics.median(ratios), "lowest": ratios[0], "highest": ratios[-1]}


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


def middle(runs: list[dict[str, float]], name: str) -> float:
    """Median over the runs of a loop."""
    return statistics.median(run[name] for run in runs)


def case_rows(median_s: float, case: dict) -> list[list[str]]:
    """Table rows of one case."""
    trl_s = middle(case["arms"]["trl"], "wall_s")
    rows = []
    for name, title in ARMS.items():
        runs = case["arms"][name]
        walls = sorted(run["wall_s"] for run in runs)
        spread = f" ({walls[0]:.2f} to {walls[-1]:.2f})" if len(walls) > 1 else ""
        wall_s = middle(runs, "wall_s")
        rows.append(
            [
                f"{median_s:g} s",
                title,
                f"{wall_s:.2f}{spread}",
                f"{middle(runs, 'rollouts_per_s'):.2f}",
                f"{middle(runs, 'tokens_per_s'):.0f}",
                f"{100 * middle(runs, 'engine_idle_share'):.0f} %",
                f"{middle(runs, 'prefilled_over_needed'):.2f}",
                f"{trl_s / wall_s:.2f}",
                f"{case['bound_s'] / wall_s:.2f}",
            ]
        )
    title = f"bound ({'engine' if case['engine_s'] >= case['critical_path_s'] else 'longest rollout'})"
    bound = case["bound_s"]
    return [*rows, [f"{median_s:g} s", title, f"{bound:.2f}", "", "", "", "", f"{trl_s / bound:.2f}", "1.00"]]


COLUMNS = [
    "tools",
    "loop",
    "seconds",
    "rollouts/s",
    "tokens/s",
    "engine idle",
    "prefilled/needed",
    "x TRL",
    "of bound",
]


def markdown(results: dict[str, Any]) -> str:
    """The tables of a run."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for median_s, case in results["cases"].items():
        lines += ["| " + " | ".join(row) + " |" for row in case_rows(float(median_s), case)]
    overhead, branching = results["overhead"], results["branching"]
    lines += [
        "",
        f"Without tool calls: {overhead['ratio']:.3f} of the time of `LLM.generate` ({overhead['lowest']:.3f} to "
        f"{overhead['highest']:.3f} in {len(overhead['pairs_s'])} pairs), entropies on in both.",
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
    for axis, (median_s, case) in zip(axes[0], cases.items(), strict=True):
        heights = [middle(case["arms"][name], "rollouts_per_s") for name in ARMS]
        bars = axis.bar(list(ARMS.values()), heights, color=["#9aa5b1", "#6b7c93", "#1f6feb"])
        axis.bar_label(bars, fmt="%.2g", padding=2)
        num_rollouts = NUM_PROMPTS * GROUP_SIZE
        axis.axhline(num_rollouts / case["bound_s"], color="#d1242f", linestyle="--", linewidth=1.2, label="bound")
        axis.set_title(f"tools of {median_s:g} s" if median_s else "free tools")
        axis.tick_params(axis="x", labelrotation=20)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(y=0.15)
    axes[0][0].set_ylabel("rollouts per second")
    axes[0][-1].legend(frameon=False)
    figure.suptitle(f"64 rollouts, {results['model']}, one engine")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, print, write."""
    args = parse_args()
    logging.getLogger("trl_agentic").setLevel(logging.ERROR)
    bench = build(checkpoint(args.model), NUM_PROMPTS * GROUP_SIZE)
    workload = make_workload(bench.tokenizer, NUM_PROMPTS, GROUP_SIZE, 0.0, args.seed)
    print(f"{workload.num_sampled_tokens} tokens to sample, {workload.num_calls} calls")
    needed = needed_tokens(bench, workload)
    results: dict[str, Any] = {
        "model": args.model if args.model == "tiny" else Path(args.model).name,
        "threads": torch.get_num_threads(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "overhead": measure_overhead(bench, args),
        "branching": measure_branching(bench, args),
        "cases": {median_s: {"arms": measure_case(bench, args, median_s, needed)} for median_s in args.medians},
    }
    add_bounds(results["cases"], bench, args.seed)
    table = Table(*COLUMNS)
    for median_s, case in results["cases"].items():
        for row in case_rows(median_s, case):
            table.add_row(*row)
        table.add_section()
    Console().print(table)
    text = markdown(results)
    print(text[text.index("\n\n") :])
    args.output_dir.mkdir(parents=True, exist_ok=True)
    (args.output_dir / "results.json").write_text(json.dumps(results, indent=1))
    (args.output_dir / "results.md").write_text(text)
    plot(results, args.output_dir / "results.png")


if __name__ == "__main__":
    main()
