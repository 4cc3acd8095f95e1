"""A sleeping engine is awake for a whole rollout, with the weights it needs, and asleep after it."""

from types import SimpleNamespace

import pytest

from trl_agentic.trainers.colocated import awake
from trl_agentic.trainers.phase_times import PhaseTimes


def sleeper(is_asleep: bool):
    """A trainer whose engine notes what is done to it."""
    notes = []
    llm = SimpleNamespace(
        wake_up=lambda tags: notes.append(f"wake {tags[0]}"), sleep=lambda level: notes.append(f"sleep {level}")
    )
    generation = SimpleNamespace(llm=llm, _llm_weights_sleeping=is_asleep)
    trainer = SimpleNamespace(
        args=SimpleNamespace(vllm_enable_sleep_mode=True),
        vllm_generation=generation,
        weight_sync=SimpleNamespace(push=lambda: notes.append("sync")),
    )
    trainer.times = PhaseTimes(trainer, ("sync",))
    return trainer, notes


@pytest.mark.parametrize(("is_asleep", "first"), [(True, ["sync"]), (False, [])])
def test_weights_are_pushed_again_only_where_they_slept(is_asleep, first):
    trainer, notes = sleeper(is_asleep)
    with awake(trainer):
        notes.append("rollout")
    assert notes == [*first, "wake kv_cache", "rollout", "sleep 2"]
    assert trainer.vllm_generation._llm_weights_sleeping


def test_the_engine_goes_to_sleep_also_after_an_error():
    trainer, notes = sleeper(False)
    with pytest.raises(RuntimeError), awake(trainer):
        raise RuntimeError("rollout failed")
    assert notes[-1] == "sleep 2"


def test_nothing_happens_without_sleep_mode():
    trainer, notes = sleeper(False)
    trainer.args.vllm_enable_sleep_mode = False
    with awake(trainer):
        pass
    assert notes == []
