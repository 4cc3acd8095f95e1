"""The before/after table at the end of a run: accuracy on the same held-out questions, and how sure the gain is."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from rich.table import Table

from .metrics import Gain, paired_bootstrap, rows_by
from .runner import Accuracy


@dataclass(frozen=True)
class GainRow:
    """
    One measurement before and after training.

    Args:
        name (`str`):
            What was measured.
        num_questions (`int`):
            Questions behind it.
        before (`float`):
            Mean score before training, in [0, 1].
        after (`float`):
            Mean score after training, in [0, 1].
        gain ([`~trl_agentic.evaluation.Gain`]):
            Their difference with its paired interval.
    """

    name: str
    num_questions: int
    before: float
    after: float
    gain: Gain

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as texts: percentages, and the gain in percentage points with its sign."""
        gain, low, high = (f"{100 * value:+.1f}" for value in self.gain)
        before, after = (f"{100 * value:.1f} %" for value in (self.before, self.after))
        return self.name, str(self.num_questions), before, after, gain, f"{low} to {high}"


@dataclass(frozen=True)
class BeforeAfter:
    """
    Two policies on the same questions: one row per measurement, then the first measurement per number of hops.

    Args:
        before (`Mapping[str, Accuracy]`):
            Measurements of the first policy by name, such as `"sampled"` and `"greedy"`.
        after (`Mapping[str, Accuracy]`):
            The same measurements of the second policy, on the same questions in the same order.
        hops (`Sequence[int]`, *optional*):
            Hops that each question needs.
        level (`float`, *optional*, defaults to `0.95`):
            Level of the intervals.
        num_resamples (`int`, *optional*, defaults to `10000`):
            Bootstrap resamples of each interval.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the resampling.

    Raises:
        ValueError: If the measurements or the numbers of questions differ.

    Example:
        ```python
        table = BeforeAfter(before, after, dataset["hops"])
        rich.print(table.rich())
        Path("before_after.md").write_text(table.markdown())
        ```
    """

    before: Mapping[str, Accuracy]
    after: Mapping[str, Accuracy]
    hops: Sequence[int] | None = None
    level: float = 0.95
    num_resamples: int = 10_000
    seed: int = 0

    def __post_init__(self):
        if not self.before or list(self.before) != list(self.after):
            raise ValueError(
                f"Expected the same measurements on both sides, at least one; got {list(self.before)} before and "
                f"{list(self.after)} after."
            )

    @cached_property
    def rows(self) -> tuple[GainRow, ...]:
        """The measurements, then the first of them per number of hops."""
        rows = [
            self._row(f"pass@1, {name}", self.before[name].scores, self.after[name].scores) for name in self.before
        ]
        if self.hops is not None:
            name = next(iter(self.before))
            before, after = self.before[name].scores, self.after[name].scores  # (Q, S)
            for hops, questions in rows_by(self.hops, len(before)).items():
                rows.append(self._row(_hops_name(name, hops), before[questions], after[questions]))
        return tuple(rows)

    def rich(self) -> Table:
        """The table for a terminal."""
        table = Table(title="Held-out accuracy, pass@1")  # said once, so that the rows fit 80 columns
        for position, name in enumerate(self._header):
            table.add_column(name, justify="right" if position else "left", no_wrap=not position)
        for row in self.rows:
            name, *figures = row.cells
            table.add_row(name.removeprefix("pass@1, "), *figures)
        return table

    def markdown(self) -> str:
        """The table as Markdown, with a line feed at its end."""
        lines = [self._header, ("---",) + ("---:",) * (len(self._header) - 1), *(row.cells for row in self.rows)]
        return "".join("| " + " | ".join(line) + " |\n" for line in lines)

    @property
    def _header(self) -> tuple[str, ...]:
        return "", "questions", "before", "after", "gain (points)", f"{100 * self.level:g} % interval"

    def _row(self, name: str, before: np.ndarray, after: np.ndarray) -> GainRow:
        gain = paired_bootstrap(before, after, num_resamples=self.num_resamples, seed=self.seed, level=self.level)
        return GainRow(name, len(before), float(before.mean()), float(after.mean()), gain)


def _hops_name(measurement: str, hops: Hashable) -> str:
    return f"pass@1, {measurement}, {hops} {'hop' if hops == 1 else 'hops'}"
