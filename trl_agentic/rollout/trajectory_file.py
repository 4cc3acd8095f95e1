"""
Rollouts on disk: rows in, `trajectories.parquet` out, one row per trajectory.

Example:
    ```python
    writer = TrajectoryWriter("runs/geo")
    writer.write(step, trajectory_rows(trees, step=step, ...))  # once per generation
    read_trajectories("runs/geo")  # while the run goes on, or after it
    writer.compact()  # at the end: runs/geo/trajectories.parquet
    ```
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from .trajectory_rows import trajectory_schema

FILE_NAME = "trajectories.parquet"
# The underscore keeps the parts out of `Trainer.push_to_hub`, which skips such names: the merged file goes there.
PARTS_NAME = "_trajectories"

_MERGED_PARTS = b"trl_agentic.parts"  # key in the file's metadata: name of the part that each row group was


class TrajectoryWriter:
    """
    Keeps the rollouts of a run. Whatever `write` has returned from survives a kill.

    A parquet file can be read only once its footer is written, so each `write` makes a file of its own, which appears
    under its name when it is complete. [`~TrajectoryWriter.compact`] makes one file of them at the end, and
    [`read_trajectories`] reads both.

    Args:
        folder (`str` or `Path`):
            Output directory of the run. Parts lie in its subfolder `_trajectories`.
        rank (`int`, *optional*, defaults to `0`):
            Number of this process. Each writes parts of its own; the first one compacts.
    """

    def __init__(self, folder: str | Path, rank: int = 0):
        self.path = Path(folder) / FILE_NAME
        self._parts = Path(folder) / PARTS_NAME
        self._rank = rank
        self._written: Counter[int] = Counter()

    @property
    def has_rows(self) -> bool:
        """Whether the folder holds rollouts already, those of an earlier run included."""
        return self.path.is_file() or any(self._parts.glob("part-*.parquet"))

    def write(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """
        Save the rows of a step; several writes of one step add up.

        Args:
            step (`int`):
                Step that the trainer is at: a run that resumes there or before does it again.
            rows (`Sequence[Mapping]`):
                From [`~trl_agentic.rollout.trajectory_rows.trajectory_rows`].
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
        Forget the steps from `step` on, of every rank, merged or not. Called when a run begins or resumes, before any
        `write`; all processes may do so at once.

        Args:
            step (`int`):
                First generation step that will be done again.
        """
        if self._rank == 0:
            self._rewind_merged(step)  # first, as it may refuse
        for part in self._parts.glob("part-*.parquet"):
            if _step(part.name) >= step:
                part.unlink(missing_ok=True)
        unfinished = [*self._parts.glob(".part-*")]  # a killed process could not clear them away
        if self._rank == 0:
            unfinished += self.path.parent.glob(f".{FILE_NAME}.*")
        for path in unfinished:
            path.unlink(missing_ok=True)
        self._written.clear()

    def _rewind_merged(self, step: int) -> None:
        groups = _row_groups(self.path) if step > 0 else []
        kept = [group for group in groups if _step(group.part) < step]
        if kept and len(kept) < len(groups):
            _merge(kept, self.path)
        elif not kept:
            self.path.unlink(missing_ok=True)

    def compact(self) -> int:
        """
        Merge all parts, of every rank, into `trajectories.parquet`, by step; then they go. Called when no process
        writes any more. A kill in between loses nothing and doubles nothing.

        Returns:
            `int`: Rows in the file; with 0 rows it is not written.
        """
        groups = _stored(self.path.parent)
        parts = [group.path for group in groups if group.path != self.path]
        if parts:
            _merge(groups, self.path)
        for part in parts:
            part.unlink()
        if self._parts.is_dir() and not any(self._parts.iterdir()):
            self._parts.rmdir()
        return pq.read_metadata(self.path).num_rows if groups else 0


def read_trajectories(folder: str | Path, columns: Sequence[str] | None = None) -> pa.Table:
    """
    Read the rollouts of a run, by step: of one that is going on or was killed as of one that has ended.

    Args:
        folder (`str` or `Path`):
            Output directory of the run.
        columns (`Sequence[str]`, *optional*):
            Columns to read, all by default. Tokens and what belongs to each of them take most of the room.

    Returns:
        `pyarrow.Table`: One row per trajectory, in the columns of [`trajectory_schema`].

    Raises:
        FileNotFoundError: If there are none.
        ValueError: If `trajectories.parquet` is none of [`TrajectoryWriter`]'s.

    Example:
        ```python
        rewards = read_trajectories("runs/geo", columns=["step", "reward"]).to_pandas()
        ```
    """
    groups = _some_stored(folder)
    schema = _schema(groups)
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    return pa.concat_tables(_tables(groups, schema))


def copy_trajectories(folder: str | Path, path: str | Path) -> int:
    """
    Copy the rollouts of a run into one file, and leave those of the run as they are.

    Args:
        folder (`str` or `Path`):
            Output directory of the run, which may be going on.
        path (`str` or `Path`):
            The file.

    Returns:
        `int`: Rows in it.

    Raises:
        FileNotFoundError, ValueError: As in [`read_trajectories`].
    """
    return _merge(_some_stored(folder), Path(path))


class _RowGroup(NamedTuple):
    """The rows of one `write`: a part with a file of its own, or what became of it in a merged file."""

    part: str
    path: Path
    number: int


def _stored(folder: Path) -> list[_RowGroup]:
    """Everything that was written, by step."""
    groups = {group.part: group for group in _row_groups(folder / FILE_NAME)}
    # A merge that is killed leaves parts whose rows the merged file has already: each name counts once.
    for part in (folder / PARTS_NAME).glob("part-*.parquet"):
        groups[part.name] = _RowGroup(part.name, part, 0)
    return [groups[name] for name in sorted(groups)]


def _some_stored(folder: str | Path) -> list[_RowGroup]:
    if groups := _stored(Path(folder)):
        return groups
    raise FileNotFoundError(
        f"There is no {Path(folder) / FILE_NAME}, and no part of one in `{PARTS_NAME}`. Pass the output directory of "
        "a run with save_trajectories=True that has sampled something."
    )


def _row_groups(path: Path) -> list[_RowGroup]:
    if not path.is_file():
        return []
    names = (pq.read_schema(path).metadata or {}).get(_MERGED_PARTS)
    if names is None:
        raise ValueError(
            f"{path} does not say at which step its rows were written, as `TrajectoryWriter.compact` does. Read it "
            "with pyarrow.parquet, and move it away before a run goes on in its folder."
        )
    return [_RowGroup(name, path, number) for number, name in enumerate(json.loads(names))]


def _step(part: str) -> int:
    return int(part.split("-")[1])


def _merge(groups: Sequence[_RowGroup], path: Path) -> int:
    """Copy row groups into one file, one after the other, so that memory holds one at a time."""
    schema = _schema(groups)
    names = json.dumps([group.part for group in groups])
    return _replace(path, _tables(groups, schema), schema.with_metadata({_MERGED_PARTS: names}))


def _schema(groups: Iterable[_RowGroup]) -> pa.Schema:
    """The columns of them all: runs that were resumed may have got reward functions."""
    paths = dict.fromkeys(group.path for group in groups)
    names = {field.name: None for path in paths for field in pq.read_schema(path).field("rewards").type.fields}
    return trajectory_schema(list(names))


def _tables(groups: Iterable[_RowGroup], schema: pa.Schema) -> Iterator[pa.Table]:
    for path, of_path in itertools.groupby(groups, key=lambda group: group.path):
        with pq.ParquetFile(path) as file:
            for group in of_path:
                yield _fit(file.read_row_group(group.number, columns=schema.names), schema)


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
