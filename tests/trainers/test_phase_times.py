"""Where the time of an optimizer step goes."""

import time
from collections import defaultdict
from types import SimpleNamespace

import pytest
from tiny import appo_trainer, length_reward, scripted_engine, trainer

from trl_agentic.trainers import phase_times
from trl_agentic.trainers.phase_times import PhaseTimes

APPO_PHASES = ["rollout", "score", "sync", "branch", "branch_rewards", "train"]


class Clock:
    """Tells the time that a test sets."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


class Step:
    """Times of a step with the phases `rollout` and `score`, under a clock that a test moves on."""

    def __init__(self, monkeypatch):
        self.clock = Clock()
        monkeypatch.setattr(phase_times, "time", self.clock)
        self.metrics = defaultdict(list)
        owner = SimpleNamespace(_metrics={"train": self.metrics})
        self.times = PhaseTimes(owner, ("rollout", "score"))

    def begin(self):
        self.times.on_step_begin(None, None, None)

    def end(self) -> dict[str, float]:
        self.times.on_step_end(None, None, None)
        return {name: values[-1] for name, values in self.metrics.items()}

    def spend(self, seconds: float, phase: str | None = None):
        if phase is None:
            self.clock.now += seconds
            return
        with self.times.measured(phase):
            self.clock.now += seconds


@pytest.fixture
def step(monkeypatch):
    return Step(monkeypatch)


def test_the_phases_and_the_rest_add_up_to_the_step(step):
    step.begin()
    step.spend(1.0)
    step.spend(4.0, "rollout")
    step.spend(2.0)
    step.spend(0.5, "score")
    step.spend(0.25, "score")  # a phase may come twice
    step.spend(8.0)
    assert step.end() == {"time/rollout_s": 4.0, "time/score_s": 0.75, "time/train_s": 11.0}


def test_a_phase_that_a_step_does_not_have_took_no_time(step):
    step.begin()
    step.spend(4.0, "rollout")
    step.end()
    step.begin()
    step.spend(2.0)
    assert step.end() == {"time/rollout_s": 0.0, "time/score_s": 0.0, "time/train_s": 2.0}
    assert step.metrics["time/rollout_s"] == [4.0, 0.0]  # of which the log shows the mean


def test_what_happens_between_two_steps_belongs_to_none(step):
    step.spend(50.0, "rollout")  # such as rollouts before training, or an evaluation
    step.begin()
    step.spend(1.0, "rollout")
    assert step.end() == {"time/rollout_s": 1.0, "time/score_s": 0.0, "time/train_s": 0.0}
    step.spend(50.0, "rollout")
    step.spend(50.0)
    step.begin()
    step.spend(3.0)
    assert step.end() == {"time/rollout_s": 0.0, "time/score_s": 0.0, "time/train_s": 3.0}


def test_a_phase_that_raises_is_measured_until_then(step):
    step.begin()
    with pytest.raises(KeyboardInterrupt), step.times.measured("score"):
        step.clock.now += 2.0
        raise KeyboardInterrupt
    step.spend(1.0, "score")
    assert step.end() == {"time/rollout_s": 0.0, "time/score_s": 3.0, "time/train_s": 0.0}


def logged(ours) -> list[dict[str, float]]:
    """The times of each log entry, by phase."""
    return [
        {name.removeprefix("time/").removesuffix("_s"): value for name, value in entry.items() if "time/" in name}
        for entry in ours.state.log_history
        if "loss" in entry
    ]


def slow_search(query: str) -> str:
    """
    Look something up.

    Args:
        query: What to look for.
    """
    time.sleep(0.01)
    return f"{query} is b"


slow_search.__name__ = "search"


def test_every_optimizer_step_of_appo_logs_its_phases(tmp_path):
    calls = []

    def slow_reward(completions, completion_ids, **kwargs):
        calls.append(len(completions))
        time.sleep(0.02)
        return length_reward(completions, completion_ids)

    ours = appo_trainer(tmp_path, reward_funcs=slow_reward, tools=(slow_search,), save_trajectories=False)
    start = time.perf_counter()
    ours.train()
    elapsed = time.perf_counter() - start
    steps = logged(ours)
    assert calls == [32] + [24] * 4  # the generation, and the branches of two prompts in each of four optimizer steps
    assert [list(times) for times in steps] == [APPO_PHASES] * 4
    assert [times["rollout"] > 0 for times in steps] == [True, False, False, False]
    for times in steps:
        assert times["branch_rewards"] >= 0.02 and times["score"] > 0 and times["branch"] > 0 and times["train"] > 0
        assert times["sync"] == 0.0  # a scripted engine has no weights
    assert sum(sum(times.values()) for times in steps) <= elapsed
    assert steps[0]["rollout"] >= 30 * 0.01  # 40 calls, one after the other
    assert steps[0]["train"] >= 0.02  # the rewards of the rollouts, which TRL asks for


def test_arpo_logs_its_own_phases_and_evaluation_is_no_part_of_a_step(tmp_path):
    ours = trainer(tmp_path, engine=scripted_engine(), save_trajectories=False)
    ours.rollout([[{"role": "user", "content": "what is a"}]], 2)
    ours.train()
    steps = logged(ours)
    assert [list(times) for times in steps] == [["rollout", "sync", "train"]] * 2
    assert all(times["rollout"] > 0 and times["train"] > 0 for times in steps)
    ours.evaluate(ours.train_dataset)
    assert not any("time/" in name for name in ours.state.log_history[-1])
