"""What tool calls came to, in numbers."""

from __future__ import annotations

import math
from collections import Counter
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
            For each tool `tools/{name}/calls`, `tools/{name}/failure_rate`, `tools/{name}/cache_hit_rate`,
            `tools/{name}/truncation_rate`, `tools/{name}/retries` (a count), and over the calls that were run (no
            wrong arguments, no cache hit) `tools/{name}/latency_s` (their mean), `tools/{name}/latency_p50_s` and
            `tools/{name}/latency_p95_s`; for each status but `ok` that occurred the count `tools/failures/{status}`,
            and `tools/{name}/failures/{status}` for the tools that exist.
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
        metrics |= {f"tools/{name}/{key}": value for key, value in _one_tool(calls).items()}
    return metrics


def _one_tool(calls: Sequence[ToolResult]) -> dict[str, float]:
    failures = Counter(call.status.value for call in calls if call.status is not CallStatus.OK)
    latencies = sorted(call.latency_s for call in calls if not call.status.is_invalid and not call.cached)
    return {
        "calls": float(len(calls)),
        "latency_s": sum(latencies) / len(latencies) if latencies else 0.0,
        "latency_p50_s": _quantile(latencies, 0.50),
        "latency_p95_s": _quantile(latencies, 0.95),
        "failure_rate": failures.total() / len(calls),
        "cache_hit_rate": sum(call.cached for call in calls) / len(calls),
        "truncation_rate": sum(call.truncated for call in calls) / len(calls),
        "retries": float(sum(max(call.attempts - 1, 0) for call in calls)),
        **{f"failures/{status}": float(count) for status, count in failures.items()},
    }


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed (the nearest rank)."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0.0
