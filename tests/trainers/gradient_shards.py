"""Bytes of gradients under FSDP2 after two micro-batches, each synced or not; `test_gpu_memory.py` runs it."""

import json
from types import SimpleNamespace

import torch
from accelerate import PartialState
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from transformers import Qwen3Config, Qwen3ForCausalLM


def sharded_model() -> FSDPModule:
    """A small model, sharded as accelerate does it, with gradients that are reduced in float32."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=320, num_key_value_heads=2, head_dim=16, **sizes))
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
    )
    plugin.mixed_precision_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        mixed_precision="bf16",
        is_main_process=True,
        device=torch.device("cpu"),
        torch_device_mesh=None,
    )
    return fsdp2_prepare_model(accelerator, model)


def gradient_bytes(syncs: bool) -> dict[str, float]:
    """Bytes for each parameter of the model, in whole gradients and in shards."""
    model = sharded_model()
    model.set_requires_gradient_sync(syncs)
    ids = torch.arange(24).view(2, 12)
    for _ in range(2):
        model(input_ids=ids, labels=ids).loss.backward()
    groups = {id(group): group for module in model.modules() for group in groups_of(module)}
    held = [parameter.unsharded_accumulated_grad for group in groups.values() for parameter in group.fsdp_params]
    shards = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    size = sum(parameter.numel() for parameter in model.parameters())
    return {
        "whole": sum(gradient.nbytes for gradient in held if gradient is not None) / size,
        "shards": sum(gradient.to_local().nbytes for gradient in shards) / size,
    }


def groups_of(module: torch.nn.Module) -> list:
    """The parameters that a module gathers together."""
    return module._get_fsdp_state()._fsdp_param_groups if isinstance(module, FSDPModule) else []


if __name__ == "__main__":
    rank = PartialState(cpu=True).process_index
    figures = {str(syncs): gradient_bytes(syncs) for syncs in (True, False)}
    if rank == 0:
        print("FIGURES " + json.dumps(figures))
    PartialState().destroy_process_group()
