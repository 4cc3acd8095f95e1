"""How good a policy is, how sure that is, and how it got there."""

from .curves import APPO_PANELS, Panel, plot_training_curves
from .held_out import HeldOutQuestions
from .metrics import Gain, accuracy_by, paired_bootstrap, pass_at_k
from .report import BeforeAfter, GainRow
from .runner import Accuracy, measure_accuracy

__all__ = [
    "APPO_PANELS",
    "Accuracy",
    "BeforeAfter",
    "Gain",
    "GainRow",
    "HeldOutQuestions",
    "Panel",
    "accuracy_by",
    "measure_accuracy",
    "paired_bootstrap",
    "pass_at_k",
    "plot_training_curves",
]
