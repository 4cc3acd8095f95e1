"""What we rely on in accelerate's FSDP2 and vLLM's logits processors; see also `tests/trainers/test_fsdp2.py`."""

import dataclasses
import inspect
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.fsdp import MixedPrecisionPolicy

from trl_agentic.trainers.fsdp2 import keep_float32, reshard

BF16, FP32 = torch.bfloat16, torch.float32


def accelerator_with(policy) -> SimpleNamespace:
    plugin = SimpleNamespace(mixed_precision_policy=policy)
    return SimpleNamespace(is_fsdp2=True, state=SimpleNamespace(fsdp_plugin=plugin))


def test_accelerates_policy_rounds_outputs_and_gradients_until_ours_replaces_it():
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    assert plugin.mixed_precision_policy == MixedPrecisionPolicy(BF16, BF16, BF16)
    keep_float32(SimpleNamespace(is_fsdp2=True, state=SimpleNamespace(fsdp_plugin=plugin)))
    assert plugin.mixed_precision_policy == MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=FP32)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (None, None),  # without mixed precision
        (MixedPrecisionPolicy(BF16, BF16, FP32), MixedPrecisionPolicy(BF16, BF16, FP32)),  # somebody's choice
        (MixedPrecisionPolicy(torch.float16, FP32, torch.float16), MixedPrecisionPolicy(torch.float16, FP32)),
    ],
)
def test_only_outputs_of_low_precision_are_changed(policy, expected):
    accelerator = accelerator_with(policy)
    keep_float32(accelerator)
    assert accelerator.state.fsdp_plugin.mixed_precision_policy == expected


def test_a_model_without_fsdp2_has_nothing_to_reshard():
    reshard(torch.nn.Sequential(torch.nn.Linear(2, 2)))


def test_vllms_second_runner_gives_processors_what_ours_reads():
    interface = pytest.importorskip("vllm.v1.worker.gpu.sample.logits_processor.interface")
    context = {field.name for field in dataclasses.fields(interface.LogitsContext)}
    assert {"idx_mapping_np", "seq_lens_upper_bound_np"} <= context
    assert "prompt_len" in {field.name for field in dataclasses.fields(interface.LogitsProcRequestState)}
    buffers = pytest.importorskip("vllm.v1.worker.gpu.buffer_utils")
    assert "self.np = " in inspect.getsource(buffers.UvaBackedTensor.__init__)  # to build one takes a GPU
