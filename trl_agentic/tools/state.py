"""
The state that belongs to one trajectory: its environment and its stateful tools.

A *stateful tool* is a bound method of an object whose class defines `fork()`, which returns an independent copy of the
object: `tools=[session.run]`. Methods of one object share one state. Everything else in `tools=[...]` is stateless and
shared by all trajectories. An *environment* is what `environment_factory` returns, as in TRL: its public methods are
tools, and `reset` begins an episode. `reset`, `get_reward`, `fork` and `close` are no tools.

How a branch gets a state of its own is told in `state_fork.py`.
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

from ..types import CallStatus, ToolResult

NOT_TOOLS = frozenset({"reset", "get_reward", "fork", "close"})
EXECUTED = frozenset({CallStatus.OK, CallStatus.ERROR, CallStatus.TIMEOUT})


def is_stateful(tool: Callable[..., Any]) -> bool:
    """
    Whether every trajectory needs this tool for itself.

    Args:
        tool (`Callable`):
            A tool.

    Returns:
        `bool`: `True` for a bound method of an object whose class defines `fork`.
    """
    return inspect.ismethod(tool) and not isinstance(tool.__self__, type) and can_fork(tool.__self__)


def method_names(environment: type) -> tuple[str, ...]:
    """
    The methods of an environment that are tools: all public ones but `reset`, `get_reward`, `fork` and `close`.

    Args:
        environment (`type`):
            Class of the environment.

    Returns:
        `tuple[str, ...]`: Their names in alphabetical order, as TRL lists them.
    """
    members = inspect.getmembers(environment, predicate=inspect.isfunction)
    return tuple(name for name, _ in members if not name.startswith("_") and name not in NOT_TOOLS)


@dataclass(frozen=True)
class Origin:
    """
    How the state of a trajectory begins.

    Args:
        factory (`Callable`, *optional*):
            Builds an environment; `None` where there is none.
        row (`Mapping[str, Any]`, *optional*, defaults to `{}`):
            Keyword arguments of its `reset`.
        methods (`tuple[str, ...]`, *optional*, defaults to `()`):
            Methods of the environment that are tools.
        tools (`tuple[Callable, ...]`, *optional*, defaults to `()`):
            Stateful tools as the user passed them. They are forked and never called themselves.
        foreign (`frozenset[str]`, *optional*, defaults to `frozenset()`):
            Tools of other environments of the run, which do not exist for this one.
    """

    factory: Callable[[], Any] | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    tools: tuple[Callable[..., Any], ...] = ()
    foreign: frozenset[str] = frozenset()


class ToolState:
    """
    Environment and stateful tools of one trajectory: a [`CallState`] for the tool runtime.

    It is made by the loop's thread and filled by work that the runtime runs in this state's lane: [`ToolState.reset`]
    for the root, from which the trajectories of a group are forked, and `fork_state` for these. Until then its
    functions can be passed around, and not yet be called.

    Args:
        origin ([`Origin`]):
            How it begins.
        history (`Sequence[ToolResult]`, *optional*, defaults to `()`):
            Results of the stateful calls that led here.

    Attributes:
        environment (`Any`):
            The environment, `None` where there is none (yet).
        observation (`Any`):
            What `reset` returned.
        broken (`str`, *optional*):
            Why the state is lost, as the end of a sentence; `None` while it is sound.
        conflict (`str`, *optional*):
            Why the environment cannot give one prompt to a whole group; see `fork_state`.
        made_by (`str`, *optional*):
            `"reset"`, `"fork"`, `"copy"` or `"replay"`: the costliest way in which a part of it was made.
        fork_s (`float`):
            Seconds that took.
        num_mismatches (`int`):
            Replayed calls whose result differed.
        num_sound (`int`):
            Calls of the history, from the first on, after which the state was sound: a replay may lead so far.
        is_closed (`bool`):
            Whether what it owned is gone; the history stays.
        objects (`dict[int, Any]`):
            What the stateful tools are bound to, by the identity of the object that the user's tool is bound to.
    """

    def __init__(self, origin: Origin, history: Sequence[ToolResult] = ()):
        self.origin = origin
        self.history = list(history)
        self.environment: Any = None
        self.observation: Any = None
        self.broken: str | None = None
        self.conflict: str | None = None
        self.made_by: str | None = None
        self.fork_s = 0.0
        self.num_mismatches = 0
        self.num_sound = len(self.history)
        self.is_closed = False
        self.objects: dict[int, Any] = {}
        self._names = frozenset(origin.methods) | {tool.__name__ for tool in origin.tools}

    def function(self, name: str) -> Callable[..., Any] | None:
        """
        The tool of that name, bound to what this trajectory owns.

        Args:
            name (`str`):
                Name of a tool.

        Returns:
            `Callable` or `None`: `None` for a stateless tool.
        """
        if name not in self._names | self.origin.foreign:
            return None

        def call(**arguments: Any) -> Any:
            if name not in self._names:
                raise LookupError(f"There is no tool named {name!r} here.")
            return self._bound(name)(**arguments)  # bound when it is called: the fork may still be under way

        return call

    def record(self, results: Sequence[ToolResult]) -> None:
        """
        Note the results of a turn; those of stateless tools, and of calls that never ran, are left out.

        Args:
            results (`Sequence[ToolResult]`):
                The results as the tools gave them, in the order of the calls: a replay is compared with them.
        """
        self.history += self._stateful(results)
        if self.broken is None:
            self.num_sound = len(self.history)

    def child(self, results: Sequence[ToolResult]) -> ToolState:
        """
        An empty state for a branch of this trajectory; `fork_state` fills it.

        Args:
            results (`Sequence[ToolResult]`):
                All results up to the branch point, as the model has seen them.

        Returns:
            [`ToolState`]: The state, with the part of the history that it inherits.
        """
        calls = [result.call for result in self._stateful(results)]
        history = self.history[: len(calls)]  # what was recorded is whole, what the model has seen may be cut
        assert calls == [result.call for result in history], "a branch begins with calls that its parent never made"
        child = ToolState(self.origin, history)
        if self.made_by is None or len(history) > self.num_sound:  # a state that was never made is sound nowhere
            child.broken = self.broken
        return child

    def reset(self) -> None:
        """
        Begin: a new environment, reset with the row, and forks of the stateful tools.

        Raises:
            TypeError: If `fork` of a tool does not return a new object of its class.
        """
        start = time.perf_counter()
        if self.origin.factory is not None:
            self.environment = self.origin.factory()
            # An environment may keep and change what it is given.
            self.observation = self.environment.reset(**copy.deepcopy(dict(self.origin.row)))
        self.objects = fork_all({id(owner): owner for owner in map(_owner, self.origin.tools)})
        self.made_by = "reset"
        self.fork_s = time.perf_counter() - start

    def close(self) -> None:
        """Call `close()` of the environment and of the tools' objects, where their class defines it."""
        owned, self.objects, self.environment = [self.environment, *self.objects.values()], {}, None
        self.is_closed = True
        for each in owned:
            if callable(inspect.getattr_static(type(each), "close", None)):
                each.close()

    def _bound(self, name: str) -> Callable[..., Any]:
        for tool in self.origin.tools:
            if tool.__name__ == name:
                assert isinstance(tool, MethodType)
                return MethodType(tool.__func__, self.objects[id(tool.__self__)])
        return getattr(self.environment, name)

    def _stateful(self, results: Sequence[ToolResult]) -> list[ToolResult]:
        return [result for result in results if result.call.name in self._names and result.status in EXECUTED]


def _owner(tool: Callable[..., Any]) -> Any:
    assert isinstance(tool, MethodType), f"{tool!r} is no stateful tool"
    return tool.__self__


def can_fork(owner: Any) -> bool:
    """Whether the class of an object defines a `fork` method."""
    return callable(inspect.getattr_static(type(owner), "fork", None))


def fork(owner: Any) -> Any:
    """
    Fork an object.

    Args:
        owner (`Any`):
            An environment, or what a stateful tool is bound to.

    Returns:
        The new object.

    Raises:
        TypeError: If `fork` does not return a new object of the class.
    """
    forked = owner.fork()
    if forked is owner or type(forked) is not type(owner):
        name = type(owner).__name__
        got = "itself" if forked is owner else f"a {type(forked).__name__}"
        raise TypeError(f"`fork` of {name} must return a new, independent {name}, but it returned {got}.")
    return forked


def fork_all(objects: Mapping[int, Any]) -> dict[int, Any]:
    """Fork what stateful tools are bound to; see [`ToolState`]."""
    return {key: fork(each) for key, each in objects.items()}
