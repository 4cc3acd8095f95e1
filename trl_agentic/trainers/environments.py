"""TRL's environments and stateful tools in trees: who has which tools, and the states of the rollouts in flight."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from trl import GRPOConfig

from ..tools import ToolRuntime
from ..tools.state import Origin, ToolState, is_stateful, method_names

logger = logging.getLogger(__name__)

EMPTY_PROMPT = [{"role": "user", "content": ""}]  # TRL's, where the environment alone says what to do


@dataclass(frozen=True)
class EnvironmentKind:
    """
    One kind of environment.

    Args:
        factory (`Callable`):
            Builds an instance.
        probe (`Any`):
            An instance that is only looked at.
    """

    factory: Callable[[], Any]
    probe: Any

    @classmethod
    def of(cls, factory: Callable[[], Any]) -> EnvironmentKind:
        """
        Build one instance and look at it.

        Args:
            factory (`Callable`):
                The user's factory.

        Returns:
            [`EnvironmentKind`]: The kind.

        Raises:
            TypeError: If the factory cannot be called.
            ValueError: If its instances have no `reset`.
        """
        if not callable(factory):
            raise TypeError(f"An environment factory must be callable, got `{type(factory).__name__}`.")
        probe = factory()
        if "reset" not in dict(inspect.getmembers(type(probe), predicate=inspect.isfunction)):
            raise ValueError(
                "Each environment instance returned by `environment_factory` must define a callable `reset`; "
                f"`{type(probe).__name__}` does not. Give it one that takes the columns of a row as keyword arguments."
            )
        return cls(factory, probe)

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods that are tools."""
        return method_names(type(self.probe))

    @property
    def tools(self) -> list[Callable[..., Any]]:
        """The methods that are tools, bound to the probe: they describe calls and are never called."""
        return [getattr(self.probe, name) for name in self.methods]


class Environments:
    """
    What a trainer knows of its environments and stateful tools.

    For each prompt one environment is built and reset with its row, the *root*. What `reset` returns is appended to
    the prompt. Every trajectory of the prompt gets a fork of the root, so that all of them begin alike, and every
    branch a fork of its parent's; see [`~trl_agentic.tools.state_fork.fork_state`]. Environments that have a `close`
    method are closed after the rewards.

    A `reset` that fails, or does not come back in time, costs its prompt: its rows end with status `"error"`, unscored
    by the environment. Only if no prompt of the first generation could be reset, the run stops.

    Args:
        factory (`Callable`, `dict[str, Callable]`, *optional*):
            As `environment_factory` in [`~trl.GRPOTrainer`].
        tools (`Sequence[Callable]`, *optional*, defaults to `()`):
            The tools that belong to no environment.

    Raises:
        TypeError: If a factory cannot be called.
        ValueError: If an environment has no `reset`, or two have a tool of one name with different parameters.
    """

    def __init__(
        self,
        factory: Callable[[], Any] | Mapping[str, Callable[[], Any]] | None,
        tools: Sequence[Callable[..., Any]] = (),
    ):
        self.is_routed = isinstance(factory, Mapping)  # rows name their environment
        factories: Mapping[Any, Any] = factory if isinstance(factory, Mapping) else {None: factory} if factory else {}
        self.kinds = {name: EnvironmentKind.of(each) for name, each in factories.items()}
        self.plain_tools = list(tools)
        self._stateful = tuple(tool for tool in tools if is_stateful(tool))
        self._has_reset = False
        self._methods = self._all_methods()

    @property
    def has_state(self) -> bool:
        """Whether trajectories have anything of their own."""
        return bool(self.kinds or self._stateful)

    @property
    def tools(self) -> list[Callable[..., Any]]:
        """Every tool there is, one of each name."""
        return [*self.plain_tools, *self._methods.values()]

    @property
    def reward_funcs(self) -> list[Callable[..., Any]]:
        """For each class with `get_reward` a function that asks the environment of each row of that very class."""
        types = dict.fromkeys(type(kind.probe) for kind in self.kinds.values())
        return [_own_reward(each) for each in types if callable(inspect.getattr_static(each, "get_reward", None))]

    def tools_of(self, name: str | None) -> list[Callable[..., Any]]:
        """The tools that a row with this environment gets to see."""
        return [*self.plain_tools, *self.kinds[name].tools] if self.kinds else self.plain_tools

    def name_of(self, row: Mapping[str, Any]) -> str | None:
        """
        The environment of a row.

        Args:
            row (`Mapping[str, Any]`):
                A row of the dataset.

        Returns:
            `str` or `None`: `None` unless environments have names.

        Raises:
            ValueError: If the row names none of them.
        """
        if not self.is_routed:
            return None
        name = row.get("environment")
        if name not in self.kinds:
            raise ValueError(
                f"Example has `environment={name!r}`, which is not among the environments passed to "
                f"`environment_factory`. Expected one of: {list(self.kinds)}."
            )
        return name

    def prompt_of(self, row: Mapping[str, Any]) -> str | list[dict[str, Any]]:
        """The prompt of a row; empty if it has none and its environment will say what to do."""
        return row.get("prompt", EMPTY_PROMPT) if self.kinds else row["prompt"]

    def roots(self, rows: Sequence[Mapping[str, Any]]) -> list[ToolState]:
        """
        The root of each row, which [`Environments.reset`] sets up.

        Args:
            rows (`Sequence[Mapping[str, Any]]`):
                One row of the dataset per prompt.

        Returns:
            `list[ToolState]`: The roots; none where nothing has a state.
        """
        return [ToolState(self._origin(row)) for row in rows] if self.has_state else []

    def reset(self, roots: Sequence[ToolState], runtime: ToolRuntime, timeout_s: float) -> None:
        """
        Build and reset an environment for each root, all at the same time.

        Args:
            roots (`Sequence[ToolState]`):
                What [`Environments.roots`] returned.
            runtime ([`~trl_agentic.tools.ToolRuntime`]):
                Runs the resets.
            timeout_s (`float`):
                Seconds to wait for all of them.

        Raises:
            RuntimeError: If every reset fails and none ever succeeded.
        """
        for root in roots:
            runtime.prepare(root, root.reset)
        runtime.settle(roots, timeout_s)
        for root in roots:
            if root.made_by is None and root.broken is None:
                root.broken = f"its reset did not end within {timeout_s:g} s."
        self._check(roots)

    def _origin(self, row: Mapping[str, Any]) -> Origin:
        if not self.kinds:
            return Origin(tools=self._stateful)
        kind = self.kinds[self.name_of(row)]
        arguments = {key: value for key, value in row.items() if not (self.is_routed and key == "environment")}
        foreign = frozenset(self._methods) - set(kind.methods)
        return Origin(kind.factory, arguments, kind.methods, self._stateful, foreign)

    def _check(self, roots: Sequence[ToolState]) -> None:
        failed = [root for root in roots if root.broken is not None]
        self._has_reset = self._has_reset or len(failed) < len(roots)
        if not failed:
            return
        if not self._has_reset:
            raise RuntimeError(
                f"No environment could be set up, for none of the first {len(roots)} prompts; {failed[0].broken} "
                "Repair the factory or `reset`, which gets the columns of a row as keyword arguments."
            )
        logger.warning(
            f"{len(failed)} of {len(roots)} environments could not be set up, so the rollouts of their prompts end "
            f"with status 'error'. The first: {failed[0].broken}"
        )

    def _all_methods(self) -> dict[str, Callable[..., Any]]:
        methods: dict[str, Callable[..., Any]] = {}
        for kind in self.kinds.values():
            for tool in kind.tools:
                known = methods.setdefault(tool.__name__, tool)
                if inspect.signature(known) != inspect.signature(tool):
                    raise ValueError(
                        f"Two environments define `{tool.__name__}` with different parameters: "
                        f"{inspect.signature(known)} and {inspect.signature(tool)}. Rename one of the methods."
                    )
        return methods


