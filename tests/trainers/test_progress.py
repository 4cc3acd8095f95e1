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
    assert shown["reward"] == "0.51", "what is not logged in a step stays"


def test_the_bar_of_appo_shows_what_branches_got_in_place_of_a_rate_that_is_always_0():
    shown = {}
    callback = RolloutProgressCallback()
    callback.training_bar = SimpleNamespace(set_postfix=shown.update)
    state = SimpleNamespace(is_world_process_zero=True)
    callback.on_log(None, state, None, logs={"reward": 0.5, "branch/rate": 0.0, "appo/branch_reward": 0.25})
    assert shown == {"reward": "0.50", "branch reward": "0.25"}
