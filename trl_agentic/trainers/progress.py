"""A progress bar that says how the rollouts go."""

from __future__ import annotations

from transformers import ProgressCallback

SHOWN = {
    "reward": ("reward", "{:.2f}"),
    "tool calls": ("rollout/tool_calls", "{:.1f}"),
    "branches": ("branch/rate", "{:.0%}"),
    "tokens/s": ("rollout/tokens_per_s", "{:,.0f}"),
}


class RolloutProgressCallback(ProgressCallback):
    """
    The trainer's progress bar, with reward, tool calls, branch rate and sampled tokens per second.

    Example:
        ```python
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(RolloutProgressCallback)
        ```
    """

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Show the figures of the last step beside the bar, in place of a line per step."""
        if state.is_world_process_zero and self.training_bar is not None and logs:
            shown = {
                title: form.format(logs[name])
                for title, (name, form) in SHOWN.items()
                if isinstance(logs.get(name), float)
            }
            if shown:
                self.training_bar.set_postfix(shown)
