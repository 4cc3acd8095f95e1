"""
What a run leaves for others, on the Hub: its model with a card, and its rollouts as a dataset.

Example:
    ```python
    trainer.train()
    push_run(trainer)  # me/geo-agent, and me/geo-agent-rollouts
    ```
    or, with what a run has left on disk, whether it has ended or not:
    ```python
    push_trajectories("runs/geo", "me/geo-rollouts", model_id="me/geo-agent")
    ```
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from huggingface_hub import CommitOperationAdd, DatasetCard, DatasetCardData, HfApi

from .rollout.trajectory_file import FILE_NAME, TrajectoryWriter, copy_trajectories, read_trajectories
from .rollout.trajectory_rows import trajectory_rows, trajectory_schema
from .trainers.model_card import markdown_table, run_model_card

if TYPE_CHECKING:
    from .trainers.agentic_trainer import AgenticTrainer

__all__ = [
    "TrajectoryWriter",
    "push_run",
    "push_trajectories",
    "read_trajectories",
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
    "reward": "weighted sum of the rewards, null if it was not scored, or a branch that was cut off",
    "rewards": "reward of each function",
    "model_version": "weight syncs before it was sampled",
}


def push_run(trainer: AgenticTrainer) -> None:
    """
    Upload the model of a run with its card, and its rollouts as a dataset beside it, if they were saved.

    Where to, as what and with which token is said by `hub_model_id`, `hub_private_repo` and `hub_token`; the dataset
    is called like the model, with `-rollouts` behind. All processes call this; the first one uploads.

    Args:
        trainer ([`ARPOTrainer`] or [`APPOTrainer`]):
            The trainer, after training.

    Raises:
        FileNotFoundError: If the rollouts of the run should be there (`save_trajectories`), and nothing was sampled.
    """
    trainer.push_to_hub()
    args = trainer.args
    if trainer.is_world_process_zero() and args.save_trajectories:
        model_id, api = trainer.hub_model_id, HfApi(token=args.hub_token)
        dataset_id = f"{model_id}-rollouts"
        push_trajectories(args.output_dir, dataset_id, model_id=model_id, private=args.hub_private_repo, api=api)


def push_trajectories(
    folder: str | Path,
    repo_id: str,
    *,
    model_id: str | None = None,
    private: bool | None = None,
    api: HfApi | None = None,
) -> str:
    """
    Upload the rollouts of a run as a dataset of one file, `trajectories.parquet`, with a card, in one commit.

    Args:
        folder (`str` or `Path`):
            Output directory of the run, which may be going on.
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
        FileNotFoundError: If the run has no rollouts.
    """
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / FILE_NAME
        num_rows = copy_trajectories(folder, path)
        api = api or HfApi()
        api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
        card = trajectory_dataset_card(repo_id, num_rows, model_id)
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
