"""
Train a tool-using agent with ARPO.

    accelerate launch examples/train_arpo.py --config configs/arpo_tiny_geo_cpu.yaml
    accelerate launch examples/train_arpo.py --config configs/arpo_smollm2_cpu.yaml --dataset train_10k.parquet \\
        --search_corpus search_cache.json

Every value of a YAML can be overridden by a flag. What the run leaves in `output_dir`: the model,
`trajectories.parquet` with every rollout, `curves.png`, `log_history.json` and, with `num_eval_questions` above 0,
`before_after.md` and `scores.npz`.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from accelerate.utils import gather_object
from datasets import Dataset
from huggingface_hub import HfApi
from rich.console import Console
from transformers import AutoTokenizer, ProgressCallback, TrainerCallback
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from trl_agentic import ARPOConfig, ARPOTrainer, rewards
from trl_agentic.evaluation import Accuracy, BeforeAfter, measure_accuracy, plot_training_curves
from trl_agentic.hub import push_trajectories
from trl_agentic.tasks import geo_tools, load_arpo, load_geo
from trl_agentic.tools import BM25Search, make_python_tool, make_search_tool, sandbox_report
from trl_agentic.trainers.progress import RolloutProgressCallback


@dataclass
class ScriptArguments:
    """
    What to train on.

    Args:
        dataset (`str`, *optional*, defaults to `"geo"`):
            `"geo"` for the embedded questions, else a parquet file or Hub id in the schema of the ARPO data.
        geo_rendering (`str`, *optional*, defaults to `"natural"`):
            `"natural"`, or `"compact"` for the tiny model.
        search_corpus (`str`, *optional*):
            Texts that `search` finds: a search cache of the ARPO authors (JSON) or a folder saved by [`BM25Search`].
            Geo brings its own documents.
        rewards (`list[str]`, *optional*, defaults to `["arpo_reward"]`):
            Names of functions in `trl_agentic.rewards`.
        num_train_questions (`int`, *optional*):
            Use only the first questions.
        num_eval_questions (`int`, *optional*, defaults to `0`):
            Held-out questions to answer before and after training; 0 for none.
        num_eval_samples (`int`, *optional*, defaults to `4`):
            Samples per held-out question at the training temperature.
    """

    dataset: str = field(default="geo", metadata={"help": "'geo', or a parquet file or Hub id in the ARPO schema."})
    geo_rendering: str = field(default="natural", metadata={"help": "'natural' or 'compact'."})
    search_corpus: str | None = field(default=None, metadata={"help": "Texts that the search tool finds."})
    rewards: list[str] = field(default_factory=lambda: ["arpo_reward"], metadata={"help": "Reward functions."})
    num_train_questions: int | None = field(default=None, metadata={"help": "Use only the first questions."})
    num_eval_questions: int = field(default=0, metadata={"help": "Held-out questions before and after training."})
    num_eval_samples: int = field(default=4, metadata={"help": "Samples per held-out question."})


def load_task(script_args: ScriptArguments) -> tuple[Dataset, Dataset | None, list]:
    """Training questions, held-out questions if there are any, and the tools."""
    if unknown := sorted(set(script_args.rewards) - set(rewards.__all__)):
        raise ValueError(
            f"There are no rewards {unknown}. Choose from {[n for n in rewards.__all__ if 'reward' in n]}."
        )
    if script_args.num_eval_samples < 1:
        raise ValueError(f"`num_eval_samples` must be at least 1, got {script_args.num_eval_samples}.")
    if script_args.dataset == "geo":
        if script_args.search_corpus is not None:
            logging.getLogger(__name__).warning("Geo brings its own documents: `search_corpus` is not read.")
        train = load_geo("train", script_args.geo_rendering, script_args.num_train_questions)
        num_questions = script_args.num_eval_questions
        held_out = load_geo("test", script_args.geo_rendering, num_questions) if num_questions else None
        return train, held_out, geo_tools(script_args.geo_rendering)
    if script_args.search_corpus is None:
        raise ValueError("`search_corpus` is needed with a dataset other than 'geo': the texts that `search` finds.")
    if script_args.num_eval_questions:
        raise ValueError("Held-out questions come with 'geo' alone: set `num_eval_questions` to 0.")
    corpus = Path(script_args.search_corpus)
    backend = BM25Search.load(corpus) if corpus.is_dir() else BM25Search.from_arpo_cache(corpus)
    train = load_arpo(script_args.dataset, drop_unanswered=True, drop_duplicates=True)
    if script_args.num_train_questions is not None:
        train = train.select(range(min(script_args.num_train_questions, len(train))))
    return train, None, [make_search_tool(backend), make_python_tool()]


def measure(trainer: ARPOTrainer, held_out: Dataset, num_samples: int) -> dict[str, Accuracy]:
    """Accuracy at the training temperature, and greedy; each process answers its share of the questions."""
    accelerator = trainer.accelerator
    share = held_out.shard(accelerator.num_processes, accelerator.process_index, contiguous=True)
    shared = (trainer.rollout, trainer.dialect, share, rewards.exact_match_reward)
    measured = {
        "sampled": measure_accuracy(*shared, num_samples=num_samples),
        "greedy": measure_accuracy(*shared, num_samples=1, temperature=0.0),
    }
    return {name: Accuracy.merged(gather_object([accuracy])) for name, accuracy in measured.items()}


class MeasureBefore(TrainerCallback):
    """
    Answers the held-out questions at the start of training, when the model is where it will be trained.

    The measurement is kept in `before.json`, so that a resumed run compares with where the first one began.
    """

    def __init__(self, trainer: ARPOTrainer, held_out: Dataset, num_samples: int):
        self.trainer, self.held_out, self.num_samples = trainer, held_out, num_samples
        self.accuracy: dict[str, Accuracy] = {}

    def on_train_begin(self, args, state, control, **kwargs):
        """Measure, or take up the measurement of the run that is resumed."""
        path = Path(args.output_dir) / "before.json"
        if state.global_step > 0:
            if not path.is_file():
                raise ValueError(
                    f"{path} is missing: resume with --num_eval_questions 0, or in the first run's folder."
                )
            kept = json.loads(path.read_text())
            self.accuracy = {name: Accuracy(np.array(scores), *rest) for name, (scores, *rest) in kept.items()}
            return
        if state.is_world_process_zero:
            print("Answering the held-out questions before training ...")
        self.accuracy = measure(self.trainer, self.held_out, self.num_samples)
        if state.is_world_process_zero:
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = {name: (a.scores.tolist(), a.tool_calls, a.sampled_tokens) for name, a in self.accuracy.items()}
            path.write_text(json.dumps(kept))


def report(trainer: ARPOTrainer, held_out: Dataset, before: dict[str, Accuracy], after: dict[str, Accuracy]) -> None:
    """Print the table of gains and keep its figures."""
    table = BeforeAfter(before, after, held_out["hops"])
    Console().print(table.rich())
    folder = Path(trainer.args.output_dir)
    trainer.card_results = table.markdown()
    (folder / "before_after.md").write_text(trainer.card_results)
    np.savez(
        folder / "scores.npz",
        hops=held_out["hops"],
        **{f"before_{name}": accuracy.scores for name, accuracy in before.items()},
        **{f"after_{name}": accuracy.scores for name, accuracy in after.items()},
    )


def main(script_args: ScriptArguments, training_args: ARPOConfig, model_args: ModelConfig) -> None:
    """Measure, train, measure, save."""
    train, held_out, tools = load_task(script_args)
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
    } | (training_args.model_init_kwargs or {})
    trainer = ARPOTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=[getattr(rewards, name) for name in script_args.rewards],
        args=training_args,
        train_dataset=train,
        processing_class=AutoTokenizer.from_pretrained(
            model_args.model_name_or_path, revision=model_args.model_revision
        ),
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
        tools=tools,
    )
    if held_out is not None:
        before = MeasureBefore(trainer, held_out, script_args.num_eval_samples)
        trainer.add_callback(before)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(RolloutProgressCallback)
    is_main = trainer.accelerator.is_main_process
    if is_main:
        print(f"{len(train):,} questions to train on, {len(held_out or [])} held out. {sandbox_report()['summary']}")
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model()
    if is_main:
        folder = Path(training_args.output_dir)
        (folder / "log_history.json").write_text(json.dumps(trainer.state.log_history))
        plot_training_curves(trainer.state.log_history, folder / "curves.png")
    if held_out is not None:
        if is_main:
            print("Answering the held-out questions after training ...")
        after = measure(trainer, held_out, script_args.num_eval_samples)
        if is_main:
            report(trainer, held_out, before.accuracy, after)
    trainer.create_model_card()
    if is_main:
        print(f"Model, rollouts and curves are in {training_args.output_dir}.")
    if training_args.push_to_hub:
        trainer.push_to_hub()
        if is_main and training_args.save_trajectories:
            model_id, private = trainer.hub_model_id, training_args.hub_private_repo
            api = HfApi(token=training_args.hub_token)
            push_trajectories(
                training_args.output_dir, f"{model_id}-rollouts", model_id=model_id, private=private, api=api
            )


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("trl_agentic").setLevel(logging.INFO)  # the first rollout, spelled out, among others
    parser = TrlParser((ScriptArguments, ARPOConfig, ModelConfig))
    main(*parser.parse_args_and_config())
