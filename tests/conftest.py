"""Shared fixtures: one tiny model and one real vLLM engine for the whole session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


# Before torch and vLLM are imported: one thread each, as test processes may share the cores, and no network.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import pytest
import torch


REPOSITORY = Path(__file__).resolve().parent.parent
SHIPPED_MODEL = REPOSITORY / "trl_agentic" / "tasks" / "tiny_geo"
WORDS = ["<pad>", "<eos>", "<unk>", *(f"w{index}" for index in range(93))]

VLLM_KWARGS = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "max_model_len": 512,
    "max_num_seqs": 64,
    "logprobs_mode": "processed_logprobs",
    "disable_log_stats": True,
}


def save_random_model(folder: Path, seed: int = 0) -> Path:
    """A random Qwen3 of 96 words, wide enough in its logits that entropies differ from token to token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    config = Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        initializer_range=0.25,
    )
    torch.manual_seed(seed)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def random_model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model, whose next tokens are uncertain everywhere."""
    return str(save_random_model(tmp_path_factory.mktemp("random-model")))


@pytest.fixture(scope="session")
def tiny_model_path(random_model_path: str) -> str:
    """The model that the package ships, or a random one where it does not."""
    return str(SHIPPED_MODEL) if (SHIPPED_MODEL / "config.json").exists() else random_model_path


@pytest.fixture(scope="session")
def make_llm() -> Iterator[object]:
    """Builds a vLLM engine as the trainer does, for tests that need one of their own."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm import LLM

    from trl_agentic.rollout.vllm_engine import entropy_engine_kwargs, prepare_cpu_platform

    prepare_cpu_platform(kv_cache_gib=1)

    def make(path: str, **kwargs: object) -> LLM:
        return LLM(path, **(VLLM_KWARGS | entropy_engine_kwargs() | kwargs))

    yield make


@pytest.fixture(scope="session")
def vllm_llm(make_llm, random_model_path: str) -> Iterator[object]:
    """The session's vLLM engine, over the random model: starting one costs seconds. Leave nothing running in it."""
    llm = make_llm(random_model_path)
    yield llm
    llm.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="session")
def random_model(random_model_path: str):
    """The same weights as a transformers model in float32, in eval mode."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(random_model_path, dtype=torch.float32).eval()
