"""The bar says how the rollouts go."""

from types import SimpleNamespace

from trl_agentic.trainers.progress import RolloutProgressCallback


def test_the_bar_shows_reward_calls_branches_and_speed_and_nothing_that_is_missing():
    shown = {}
    callback = RolloutProgressCallback()
    callback.training_bar = SimpleNamespace(set_postfix=shown.update)
    state = SimpleNamespace(is_world_process_zero=True)
    logs = {"reward": 0.513, "rollout/tool_calls": 1.84, "branch/rate": 0.25, "rollout/tokens_per_s": 1234.5}
    callback.on_log(None, state, None, logs=logs)
    assert shown == {"reward": "0.51", "tool calls": "1.8", "branches": "25%", "tokens/s": "1,234"}
    shown.clear()
    callback.on_log(None, state, None, logs={"reward": None, "loss": 0.1})
    assert shown == {}
