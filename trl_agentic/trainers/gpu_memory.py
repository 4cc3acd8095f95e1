"""[`estimate_memory`]: what a run needs on each GPU, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from peft import PeftConfig, get_peft_model
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from trl.kernels.chunked_logprob import TOKEN_CHUNK_SIZE
from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

from .agentic_config import AgenticConfig

RUNTIME = 3e9  # CUDA contexts, NCCL's buffers, and the engine's CUDA graphs, which stay while it sleeps
ENGINE_WORKSPACE = 2e9  # what the engine keeps of its share for a forward pass over 4,096 tokens
FLOAT32, BFLOAT16 = 4, 2


@dataclass(frozen=True)
class MemoryEstimate:
    """
    Bytes on one GPU. Parts are upper bounds, so a run should stay below the peaks.

    Args:
        parameters (`float`):
            The share of the parameters, in the dtype of training.
        optimizer (`float`):
            The share of AdamW's two moments.
        gradients (`float`):
            The share of the gradients.
        whole_gradients (`float`):
            Gradients of all parameters, unsharded: what gradient accumulation without `sync_each_batch` adds.
        layers (`float`):
            Layers that are gathered, or cast, and gradients under way.
        head (`float`):
            The output head, gathered, and its gradient.
        checkpoints (`float`):
            Activations that are kept between forward and backward pass.
        activations (`float`):
            Activations of the layer that is computed.
        logits (`float`):
            The tile of logits in work, and the hidden states that it is computed from.
        synced_parameter (`float`):
            The largest parameter, whole and in float32, on its way to the engine.
        engine_weights (`float`):
            The engine's copy of the weights.
        kv_cache (`float`):
            The engine's keys and values.
        kv_token (`float`):
            Keys and values of one token.
        engine_asleep (`float`):
            What the engine holds while the trainer works.
    """

    parameters: float
    optimizer: float
    gradients: float
    whole_gradients: float
    layers: float
    head: float
    checkpoints: float
    activations: float
    logits: float
    synced_parameter: float
    engine_weights: float
    kv_cache: float
    kv_token: float
    engine_asleep: float

    @property
    def step(self) -> float:
        """What an optimizer step adds to the parameters at its peak."""
        sharded = self.optimizer + self.gradients + self.whole_gradients
        return sharded + self.layers + self.head + self.checkpoints + self.activations + self.logits

    @property
    def training_peak(self) -> float:
        """The most while the trainer works."""
        return self.parameters + self.step + self.engine_asleep + RUNTIME

    @property
    def rollout_peak(self) -> float:
        """The most while the engine is awake: there are no gradients then, and no activations."""
        engine = self.engine_weights + self.kv_cache + ENGINE_WORKSPACE
        return self.parameters + self.optimizer + self.synced_parameter + engine + RUNTIME

    @property
    def kv_cache_tokens(self) -> int:
        """Tokens that the engine's cache holds."""
        return int(self.kv_cache / self.kv_token)


def estimate_memory(
    config: PretrainedConfig,
    args: AgenticConfig,
    num_processes: int,
    device_bytes: float = 80e9,
    peft_config: PeftConfig | None = None,
) -> MemoryEstimate:
    """
    Estimate what a run needs on each GPU, from the shape of its model.

    Several processes share the model by FSDP2 as in `configs/accelerate`; one process holds all of it. With P
    parameters of which Q are trained, L in the largest layer, a head of H, N processes, and T = rows of a micro-batch
    times `vllm_max_model_length`:

    - parameters: 4 Q / N, since FSDP2 and adapters train in float32, and (P - Q) / N in the dtype they are loaded in;
    - AdamW: 8 Q / N; gradients: 4 Q / N, and 4 Q more with N > 1 if they are accumulated without `sync_each_batch`
      (one process without an adapter keeps the dtype it loads in these two and in its parameters);
    - layers: with N > 1, two layers in bfloat16 (4 L) and, where they are trained, their gradients in bfloat16 and in
      float32 (12 L); with N = 1, autocast's bfloat16 copies of what is trained in float32 (2 Q);
    - head: with N > 1, 2 H, and 6 H more in float32 and bfloat16 for its gradient; with N = 1, 4 H for the gradient;
    - checkpoints: T times the hidden size, of every layer; without gradient checkpointing the activations of each;
    - activations: bfloat16, 16 times the hidden size, 8 times the width of queries, keys and values, and 6 times that
      of the MLP; and three bytes for each entry of the attention mask;
    - logits: one tile of TRL's fused head, never all; hidden states in bfloat16, and their gradient in float32;
    - engine: `vllm_gpu_memory_utilization` of the device: weights, workspace, and the rest keys and values. In
      training it is empty with `vllm_enable_sleep_mode`, else as large as in the rollout.

    Where `bf16` is off, read float32 for bfloat16. A reference model (`beta > 0`) is not counted.

    Args:
        config ([`~transformers.PretrainedConfig`]):
            Configuration of a causal language model.
        args ([`AgenticConfig`]):
            Configuration of the trainer. The dtype of its `model_init_kwargs` is float32 by default, as in TRL.
        num_processes (`int`):
            GPUs.
        device_bytes (`float`, *optional*, defaults to `80e9`):
            Memory of a GPU.
        peft_config ([`~peft.PeftConfig`], *optional*):
            The adapter that is trained, if not all parameters are.

    Returns:
        [`MemoryEstimate`]: The parts, in bytes.

    Raises:
        ValueError: If the optimizer is not AdamW, or the engine's share does not hold its weights.
    """
    if "adamw_torch" not in (optimizer := str(getattr(args.optim, "value", args.optim))):
        raise ValueError(f"`optim={optimizer!r}` is not in the formula; it counts `adamw_torch` and its variants.")
    model = _on_meta(config, peft_config)
    num_trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    num_frozen = sum(p.numel() for p in model.parameters()) - num_trained
    trained = (_loaded_bytes(args) if num_processes == 1 and peft_config is None else FLOAT32) * num_trained
    return MemoryEstimate(
        parameters=(trained + _loaded_bytes(args) * num_frozen) / num_processes,
        optimizer=2 * trained / num_processes,
        gradients=trained / num_processes,
        whole_gradients=0.0 if num_processes == 1 or _syncs_each_batch(args) else trained,
        **_gathered(model, args, num_processes),
        **_activations(config, args, num_processes),
        synced_parameter=FLOAT32 * max(parameter.numel() for parameter in model.parameters()),
        **_engine(config, args, num_frozen or num_trained, device_bytes),
    )


