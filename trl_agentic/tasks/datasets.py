"""
Question sets in the schema of the ARPO authors' published data, brought to the columns that TRL's trainers expect.

Example:
    ```python
    from trl_agentic.tasks.datasets import load_arpo

    dataset = load_arpo("dongguanting/ARPO-RL-Reasoning-10K", drop_unanswered=True)
    dataset[0]["prompt"]  # [{"role": "system", ...}, {"role": "user", ...}]
    dataset[0]["answer"]  # ["Chattahoochee National Forest"]
    ```
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, IterableDataset, List, Value, load_dataset

logger = logging.getLogger(__name__)

# LaTeX commands whose backslash and first letter were read as one control character when the data were written.
BROKEN_COMMANDS = {"\x08oxed": r"\boxed", "\x0crac{": r"\frac{"}

SOURCE_COLUMNS = ("data_source", "prompt", "ability", "reward_model")

FEATURES = Features(
    {
        "prompt": List({"role": Value("string"), "content": Value("string")}),
        "answer": List(Value("string")),
        "data_source": Value("string"),
        "ability": Value("string"),
    }
)


def load_arpo(
    name_or_path: str | Path, split: str = "train", *, drop_unanswered: bool = False, drop_duplicates: bool = False
) -> Dataset:
    """
    Load questions in the ARPO authors' schema, from a parquet file or from the Hub.

    The published system prompt holds a backspace followed by `oxed` where `\\boxed` was meant, and some questions a
    form feed followed by `rac{`: both are repaired. Repairs, dropped rows and repeated questions are logged with their
    number, one line each.

    Args:
        name_or_path (`str` or `Path`):
            A `.parquet` file, a folder that [`~datasets.load_dataset`] can read, or a dataset on the Hub
            (`"dongguanting/ARPO-RL-Reasoning-10K"`, `"dongguanting/ARPO-RL-DeepSearch-1K"`).
        split (`str`, *optional*, defaults to `"train"`):
            Split of a folder or a Hub dataset. A single file is one split and is read whole.
        drop_unanswered (`bool`, *optional*, defaults to `False`):
            Whether to drop rows that have no answer (`train_10k` has one) instead of raising.
        drop_duplicates (`bool`, *optional*, defaults to `False`):
            Whether to keep only the first of several rows that ask the same question. Questions are compared without
            regard to case and white space.

    Returns:
        `Dataset`:
            Columns `prompt` (chat messages), `answer` (list of accepted answers), `data_source` and `ability`
            (`None` where the source has none).

    Raises:
        FileNotFoundError: If there is no such file, or no such dataset on the Hub.
        ConnectionError: If the Hub cannot be reached.
        ValueError: If the schema is another one, or a row has no answer and `drop_unanswered` is not set.
    """
    source = str(name_or_path)
    rows, repaired = [], 0
    for row in _read(source, split):
        prompt = [{"role": message["role"], "content": repair_latex(message["content"])} for message in row["prompt"]]
        repaired += any(new["content"] != old["content"] for new, old in zip(prompt, row["prompt"], strict=True))
        answer = _accepted_answers(row["reward_model"])
        rows.append({"prompt": prompt, "answer": answer, "data_source": row["data_source"], "ability": row["ability"]})
    if repaired:
        logger.warning("%s: repaired LaTeX commands that had lost their backslash in %d prompts.", source, repaired)
    rows = _handle_unanswered(rows, source, drop_unanswered)
    if not rows:
        raise ValueError(f"No row of {source} has an answer, so nothing could be scored. Fill `reward_model`.")
    rows = _handle_duplicates(rows, source, drop_duplicates)
    return Dataset.from_list(rows, features=FEATURES)


def check_answers(dataset: Dataset | IterableDataset) -> None:
    """
    Make sure that a reward function can find the accepted answers of every question.

    Args:
        dataset (`Dataset` or `IterableDataset`):
            Training or evaluation data. Of an [`~datasets.IterableDataset`] only the column is checked, not the rows.

    Raises:
        ValueError: If there is no `answer` column, or a row of it is neither a text nor a list of texts, or is empty.
    """
    columns = dataset.column_names
    if columns is None:  # an iterable dataset without known features
        columns = list(next(iter(dataset), {}))
    if "answer" not in columns:
        raise ValueError(
            f"The dataset has no column 'answer'; its columns are {sorted(columns)}. Rewards compare with the "
            "accepted answers: rename the column that holds them, `dataset.rename_column(..., 'answer')`."
        )
    if isinstance(dataset, IterableDataset):
        return
    for index, answer in enumerate(dataset["answer"]):
        accepted = [answer] if isinstance(answer, str) else answer
        if not isinstance(accepted, list) or not any(isinstance(text, str) and text.strip() for text in accepted):
            raise ValueError(
                f"Row {index} of the dataset has the answer {answer!r}; expected a text or a list of accepted texts. "
                "Fill it in or remove the row."
            )


def repair_latex(text: str) -> str:
    r"""Give `\boxed` and `\frac` their backslash back where it was read as part of a control character."""
    for broken, command in BROKEN_COMMANDS.items():
        text = text.replace(broken, command)
    return text


def _read(source: str, split: str) -> list[dict[str, Any]]:
    """The rows as they are stored, once their columns are known to be the expected ones."""
    if Path(source).suffix == ".parquet":
        table = _read_parquet(source)
        columns, rows = table.column_names, table.to_pylist()
    else:
        stored = _load_from_hub(source, split)
        columns, rows = stored.column_names, stored.to_list()
    missing = [name for name in SOURCE_COLUMNS if name not in columns]
    if missing:
        raise ValueError(
            f"{source} lacks the columns {missing} of the ARPO schema; it has {sorted(columns)}. A dataset that is in "
            "TRL's format already (`prompt`, `answer`) needs no loader."
        )
    for index, row in enumerate(rows):
        if not row["prompt"] or any(message["content"] is None for message in row["prompt"]):
            raise ValueError(f"Row {index} of {source} has the prompt {row['prompt']!r}; expected chat messages.")
    return rows


def _read_parquet(path: str) -> pa.Table:
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"There is no file {path} (looked for from {Path.cwd()}). Give the path of a downloaded parquet file, or "
            "the dataset's name on the Hub, such as 'dongguanting/ARPO-RL-Reasoning-10K'."
        )
    try:
        return pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read as parquet ({error}). Download it again.") from error


def _load_from_hub(source: str, split: str) -> Dataset:
    try:
        return load_dataset(source, split=split)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"'{source}' is neither a folder here nor a dataset on the Hub that this login may read. Check the name, "
            "or give the path of a `.parquet` file."
        ) from error
    except ConnectionError as error:
        raise ConnectionError(
            f"The Hub cannot be reached for '{source}' ({error}). Download the dataset's parquet file where there is "
            "a network and give its path instead."
        ) from error


def _accepted_answers(reward_model: dict[str, Any] | None) -> list[str]:
    truth = (reward_model or {}).get("ground_truth")
    truths = truth if isinstance(truth, list) else [truth]
    return [str(text).strip() for text in truths if text is not None and str(text).strip()]


def _handle_unanswered(rows: list[dict[str, Any]], source: str, drop: bool) -> list[dict[str, Any]]:
    unanswered = [index for index, row in enumerate(rows) if not row["answer"]]
    if not unanswered:
        return rows
    if not drop:
        question = rows[unanswered[0]]["prompt"][-1]["content"]
        raise ValueError(
            f"{len(unanswered)} of {len(rows)} rows of {source} have no answer; the first is row {unanswered[0]}: "
            f"{question[:200]!r}. Pass `drop_unanswered=True` to leave them out."
        )
    logger.warning("%s: dropped %d rows without an answer (rows %s).", source, len(unanswered), _some(unanswered))
    return [row for row in rows if row["answer"]]


def _handle_duplicates(rows: list[dict[str, Any]], source: str, drop: bool) -> list[dict[str, Any]]:
    first: dict[str, dict[str, Any]] = {}
    disagreeing = 0
    for row in rows:
        texts = " ".join(message["content"] for message in row["prompt"] if message["role"] != "system")
        kept = first.setdefault(" ".join(texts.casefold().split()), row)
        disagreeing += kept["answer"] != row["answer"]
    repeated = len(rows) - len(first)
    if repeated:
        action = "dropped" if drop else "kept; pass `drop_duplicates=True` to drop them"
        logger.warning(
            "%s: %d rows repeat an earlier question, %d of them with another answer (%s).",
            *(source, repeated, disagreeing, action),
        )
    return list(first.values()) if drop else rows


def _some(indices: Iterable[int], limit: int = 10) -> str:
    shown = list(indices)
    return ", ".join(map(str, shown[:limit])) + (", …" if len(shown) > limit else "")
