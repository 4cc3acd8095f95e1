"""What can be said of datasets and reward functions before anything is loaded."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from datasets import Dataset, IterableDataset
from torch import nn
from trl.trainer.utils import get_callable_name

from ..rewards.answers import accepted_answers
from .agentic_config import AgenticConfig

logger = logging.getLogger(__name__)

TRAINER_COLUMNS = frozenset(
    {
        "prompts",
        "completions",
        "completion_ids",
        "environments",
        "trainer_state",
        "log_extra",
        "log_metric",
        "rollout_status",
        "rollout_calls",
        "rollout_parent",
        "rollout_fork",
        "rollout_dialect",
        "rollout_messages",
    }
)
"""What the trainer passes to reward functions beside the columns of the dataset."""


def check_datasets(args: AgenticConfig, reward_funcs: Sequence[Any], train: Any, evaluation: Any) -> None:
    """
    Check what is known of the datasets. One that is streamed is not read.

    Args:
        args ([`AgenticConfig`]):
            Configuration of the trainer.
        reward_funcs (`Sequence`):
            Reward functions, of any kind of callable; reward models ask for nothing.
        train, evaluation (`Dataset`, `IterableDataset`, a mapping of them, or `None`):
            The datasets.

    Raises:
        ValueError: If a column is missing or holds what cannot be scored, if a reward function does not take what the
            trainer passes, or if the training prompts do not fill one generation, with which training would end before
            it begins.
    """
    functions = [each for each in reward_funcs if callable(each) and not isinstance(each, nn.Module)]
    for function in functions:
        _check_signature(function)
    for name, dataset in [*_parts("training dataset", train), *_parts("evaluation dataset", evaluation)]:
        _check_columns(functions, name, dataset)
    assert args.generation_batch_size is not None, "TRL sets it"
    prompts = args.generation_batch_size // args.num_generations
    if isinstance(train, Dataset) and len(train) < prompts:
        raise ValueError(
            f"A generation takes {prompts} prompts (generation_batch_size / num_generations = "
            f"{args.generation_batch_size} / {args.num_generations}), but the training dataset has {len(train)}, so "
            "nothing could be trained. Pass more prompts (repeated ones do), or lower `steps_per_generation` or "
            "`per_device_train_batch_size`."
        )


def _parts(name: str, dataset: Any) -> Iterator[tuple[str, Dataset | IterableDataset]]:
    if isinstance(dataset, Mapping):
        for key, part in dataset.items():
            yield from _parts(f"{name} {key!r}", part)
    elif isinstance(dataset, (Dataset, IterableDataset)):
        yield name, dataset


def _parameters(function: Callable) -> list[inspect.Parameter]:
    """The parameters of any callable; where Python does not know them, all that there are by name."""
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # some callables that are written in C
        return [inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)]


def _check_signature(function: Callable) -> None:
    """The trainer passes everything by name, and more than any function names."""
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in _parameters(function)):
        raise ValueError(
            f"The reward function `{get_callable_name(function)}` takes no `**kwargs`, but gets every column of the "
            "dataset, `trainer_state` and more by name, as in TRL. Add `**kwargs` to its parameters."
        )


def _check_columns(functions: Sequence[Callable], name: str, dataset: Dataset | IterableDataset) -> None:
    if dataset.column_names is None:
        return
    if "prompt" not in dataset.column_names:
        raise ValueError(
            f"The {name} has no column `prompt`, but {dataset.column_names}. Rename the one that holds the questions: "
            'dataset.rename_column("question", "prompt").'
        )
    for function in functions:
        parameters = _parameters(function)
        for each in parameters:
            is_required = each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
            if is_required and each.name not in TRAINER_COLUMNS and each.name not in dataset.column_names:
                raise ValueError(
                    f"The reward function `{get_callable_name(function)}` needs a column `{each.name}`, but the "
                    f"{name} has {dataset.column_names}. Rename the column that holds it, or pass another reward "
                    "function."
                )
        if "answer" in dataset.column_names and any(each.name == "answer" for each in parameters):
            _check_answers(function, name, dataset)


def _check_answers(function: Callable, name: str, dataset: Dataset | IterableDataset) -> None:
    """Refuse answers that none of ours can read, or that are all empty; say how many are where only some are."""
    if not isinstance(dataset, Dataset) or not len(dataset) or not _is_ours(function):
        return  # what a function of the user's makes of answers is its own business
    missing = 0
    for row, answer in enumerate(dataset["answer"]):
        try:
            missing += not accepted_answers(answer)
        except TypeError as error:
            raise ValueError(
                f"Row {row} of the {name} cannot be scored by `{get_callable_name(function)}`: its `answer` is "
                f"{answer!r}, and an accepted answer is a text, a number or a list of them. Convert the column, as in "
                'dataset.map(lambda row: {"answer": row["answer"]["aliases"]}).'
            ) from error
    if missing == len(dataset):
        raise ValueError(
            f"The reward function `{get_callable_name(function)}` compares with the column `answer`, which is empty "
            f"in all {missing} rows of the {name}. Fill it with the accepted answers."
        )
    if missing:
        logger.warning(f"{missing} of {len(dataset)} questions have no answer and will stay unscored ({name}).")


def _is_ours(function: Callable) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return (getattr(function, "__module__", None) or "").startswith("trl_agentic.")
