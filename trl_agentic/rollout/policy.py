"""
Where trajectories branch. A policy looks at entropies and says how many children a branch point should get; whether
the budget allows them is the loop's business.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Protocol

from ..algorithms import branch_probability, entropy_change
from ..types import BranchPoint


class BranchPolicy(Protocol):
    """Decides where trajectories branch."""

    @property
    def window(self) -> int:
        """Sampled tokens whose mean entropy is looked at; 0 if the policy never branches."""
        ...

    @property
    def signal(self) -> str:
        """Which entropies are compared: those after a tool result, or those before it."""
        ...

    def num_initial(self, num_generations: int) -> int:
        """Trajectories to sample from the prompt at once, out of `num_generations`."""
        ...

    def measure(self, entropies: Sequence[float]) -> float:
        """One number, in nats, for the first entropies of a segment."""
        ...

    def test(self, trajectory: int, position: int, initial: float, current: float) -> BranchPoint:
        """Test a branch point; the result's `wanted` is what the gate asks for."""
        ...


class NoBranching:
    """Every trajectory is sampled from the prompt: GRPO with tools."""

    window = 0
    signal = "after_result"

    def num_initial(self, num_generations: int) -> int:
        """All of them."""
        return num_generations

    def measure(self, entropies: Sequence[float]) -> float:
        """Never asked for."""
        raise AssertionError("a policy without a window is not asked to measure")

    def test(self, trajectory: int, position: int, initial: float, current: float) -> BranchPoint:
        """Never asked for."""
        raise AssertionError("a policy without a window is not asked to test")


class EntropyBranching:
    """
    ARPO's adaptive rollout: branch where entropy rises after a tool result.

    With `ΔH = (H_t − H_initial) / ln V` and `P = alpha + weight·ΔH`, the gate `"threshold"` branches iff
    `P > threshold` and asks for all `beam_size − 1` children; the gate `"stochastic"` draws each of them with
    probability `clip(P, 0, 1)`. See section 3 of https://huggingface.co/papers/2507.19849.

    Args:
        initial_rollouts (`int`):
            Trajectories sampled from the prompt before any branch.
        beam_size (`int`):
            A branch point yields up to `beam_size − 1` children.
        window (`int`):
            Sampled tokens whose mean entropy is compared.
        vocab_size (`int`):
            Vocabulary size `V` that normalises the change.
        alpha (`float`, *optional*, defaults to `0.5`):
            Base probability.
        weight (`float`, *optional*, defaults to `0.2`):
            Weight of the entropy change.
        threshold (`float`, *optional*, defaults to `0.5`):
            Used by the gate `"threshold"`.
        gate (`"threshold"` or `"stochastic"`, *optional*, defaults to `"threshold"`):
            The paper's gate, or the released code's.
        signal (`"after_result"` or `"released"`, *optional*, defaults to `"after_result"`):
            `"after_result"` compares mean entropies of the tokens after the result with the trajectory's first ones.
            `"released"` compares *sums* over the segment that was sampled *before* the result, as the released code
            does; its top-10 entropies are replaced by exact ones. For comparison only.
        rng (`random.Random`, *optional*):
            Draws for the gate `"stochastic"`.
    """

    def __init__(
        self,
        initial_rollouts: int,
        beam_size: int,
        window: int,
        vocab_size: int,
        alpha: float = 0.5,
        weight: float = 0.2,
        threshold: float = 0.5,
        gate: str = "threshold",
        signal: str = "after_result",
        rng: random.Random | None = None,
    ):
        if gate not in ("threshold", "stochastic"):
            raise ValueError(f"Unknown branch gate {gate!r}; use 'threshold' (paper) or 'stochastic' (released).")
        if signal not in ("after_result", "released"):
            raise ValueError(f"Unknown entropy signal {signal!r}; use 'after_result' (paper) or 'released'.")
        if window < 1:
            raise ValueError(f"The entropy window must hold at least one token, got {window}.")
        self.initial_rollouts = initial_rollouts
        self.beam_size = beam_size
        self.window = window
        self.vocab_size = vocab_size
        self.alpha = alpha
        self.weight = weight
        self.threshold = threshold
        self.gate = gate
        self.signal = signal
        self.rng = rng or random.Random(0)

    def num_initial(self, num_generations: int) -> int:
        """At most `num_generations`."""
        return min(self.initial_rollouts, num_generations)

    def measure(self, entropies: Sequence[float]) -> float:
        """Mean (or, for the released signal, sum) of the first `window` entropies, in nats."""
        first = entropies[: self.window]
        return math.fsum(first) if self.signal == "released" else math.fsum(first) / max(1, len(first))

    def test(self, trajectory: int, position: int, initial: float, current: float) -> BranchPoint:
        """Apply the gate to one branch point; nothing is granted yet."""
        if self.signal == "released":
            change = (current - initial) / math.log(self.vocab_size)  # sums over the window may exceed ln V
        else:
            change = float(entropy_change(initial, current, self.vocab_size))
        score = self.alpha + self.weight * change
        if self.gate == "threshold":
            wanted = self.beam_size - 1 if score > self.threshold else 0
        else:
            probability = float(branch_probability(change, self.alpha, self.weight))
            wanted = sum(self.rng.random() < probability for _ in range(self.beam_size - 1))
        return BranchPoint(
            trajectory=trajectory,
            position=position,
            initial_entropy=initial,
            entropy=current,
            change=change,
            score=score,
            wanted=wanted,
            granted=0,
            sums=self.signal == "released",
        )
