"""The algorithms as functions: tensors in, tensors out, nothing kept."""

from .advantages import attribute_advantages, group_advantages, shared_prefix_mean
from .entropy import branch_probability, entropy_change, token_entropies, topk_entropies

__all__ = [
    "attribute_advantages",
    "branch_probability",
    "entropy_change",
    "group_advantages",
    "shared_prefix_mean",
    "token_entropies",
    "topk_entropies",
]
