"""Shared fixtures: one tiny model and one real vLLM engine for the whole session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

# Before torch and vLLM are imported: one thread each, as test processes may share the cores, and no network.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import pytest
import torch
from async_scheduling import SCHEDULINGS, asynchronous_platform, play_streams
from word_tokenizer import WORDS, word_tokenizer

SHIPPED_MODEL = Path(__file__).resolve().parent.parent / "trl_agentic" / "tasks" / "tiny_geo"

VLLM_KWARGS = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "max_model_len": 512,
    "max_num_seqs": 64,
    "logprobs_mode": "processed_logprobs",
    "disable_log_stats": True,
}


@pytest.fixture(scope="session")
def random_model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Qwen3 over the words of `word_tokenizer`, with weights so large that entropies differ by token."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("random-model")
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
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen3ForCausalLM(config).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny_model_path(random_model_path: str) -> str:
    """The model that the package ships, or a random one where it does not."""
    return str(SHIPPED_MODEL) if (SHIPPED_MODEL / "config.json").exists() else random_model_path


@pytest.fixture(scope="session")
def random_model(random_model_path: str):
    """The random model in transformers, float32, eval mode. Leave its weights alone."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(random_model_path, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def make_llm() -> Iterator[object]:
    """Builds vLLM engines, with a scheduling of `SCHEDULINGS`, for tests that need one of their own."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm import LLM

    from trl_agentic.rollout.vllm_engine import entropy_engine_kwargs, prepare_cpu_platform

    def make(path: str, scheduling: str, **kwargs: object) -> LLM:
        with asynchronous_platform() if scheduling == "async" else nullcontext():
            llm = LLM(path, **(VLLM_KWARGS | entropy_engine_kwargs() | kwargs))
        assert llm.llm_engine.vllm_config.scheduler_config.async_scheduling == (scheduling == "async")
        return llm

    with pytest.MonkeyPatch.context() as patch:
        # An engine that goes away tears down vLLM's process groups, which the other engines of the process share.
        patch.setattr("vllm.v1.engine.core.cleanup_dist_env_and_memory", lambda: None)
        play_streams(patch)
        prepare_cpu_platform(kv_cache_gib=1)
        yield make


@pytest.fixture(scope="session")
def sync_llm(make_llm, random_model_path: str):
    """A vLLM engine over the random model for the session. Leave nothing running in it."""
    return make_llm(random_model_path, "sync")


@pytest.fixture(scope="session")
def async_llm(make_llm, random_model_path: str):
    """The same with asynchronous scheduling."""
    return make_llm(random_model_path, "async")


@pytest.fixture(params=SCHEDULINGS)
def vllm_llm(request):
    """Each of the two."""
    return request.getfixturevalue(f"{request.param}_llm")
