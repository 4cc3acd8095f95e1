"""The states of one generation: set up before it, in the order of its rows for the rewards, and closed after them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..rollout.batch import depth_first_order
from ..tools import ToolRuntime
from ..tools.state import ToolState
from ..types import BranchTree
from .agentic_config import AgenticConfig
from .environments import Environments


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
        self.roots = self._environments.plant(rows, self._runtime, self.remaining_s)
        prompts = [self._environments.prompt_of(row) for row in rows]
        return [observed(prompt, root) for prompt, root in zip(prompts, self.roots, strict=True)]

    def keep(self, trees: Sequence[BranchTree], states: Sequence[Sequence[ToolState | None]]) -> None:
        """
        Take over what the loop has left, in the order of rows, once nothing works on it any more.

        Args:
            trees (`Sequence[BranchTree]`):
                Trees in the loop's order.
            states (`Sequence[Sequence[ToolState | None]]`):
                State of each of their trajectories.
        """
        orders = [depth_first_order(tree) for tree in trees]
        self.rows = [of_tree[place] for of_tree, order in zip(states, orders, strict=True) for place in order]
        if not self._runtime.settle(self.owned, self.remaining_s):
            for state in self.owned:
                if not self._runtime.settle([state], 0.0):  # nobody may look at what is still changing
                    state.broken = state.broken or "it was not ready when the rollout phase ended."

    def instances(self) -> list[Any] | None:
        """
        The environment of each row, for reward functions.

        Returns:
            `list` or `None`:
                The instances; `None` in place of one whose state was lost, which must not score its row. `None` in
                place of the list where there are no environments.

        Raises:
            ValueError: If an environment has no single prompt for the trajectories of a group.
        """
        for state in self.owned:
            if state.conflict is not None:
                raise ValueError(state.conflict)
        if not self._environments.kinds:
            return None
        return [None if state is None or state.broken is not None else state.environment for state in self.rows]

    def release(self) -> None:
        """Close what is owned. What fails or hangs at that is given up."""
        owned = [*self.owned, *(root for root in self.roots if root is not None)]
        self.roots, self.rows, self.names = [], [], []
        for state in owned:
            self._runtime.prepare(state, state.close)
        self._runtime.settle(owned, self._close_s)


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
