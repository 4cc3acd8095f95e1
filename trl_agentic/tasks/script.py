"""What to train, and on what, as flags of a script: the part of a training script that is not worth copying."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from datasets import Dataset

from .. import rewards
from ..tools import BM25Search, make_python_tool, make_search_tool
from .datasets import load_arpo
from .geo import Rendering, geo_tools, load_geo

if TYPE_CHECKING:
    from trl import GRPOConfig, ModelConfig

logger = logging.getLogger(__name__)


@dataclass
class TaskArguments:
    """
    What to train on.

    Args:
        dataset (`str`, *optional*, defaults to `"geo"`):
            `"geo"` for the embedded questions, else a parquet file or Hub id in the schema of the ARPO data.
        geo_rendering (`str`, *optional*, defaults to `"natural"`):
            `"natural"`, or `"compact"` for the tiny model.
        search_corpus (`str`, *optional*):
            Texts that `search` finds: a search cache of the ARPO authors (JSON) or a folder saved by
            [`~trl_agentic.tools.BM25Search`]. Geo brings its own documents.
        demonstrations (`str`, *optional*):
            JSON file with chat messages that show the format to a model that does not know it. They stand between the
            system message and the question.
        rewards (`list[str]`, *optional*, defaults to `["arpo_reward"]`):
            Names of functions in `trl_agentic.rewards`.
        num_train_questions (`int`, *optional*):
            Use only the first questions.
        num_eval_questions (`int`, *optional*, defaults to `0`):
            Held-out questions to answer before and after training; 0 for none.
        num_eval_samples (`int`, *optional*, defaults to `4`):
            Samples per held-out question at the training temperature.

    Example:
        ```python
        parser = TrlParser((TaskArguments, ARPOConfig, ModelConfig))
        task_args, training_args, model_args = parser.parse_args_and_config()
        ```
    """

    dataset: str = field(default="geo", metadata={"help": "'geo', or a parquet file or Hub id in the ARPO schema."})
    geo_rendering: str = field(default="natural", metadata={"help": "'natural' or 'compact'."})
    search_corpus: str | None = field(default=None, metadata={"help": "Texts that the search tool finds."})
    demonstrations: str | None = field(default=None, metadata={"help": "Chat messages (JSON) that show the format."})
    rewards: list[str] = field(default_factory=lambda: ["arpo_reward"], metadata={"help": "Reward functions."})
    num_train_questions: int | None = field(default=None, metadata={"help": "Use only the first questions."})
    num_eval_questions: int = field(default=0, metadata={"help": "Held-out questions before and after training."})
    num_eval_samples: int = field(default=4, metadata={"help": "Samples per held-out question."})


def load_task(task_args: TaskArguments) -> tuple[Dataset, Dataset | None, list[Callable]]:
    """
    Load what a script is to train on.

    Args:
        task_args ([`TaskArguments`]):
            The task.

    Returns:
        `tuple[Dataset, Dataset | None, list[Callable]]`:
            Training questions, held-out questions if there are any, and the tools.

    Raises:
        ValueError: If a reward does not exist, if options do not fit each other, or if demonstrations are no messages.
    """
    if unknown := sorted(set(task_args.rewards) - set(rewards.__all__)):
        raise ValueError(
            f"There are no rewards {unknown}. Choose from {[n for n in rewards.__all__ if 'reward' in n]}."
        )
    if task_args.num_eval_samples < 1:
        raise ValueError(f"`num_eval_samples` must be at least 1, got {task_args.num_eval_samples}.")
    load = _load_geo_task if task_args.dataset == "geo" else _load_searched_task
    train, held_out, tools = load(task_args)
    if task_args.demonstrations is not None:
        shown = _read_demonstrations(Path(task_args.demonstrations))
        train = _with_demonstrations(train, shown)
        held_out = None if held_out is None else _with_demonstrations(held_out, shown)
    return train, held_out, tools


def model_init_kwargs(model_args: ModelConfig, training_args: GRPOConfig) -> dict[str, Any]:
    """
    How to load a model: what the flags of [`~trl.ModelConfig`] say, under what `model_init_kwargs` says itself.

    TRL's trainers read the second alone.

    Args:
        model_args ([`~trl.ModelConfig`]):
            Its revision, dtype and attention are used; for quantization and PEFT there are
            [`~trl.get_quantization_config`] and [`~trl.get_peft_config`].
        training_args ([`~trl.GRPOConfig`]):
            Its `model_init_kwargs` come first where both name an argument.

    Returns:
        `dict[str, Any]`: New `model_init_kwargs`.
    """
    from_flags = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
    }
    return from_flags | (training_args.model_init_kwargs or {})


def _load_geo_task(task_args: TaskArguments) -> tuple[Dataset, Dataset | None, list[Callable]]:
    """The embedded questions, with a split that is held out."""
    if task_args.search_corpus is not None:
        logger.warning("Geo brings its own documents: `search_corpus` is not read.")
    rendering = cast(Rendering, task_args.geo_rendering)  # `load_geo` refuses any other
    train = load_geo("train", rendering, task_args.num_train_questions)
    num_questions = task_args.num_eval_questions
    held_out = load_geo("test", rendering, num_questions) if num_questions else None
    return train, held_out, geo_tools(rendering)


def _load_searched_task(task_args: TaskArguments) -> tuple[Dataset, None, list[Callable]]:
    """Questions in the authors' schema, over texts of the user's."""
    if task_args.search_corpus is None:
        raise ValueError("`search_corpus` is needed with a dataset other than 'geo': the texts that `search` finds.")
    if task_args.num_eval_questions:
        raise ValueError("Held-out questions come with 'geo' alone: set `num_eval_questions` to 0.")
    corpus = Path(task_args.search_corpus)
    backend = BM25Search.load(corpus) if corpus.is_dir() else BM25Search.from_arpo_cache(corpus)
    train = load_arpo(task_args.dataset, drop_unanswered=True, drop_duplicates=True)
    if task_args.num_train_questions is not None:
        train = train.select(range(min(task_args.num_train_questions, len(train))))
    return train, None, [make_search_tool(backend), make_python_tool()]


def _read_demonstrations(path: Path) -> list[dict[str, str]]:
    messages = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(messages, list) or not all(
        isinstance(each, dict)
        and {"role", "content"} == set(each)
        and all(isinstance(part, str) for part in each.values())
        for each in messages
    ):
        raise ValueError(
            f"`demonstrations` must be a JSON list of messages with the texts `role` and `content`; {path} is not."
        )
    return messages


def _with_demonstrations(questions: Dataset, shown: list[dict[str, str]]) -> Dataset:
    """Each prompt with the messages behind its system message, if it has one."""

    def insert(row: dict[str, Any]) -> dict[str, Any]:
        prompt = row["prompt"]
        start = int(prompt[0]["role"] == "system")
        return {"prompt": [*prompt[:start], *shown, *prompt[start:]]}

    return questions.map(insert)
