"""What tool calls came to, in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import CallStatus, ToolResult


def tool_metrics(results: Sequence[ToolResult]) -> dict[str, float]:
    """
    Summarise tool results.

    Names that the model made up, and calls that were refused because the budget was spent, count as failures only:
    they are no calls of a tool.

    Args:
        results (`Sequence[ToolResult]`):
            The results of any number of trajectories.

    Returns:
        `dict[str, float]`:
            For each tool `tools/{name}/calls`, `tools/{name}/latency_s` (mean over the calls that were run) and
            `tools/{name}/failure_rate`; for each status but `ok` that occurred the count `tools/failures/{status}`.
    """
    metrics: dict[str, float] = {}
    by_name: dict[str, list[ToolResult]] = {}
    for result in results:
        if result.status is not CallStatus.OK:
            key = f"tools/failures/{result.status.value}"
            metrics[key] = metrics.get(key, 0.0) + 1.0
        if result.status not in (CallStatus.UNKNOWN_TOOL, CallStatus.MALFORMED, CallStatus.BUDGET):
            by_name.setdefault(result.call.name, []).append(result)
    for name, calls in by_name.items():
        latencies = [result.latency_s for result in calls if not result.status.is_invalid]
        failures = sum(result.status is not CallStatus.OK for result in calls)
        metrics[f"tools/{name}/calls"] = float(len(calls))
        metrics[f"tools/{name}/latency_s"] = sum(latencies) / len(latencies) if latencies else 0.0
        metrics[f"tools/{name}/failure_rate"] = failures / len(calls)
    return metrics
