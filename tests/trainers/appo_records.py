"""What APPO's loss gets, recorded, and the same advantages by hand: loops over tokens, from the trees alone."""

import math
import statistics
from dataclasses import dataclass, field

import torch

from trl_agentic.types import BranchTree

FLAT = 1e-6


@dataclass
class Step:
    """
    An optimizer step: the tree of each of its groups, where their latest branches begin, and its micro-batches with
    the log-ratios of the forward that the loss does.
    """

    number: int
    trees: list[BranchTree]
    firsts: list[int]
    micro_batches: list[dict[str, torch.Tensor]] = field(default_factory=list)
    log_ratios: list[torch.Tensor] = field(default_factory=list)

    def joined(self, name: str) -> torch.Tensor:
        return torch.cat([micro_batch[name] for micro_batch in self.micro_batches])


def record(trainer) -> list[Step]:
    """The optimizer steps that `trainer` will do, filled while it trains."""
    steps: list[Step] = []
    assign, compute = trainer.assign, trainer._compute_loss

    def assigning(view, advantages):
        grown = trainer.branch_phase.trees_of(view.rows)
        steps.append(Step(trainer.state.global_step, [each.tree for each in grown], [each.first for each in grown]))
        return assign(view, advantages)

    def computing(model, inputs):
        steps[-1].micro_batches.append({name: value.clone() for name, value in inputs.items()})
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            logps, _, _ = trainer._get_per_token_logps_and_entropies(
                model, ids, mask, inputs["completion_ids"].size(1)
            )
        steps[-1].log_ratios.append(logps - inputs["old_per_token_logps"])
        return compute(model, inputs)

    trainer.assign, trainer._compute_loss = assigning, computing
    return steps


def share_of_even_ids(trajectory) -> float:
    """The reward of `tiny.length_reward`, from a trajectory."""
    return sum(token % 2 == 0 for token in trajectory.token_ids) / len(trajectory)


def advantages_by_hand(step: Step, args, is_fresh: bool, reward=share_of_even_ids):
    """
    The advantages of an optimizer step, token by token.

    Returns:
        One dictionary per row, from the positions of its sampled tokens to their advantages, and one boolean per row:
        whether it stays in the loss.
    """
    size = args.num_generations
    log_ratios = torch.cat(step.log_ratios).tolist()
    expected, kept = [], []
    for number, (tree, first) in enumerate(zip(step.trees, step.firsts, strict=True)):
        rewards = [reward(trajectory) for trajectory in tree.trajectories]
        for place in range(size):
            row, mask = log_ratios[number * size + place], tree.trajectories[place].sampled_mask
            sampled = [position for position, is_sampled in enumerate(mask) if is_sampled]
            logs = {position: 0.0 if is_fresh else row[position] for position in sampled}
            bases = {at: base_advantage(tree, first, rewards, place, at, args) for at in sampled}
            expected.append({at: bases[at] * future_factor(at, logs, bases[at], args) for at in sampled})
            clipped = sum(bases[at] < 0 and math.exp(logs[at]) > 3 for at in sampled)
            kept.append(not args.released_safeguards or clipped <= 1)
    return expected, kept


def base_advantage(tree, first, rewards, place, position, args) -> float:
    """0 for a rollout that was not scored; a branch that was not is in no group."""
    if rewards[place] is None:
        return 0.0
    initial, branches = scored(rewards[: args.num_generations]), scored(rewards[first:])
    if args.branch_credit == "single_group" or not args.branches_per_rollout:
        return deviation(rewards[place], initial + branches)
    if args.branch_credit == "dual_group":
        groups = [group for group in (initial, branches) if has_spread(group)]
        return statistics.fmean(deviation(rewards[place], group) for group in groups) if groups else 0.0
    shared = tree.shared_lengths()[place]
    behind = scored([rewards[branch] for branch in range(first, len(rewards)) if shared[branch] > position])
    credits = [deviation(value, branches) for value in behind]
    return deviation(rewards[place], initial) + (statistics.fmean(credits) if credits else 0.0)


def scored(rewards) -> list[float]:
    return [reward for reward in rewards if reward is not None]


def has_spread(group: list[float]) -> bool:
    return len(group) > 1 and statistics.stdev(group) > FLAT


def deviation(value: float, group: list[float]) -> float:
    return (value - statistics.fmean(group)) / (statistics.stdev(group) + 1e-4) if has_spread(group) else 0.0


def future_factor(position, logs, base, args) -> float:
    """`1 + b * clip(Omega)`, where the distance between two tokens is the number of sampled ones."""
    if not args.future_weight:
        return 1.0
    following = [log for at, log in sorted(logs.items()) if at >= position]
    if args.released_safeguards:
        following = [0.0 if math.exp(log) > 3 else log for log in following]
    omega = math.exp(sum(2 ** (-distance / args.future_half_life) * log for distance, log in enumerate(following)))
    if args.released_safeguards and base < 0 and math.exp(logs[position]) > 6:
        omega = min(max(omega, 0.8), 1.0)
    low, high = args.future_clip
    return 1 + args.future_weight * min(max(omega, low), high)
