"""
Train a tool-using agent with APPO.

    accelerate launch examples/train_appo.py --config configs/appo_tiny_geo_cpu.yaml
    accelerate launch examples/train_appo.py --config configs/appo_smollm2_cpu.yaml --dataset train_10k.parquet \\
        --search_corpus search_cache.json

Every value of a YAML can be overridden by a flag. What the run leaves in `output_dir`: the model,
`trajectories.parquet` with every rollout and branch, `curves.png`, `log_history.json` and, with `num_eval_questions`
above 0, `before_after.md` and `scores.npz`.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from transformers import AutoTokenizer, ProgressCallback
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from trl_agentic import APPOConfig, APPOTrainer, rewards
from trl_agentic.evaluation import APPO_PANELS, HeldOutQuestions, plot_training_curves
from trl_agentic.hub import push_run
from trl_agentic.tasks import TaskArguments, load_task, model_init_kwargs
from trl_agentic.tools import sandbox_report
from trl_agentic.trainers.progress import RolloutProgressCallback


def main(task_args: TaskArguments, training_args: APPOConfig, model_args: ModelConfig) -> None:
    """Measure, train, measure, save."""
    train, held_out, tools = load_task(task_args)
    training_args.model_init_kwargs = model_init_kwargs(model_args, training_args)
    trainer = APPOTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=[getattr(rewards, name) for name in task_args.rewards],
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
        questions = HeldOutQuestions(trainer, held_out, task_args.num_eval_samples)
        trainer.add_callback(questions)
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
        plot_training_curves(trainer.state.log_history, folder / "curves.png", APPO_PANELS)
    if held_out is not None:
        questions.report()
    trainer.create_model_card()
    if is_main:
        print(f"Model, rollouts and curves are in {training_args.output_dir}.")
    if training_args.push_to_hub:
        push_run(trainer)


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("trl_agentic").setLevel(logging.INFO)  # the first rollout, spelled out, among others
    parser = TrlParser((TaskArguments, APPOConfig, ModelConfig))
    main(*parser.parse_args_and_config())
