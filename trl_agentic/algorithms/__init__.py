"""The algorithms as functions: tensors in, tensors out, nothing kept."""

from .advantages import attribute_advantages, group_advantages, shared_prefix_mean
from .branch_scores import branch_candidates, branching_scores, future_values, select_branch_points
from .credit import dual_group_advantages, future_advantages, prefix_branch_credit, released_safeguards
from .diagnostics import spearman
from .entropy import branch_probability, entropy_change, token_entropies, topk_entropies

__all__ = [
    "attribute_advantages",
    "branch_candidates",
    "branch_probability",
    "branching_scores",
    "dual_group_advantages",
    "entropy_change",
    "future_advantages",
    "future_values",
    "group_advantages",
    "prefix_branch_credit",
    "released_safeguards",
    "select_branch_points",
    "shared_prefix_mean",
    "spearman",
    "token_entropies",
    "topk_entropies",
]
