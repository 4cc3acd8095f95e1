"""
What a run leaves for others, on the Hub: its rollouts as a dataset, and its model card.

Example:
    ```python
    TrajectoryWriter("runs/geo").compact()  # runs/geo/trajectories.parquet
    push_trajectories("runs/geo", "me/geo-rollouts", model_id="me/geo-agent")
    ```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from huggingface_hub import CommitOperationAdd, DatasetCard, DatasetCardData, HfApi, ModelCard
from trl.trainer.utils import generate_model_card

from .rollout.trajectory_file import FILE_NAME, TrajectoryWriter, trajectory_rows, trajectory_schema

__all__ = [
    "TrajectoryWriter",
    "push_trajectories",
    "run_model_card",
    "trajectory_dataset_card",
    "trajectory_rows",
    "trajectory_schema",
]

COLUMNS = {
    "step": "generation step at which the tree was planted",
    "prompt_id": "unique per tree, even if a question repeats",
    "trajectory": "position in its tree",
    "parent": "position of the parent, null if it started at the prompt",
    "fork": "leading completion tokens shared with the parent",
    "kind": "`initial`, `branch` or `fill`",
    "messages": "the completion as chat messages; arguments of calls are JSON",
    "prompt_ids": "tokens of the prompt",
    "completion_ids": "tokens of the completion, tool results included",
    "sampled_mask": "1 for tokens that the policy sampled",
    "logprobs": "log-probability of each sampled token under the policy that sampled it",
    "entropies": "entropy in nats of the distribution each token was sampled from",
    "advantages": "advantage of each sampled token, null if it was not trained",
    "tool_calls": "name, arguments (JSON), result, status, latency in seconds, whether it came from a cache",
    "status": "why the trajectory ended",
    "reward": "weighted sum of the rewards, null if it was not scored",
    "rewards": "reward of each function",
    "model_version": "weight syncs before it was sampled",
}

# TRL writes these where the base model is a local folder or the model has no place on the Hub.
UNKNOWN_BASE = "[None](https://huggingface.co/None)"
VERSIONS_HEADING = "### Framework versions"


def push_trajectories(
    folder: str | Path,
    repo_id: str,
    *,
    model_id: str | None = None,
    private: bool | None = None,
    api: HfApi | None = None,
) -> str:
    """
    Upload `trajectories.parquet` of a run as a dataset, with a card, in one commit.

    Args:
        folder (`str` or `Path`):
            Output directory of the run.
        repo_id (`str`):
            Dataset on the Hub, `"user/name"`; made if need be.
        model_id (`str`, *optional*):
            Model on the Hub that the run trained, named in the card.
        private (`bool`, *optional*):
            Whether a new dataset is private; the account's default if `None`.
        api (`HfApi`, *optional*):
            Endpoint and token; those of the environment by default.

    Returns:
        `str`: Address of the commit.

    Raises:
        FileNotFoundError: If the run has no `trajectories.parquet`.
    """
    path = Path(folder) / FILE_NAME
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no {path}. Gather the run's parts first: `TrajectoryWriter(folder).compact()`."
        )
    api = api or HfApi()
    api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
    card = trajectory_dataset_card(repo_id, pq.read_metadata(path).num_rows, model_id)
    additions = [CommitOperationAdd("README.md", str(card).encode()), CommitOperationAdd(FILE_NAME, path)]
    commit = api.create_commit(repo_id, additions, commit_message="Upload trajectories", repo_type="dataset")
    return commit.commit_url


def trajectory_dataset_card(repo_id: str, num_rows: int, model_id: str | None = None) -> DatasetCard:
    """
    Describe a dataset of rollouts and its columns.

    Args:
        repo_id (`str`):
            Dataset on the Hub.
        num_rows (`int`):
            Trajectories in it.
        model_id (`str`, *optional*):
            Model on the Hub that the run trained.

    Returns:
        `DatasetCard`: The card.
    """
    data = DatasetCardData(
        tags=["trl-agentic", "rollouts", "tool-use"],
        configs=[{"config_name": "default", "data_files": FILE_NAME}],
    )
    origin = f" of [{model_id}](https://huggingface.co/{model_id})" if model_id else ""
    return DatasetCard(
        f"---\n{data.to_yaml()}\n---\n\n# {repo_id.split('/')[-1]}\n\n"
        f"{num_rows:,} rollouts from the training{origin}, one row per trajectory. Trajectories of one prompt form a "
        "tree: a branch shares its first `fork` completion tokens with its `parent`.\n\n"
        f"{markdown_table(('Column', 'Content'), ((f'`{name}`', text) for name, text in COLUMNS.items()))}"
    )


def run_model_card(
    *,
    trainer_name: str,
    paper: Mapping[str, str],
    tags: Iterable[str],
    model_name: str,
    hub_model_id: str | None = None,
    base_model: str | None = None,
    dataset_name: str | None = None,
    results: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> ModelCard:
    """
    TRL's model card with what an agentic run adds: held-out results, settings, and where its rollouts are.

    Args:
        trainer_name (`str`):
            The trainer's `_name`.
        paper (`Mapping[str, str]`):
            The trainer's `_paper`: `title`, `id` and `citation`.
        tags (`Iterable[str]`):
            The trainer's `_tag_names` and any others.
        model_name (`str`):
            Name of the model.
        hub_model_id (`str`, *optional*):
            Where the model is on the Hub; `model_name` by default.
        base_model (`str`, *optional*):
            Model on the Hub that training started from; `None` for a local checkpoint.
        dataset_name (`str`, *optional*):
            Dataset on the Hub that it was trained on.
        results (`str`, *optional*):
            Markdown, such as [`~trl_agentic.evaluation.BeforeAfter.markdown`] gives.
        settings (`Mapping[str, Any]`, *optional*):
            Settings worth naming; never whole configurations, which may hold tokens and paths.

    Returns:
        `ModelCard`: The card; `card.save(path)` writes it.
    """
    card = generate_model_card(
        base_model=base_model,
        model_name=model_name,
        hub_model_id=hub_model_id or model_name,
        dataset_name=dataset_name,
        tags=sorted(set(tags)),
        wandb_url=None,
        trackio_url=None,
        trainer_name=trainer_name,
        trainer_citation=paper.get("citation"),
        paper_title=paper.get("title"),
        paper_id=paper.get("id"),
    )
    sections = []
    if results:
        sections.append(f"### Results\n\n{results.rstrip()}\n\n")
    if settings:
        rows = ((f"`{name}`", f"`{value}`") for name, value in sorted(settings.items()))
        sections.append(f"### Settings\n\n{markdown_table(('Setting', 'Value'), rows)}\n")
    sections.append(
        f"### Rollouts\n\nEvery rollout of the run, as a tree, is a row of `{FILE_NAME}`: tokens, log-probs, "
        "entropies, tool calls, rewards and advantages.\n\n"
    )
    card.text = card.text.replace(UNKNOWN_BASE, "a local checkpoint")
    card.text = card.text.replace(VERSIONS_HEADING, "".join(sections) + VERSIONS_HEADING, 1)
    return card


def markdown_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table, with a line feed at its end."""
    lines = [header, ("---",) * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
