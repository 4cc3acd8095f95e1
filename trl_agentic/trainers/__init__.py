"""Trainers that stand where [`~trl.GRPOTrainer`] stands."""

from .arpo_config import ARPOConfig
from .arpo_trainer import ARPOTrainer

__all__ = ["ARPOConfig", "ARPOTrainer"]
