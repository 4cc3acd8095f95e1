"""What FSDP2, as accelerate sets it up, does to shards and numbers, and what rollouts need instead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.distributed.fsdp import FSDPModule

if TYPE_CHECKING:
    from accelerate import Accelerator


def reshard(model: torch.nn.Module) -> None:
    """
    Shard every parameter again that a forward pass has left whole. Does nothing without FSDP2.

    accelerate lets FSDP2 keep the final norm and the head after a forward pass, since backward begins with them. A
    pass without gradient has no backward, so they stay plain tensors, which a weight sync or a copy of the parameters
    does not expect.

    Args:
        model (`torch.nn.Module`):
            The model, on every process.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def keep_float32(accelerator: Accelerator) -> None:
    """
    Let FSDP2 compute in low precision, but return outputs as they were computed and reduce gradients in float32.

    accelerate's default rounds the outputs of the model, here log-probs and entropies, to the dtype of the parameters:
    in bfloat16 a log-prob near -1 has steps of 0.008, more than a policy moves within a generation. To be called
    before any model is prepared. Does nothing without FSDP2, or where outputs keep their precision.

    Args:
        accelerator ([`~accelerate.Accelerator`]):
            The trainer's.
    """
    if not accelerator.is_fsdp2:
        return
    plugin = accelerator.state.fsdp_plugin
    policy = plugin.mixed_precision_policy
    if policy is not None and policy.output_dtype in (torch.bfloat16, torch.float16):
        plugin.mixed_precision_policy = replace(policy, reduce_dtype=torch.float32, output_dtype=None)
