"""Configuration of [`ARPOTrainer`]."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from ..algorithms.advantages import Attribution
from .agentic_config import AgenticConfig

CHOICES = {
    "branch_gate": ("threshold", "stochastic"),
    "entropy_signal": ("after_result", "released"),
    "advantage_attribution": get_args(Attribution),
}
LEAST = {"initial_rollouts": 1, "beam_size": 1, "entropy_window": 1}


@dataclass
class ARPOConfig(AgenticConfig):
    r"""
    Configuration class for the [`ARPOTrainer`].

    This class includes only the parameters that are specific to ARPO training. Those of tools and rollouts are in
    [`AgenticConfig`], all others in [`~trl.GRPOConfig`]. Note that `num_generations` defaults to 16, as in the paper.

    Parameters:
        > Parameters that control branching

        initial_rollouts (`int`, *optional*, defaults to `8`):
            Trajectories `N` sampled from each prompt at once; up to `num_generations − N` come from branches. With
            `initial_rollouts=num_generations` nothing branches, which is GRPO with tools.
        beam_size (`int`, *optional*, defaults to `2`):
            A branch point yields up to `beam_size − 1` children.
        entropy_window (`int`, *optional*, defaults to `20`):
            Sampled tokens `k` whose mean entropy is compared.
        branch_probability (`float`, *optional*, defaults to `0.5`):
            Base probability `α` in `P = α + w·ΔH`.
        entropy_weight (`float`, *optional*, defaults to `0.2`):
            Weight `w` of the entropy change. The paper reports its best results at 0.4.
        branch_threshold (`float`, *optional*, defaults to `0.5`):
            Threshold `θ` of the gate `"threshold"`.
        branch_gate (`str`, *optional*, defaults to `"threshold"`):
            `"threshold"` branches iff `P > θ` (paper); `"stochastic"` draws each child with probability `P` (released
            code).
        entropy_signal (`str`, *optional*, defaults to `"after_result"`):
            `"after_result"` measures the tokens that follow a tool result (paper); `"released"` sums up to
            `entropy_window` tokens before it, as the released code does, but with exact entropies in place of its
            top-10 ones (for comparison only).

        > Parameters that control credit

        advantage_attribution (`str`, *optional*, defaults to `"soft"`):
            How advantages reach tokens that trajectories share: `"soft"` and `"hard"` (paper), `"softmax"` and
            `"winner"` (variants on raw rewards).
    """

    num_generations: int = field(
        default=16, metadata={"help": "Trajectories M per prompt: initial ones, branches and fills together."}
    )
    initial_rollouts: int = field(default=8, metadata={"help": "Trajectories N sampled from each prompt at once."})
    beam_size: int = field(default=2, metadata={"help": "A branch point yields up to beam_size - 1 children."})
    entropy_window: int = field(default=20, metadata={"help": "Sampled tokens whose mean entropy is compared."})
    branch_probability: float = field(default=0.5, metadata={"help": "Base probability alpha of a branch."})
    entropy_weight: float = field(default=0.2, metadata={"help": "Weight w of the entropy change."})
    branch_threshold: float = field(default=0.5, metadata={"help": "Threshold of the gate 'threshold'."})
    branch_gate: str = field(
        default="threshold", metadata={"help": "Branch iff P > threshold, or draw.", "choices": CHOICES["branch_gate"]}
    )
    entropy_signal: str = field(
        default="after_result",
        metadata={"help": "Entropies after or before the result.", "choices": CHOICES["entropy_signal"]},
    )
    advantage_attribution: Attribution = field(
        default="soft",
        metadata={"help": "How shared tokens get credit.", "choices": CHOICES["advantage_attribution"]},
    )

    def __post_init__(self):
        super().__post_init__()
        self._check_choices(CHOICES)
        self._check_least(LEAST)
        if self.initial_rollouts > self.num_generations:
            raise ValueError(
                f"`initial_rollouts` ({self.initial_rollouts}) cannot exceed `num_generations` "
                f"({self.num_generations}), the trajectories of a prompt in all. Lower the one or raise the other."
            )
        if not 0 <= self.branch_probability <= 1:
            raise ValueError(f"`branch_probability` must be between 0 and 1, got {self.branch_probability}.")
