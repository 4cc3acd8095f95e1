"""Forks in the runtime: what holds up the parent, what runs beside it, and how long a replay may take."""

from __future__ import annotations

import threading
import time

import pytest
from counting_environments import Copied, Forked, Replayed

from trl_agentic.tools import ToolRuntime
from trl_agentic.tools.state import Origin, ToolState, method_names
from trl_agentic.tools.state_fork import start_fork
from trl_agentic.types import ToolCall


def adding(*amounts: int) -> list[ToolCall]:
    return [ToolCall("add", {"amount": amount}) for amount in amounts]


def state_of(kind: type, runtime: ToolRuntime, *amounts: int) -> ToolState:
    """A state that has been reset and on which these amounts were added."""
    state = ToolState(Origin(kind, {}, method_names(kind)))
    runtime.prepare(state, state.reset)
    runtime.submit("history", adding(*amounts), state)
    ((_, results),) = runtime.poll(wait_s=30.0)
    state.record(results)
    return state


def test_replays_of_one_parent_run_at_the_same_time():
    class Meeting(Replayed):
        num_resets = 0
        both = threading.Barrier(2, timeout=30.0)

        def reset(self, **row: object) -> str:
            Meeting.num_resets += 1
            if Meeting.num_resets > 1:
                self.both.wait()  # breaks unless the other one is here too
            return super().reset()

    with ToolRuntime([Meeting().add], num_workers=4, timeout_s=40.0) as runtime:
        parent = state_of(Meeting, runtime, 1, 2)
        children = [parent.child(parent.history) for _ in range(2)]
        for child in children:
            start_fork(runtime, parent, child)
        assert runtime.settle(children, timeout_s=60.0)
    assert [(child.broken, child.made_by) for child in children] == [(None, "replay")] * 2
    assert [child.environment.counts for child in children] == [[0, 1, 3]] * 2


def test_a_replay_does_not_wait_for_a_call_of_its_parent():
    release = threading.Event()

    class Waiting(Copied):
        def add(self, amount: int = 1) -> str:
            if amount == 9:
                release.wait(timeout=60.0)
            return super().add(amount)

    try:
        with ToolRuntime([Waiting().add], num_workers=2, timeout_s=60.0) as runtime:
            parent = state_of(Waiting, runtime, 1, 2)
            runtime.submit("slow", adding(9), parent)
            earlier = parent.child(parent.history[:1])
            start_fork(runtime, parent, earlier)
            assert runtime.settle([earlier], timeout_s=30.0)
            assert (earlier.broken, earlier.made_by, earlier.environment.counts) == (None, "replay", [0, 1])
            release.set()
            runtime.poll(wait_s=30.0)
    finally:
        release.set()


def test_a_copy_stands_before_the_next_call_of_its_parent_and_of_the_child():
    for kind, way in ((Copied, "copy"), (Forked, "fork"), (Replayed, "replay")):
        with ToolRuntime([kind().add], num_workers=4, timeout_s=30.0) as runtime:
            parent = state_of(kind, runtime, 1)
            child = parent.child(parent.history)
            start_fork(runtime, parent, child)
            runtime.submit("parent", adding(5), parent)
            runtime.submit("child", adding(7), child)
            assert runtime.settle([parent, child], timeout_s=60.0)
        assert (child.made_by, child.environment.counts, parent.environment.counts) == (way, [0, 1, 8], [0, 1, 6])


def test_a_replay_has_the_time_of_each_of_its_calls_and_says_what_to_raise():
    class Slow(Replayed):
        naps = [0.0, 0.0, 0.8, 0.8]
        forever = threading.Event()

        def add(self, amount: int = 1) -> str:
            self.forever.wait(timeout=self.naps.pop(0))
            return super().add(amount)

    try:
        with ToolRuntime([Slow().add], num_workers=2, timeout_s=1.0) as runtime:
            parent = state_of(Slow, runtime, 1, 2)
            patient, hasty = parent.child(parent.history), parent.child(parent.history)
            start_fork(runtime, parent, patient)
            assert runtime.settle([patient], timeout_s=30.0)
            assert patient.broken is None and patient.environment.counts == [0, 1, 3]  # 1.6 s of the 3 s
            Slow.naps = [30.0]
            start = time.monotonic()
            start_fork(runtime, parent, hasty)
            assert runtime.settle([hasty], timeout_s=30.0) and time.monotonic() - start < 20.0
    finally:
        Slow.forever.set()
    assert hasty.broken == "preparing it did not end within 3 s and was given up; raise tool_timeout_s."


def test_a_branch_of_a_state_that_could_not_be_reset_is_lost_for_that_reason():
    class Failing(Replayed):
        def reset(self, **row: object) -> str:
            raise ConnectionError("no server")

    with ToolRuntime([Failing().add], num_workers=2, timeout_s=30.0) as runtime:
        parent = ToolState(Origin(Failing, {}, method_names(Failing)))
        runtime.prepare(parent, parent.reset)
        child = parent.child([])
        start_fork(runtime, parent, child)
        assert runtime.settle([child], timeout_s=60.0)
    assert child.broken == parent.broken == "preparing it failed with ConnectionError: no server"


@pytest.mark.parametrize("error", [ValueError, OSError, TypeError])
def test_what_cannot_be_copied_is_replayed(error):
    class Stubborn(Copied):
        def __deepcopy__(self, memo):
            raise error("cannot be copied")  # as ctypes, files and locks do

    with ToolRuntime([Stubborn().add], num_workers=2, timeout_s=40.0) as runtime:
        parent = state_of(Stubborn, runtime, 1, 2)
        child = parent.child(parent.history)
        start_fork(runtime, parent, child)
        assert runtime.settle([child], timeout_s=60.0)
    assert (child.broken, child.made_by, child.environment.counts) == (None, "replay", [0, 1, 3])