def placeholder_dataset(environments: Environments, args: GRPOConfig) -> Dataset:
    """
    A dataset of empty prompts, as TRL makes one where the environment brings its own.

    Args:
        environments ([`Environments`]):
            The environments.
        args ([`~trl.GRPOConfig`]):
            Arguments of the trainer.

    Returns:
        `Dataset`: As many prompts as one generation takes.

    Raises:
        ValueError: If rows have to name their environment, or nothing says how long to train.
    """
    if environments.is_routed:
        raise ValueError(
            "A `dict` `environment_factory` (multiple environments) requires a `train_dataset` with an `environment` "
            "column to route each example to its environment. Provide a dataset, or pass a single environment factory."
        )
    if args.max_steps <= 0:
        raise ValueError(
            "Without a `train_dataset` nothing says how long to train. Set `max_steps` to a positive value, or pass a "
            "dataset."
        )
    return Dataset.from_dict({"prompt": [EMPTY_PROMPT] * (args.generation_batch_size // args.num_generations)})


def with_weights(args: Any, num_environments: int) -> Any:
    """
    The same arguments with weight 1 for the reward of each environment class, as in TRL.

    Args:
        args ([`~trl.GRPOConfig`]):
            Arguments of the trainer; they are not changed.
        num_environments (`int`):
            Reward functions of environments, which stand behind the user's own.

    Returns:
        [`~trl.GRPOConfig`]: The arguments themselves if they hold no weights.
    """
    if not num_environments or args.reward_weights is None:
        return args
    weighted = copy.copy(args)
    weighted.reward_weights = [*args.reward_weights, *[1.0] * num_environments]
    return weighted


def _own_reward(kind: type) -> Callable[..., Any]:
    """A reward function, named after the class, that returns `None` for rows of other environments."""
    if inspect.iscoroutinefunction(inspect.getattr_static(kind, "get_reward")):

        async def get_reward_async(environments: list[Any], **kwargs: Any) -> list[float | None]:
            return [await each.get_reward() if _is_exactly(each, kind) else None for each in environments]

        get_reward_async.__name__ = kind.__name__
        return get_reward_async

    def get_reward(environments: list[Any], **kwargs: Any) -> list[float | None]:
        return [each.get_reward() if _is_exactly(each, kind) else None for each in environments]

    get_reward.__name__ = kind.__name__
    return get_reward


def _is_exactly(environment: Any, kind: type) -> bool:
    return type(environment) is kind  # as in TRL: a subclass that was registered too is scored once