def _on_meta(config: PretrainedConfig, peft_config: PeftConfig | None) -> PreTrainedModel:
    """The model without its weights."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        return model if peft_config is None else get_peft_model(model, peft_config)


def _loaded_bytes(args: AgenticConfig) -> int:
    """Bytes of a parameter as TRL loads it."""
    assert not isinstance(args.model_init_kwargs, str), "the configuration parses JSON at construction"
    dtype = (args.model_init_kwargs or {}).get("dtype") or "float32"
    return FLOAT32 if str(dtype).endswith("float32") else BFLOAT16


def _computed_bytes(args: AgenticConfig) -> int:
    """Bytes of a number in the forward pass."""
    return BFLOAT16 if args.bf16 or args.fp16 else FLOAT32


def _syncs_each_batch(args: AgenticConfig) -> bool:
    """Whether gradients are reduced, and so sharded, after each micro-batch."""
    options = args.accelerator_config.gradient_accumulation_kwargs or {}
    return args.gradient_accumulation_steps == 1 or bool(options.get("sync_each_batch"))


def _gathered(model: PreTrainedModel, args: AgenticConfig, num_processes: int) -> dict[str, float]:
    """Whole parameters and gradients beside the shards."""
    computed, weight = _computed_bytes(args), model.get_output_embeddings().weight
    if num_processes == 1:
        copied = sum(p.numel() for p in model.parameters() if p.requires_grad) * (_loaded_bytes(args) > computed)
        return {"layers": computed * copied, "head": FLOAT32 * weight.numel() * weight.requires_grad}
    layer = max(sum(p.numel() for p in layer.parameters()) for layer in _layers(model))
    each = computed + weight.requires_grad * (computed + FLOAT32)
    return {"layers": 2 * layer * each, "head": weight.numel() * each}


def _layers(model: PreTrainedModel) -> torch.nn.ModuleList:
    """The decoder layers, beneath an adapter too."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return base.get_decoder().layers


def _activations(config: PretrainedConfig, args: AgenticConfig, num_processes: int) -> dict[str, float]:
    """What forward and backward pass of the longest micro-batch hold."""
    rows = args.per_device_train_batch_size
    length = args.vllm_max_model_length or config.max_position_embeddings
    tokens, hidden = rows * length, config.hidden_size
    head_size = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    width = head_size * (config.num_attention_heads + 2 * config.num_key_value_heads)
    computed = _computed_bytes(args)
    layer = tokens * computed * (16 * hidden + 8 * width + 6 * config.intermediate_size)
    # float32 embeddings keep the residual stream in float32; FSDP2 casts them first
    residual = max(computed, _loaded_bytes(args)) if num_processes == 1 else computed
    kept = tokens * hidden * residual if args.gradient_checkpointing else layer
    return {
        "checkpoints": config.num_hidden_layers * kept,
        "activations": layer + 3 * rows * length**2,
        "logits": TOKEN_CHUNK_SIZE * _CHUNKED_LOGPROB_CHUNK_SIZE * computed + tokens * hidden * (computed + FLOAT32),
    }


def _engine(config: PretrainedConfig, args: AgenticConfig, num_weights: int, device_bytes: float) -> dict[str, float]:
    """How the engine divides its share."""
    assert not isinstance(args.vllm_engine_kwargs, str), "the configuration parses JSON at construction"
    dtype = (args.vllm_engine_kwargs or {}).get("dtype", "bfloat16")
    size = FLOAT32 if str(dtype).endswith("float32") else BFLOAT16
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    share, weights = args.vllm_gpu_memory_utilization * device_bytes, size * num_weights
    if share <= weights + ENGINE_WORKSPACE:
        raise ValueError(
            f"The engine gets {share / 1e9:.1f} GB (`vllm_gpu_memory_utilization` of the device), but its weights "
            f"and workspace take {(weights + ENGINE_WORKSPACE) / 1e9:.1f} GB. Raise `vllm_gpu_memory_utilization`, "
            "or choose a smaller model."
        )
    return {
        "engine_weights": weights,
        "kv_cache": share - weights - ENGINE_WORKSPACE,
        "kv_token": 2 * size * config.num_hidden_layers * config.num_key_value_heads * head_size,
        "engine_asleep": 0.0 if args.vllm_enable_sleep_mode else share,
    }
