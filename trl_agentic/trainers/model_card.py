"""The model card of a run: TRL's, with results, settings, and where the rollouts are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCard
from trl.trainer.utils import generate_model_card, get_config_model_id

from ..rollout.trajectory_file import FILE_NAME

if TYPE_CHECKING:
    from .agentic_trainer import AgenticTrainer

# TRL writes these where the base model is a local folder or the model has no place on the Hub.
UNKNOWN_BASE = "[None](https://huggingface.co/None)"
VERSIONS_HEADING = "### Framework versions"

SETTINGS = (  # beside those that the trainer's configuration class defines itself
    "tool_dialect",
    "max_tool_calling_iterations",
    "max_completion_length",
    "learning_rate",
    "beta",
    "loss_type",
    "temperature",
    "max_steps",
    "seed",
)


def write_model_card(
    trainer: AgenticTrainer, model_name: str | None, dataset_name: str | None, tags: Iterable[str]
) -> None:
    """
    Write the card of a trainer's run into its output directory.

    Args:
        trainer ([`AgenticTrainer`]):
            The trainer; its `card_results` go into the card.
        model_name (`str`, *optional*), dataset_name (`str`, *optional*), tags (`Iterable[str]`):
            As in [`~transformers.Trainer.create_model_card`].
    """
    base = get_config_model_id(trainer.model.config)
    folder = Path(trainer.args.output_dir)
    card = run_model_card(
        trainer_name=trainer._name,
        paper=trainer._paper,
        tags={*trainer._tag_names, *tags},
        model_name=model_name or folder.name,
        hub_model_id=trainer.hub_model_id,
        base_model=base if base and not Path(base).is_dir() else None,
        dataset_name=dataset_name,
        results=trainer.card_results,
        settings={name: vars(trainer.args)[name] for name in (*trainer.config_class.__annotations__, *SETTINGS)},
    )
    card.save(folder / "README.md")


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
