"""
How a branch gets the state of its branch point, in the first of three ways that works:

1. `fork()`, where the class defines it;
2. `copy.deepcopy`, which is enough for state that lives in Python objects. An object that can be copied although its
   state lies elsewhere (in a file, a process, a service) has to offer `fork()`;
3. replay: a fresh environment is reset with the same row, the recorded calls are made again, and each result is
   compared with the recorded one. A branch whose results differ would be trained behind a prefix that never happened,
   so its state counts as lost: the mismatch is logged and counted, and the model reads so at its next call.

A fork and a copy are made between two calls of the parent. A replay needs what was recorded and nothing else, so that
the parent and its other branches go on meanwhile. It is the way, too, where the parent has gone past the branch point,
is closed, or has lost its state since.
"""

from __future__ import annotations

import copy
import logging
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..types import ToolCall, ToolResult
from .runtime import ToolRuntime
from .state import ToolState, can_fork, fork, fork_all

logger = logging.getLogger(__name__)

# What `copy.deepcopy` raises for objects that can't be copied: locks, sockets, generators, tensors with a history,
# pointers of ctypes (ValueError), …
NOT_COPYABLE = (
    TypeError,
    AttributeError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OSError,
    copy.Error,
    pickle.PickleError,
)
MAX_SHOWN_CHARS = 200

Perform = Callable[[ToolCall, ToolState], ToolResult]


def start_fork(runtime: ToolRuntime, parent: ToolState, child: ToolState) -> None:
    """
    Queue the work of [`fork_state`], before all calls that are made on the parent or the child from now on.

    A replay may take the runtime's `timeout_s` for the reset and for each call that it repeats.

    Args:
        runtime ([`ToolRuntime`]):
            Runs the work.
        parent ([`ToolState`]), child ([`ToolState`]):
            As in [`fork_state`].
    """
    if len(child.history) == len(parent.history) and parent.broken is None:
        runtime.fork(parent, child, lambda: copy_state(parent, child))
    else:
        child.observation = parent.observation  # its reset is long done: it has made calls since, or was lost
    runtime.prepare(child, lambda: replay_state(child, runtime.perform), len(child.history))


def fork_state(parent: ToolState, child: ToolState, perform: Perform) -> None:
    """
    Fill the state of a branch: [`copy_state`], and where that leaves it empty [`replay_state`].

    Args:
        parent ([`ToolState`]):
            State of the parent, which must not change meanwhile.
        child ([`ToolState`]):
            What [`ToolState.child`] returned; its `broken` is set where its state is lost.
        perform (`Callable[[ToolCall, ToolState], ToolResult]`):
            Makes a call of a replay as the tool runtime would.

    Raises:
        TypeError: If `fork` does not return a new object of the class.
    """
    copy_state(parent, child)
    replay_state(child, perform)


def copy_state(parent: ToolState, child: ToolState) -> None:
    """
    Fork or copy the parent into the child, if it stands exactly at the branch point, and if it can be done.

    Args:
        parent ([`ToolState`]), child ([`ToolState`]):
            As in [`fork_state`].

    Raises:
        TypeError: If `fork` does not return a new object of the class.
    """
    start = time.perf_counter()
    child.observation = parent.observation
    child.broken = child.broken or parent.broken
    if child.broken is None and not parent.is_closed and len(child.history) == len(parent.history):
        _duplicate(parent, child)
    child.fork_s = time.perf_counter() - start


def replay_state(child: ToolState, perform: Perform) -> None:
    """
    Make a state anew and lead it to where its history ends, unless it has been copied.

    Every trajectory then resets an environment of its own. The prompt is one for all of them, so what `reset` returns
    must be the same for one row; otherwise `child.conflict` says so.

    Args:
        child ([`ToolState`]), perform (`Callable[[ToolCall, ToolState], ToolResult]`):
            As in [`fork_state`].
    """
    if child.broken is not None or child.made_by is not None:
        return
    start, fork_s = time.perf_counter(), child.fork_s
    _replay(child, perform)
    child.fork_s = fork_s + time.perf_counter() - start


def _duplicate(parent: ToolState, child: ToolState) -> None:
    """Fork or copy everything that the parent owns, if that is possible."""
    environment, way = parent.environment, "fork"
    if environment is not None and can_fork(environment):
        environment = fork(environment)
    elif environment is not None:
        try:
            environment, way = copy.deepcopy(environment), "copy"
        except NOT_COPYABLE:
            return
        if environment is parent.environment:  # a class may answer a copy with itself
            return
    child.environment = environment
    child.objects = fork_all(parent.objects)
    child.made_by = way


def _replay(child: ToolState, perform: Perform) -> None:
    """Reset a fresh environment, and repeat the calls on it."""
    expected = child.observation
    child.reset()
    child.made_by = "replay"
    if child.observation != expected:
        name = type(child.environment).__name__
        child.broken = "it could not be set up a second time."
        child.conflict = (
            f"`{name}.reset` returned {_shown(expected)} and then {_shown(child.observation)} for the same row, but "
            "all trajectories of a group share one prompt. Let `reset` depend on its arguments alone (on a seed in a "
            "column of the dataset, for instance), or give the environment a `fork()` method."
        )
        return
    for place, recorded in enumerate(child.history):
        found = perform(recorded.call, child)
        if (found.status, found.content) != (recorded.status, recorded.content):
            child.num_sound = place
            return _report(child, recorded, found)


def _report(child: ToolState, recorded: ToolResult, found: ToolResult) -> None:
    child.num_mismatches += 1
    name, arguments = recorded.call.name, _shown(recorded.call.arguments)
    child.broken = "it could not be restored, since an earlier call gave another result when it was repeated."
    logger.warning(
        f"The state of a branch could not be replayed: {name}({arguments}) gave {_shown(found.content)} "
        f"({found.status}), but {_shown(recorded.content)} ({recorded.status}) in the trajectory it branches from. "
        "The branch goes on without its state, and the model reads so. Let the environment repeat itself after "
        "`reset`; where the trajectory is still under way, a `fork()` method makes that needless."
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def state_metrics(states: Sequence[ToolState]) -> dict[str, float]:
    """
    Describe the states of some trajectories in numbers.

    Args:
        states (`Sequence[ToolState]`):
            One per trajectory.

    Returns:
        `dict[str, float]`:
            How many were made by `rollout/state/fork`, `rollout/state/copy` and `rollout/state/replay`, the mean
            seconds `rollout/state/fork_s` that this took, the share `rollout/state/broken` that is lost, and
            `rollout/replay_mismatches`, the replayed calls whose result differed. Empty without states.
    """
    if not states:
        return {}
    made = [state.made_by for state in states]
    metrics = {f"rollout/state/{way}": float(made.count(way)) for way in ("fork", "copy", "replay")}
    metrics["rollout/state/fork_s"] = sum(state.fork_s for state in states) / len(states)
    metrics["rollout/state/broken"] = sum(state.broken is not None for state in states) / len(states)
    metrics["rollout/replay_mismatches"] = float(sum(state.num_mismatches for state in states))
    return metrics
