"""Results of `check_gpu.py`: one line each while it runs, and a table to paste into an issue at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

MARK = "RESULT "  # what a process of checks puts before its results, among whatever libraries print


class Skip(Exception):
    """A check cannot be made here; the message says why."""


@dataclass(frozen=True)
class Check:
    """
    One thing to try.

    Args:
        name (`str`):
            What `--only` takes.
        group (`str`):
            Checks of a group share a process, and what they build there.
        expected (`str`):
            What the figure should be.
        measure (`Callable`):
            Takes what the group shares; returns whether the figure is as expected, and the figure as text.
    """

    name: str
    group: str
    expected: str
    measure: Callable[[Any], tuple[bool, str]]

    def run(self, shared: Any) -> Result:
        """Measure, and make a result of whatever happens."""
        try:
            passed, figure = self.measure(shared)
        except Skip as reason:
            return self.result("skipped", str(reason))
        except Exception as error:  # any failure is what the user wants to report
            return self.result("FAILED", f"{type(error).__name__}: {error}")
        return self.result("ok" if passed else "FAILED", figure)

    def result(self, state: Literal["ok", "FAILED", "skipped"], figure: str) -> Result:
        """What came of it; the figure on one line, cut where it is long."""
        figure = " ".join(figure.split())
        return Result(self.name, state, figure if len(figure) <= 400 else figure[:399] + "…", self.expected)


@dataclass(frozen=True)
class Result:
    """What came of a check."""

    name: str
    state: str
    figure: str
    expected: str

    def __str__(self) -> str:
        return f"[{self.state}] {self.name}: {self.figure} ({self.expected})"

    def dump(self) -> str:
        """As a line that [`read_results`] finds."""
        return MARK + json.dumps(asdict(self))


def read_results(lines: Iterable[str]) -> Iterable[Result]:
    """Results among the output of a process, one after another."""
    for line in lines:
        if line.startswith(MARK):
            yield Result(**json.loads(line.removeprefix(MARK)))


def without_result(checks: Iterable[Check], results: Mapping[str, Result], reason: str) -> list[Result]:
    """Failures of the checks that a process was to make and did not, because it ended before."""
    return [check.result("FAILED", reason) for check in checks if check.name not in results]


def markdown(results: Iterable[Result]) -> str:
    """
    A table for an issue, failures first.

    Args:
        results (`Iterable[Result]`):
            What came of all checks.

    Returns:
        `str`: Markdown.
    """
    rows = sorted(results, key=lambda result: ("FAILED", "ok", "skipped").index(result.state))
    counts = ", ".join(f"{sum(row.state == state for row in rows)} {state}" for state in ("ok", "FAILED", "skipped"))
    lines = [f"`scripts/check_gpu.py`: {counts}", "", "| Check | | Figure | Expected |", "|---|---|---|---|"]
    for row in rows:
        cells = (row.name, row.state, row.figure, row.expected)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines)


def exit_code(results: Iterable[Result]) -> int:
    """1 when a check failed, else 0."""
    return int(any(result.state == "FAILED" for result in results))
