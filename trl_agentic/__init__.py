"""
Reinforcement learning of tool-using agents with branching rollouts, in TRL's terms.

Names are imported when they are first used, so that `import trl_agentic` costs nothing and needs neither PyTorch nor
vLLM. Everything else is public where it lives: `trl_agentic.algorithms`, `trl_agentic.rewards`, `trl_agentic.tools`.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .trainers.appo_config import APPOConfig
    from .trainers.appo_trainer import APPOTrainer
    from .trainers.arpo_config import ARPOConfig
    from .trainers.arpo_trainer import ARPOTrainer
    from .types import BranchPoint, BranchTree, Kind, Segment, Status, ToolCall, ToolResult, Trajectory


_HOMES = {
    "APPOConfig": "trainers.appo_config",
    "APPOTrainer": "trainers.appo_trainer",
    "ARPOConfig": "trainers.arpo_config",
    "ARPOTrainer": "trainers.arpo_trainer",
    "BranchPoint": "types",
    "BranchTree": "types",
    "Kind": "types",
    "Segment": "types",
    "Status": "types",
    "ToolCall": "types",
    "ToolResult": "types",
    "Trajectory": "types",
}

__all__ = [
    "APPOConfig",
    "APPOTrainer",
    "ARPOConfig",
    "ARPOTrainer",
    "BranchPoint",
    "BranchTree",
    "Kind",
    "Segment",
    "Status",
    "ToolCall",
    "ToolResult",
    "Trajectory",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("trl-agentic")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
