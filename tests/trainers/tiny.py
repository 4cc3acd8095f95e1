"""A tiny model, tools and scripts for trainer tests."""

import atexit
import functools
import random
import shutil
import tempfile

import torch
from datasets import Dataset
from transformers import Qwen3Config, Qwen3ForCausalLM
from word_tokenizer import WORDS, ids, word_tokenizer, words

from trl_agentic.rollout.engine import Request, Script, ScriptedEngine
from trl_agentic.trainers import APPOConfig, APPOTrainer, ARPOConfig, ARPOTrainer

CALL = ids("need a <search> a </search>")
ANSWERS = [ids(f"found {word} <answer> \\boxed{{ {word} }} </answer> <eos>") for word in "a b c d".split()]


def search(query: str) -> str:
    """
    Look something up.

    Args:
        query: What to look for.
    """
    return f"{query} is b"


def length_reward(completions, completion_ids, **kwargs):
    """Something with spread: the share of even token ids."""
    return [sum(token % 2 == 0 for token in row) / len(row) for row in completion_ids]


@functools.cache
def tiny_model_path() -> str:
    """A random model on disk, since a reference model is loaded from there."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    folder = tempfile.mkdtemp(prefix="tiny-model-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def dataset(rows: int = 8) -> Dataset:
    letters = "abcdefgh"
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"what is {letters[row % 8]}"}], "answer": ["b"]}
            for row in range(rows)
        ]
    )


def scripted_engine(seed: int = 0) -> ScriptedEngine:
    """Searches once or twice, then answers something; uncertain after results more often than not."""
    rng = random.Random(seed)

    def answer(request: Request) -> Script:
        results = words(request.token_ids).count("<result>")
        script = CALL if rng.random() < (0.9, 0.4, 0.0)[min(results, 2)] else rng.choice(ANSWERS)
        logprobs = tuple(-1 - rng.random() for _ in script)
        return Script(script, "stop", tuple(0.5 * results + rng.random() for _ in script), logprobs)

    return ScriptedEngine(answer)


OPTIONS = {
    "use_vllm": False,
    "num_generations": 4,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_steps": 2,
    "max_completion_length": 64,
    "num_tool_workers": 0,
    "learning_rate": 1e-3,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
    "gradient_checkpointing": False,
}
APPO_OPTIONS = {"branches_per_rollout": 3, "steps_per_generation": 8, "max_steps": 4}


def config(output_dir, **options) -> ARPOConfig:
    return ARPOConfig(**(OPTIONS | {"output_dir": str(output_dir), "initial_rollouts": 4} | options))


def appo_config(output_dir, **options) -> APPOConfig:
    """Generations of eight prompts, for four optimizer steps of two prompts each."""
    return APPOConfig(**(OPTIONS | APPO_OPTIONS | {"output_dir": str(output_dir)} | options))


def trainer(output_dir, engine=None, reward_funcs=length_reward, tools=(search,), train_dataset=None, **options):
    args = config(output_dir, **options)
    return _trainer(ARPOTrainer, args, engine, reward_funcs, tools, train_dataset)


def appo_trainer(output_dir, engine=None, reward_funcs=length_reward, tools=(search,), train_dataset=None, **options):
    args = appo_config(output_dir, **options)
    return _trainer(APPOTrainer, args, engine, reward_funcs, tools, train_dataset)


def _trainer(trainer_class, args, engine, reward_funcs, tools, train_dataset):
    return trainer_class(
        model=tiny_model_path(),
        reward_funcs=reward_funcs,
        args=args,
        train_dataset=dataset() if train_dataset is None else train_dataset,
        processing_class=word_tokenizer(),
        tools=list(tools),
        engine=engine or scripted_engine(),
    )
