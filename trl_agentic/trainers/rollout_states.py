"""The states of one generation: set up before it, in the order of its rows for the rewards, and closed after them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..rollout.batch import depth_first_order
from ..tools import ToolRuntime
from ..tools.state import ToolState
from ..types import BranchTree
from .agentic_config import AgenticConfig
from .environments import Environments

logger = logging.getLogger(__name__)


class RolloutStates:
    """
    Holds environments and stateful tools for as long as a generation needs them.

    Args:
        environments ([`Environments`]):
            What there is.
        runtime ([`~trl_agentic.tools.ToolRuntime`]):
            Runs what the user's classes do.
        args ([`AgenticConfig`]):
            Its `rollout_timeout_s` bounds the time from the resets to the last fork, its `tool_timeout_s` each one.

    Attributes:
        roots (`list[ToolState | None]`):
            The state of each prompt, which its trajectories fork.
        rows (`list[ToolState | None]`):
            The state of each row, once sampled.
        names (`list[str | None]`):
            The environment of each prompt, where they have names.
    """

    def __init__(self, environments: Environments, runtime: ToolRuntime, args: AgenticConfig):
        assert args.rollout_timeout_s is not None, "the configuration sets it"
        self._environments = environments
        self._runtime = runtime
        self._phase_s = args.rollout_timeout_s
        self._close_s = args.tool_timeout_s
        self._deadline = time.monotonic() + self._phase_s
        self._has_forked = self._has_warned = False
        self.roots: list[ToolState | None] = []
        self.rows: list[ToolState | None] = []
        self.names: list[str | None] = []

    @property
    def remaining_s(self) -> float:
        """Seconds that the rollout phase has left."""
        return max(self._deadline - time.monotonic(), 0.0)

    @property
    def owned(self) -> list[ToolState]:
        """The states of all rows that have one."""
        return [state for state in self.rows if state is not None]

    def plant(self, rows: Sequence[Mapping[str, Any]]) -> list[str | list[dict[str, Any]]]:
        """
        Set up one environment per prompt.

        Args:
            rows (`Sequence[Mapping[str, Any]]`):
                One row of the dataset per prompt.

        Returns:
            `list`: The prompts, with what `reset` returned at the end.
        """
        self._deadline = time.monotonic() + self._phase_s
        self.names = [self._environments.name_of(row) for row in rows]
        roots = self._environments.roots(rows)
        self.roots = [*roots] or [None] * len(rows)  # known before anything is set up, so that all of it gets closed
        self._environments.reset(roots, self._runtime, self.remaining_s)
        prompts = [self._environments.prompt_of(row) for row in rows]
        return [observed(prompt, root) for prompt, root in zip(prompts, self.roots, strict=True)]

    def take(self, states: Sequence[Sequence[ToolState | None]]) -> None:
        """
        Take over what the loop has left, even if it raised, so that it gets closed.

        Args:
            states (`Sequence[Sequence[ToolState | None]]`):
                State of each trajectory of each tree.
        """
        self.rows = [state for of_tree in states for state in of_tree]

    def keep(self, trees: Sequence[BranchTree], states: Sequence[Sequence[ToolState | None]]) -> None:
        """
        Put what was taken over into the order of rows, once nothing works on it any more.

        Args:
            trees (`Sequence[BranchTree]`):
                Trees in the loop's order.
            states (`Sequence[Sequence[ToolState | None]]`):
                State of each of their trajectories.

        Raises:
            RuntimeError: If every fork failed and none ever succeeded.
        """
        orders = [depth_first_order(tree) for tree in trees]
        self.rows = [of_tree[place] for of_tree, order in zip(states, orders, strict=True) for place in order]
        self._settle()
        self._check_forks(states)

    def reopen(self) -> None:
        """Begin a phase in which branches are grown from rollouts whose own states are released."""
        self._deadline = time.monotonic() + self._phase_s

    def adopt(self, states: Sequence[ToolState | None]) -> None:
        """
        Take over the states of branches, so that they get closed, once nothing works on them any more.

        Args:
            states (`Sequence[ToolState | None]`):
                State of each branch.
        """
        self.rows = [*self.rows, *states]
        self._settle()
        lost = [state for state in states if state is not None and state.broken is not None]
        if lost and not self._has_warned:
            self._has_warned = True
            logger.warning(
                f"The state of {len(lost)} of {len(states)} branches was lost, so they went on without. States of "
                "branches come by replay: `reset` and calls must give the same when they are repeated. The first: "
                f"{lost[0].broken} From now on `branches/rollout/state/broken` counts them."
            )

    def _settle(self) -> None:
        if self._runtime.settle(self.owned, self.remaining_s):
            return
        for state in self.owned:
            if not self._runtime.settle([state], 0.0):  # nobody may look at what is still changing
                state.broken = state.broken or "it was not ready when the rollout phase ended."

    def _check_forks(self, states: Sequence[Sequence[ToolState | None]]) -> None:
        """Say which environments could not be forked, one line per class: the model alone would know."""
        by_class: dict[str, list[ToolState]] = {}
        for root, of_tree in zip(self.roots, states, strict=True):
            if root is not None and root.broken is None:  # else its reset has been reported
                by_class.setdefault(owner_name(root), []).extend(state for state in of_tree if state is not None)
        self._has_forked = self._has_forked or any(each.made_by for forks in by_class.values() for each in forks)
        for name, forks in by_class.items():
            failed = [each for each in forks if each.broken is not None and each.made_by is None]
            if not failed:
                continue
            what = f"{len(failed)} of {len(forks)} states of `{name}` could not be forked"
            remedy = (
                f"Let `{name}` have a `fork()` that returns a new object of its class, or make it one that "
                "`copy.deepcopy` can copy, or whose `reset` and calls can be repeated."
            )
            if not self._has_forked and len(failed) == len(forks):
                raise RuntimeError(f"{what}, so no rollout has a state. {remedy} The first: {failed[0].broken}")
            logger.warning(f"{what}, so their rollouts went on without. {remedy} The first: {failed[0].broken}")

    def instances(self, rows: Sequence[ToolState | None] | None = None) -> list[Any] | None:
        """
        The environment of each row, for reward functions.

        Args:
            rows (`Sequence[ToolState | None]`, *optional*):
                The states of the rows; those of all by default.

        Returns:
            `list` or `None`:
                The instances; `None` in place of one whose state was lost, which must not score its row. `None` in
                place of the list where there are no environments.

        Raises:
            ValueError: If an environment has no single prompt for the trajectories of a group.
        """
        for state in self.owned if rows is None else ():  # branches do without a state that could not be replayed
            if state.conflict is not None:
                raise ValueError(state.conflict)
        if not self._environments.kinds:
            return None
        rows = self.rows if rows is None else rows
        return [None if state is None or state.broken is not None else state.environment for state in rows]

    def release(self) -> None:
        """Close what is owned. What fails or hangs at that is given up."""
        owned = [*self.owned, *(root for root in self.roots if root is not None)]
        self.roots, self.rows, self.names = [], [], []
        for state in owned:
            self._runtime.prepare(state, state.close)
        self._runtime.settle(owned, self._close_s)


def owner_name(state: ToolState) -> str:
    """The class of a state's environment, or the names of its stateful tools where there is none."""
    if state.environment is not None:
        return type(state.environment).__name__
    return ", ".join(tool.__name__ for tool in state.origin.tools)


def observed(prompt: str | list[dict[str, Any]], root: ToolState | None) -> str | list[dict[str, Any]]:
    """
    A prompt with what `reset` returned at the end of its last message, as TRL appends it.

    Args:
        prompt (`str` or `list[dict]`):
            The prompt; it is not changed.
        root ([`~trl_agentic.tools.state.ToolState`], *optional*):
            The state that was reset for it.

    Returns:
        `str` or `list[dict]`: The longer prompt.

    Raises:
        TypeError: If `reset` returned anything but a text or `None`.
    """
    observation = None if root is None else root.observation
    if observation is None:
        return prompt
    if not isinstance(observation, str):
        raise TypeError(
            f"`reset` must return a text that continues the prompt, or None, got `{type(observation).__name__}`."
        )
    if isinstance(prompt, str):
        return prompt + observation
    content = prompt[-1]["content"]
    if not isinstance(content, str):
        return [*prompt[:-1], {**prompt[-1], "content": [*content, {"type": "text", "text": observation}]}]
    return [*prompt[:-1], {**prompt[-1], "content": content + observation}]
