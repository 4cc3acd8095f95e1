"""A trainer on the shipped tiny model and the embedded questions, in a few small steps."""

from pathlib import Path

from transformers import AutoTokenizer

from trl_agentic import rewards
from trl_agentic.tasks import geo_tools, load_geo
from trl_agentic.trainers import ARPOConfig, ARPOTrainer

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL = REPOSITORY / "trl_agentic" / "tasks" / "tiny_geo"


def geo_trainer(
    output_dir,
    peft_config=None,
    eval_dataset=None,
    config_class=ARPOConfig,
    trainer_class=ARPOTrainer,
    prepare=lambda args: None,
    **options,
):
    """A trainer over `config_class`, whose arguments `prepare` may see before it is built."""
    args = config_class(
        **(
            {
                "output_dir": str(output_dir),
                "per_device_train_batch_size": 16,
                "gradient_accumulation_steps": 1,
                "max_steps": 2,
                "max_completion_length": 128,
                "learning_rate": 1e-3,
                "report_to": "none",
                "use_cpu": True,
                "bf16": False,
                "gradient_checkpointing": False,
                "logging_steps": 1,
                "save_strategy": "no",
                "disable_tqdm": True,
                "vllm_max_model_length": 512,
                "vllm_engine_kwargs": {"dtype": "float32", "enforce_eager": True, "block_size": 32},
            }
            | options
        )
    )
    prepare(args)
    return trainer_class(
        model=str(MODEL),
        reward_funcs=[rewards.arpo_reward, rewards.format_share_reward],
        args=args,
        train_dataset=load_geo("train", "compact", 64),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        eval_dataset=eval_dataset,
        peft_config=peft_config,
        tools=geo_tools("compact"),
    )
