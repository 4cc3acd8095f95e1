"""A tree while it grows."""

from __future__ import annotations

from collections.abc import Sequence

from ..tools.state import ToolState
from ..types import BranchPoint, BranchTree, Kind, Status
from .path import Fork, Path, Prompt


class Growth:
    """
    A tree in the making.

    Args:
        prompt ([`Prompt`]):
            Its prompt.
    """

    def __init__(self, prompt: Prompt):
        self.prompt = prompt
        self.paths: list[Path] = []
        self.points: list[BranchPoint] = []
        self._is_extension = False

    @classmethod
    def from_tree(cls, tree: BranchTree, forks: Sequence[Fork], states: Sequence[ToolState | None]) -> Growth:
        """
        Take up a finished tree, to add branches.

        Args:
            tree ([`BranchTree`]):
                The tree.
            forks (`Sequence[Fork]`):
                Where branches will start.
            states (`Sequence[ToolState | None]`):
                State of each trajectory.

        Returns:
            [`Growth`]: The tree in the making.

        Raises:
            ValueError: If a fork names no trajectory of the tree, or a token that was not sampled.
        """
        for fork in forks:
            _check_fork(tree, *fork)
        growth = cls(Prompt(tree.prompt_id, tree.prompt_ids, len(tree.trajectories) + len(forks)))
        growth.points, growth._is_extension = list(tree.points), True
        for trajectory, state in zip(tree.trajectories, states, strict=True):
            growth.paths.append(Path.from_trajectory(growth, trajectory, state))
        return growth

    @property
    def num_missing(self) -> int:
        """Trajectories that may still be started."""
        return self.prompt.num_generations - len(self.paths)

    @property
    def has_ended(self) -> bool:
        """Whether every path that was started has ended."""
        return all(path.status is not None for path in self.paths)

    def plant(self, kind: Kind) -> Path:
        """Start a path at the prompt."""
        path = Path(self, len(self.paths), kind, origin=self.prompt.state)
        self.paths.append(path)
        return path

    def note(self, point: BranchPoint) -> None:
        """Keep a tested point. Where branches were given, nobody asks for more, and there is no initial entropy."""
        if not self._is_extension:
            self.points.append(point)

    def branch(self, parent: Path, position: int) -> Path:
        """Start a path that shares the first `position` completion tokens with its parent."""
        prefix = parent.prefix(position)
        path = Path(
            self, len(self.paths), Kind.BRANCH, prefix, parent.index, parent.initial_entropy, origin=parent.state
        )
        # A parent that still grows is asked before its next call: it owns the state that the branch begins with.
        assert parent.state is None or parent.status is not None or path.results == parent.results, "the state is gone"
        self.paths.append(path)
        return path

    def end(self, status: Status) -> None:
        """End everything that has not ended; trajectories that were never started end empty."""
        while self.num_missing:
            self.plant(Kind.FILL)
        for path in self.paths:
            if path.status is None:
                path.end(status)

    def tree(self) -> BranchTree:
        """The finished tree."""
        trajectories = tuple(path.trajectory() for path in self.paths)
        return BranchTree(self.prompt.id, self.prompt.token_ids, trajectories, tuple(self.points))


def _check_fork(tree: BranchTree, parent: int, position: int) -> None:
    """Refuse to branch from what does not exist or was not sampled."""
    start = f"A branch of prompt {tree.prompt_id!r} cannot start at token {position} of trajectory {parent}"
    if not 0 <= parent < len(tree.trajectories):
        raise ValueError(
            f"{start}: the tree has {len(tree.trajectories)} trajectories. Name one of them by its position, from 0 "
            "on; for a branch of a new branch, extend the tree a second time."
        )
    mask = tree.trajectories[parent].sampled_mask
    if not 0 <= position < len(mask):
        raise ValueError(f"{start}: it has {len(mask)} tokens. Pass the position of the token to be sampled anew.")
    if not mask[position]:
        raise ValueError(
            f"{start}: that token belongs to a tool result. Pass the position of a sampled token, such as the first "
            "one behind the result."
        )
