"""A progress bar that says how the rollouts go."""

from __future__ import annotations

from transformers import ProgressCallback

SHOWN = {
    "reward": ("reward", "{:.2f}"),
    "tool calls": ("rollout/tool_calls", "{:.1f}"),
    "branches": ("branch/rate", "{:.0%}"),
    "branch reward": ("appo/branch_reward", "{:.2f}"),
    "tokens/s": ("rollout/tokens_per_s", "{:,.0f}"),
}


class RolloutProgressCallback(ProgressCallback):
    """
    The trainer's progress bar, with reward, tool calls, branch rate or branch reward, and sampled tokens per second.

    A figure stays until it is logged anew, since a generation may last for many steps.

    Example:
        ```python
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(RolloutProgressCallback)
        ```
    """

    def __init__(self):
        super().__init__()
        self._shown: dict[str, str] = {}

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Show the latest figures beside the bar, in place of a line per step."""
        if state.is_world_process_zero and self.training_bar is not None and logs:
            self._shown |= {
                title: form.format(logs[name])
                for title, (name, form) in SHOWN.items()
                if isinstance(logs.get(name), float)
            }
            if "branch reward" in self._shown:
                self._shown.pop("branches", None)  # all rollouts are initial ones there
            if self._shown:
                self.training_bar.set_postfix(self._shown)
