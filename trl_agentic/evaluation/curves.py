"""A picture of a training run, drawn from the trainer's log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#1f5fa8", "#c8641b", "#2f8f4e", "#8e44ad", "#b03a2e", "#7f8c8d")


@dataclass(frozen=True)
class Panel:
    """
    One set of axes.

    Args:
        title (`str`):
            What it shows.
        unit (`str`):
            Label of the vertical axis.
        metrics (`Mapping[str, str]`):
            Names in the log to names in the legend. Metrics that were not logged are left out.
        scale (`float`, *optional*, defaults to `1.0`):
            Factor from the logged number to the unit.
    """

    title: str
    unit: str
    metrics: Mapping[str, str]
    scale: float = 1.0


PANELS = (
    Panel("Reward", "mean over rollouts", {"reward": "training reward"}),
    Panel("Groups without reward spread", "% of groups", {"frac_reward_zero_std": "no spread"}, scale=100),
    Panel("Tool calls", "calls per rollout", {"rollout/tool_calls": "calls"}),
    Panel("Branches", "% of rollouts", {"branch/rate": "branches", "branch/fill_rate": "fills"}, scale=100),
    Panel(
        "Entropy of sampled tokens",
        "nats per token",
        {"branch/entropy": "after tool results", "branch/initial_entropy": "at the start"},
    ),
    Panel("Rollout speed", "sampled tokens per second", {"rollout/tokens_per_s": "tokens/s"}),
)
"""What ARPO logs."""

APPO_PANELS = (
    Panel("Reward", "mean", {"reward": "rollouts", "appo/branch_reward": "their branches"}),
    Panel("Tool calls", "calls", {"rollout/tool_calls": "per rollout", "branches/rollout/tool_calls": "per branch"}),
    Panel(
        "Where branches start",
        "% of branch points",
        {f"appo/points/{part}": part for part in ("thinking", "call", "answer", "text")},
        scale=100,
    ),
    Panel("Policy against the one that sampled", "standard deviation of ratios", {"appo/ratio_std": "ratios"}),
    Panel(
        "Branching Score and reward variance", "rank correlation", {"appo/score_variance_correlation": "last points"}
    ),
    Panel(
        "Where the time goes",
        "seconds per optimizer step",
        {
            f"time/{phase}_s": phase.replace("_", " ")
            for phase in ("rollout", "score", "sync", "branch", "branch_rewards", "train")
        },
    ),
)
"""What APPO logs."""


def smooth(values: NDArray[np.float64], share: float = 0.1) -> NDArray[np.float64]:
    """
    Centred moving average over a share of the series; at both ends, over the part of the window that exists.

    Args:
        values (`NDArray`):
            The series, of shape `(n,)`.
        share (`float`, *optional*, defaults to `0.1`):
            Width of the window as a share of `n`.

    Returns:
        `NDArray`: Of shape `(n,)`.
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    reach = int(len(values) * share / 2)
    positions = np.arange(len(values))
    first, last = np.maximum(positions - reach, 0), np.minimum(positions + reach + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)


def plot_training_curves(
    log_history: Sequence[Mapping[str, Any]], path: str | Path, panels: Sequence[Panel] = PANELS
) -> Path:
    """
    Draw the metrics of a run against its steps: each logged value faintly, a moving average over it.

    Args:
        log_history (`Sequence[Mapping[str, Any]]`):
            `trainer.state.log_history`. Entries without a metric, and values that are not finite, are skipped.
        path (`str` or `Path`):
            Where to write the PNG; its folder is made if need be.
        panels (`Sequence[Panel]`, *optional*):
            What to draw. Panels of which nothing was logged are left out.

    Returns:
        `Path`: The picture.
    """
    # A figure of its own instead of pyplot: no global state, no display, and only this function needs matplotlib.
    from matplotlib.figure import Figure

    drawn = [(panel, series) for panel in panels if (series := _series(log_history, panel))]
    columns = min(3, max(1, len(drawn)))
    rows = -(-max(1, len(drawn)) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.2 * rows), dpi=150, layout="constrained")
    for position, (panel, series) in enumerate(drawn, start=1):
        _draw(figure.add_subplot(rows, columns, position), panel, series)
    if not drawn:
        figure.text(0.5, 0.5, "No metric of a training step was logged.", ha="center", va="center")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path


def _series(log: Sequence[Mapping[str, Any]], panel: Panel) -> dict[str, tuple[NDArray[np.float64], ...]]:
    """Steps and values in the panel's unit, by legend name."""
    found: dict[str, tuple[NDArray[np.float64], ...]] = {}
    for metric, name in panel.metrics.items():
        points = np.array([(entry["step"], entry[metric]) for entry in log if metric in entry and "step" in entry])
        if points.size and np.isfinite(points[:, 1]).any():
            steps, values = points[np.isfinite(points[:, 1])].T
            found[name] = steps, values * panel.scale
    return found


def _draw(axes: Axes, panel: Panel, series: Mapping[str, tuple[NDArray[np.float64], ...]]) -> None:
    for color, (name, (steps, values)) in zip(cycle(COLORS), series.items(), strict=False):
        marker = "o" if len(steps) == 1 else None  # a line through one point is invisible
        axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
        axes.plot(steps, smooth(values), color=color, linewidth=2, label=name, marker=marker)
    axes.set(title=panel.title, xlabel="training step", ylabel=panel.unit)
    axes.set_xlim(0, 1.02 * max(steps[-1] for steps, _ in series.values()))
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize="small")
