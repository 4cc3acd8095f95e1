"""Shapes of the models that recipes for GPUs name, as their `config.json` says, and their published sizes."""

from __future__ import annotations

from transformers import PretrainedConfig, Qwen2Config, Qwen3Config

# hidden size, MLP, layers, heads, heads of keys and values, vocabulary, whether head and embeddings are one
QWEN2 = {
    "Qwen/Qwen2.5-3B-Instruct": (2048, 11008, 36, 16, 2, 151936, True),
    "Qwen/Qwen2.5-7B-Instruct": (3584, 18944, 28, 28, 4, 152064, False),
}
QWEN3 = {
    "Qwen/Qwen3-0.6B": (1024, 3072, 28, 16, 8, 151936, True),
    "Qwen/Qwen3-1.7B": (2048, 6144, 28, 16, 8, 151936, True),
    "Qwen/Qwen3-4B": (2560, 9728, 36, 32, 8, 151936, True),
    "Qwen/Qwen3-8B": (4096, 12288, 36, 32, 8, 151936, False),
    "Qwen/Qwen3-14B": (5120, 17408, 40, 40, 8, 151936, False),
}
BILLIONS = {
    "Qwen/Qwen2.5-3B-Instruct": 3.09,
    "Qwen/Qwen2.5-7B-Instruct": 7.62,
    "Qwen/Qwen3-0.6B": 0.60,
    "Qwen/Qwen3-1.7B": 1.72,
    "Qwen/Qwen3-4B": 4.02,
    "Qwen/Qwen3-8B": 8.19,
    "Qwen/Qwen3-14B": 14.77,
}


def published_config(name: str) -> PretrainedConfig:
    """The configuration of a model, without a network."""
    if name in QWEN3:
        return Qwen3Config(**_sizes(QWEN3[name]), head_dim=128)
    return Qwen2Config(**_sizes(QWEN2[name]))


def _sizes(shape: tuple) -> dict:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return dict(zip((*names, "vocab_size", "tie_word_embeddings"), shape, strict=True))
