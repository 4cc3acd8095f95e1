"""Reward functions are the user's: one that raises leaves its rows unscored, and only many such calls stop a run."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

from torch import nn
from trl.trainer.utils import get_callable_name, is_async_callable

logger = logging.getLogger(__name__)


class RewardGuard:
    """
    Counts the failures of reward functions.

    Args:
        max_failures (`int`):
            Calls that may raise before the error is raised.

    Attributes:
        num_failures (`int`):
            Calls that raised so far.
    """

    def __init__(self, max_failures: int):
        self.max_failures = max_failures
        self.num_failures = 0

    def wrap(self, function: Callable | nn.Module | str) -> Any:
        """
        Turn an exception into rows without a score.

        Args:
            function (`Callable`, `nn.Module` or `str`):
                A reward function, sync or async; reward models are returned as they are.

        Returns:
            A function of the same name that returns `[None, …]` where the original raises.
        """
        if isinstance(function, (nn.Module, str)):
            return function
        if is_async_callable(function):

            async def guarded_async(completions: list, **kwargs: Any) -> list[float | None]:
                return await self._score_async(function, completions, kwargs)

            return self._named(guarded_async, function)

        def guarded(completions: list, **kwargs: Any) -> list[float | None]:
            return self._score(function, completions, kwargs)

        return self._named(guarded, function)

    @staticmethod
    def _named(wrapper: Callable, function: Callable) -> Callable:
        functools.update_wrapper(wrapper, function)
        wrapper.__name__ = get_callable_name(function)
        return wrapper

    def _score(self, function: Callable, completions: list, kwargs: dict[str, Any]) -> list[float | None]:
        try:
            return function(completions=completions, **kwargs)
        except ImportError:
            raise  # a package that is missing is missing for every row
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            return self._unscored(function, error, len(completions))

    async def _score_async(self, function: Callable, completions: list, kwargs: dict[str, Any]) -> list[float | None]:
        call = function(completions=completions, **kwargs)
        (outcome,) = list(await asyncio.gather(call, return_exceptions=True))
        if isinstance(outcome, ImportError):
            raise outcome
        return self._unscored(function, outcome, len(completions)) if isinstance(outcome, BaseException) else outcome

    def _unscored(self, function: Callable, error: BaseException, rows: int) -> list[float | None]:
        self.num_failures += 1
        name = get_callable_name(function)
        if self.num_failures > self.max_failures:
            raise RuntimeError(
                f"Reward functions have raised {self.num_failures} times, more than `max_reward_failures` "
                f"({self.max_failures}) allows; the last one was `{name}`."
            ) from error
        logger.warning(
            f"The reward function `{name}` raised {type(error).__name__}: {error}. Its {rows} rows stay unscored "
            f"(failure {self.num_failures} of {self.max_failures} allowed)."
        )
        return [None] * rows
