"""Trees as rows of `trajectories.parquet`: its columns, and values that a parquet file can hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from ..types import BranchTree, ToolResult, Trajectory

_MESSAGE_TEXTS = ("role", "content", "reasoning_content", "name")


def trajectory_schema(reward_functions: Sequence[str]) -> pa.Schema:
    """
    Columns of `trajectories.parquet`, one row per trajectory.

    Args:
        reward_functions (`Sequence[str]`):
            Names of the reward functions, the fields of the column `rewards`.

    Returns:
        `pyarrow.Schema`: The same for every run, but for those fields.
    """
    text, number = pa.string(), pa.float32()
    # Arguments are JSON: every tool has its own, and a parquet column has one type.
    function = pa.struct({"name": text, "arguments": text})
    message: dict[str, pa.DataType] = dict.fromkeys(_MESSAGE_TEXTS, text)
    message |= {"tool_calls": pa.list_(pa.struct({"type": text, "function": function})), "other": text}
    call = {"name": text, "arguments": text, "result": text, "status": text}
    call |= {"latency_s": pa.float64(), "cached": pa.bool_()}
    columns = {"step": pa.int64(), "prompt_id": text, "trajectory": pa.int64(), "parent": pa.int64()}
    columns |= {"fork": pa.int64(), "kind": text, "messages": pa.list_(pa.struct(message))}
    columns |= {"prompt_ids": pa.list_(pa.int32()), "completion_ids": pa.list_(pa.int32())}
    columns |= {"sampled_mask": pa.list_(pa.int8()), "logprobs": pa.list_(number), "entropies": pa.list_(number)}
    columns |= {"advantages": pa.list_(number), "tool_calls": pa.list_(pa.struct(call)), "status": text}
    # Parquet has no struct without fields, which a run without reward functions would need.
    rewards = pa.struct({name: pa.float64() for name in reward_functions or ("reward",)})
    columns |= {"reward": pa.float64(), "rewards": rewards, "model_version": pa.int64()}
    return pa.schema(columns)


def trajectory_rows(
    trees: Sequence[BranchTree],
    *,
    step: int,
    model_version: int,
    messages: Sequence[Sequence[Mapping[str, Any]]],
    rewards: Sequence[float | None],
    reward_functions: Mapping[str, Sequence[float | None]],
    advantages: Sequence[Sequence[float] | None],
    firsts: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """
    Rows of `trajectories.parquet` for the trees of one generation.

    Args:
        trees (`Sequence[BranchTree]`):
            The trees, with `B` trajectories in all. Everything below follows their order.
        step (`int`):
            Generation step at which the trees were planted.
        model_version (`int`):
            Weight syncs so far.
        messages (`Sequence`):
            Chat messages of each completion, `B` lists. Keys that the schema does not know go to `other`, as JSON.
        rewards (`Sequence[float | None]`):
            Weighted reward of each trajectory, `B` values; `None` or NaN where no function scored it.
        reward_functions (`Mapping[str, Sequence[float | None]]`):
            Rewards of each function by its name, `B` values each.
        advantages (`Sequence[Sequence[float] | None]`):
            Advantage of each token, `B` sequences at least as long as the completions (padding is cut off); `None` for
            a trajectory that is not trained. Tokens that were not sampled get null.
        firsts (`Sequence[int]`, *optional*):
            Trajectories at the beginning of each tree that are left out here, and in all of the above; 0 by default.

    Returns:
        `list[dict]`: `B` rows.

    Raises:
        ValueError: If something does not have one entry per trajectory, or advantages are too short.
    """
    starts = [0] * len(trees) if firsts is None else firsts
    places = [
        (tree, at) for tree, start in zip(trees, starts, strict=True) for at in range(start, len(tree.trajectories))
    ]
    per_row = {"messages": messages, "rewards": rewards, "advantages": advantages, **reward_functions}
    for name, values in per_row.items():
        if len(values) != len(places):
            raise ValueError(f"Expected {name} for each of {len(places)} trajectories, got {len(values)}.")
    return [
        {
            "step": step,
            "prompt_id": _text(tree.prompt_id),
            "trajectory": position,
            **_facts(tree.trajectories[position]),
            "prompt_ids": list(tree.prompt_ids),
            "messages": [stored_message(message) for message in messages[row]],
            "advantages": _advantages(tree.trajectories[position], advantages[row]),
            "reward": _number(rewards[row]),
            "rewards": {name: _number(values[row]) for name, values in reward_functions.items()},
            "model_version": model_version,
        }
        for row, (tree, position) in enumerate(places)
    ]


def _facts(trajectory: Trajectory) -> dict[str, Any]:
    """The columns that the trajectory itself fills."""
    return {
        "parent": trajectory.parent,
        "fork": trajectory.fork,
        "kind": trajectory.kind.value,
        "completion_ids": trajectory.token_ids,
        "sampled_mask": trajectory.sampled_mask,
        "logprobs": trajectory.logprobs,
        "entropies": trajectory.entropies,
        "tool_calls": [_call(result) for result in trajectory.results],
        "status": trajectory.status.value,
    }


def _call(result: ToolResult) -> dict[str, Any]:
    return {
        "name": _text(result.call.name),
        "arguments": _json(dict(result.call.arguments)),
        "result": _text(result.content),
        "status": result.status.value,
        "latency_s": result.latency_s,
        "cached": result.cached,
    }


def stored_completion(completion: str | Sequence[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    """
    A completion of any form for any table.

    Args:
        completion (`str` or `list[dict]`):
            A text, or chat messages.

    Returns:
        `str` or `list[dict]`: The text, or messages as in [`stored_message`], without the columns that are null.
    """
    if isinstance(completion, str):
        return _text(completion)
    messages = [stored_message(message) for message in completion]
    return [{name: value for name, value in message.items() if value is not None} for message in messages]


def stored_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """
    A chat message under the schema: tool calls in TRL's form with their arguments as JSON, and all else as texts.

    Args:
        message (`Mapping[str, Any]`):
            The message, as a model wrote it or a tool answered.

    Returns:
        `dict[str, Any]`: Its columns; keys that the schema does not know are in `other`, as JSON.
    """
    stored: dict[str, Any] = {key: None if message.get(key) is None else _text(message[key]) for key in _MESSAGE_TEXTS}
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    stored["tool_calls"] = [
        {"type": "function", "function": {"name": _text(call["name"]), "arguments": _text(call["arguments"])}}
        for call in calls
    ] or None
    other = {key: value for key, value in message.items() if key not in (*_MESSAGE_TEXTS, "tool_calls")}
    stored["other"] = _json(other) if other else None
    return stored


def _advantages(trajectory: Trajectory, values: Sequence[float] | None) -> list[float | None] | None:
    if values is None:
        return None
    mask = trajectory.sampled_mask
    if len(values) < len(mask):
        raise ValueError(f"A completion of {len(mask)} tokens needs as many advantages, got {len(values)}.")
    return [value if sampled else None for value, sampled in zip(values, mask, strict=False)]


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def _json(value: Any) -> str:
    # Arguments are what a model wrote, so they may hold anything; nothing of it may stop a run.
    try:
        return _text(json.dumps(value, ensure_ascii=False, default=str, allow_nan=False))
    except ValueError:  # JSON has no NaN and no infinity
        return _text(json.dumps(_finite(value), ensure_ascii=False, default=str))


def _finite(value: Any) -> Any:
    """The value with texts in place of numbers that are none."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> str:
    """A text that can be stored: other things as JSON, lone surrogates (half a character) replaced."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else _json(value)
