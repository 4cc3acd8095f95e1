"""
Rollouts on disk: trees in, `trajectories.parquet` out, one row per trajectory.

Example:
    ```python
    writer = TrajectoryWriter("runs/geo")
    writer.write(step, trajectory_rows(trees, step=step, ...))  # once per generation
    writer.compact()  # runs/geo/trajectories.parquet
    ```
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..types import BranchTree, ToolResult, Trajectory

FILE_NAME = "trajectories.parquet"
# The underscore keeps the parts out of `Trainer.push_to_hub`, which skips such names: the merged file goes there.
PARTS_NAME = "_trajectories"

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
            "messages": [_message(message) for message in messages[row]],
            "advantages": _advantages(tree.trajectories[position], advantages[row]),
            "reward": _number(rewards[row]),
            "rewards": {name: _number(values[row]) for name, values in reward_functions.items()},
            "model_version": model_version,
        }
        for row, (tree, position) in enumerate(places)
    ]


class TrajectoryWriter:
    """
    Keeps the rollouts of a run. Whatever `write` has returned from survives a kill.

    A parquet file can be read only once its footer is written, so each `write` makes a file of its own, which appears
    under its name when it is complete. [`~TrajectoryWriter.compact`] copies them into one. A step that is done again
    after a resume replaces what was written of it before.

    Args:
        folder (`str` or `Path`):
            Output directory of the run. Parts lie in its subfolder `_trajectories`.
        rank (`int`, *optional*, defaults to `0`):
            Number of this process. Each writes parts of its own; one of them compacts.
    """

    def __init__(self, folder: str | Path, rank: int = 0):
        self.path = Path(folder) / FILE_NAME
        self._parts = Path(folder) / PARTS_NAME
        self._rank = rank
        self._written: Counter[int] = Counter()

    def write(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """
        Save the rows of a step; several writes of one step add up.

        Args:
            step (`int`):
                Step that the trainer is at: a run that resumes there or before does it again.
            rows (`Sequence[Mapping]`):
                From [`trajectory_rows`].
        """
        if not rows:
            return
        self._parts.mkdir(parents=True, exist_ok=True)
        name = f"part-{step:06d}-{self._rank:04d}-{self._written[step]:04d}.parquet"
        table = pa.Table.from_pylist(list(rows), trajectory_schema(list(rows[0]["rewards"])))
        _replace(self._parts / name, [table], table.schema)
        if not self._written[step]:
            for stale in self._parts.glob(f"part-{step:06d}-{self._rank:04d}-*.parquet"):
                if stale.name != name:
                    stale.unlink()
        self._written[step] += 1

    def rewind(self, step: int) -> None:
        """
        Forget the steps from `step` on, of every rank. Called when a run begins or resumes, before any `write`; any
        number of processes may do so at once.

        Args:
            step (`int`):
                First generation step that will be done again.
        """
        for part in self._parts.glob("part-*.parquet"):
            if int(part.name.split("-")[1]) >= step:
                part.unlink(missing_ok=True)
        for unfinished in self._parts.glob(".part-*"):  # a killed process could not clear them away
            unfinished.unlink(missing_ok=True)
        self._written.clear()

    def compact(self) -> int:
        """
        Copy all parts, of every rank, into `trajectories.parquet`, by step, replacing it at once. The parts stay.

        Returns:
            `int`: Rows in the file; with 0 rows it is not written.
        """
        parts = sorted(self._parts.glob("part-*.parquet"))
        if not parts:
            return 0
        names = {field.name: None for part in parts for field in pq.read_schema(part).field("rewards").type.fields}
        schema = trajectory_schema(list(names))
        return _replace(self.path, (_fit(pq.read_table(part), schema) for part in parts), schema)


def _replace(path: Path, tables: Iterable[pa.Table], schema: pa.Schema) -> int:
    """Write the tables as row groups of one file, which takes its name when it is complete; return the rows."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    rows = 0
    try:
        with pq.ParquetWriter(unfinished, schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table)
                rows += table.num_rows
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return rows


def _fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table under a schema whose rewards may have more fields."""
    return table if table.schema.equals(schema) else pa.Table.from_pylist(table.to_pylist(), schema)


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


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A chat message under the schema, tool calls in TRL's form with their arguments as JSON."""
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
    return _text(json.dumps(value, ensure_ascii=False, default=str))


def _text(value: Any) -> str:
    """A text that can be stored: other things as JSON, lone surrogates (half a character) replaced."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else _json(value)
