"""Trainers that stand where [`~trl.GRPOTrainer`] stands."""

from .appo_config import APPOConfig
from .appo_trainer import APPOTrainer
from .arpo_config import ARPOConfig
from .arpo_trainer import ARPOTrainer

__all__ = ["APPOConfig", "APPOTrainer", "ARPOConfig", "ARPOTrainer"]
