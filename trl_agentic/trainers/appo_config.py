"""Configuration of [`APPOTrainer`]."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from ..algorithms.branch_scores import Combination
from .agentic_config import AgenticConfig

CHOICES = {
    "branch_schedule": ("mini_batch", "rollout"),
    "branch_score": get_args(Combination),
    "branch_credit": ("dual_group", "prefix", "single_group"),
}
LEAST = {"branches_per_rollout": 0, "num_branch_rounds": 1, "score_clip": 0.0, "future_weight": 0.0}
STEPS_PER_GENERATION = 8  # optimizer steps, as published
RELEASED = {"branch_schedule": "rollout", "branch_credit": "prefix", "released_safeguards": True}


@dataclass
class APPOConfig(AgenticConfig):
    r"""
    Configuration class for the [`APPOTrainer`].

    This class includes only the parameters that are specific to APPO training. Those of tools and rollouts are in
    [`AgenticConfig`], all others in [`~trl.GRPOConfig`]. Note that default values in this class may differ from those
    in [`~trl.GRPOConfig`]: `num_generations` is 4, and a generation lasts for 8 optimizer steps
    (`steps_per_generation = 8 * gradient_accumulation_steps`), as in the paper; `disable_dropout` is `True`, since
    ratios of two forward passes would measure dropout. With one optimizer step per generation
    the policy has not moved when branch points are chosen, and the method is inert.

    Parameters:
        > Parameters that control branching

        num_generations (`int`, *optional*, defaults to `4`):
            Initial rollouts `N` per prompt. They alone are trained.
        steps_per_generation (`int`, *optional*):
            Micro-batches of one generation. Defaults to `8 * gradient_accumulation_steps`, or to what
            `generation_batch_size` gives.
        branches_per_rollout (`int`, *optional*, defaults to `3`):
            Branch points `P` of each rollout. 0 samples no branches: the future advantage alone remains.
        num_branch_rounds (`int`, *optional*, defaults to `1`):
            Rounds `L`: in each, every rollout that there is gets `P` more branches, `N·(P + 1)^L` in all.
        branch_schedule (`str`, *optional*, defaults to `"mini_batch"`):
            `"mini_batch"` branches at the beginning of each optimizer step, with the policy of the moment (paper);
            `"rollout"` once, after the rollout (released code), where all future values are 1 and the entropy decides.
        branch_score (`str`, *optional*, defaults to `"product"`):
            `"product"` of the z-scores of future value and entropy (paper), their `"sum"`, or `"entropy"` alone.
        score_clip (`float`, *optional*, defaults to `0.2`):
            The Branching Score sees future values clipped to `1 ± score_clip`.

        > Parameters that control credit

        branch_credit (`str`, *optional*, defaults to `"dual_group"`):
            `"dual_group"` normalises a reward within the initial rollouts and within the branches, and averages
            (paper); `"prefix"` adds to a token what the branches behind it are worth (released code);
            `"single_group"` normalises within all of them together.
        future_half_life (`float`, *optional*, defaults to `32.0`):
            Sampled tokens after which a log-ratio counts half in the future value: `γ = 2^(−1/future_half_life)`.
        future_weight (`float`, *optional*, defaults to `0.5`):
            Weight `b` of the future advantage; 0 for none.
        future_clip (`list[float]`, *optional*, defaults to `[1.0, 1.2]`):
            Bounds of the future value in the future advantage.
        released_safeguards (`bool`, *optional*, defaults to `False`):
            Whether to hold extreme ratios as the released code does.

        > Parameters that control both

        released (`bool`, *optional*, defaults to `False`):
            Whether to branch and to give credit as the released code does: `branch_schedule="rollout"`,
            `branch_credit="prefix"` and `released_safeguards=True`.
    """

    num_generations: int = field(default=4, metadata={"help": "Initial rollouts N per prompt, which are trained."})
    steps_per_generation: int | None = field(
        default=None, metadata={"help": "Micro-batches of one generation; by default those of 8 optimizer steps."}
    )
    branches_per_rollout: int = field(default=3, metadata={"help": "Branch points P of each rollout."})
    num_branch_rounds: int = field(default=1, metadata={"help": "Rounds of branching."})
    branch_schedule: str = field(
        default="mini_batch", metadata={"help": "When to branch.", "choices": CHOICES["branch_schedule"]}
    )
    branch_score: Combination = field(
        default="product", metadata={"help": "What ranks branch points.", "choices": CHOICES["branch_score"]}
    )
    score_clip: float = field(default=0.2, metadata={"help": "Clip of future values in the score."})
    branch_credit: str = field(
        default="dual_group", metadata={"help": "What branches teach.", "choices": CHOICES["branch_credit"]}
    )
    future_half_life: float = field(default=32.0, metadata={"help": "Half-life of log-ratios, in sampled tokens."})
    future_weight: float = field(default=0.5, metadata={"help": "Weight b of the future advantage."})
    future_clip: list[float] = field(
        default_factory=lambda: [1.0, 1.2], metadata={"help": "Bounds of the future value in the advantage."}
    )
    released_safeguards: bool = field(default=False, metadata={"help": "Hold extreme ratios as the released code."})
    released: bool = field(default=False, metadata={"help": "Branch and give credit as the released code does."})
    disable_dropout: bool = field(default=True, metadata={"help": "Whether to disable dropout in the model."})

    def __post_init__(self):
        if self.released:
            self._take_released_values()
        if self.steps_per_generation is None and self.generation_batch_size is None:
            self.steps_per_generation = STEPS_PER_GENERATION * self.gradient_accumulation_steps
        super().__post_init__()
        self._check_choices(CHOICES)
        self._check_least(LEAST)
        if not 0 < self.future_half_life < math.inf:
            raise ValueError(
                f"`future_half_life` must be a finite number of tokens above 0, got {self.future_half_life}. For no "
                "discount to speak of, set it far above `max_completion_length`."
            )
        if not _are_bounds(self.future_clip):
            raise ValueError(
                "`future_clip` must be two finite bounds of at least 0, the lower one first, such as [1.0, 1.2]; got "
                f"{self.future_clip!r}."
            )
        if self.branches_per_rollout:
            self._check_branching()
        self._check_optimizer_steps()

    def _check_branching(self) -> None:
        """What goes with branches."""
        if self.scale_rewards != "group":
            raise ValueError(
                f"`scale_rewards={self.scale_rewards!r}` has no meaning for rewards of branches, which are normalised "
                "within their groups. Leave it at 'group', or set `branches_per_rollout=0`."
            )
        if self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                f"`multi_objective_aggregation={self.multi_objective_aggregation!r}` is not defined for rewards of "
                "branches, which are summed first. Leave it at 'sum_then_normalize', or set `branches_per_rollout=0`."
            )
        if self.branch_schedule == "rollout" and (self.branch_score, self.score_clip) != ("product", 0.2):
            warnings.warn(
                f"`branch_score={self.branch_score!r}` and `score_clip={self.score_clip}` change nothing with "
                "branch_schedule='rollout': all future values are 1 there, so entropy alone ranks tokens. Leave them "
                "out, or set branch_schedule='mini_batch'.",
                stacklevel=4,
            )

    def _take_released_values(self) -> None:
        for name, value in RELEASED.items():
            given = vars(self)[name]
            if given not in (value, type(self).__dataclass_fields__[name].default):
                raise ValueError(f"`released=True` means {name}={value!r}, got {given!r}. Leave one of the two out.")
            setattr(self, name, value)

    @property
    def num_trajectories(self) -> int:
        """Trajectories `M` of a prompt in all, branches included."""
        return self.num_generations * (self.branches_per_rollout + 1) ** self.num_branch_rounds

    @property
    def needs_policy(self) -> bool:
        """Whether an option asks what the policy of the moment thinks of rollouts: else this is GRPO with tools."""
        return bool(self.branches_per_rollout or self.future_weight or self.released_safeguards)

    def describe_trajectories(self) -> str:
        """How many trajectories a prompt gets, and where they come from, as a sentence."""
        trained, rounds = self.num_generations, self.num_branch_rounds
        if not self.branches_per_rollout:
            return f"{trained} rollouts of a prompt, all of them trained, and no branches."
        powers = f"({self.branches_per_rollout} + 1)" + (f"^{rounds}" if rounds > 1 else "")
        period = "optimizer step that it takes part in" if self.branch_schedule == "mini_batch" else "generation"
        return (
            f"{trained} * {powers} = {self.num_trajectories} trajectories of a prompt in each {period}: "
            f"{trained} that are trained, and up to {self.num_trajectories - trained} branches."
        )

    def _check_optimizer_steps(self) -> None:
        """An optimizer step holds whole groups, and a generation whole optimizer steps."""
        accumulation, micro_batches = self.gradient_accumulation_steps, self.steps_per_generation
        assert micro_batches is not None, "TRL sets it"
        rows = self.per_device_train_batch_size * accumulation
        if rows % self.num_generations:
            raise ValueError(
                f"An optimizer step of one process has per_device_train_batch_size * gradient_accumulation_steps = "
                f"{self.per_device_train_batch_size} * {accumulation} = {rows} rows, which must be a multiple of "
                f"num_generations ({self.num_generations}): branches are grown and compared within whole prompts. "
                "Change one of the three."
            )
        if micro_batches < 1 or micro_batches % accumulation:
            raise ValueError(
                f"`steps_per_generation` ({micro_batches}) must be a multiple of `gradient_accumulation_steps` "
                f"({accumulation}), so that an optimizer step uses rollouts of one generation. Change one of the two."
            )
        if micro_batches * self.num_iterations == accumulation and self._uses_future_values:
            warnings.warn(
                "A generation lasts for one optimizer step, so the policy is still the one that sampled it: all "
                "future values are 1, no token gets credit for its future, and branch points are chosen by entropy "
                f"alone. Raise `steps_per_generation` from {micro_batches} to {STEPS_PER_GENERATION * accumulation}: "
                f"{STEPS_PER_GENERATION} optimizer steps, as in the paper.",
                stacklevel=4,
            )

    @property
    def _uses_future_values(self) -> bool:
        scores = self.branches_per_rollout and self.branch_schedule == "mini_batch" and self.branch_score != "entropy"
        return bool(self.future_weight or scores)


def _are_bounds(values: Sequence[float]) -> bool:
    if not isinstance(values, list | tuple) or [type(value) in (int, float) for value in values] != [True, True]:
        return False
    return 0 <= values[0] <= values[1] < math.inf
