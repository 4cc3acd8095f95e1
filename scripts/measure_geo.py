"""
Measure a checkpoint on held-out Geo questions in the compact rendering, with the real tools and no training.

    python scripts/measure_geo.py trl_agentic/tasks/tiny_geo

Prints accuracy by hops at temperature 1 and greedy, and what went wrong.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_agentic.rewards import extract_answer
from trl_agentic.rollout.engine import SamplingSettings
from trl_agentic.rollout.limits import Limits
from trl_agentic.rollout.loop import Prompt, RolloutLoop
from trl_agentic.rollout.policy import NoBranching
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.rollout.transformers_engine import TransformersEngine
from trl_agentic.tasks import geo_tools, load_geo
from trl_agentic.tools import ToolRuntime
from trl_agentic.types import Status, Trajectory


def outcome(row: Mapping[str, Any], trajectory: Trajectory, answer: str | None) -> str:
    """What became of a trajectory, in one word or two: `"right"` or the kind of fault."""
    if trajectory.status is not Status.FINISHED:
        return trajectory.status.value
    if answer is None:
        return "no box"
    if answer.strip() in row["answer"]:
        return "right"
    calls = [result.call for result in trajectory.results]
    if not calls:
        return "guess"
    made = {str(value).strip() for call in calls for value in call.arguments.values()}
    if all(line.split(" = ")[0] in made for line in row["path"]):
        return "all calls right"
    return "too few calls" if len(calls) < len(row["path"]) else "wrong call"


def measure(args: argparse.Namespace, temperature: float, num_samples: int) -> None:
    """Roll out all questions and print one line of accuracies and one of outcomes."""
    torch.manual_seed(args.seed)
    model, tokenizer = (kind.from_pretrained(args.model) for kind in (AutoModelForCausalLM, AutoTokenizer))
    dataset = load_geo("test", "compact", args.num_questions)
    tools = geo_tools("compact")
    dialect = TagDialect(tokenizer, tools)
    with ToolRuntime(tools) as runtime:
        loop = RolloutLoop(
            TransformersEngine(model, tokenizer),
            runtime,
            dialect,
            NoBranching(),
            SamplingSettings(temperature=temperature),
            Limits(max_completion_length=256),
        )
        prompts = [
            Prompt(row["question_id"], tuple(dialect.encode_prompt(row["prompt"])), num_samples) for row in dataset
        ]
        trees = loop.run(prompts)
    right, outcomes, lengths = defaultdict(list), Counter(), []
    for row, tree in zip(dataset, trees, strict=True):
        for trajectory in tree.trajectories:
            what = outcome(row, trajectory, extract_answer(dialect.messages(trajectory.segments)))
            right[row["hops"]].append(what == "right")
            outcomes[what] += 1
            lengths.append(len(trajectory))
    report(temperature, right, outcomes, lengths)


def report(temperature: float, right: dict[int, list[bool]], outcomes: Counter[str], lengths: list[int]) -> None:
    """Print the figures of one measurement, in percent."""
    total = sum(outcomes.values())
    hops = ", ".join(f"{hop}: {100 * sum(found) / len(found):.1f}" for hop, found in sorted(right.items()))
    print(f"temperature {temperature:g}: {100 * outcomes['right'] / total:.1f} % of {total} right; by hops {hops}")
    kinds = ", ".join(f"{what} {100 * count / total:.1f}" for what, count in outcomes.most_common())
    print(f"  {kinds}; mean length {sum(lengths) / total:.0f} tokens", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and measure with sampling and greedily."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of the checkpoint")
    parser.add_argument("--num_questions", type=int, default=400)
    parser.add_argument("--num_samples", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    measure(args, temperature=1.0, num_samples=args.num_samples)
    measure(args, temperature=0.0, num_samples=1)


if __name__ == "__main__":
    main()
