"""[`WeightSync`]: gives the engine the weights of the moment, and leaves those of the trainer as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from accelerate.utils import is_peft_model
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from torch.distributed.tensor import DTensor
from trl.generation.vllm_generation import VLLMGeneration

from .fsdp2 import reshard


class WeightSync:
    """
    Pushes the weights of a trainer's model to its vLLM. Every sync goes through here.

    TRL's sync does the work, with two things put right. Under FSDP2, parameters that a forward pass has left whole are
    sharded again before they are gathered. And adapters are merged into copies, one layer at a time: merging in place
    and subtracting again, as TRL does, leaves the rounding of each sync behind in a bfloat16 base.

    Args:
        generation ([`~trl.generation.vllm_generation.VLLMGeneration`]):
            What TRL built around the engine.
    """

    def __init__(self, generation: VLLMGeneration):
        self._generation = generation
        if is_peft_model(generation.model) and generation._dist.fsdp_version != 1:
            generation._iter_named_params = self._merged_parameters

    def push(self) -> None:
        """Bring the engine up to date and reset its prefix cache; all processes have to call it together."""
        reshard(self._generation.model)
        self._generation.sync_weights()

    @torch.no_grad()
    def _merged_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters of the base model under the engine's names, whole, with the active adapters merged in."""
        generation, model = self._generation, self._generation.model
        layers = adapted_layers(model)
        for name, layer in layers.items():
            with generation._dist.gather_params(list(layer.parameters())), merged(layer, self._whole):
                for of_parameter, parameter in layer.get_base_layer().named_parameters():
                    yield self._name(f"{name}.{of_parameter}"), parameter.data
        done = tuple(f"{name}." for name in layers)
        for name, parameter in model.named_parameters():
            if name.startswith(done) or "original_module" in name:
                continue
            with generation._dist.gather_params([parameter]):
                yield self._name(name), self._whole(parameter)

    def _name(self, name: str) -> str:
        name = name.removeprefix("base_model.model.")
        wrappers = ["modules_to_save.default.", "token_adapter."]
        return self._generation._fix_param_name_to_vllm(name, extra_prefixes=wrappers)

    def _whole(self, parameter: torch.Tensor) -> torch.Tensor:
        """All of a parameter, on the device: gathered where it is sharded, itself elsewhere."""
        data = parameter.detach().to(self._generation.accelerator.device)
        return data.full_tensor() if isinstance(data, DTensor) else data


def adapted_layers(model: PeftModel) -> dict[str, BaseTunerLayer]:
    """
    The layers that adapters wrap.

    Args:
        model ([`~peft.PeftModel`]):
            A model with adapters.

    Returns:
        `dict[str, BaseTunerLayer]`: The outermost wrapper of each layer by its name in `model`.
    """
    layers: dict[str, BaseTunerLayer] = {}
    outermost = ""  # the last of them: a module comes right before those in it
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer) and not (outermost and name.startswith(outermost)):
            layers[name], outermost = module, f"{name}."
    return layers


@contextmanager
def merged(layer: BaseTunerLayer, whole: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """
    Merge the active adapters of a layer into a copy of its base, which stands in for the base within.

    Every parameter is replaced by a whole copy, PEFT merges those, and the parameters come back untouched. So sharded
    layers, biases and all kinds of adapters that PEFT can merge are covered. Quantised weights are not copied: PEFT
    replaces them when it merges.

    Args:
        layer ([`~peft.tuners.tuners_utils.BaseTunerLayer`]):
            The layer.
        whole (`Callable[[torch.Tensor], torch.Tensor]`):
            Gathers a parameter.
    """
    places = [
        (module, name, parameter)
        for module in layer.modules()
        for name, parameter in module.named_parameters(recurse=False)
    ]
    adapters = [module for module in layer.modules() if isinstance(module, BaseTunerLayer)]
    try:
        for module, name, parameter in places:
            if parameter.is_floating_point():
                setattr(module, name, nn.Parameter(whole(parameter).clone(), requires_grad=False))
        for adapter in adapters:
            adapter.merge()
        yield
    finally:
        for adapter in adapters:
            adapter.merged_adapters.clear()
        for module, name, parameter in places:
            setattr(module, name, parameter)
