"""Tools with a state: one call at a time, forks in their place, and what becomes of a state that is lost."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from trl_agentic.tools import ResultCache, ToolRuntime, TransientToolError, tool_options
from trl_agentic.types import CallStatus, ToolCall, ToolResult

INLINE_OR_NOT = pytest.mark.parametrize("num_workers", [0, 8], ids=["inline", "threads"])


class Notebook:
    """A state: the words that were written into it."""

    def __init__(self, words: tuple[str, ...] = ()):
        self.words = list(words)
        self.broken: str | None = None
        self.gate = threading.Event()

    def function(self, name: str):
        return {"write": self.write, "write_slowly": self.write_slowly}.get(name)

    def write(self, word: str, waits: bool = False, seconds: float = 0.0) -> str:
        if waits:
            assert self.gate.wait(timeout=30.0)
        time.sleep(seconds)
        self.words.append(word)
        return " ".join(self.words)

    async def write_slowly(self, word: str) -> str:
        await asyncio.sleep(30.0)
        return word

    def copy_into(self, child: Notebook) -> None:
        child.words = list(self.words)


def write(word: str, waits=False, seconds=0.0):
    raise AssertionError("the state's own function runs instead")


def write_slowly(word: str):
    raise AssertionError("the state's own function runs instead")


def shout(word: str) -> str:
    return word.upper()


def writing(*words: str, **arguments) -> list[ToolCall]:
    return [ToolCall("write", {"word": word, **arguments}) for word in words]


def runtime_of(num_workers: int = 8, timeout_s: float = 20.0, **settings) -> ToolRuntime:
    return ToolRuntime([write, write_slowly, shout], num_workers=num_workers, timeout_s=timeout_s, **settings)


def collect(runtime: ToolRuntime) -> dict[str, list[ToolResult]]:
    turns: dict[str, list[ToolResult]] = {}
    deadline = time.monotonic() + 30.0
    while runtime.num_pending and time.monotonic() < deadline:
        turns.update(runtime.poll(wait_s=1.0))
    assert runtime.num_pending == 0
    return turns


def contents(results: list[ToolResult]) -> list[str]:
    return [result.content for result in results]


@INLINE_OR_NOT
def test_calls_on_one_state_run_one_at_a_time_in_the_order_of_submission(num_workers):
    state = Notebook()
    with runtime_of(num_workers) as runtime:
        runtime.submit("first", writing("a", seconds=0.1) + writing("b"), state)
        runtime.submit("second", writing("c"), state)
        turns = collect(runtime)
    assert contents(turns["first"]) == ["a", "a b"]
    assert contents(turns["second"]) == ["a b c"]


def test_calls_without_a_state_and_on_other_states_do_not_wait():
    one, other = Notebook(), Notebook()
    with runtime_of() as runtime:
        runtime.submit("one", writing("a", waits=True), one)
        runtime.submit("one again", writing("b"), one)
        runtime.submit("stateless", [ToolCall("shout", {"word": "hey"})], one)
        runtime.submit("other", writing("c"), other)
        ready: set[str] = set()
        while len(ready) < 2:
            ready.update(key for key, _ in runtime.poll(wait_s=10.0))
        assert ready == {"stateless", "other"} and one.words == []
        one.gate.set()
        assert contents(collect(runtime)["one again"]) == ["a b"]


@INLINE_OR_NOT
def test_a_fork_stands_between_the_earlier_and_the_later_calls_of_its_parent(num_workers):
    parent, child = Notebook(), Notebook()
    with runtime_of(num_workers) as runtime:
        runtime.submit("before", writing("a", seconds=0.1), parent)
        runtime.fork(parent, child, lambda: parent.copy_into(child))
        runtime.submit("after", writing("b"), parent)
        runtime.submit("branch", writing("c"), child)
        turns = collect(runtime)
        assert set(turns) == {"before", "after", "branch"}
    assert (parent.words, child.words) == (["a", "b"], ["a", "c"])


@INLINE_OR_NOT
def test_what_prepares_a_state_comes_before_its_first_call(num_workers):
    state = Notebook()

    def reset() -> None:
        time.sleep(0.1)
        state.words = ["fresh"]

    with runtime_of(num_workers) as runtime:
        runtime.prepare(state, reset)
        assert runtime.num_pending == 0  # it is no turn
        runtime.submit("turn", writing("a"), state)
        assert contents(collect(runtime)["turn"]) == ["fresh a"]


def test_settling_waits_for_all_that_concerns_a_state():
    gate, state, other = threading.Event(), Notebook(), Notebook()
    with runtime_of() as runtime:
        runtime.prepare(state, lambda: gate.wait(timeout=30.0))
        runtime.prepare(state, lambda: state.words.append("prepared"))
        assert runtime.settle([other], timeout_s=0.0)
        assert not runtime.settle([other, state], timeout_s=0.1)
        threading.Timer(0.1, gate.set).start()
        assert runtime.settle([other, state])
    assert state.words == ["prepared"]


@INLINE_OR_NOT
def test_a_fork_that_raises_breaks_the_child_alone(num_workers):
    parent, child = Notebook(), Notebook()

    def fail() -> None:
        raise OSError("no space left")

    with runtime_of(num_workers) as runtime:
        runtime.fork(parent, child, fail)
        runtime.settle([child])
        runtime.submit("branch", [*writing("a"), ToolCall("shout", {"word": "hey"})], child)
        runtime.submit("parent", writing("b"), parent)
        turns = collect(runtime)
    reason = "copying it at the branch point failed with OSError: no space left"
    assert child.broken == reason and parent.broken is None
    assert turns["branch"][0].status is CallStatus.ERROR
    assert turns["branch"][0].content == f"write cannot be used any more, its state is lost: {reason}"
    assert turns["branch"][1].content == "HEY" and contents(turns["parent"]) == ["b"]


def test_a_fork_that_hangs_is_given_up_and_its_parent_goes_on():
    release, parent, child = threading.Event(), Notebook(), Notebook()
    with runtime_of(timeout_s=0.2) as runtime:
        runtime.fork(parent, child, lambda: release.wait(timeout=30.0))
        runtime.submit("parent", writing("a"), parent)
        runtime.submit("branch", writing("b"), child)
        turns = collect(runtime)
        release.set()
    assert contents(turns["parent"]) == ["a"]
    assert child.broken == (
        "copying it at the branch point did not end within 0.2 s and was given up; raise tool_timeout_s."
    )
    assert child.broken in turns["branch"][0].content and child.words == []


@INLINE_OR_NOT
def test_what_fails_to_prepare_a_state_breaks_it(num_workers):
    state = Notebook()
    with runtime_of(num_workers) as runtime:
        runtime.prepare(state, lambda: 1 / 0)
        assert runtime.settle([state])
    assert state.broken == "preparing it failed with ZeroDivisionError: division by zero"


@INLINE_OR_NOT
def test_a_fork_of_a_broken_state_is_broken_for_the_same_reason(num_workers):
    parent, child, grandchild, seen = Notebook(), Notebook(), Notebook(), []
    parent.broken = "its server is gone."
    with runtime_of(num_workers) as runtime:
        runtime.fork(parent, child, lambda: seen.append("child"))
        runtime.fork(child, grandchild, lambda: seen.append("grandchild"))
        assert runtime.settle([parent, child, grandchild])
    assert child.broken == grandchild.broken == "its server is gone." and seen == []


def test_a_call_that_outlives_its_deadline_breaks_its_state():
    state = Notebook()
    with runtime_of(timeout_s=0.3) as runtime:
        runtime.submit("hung", writing("a", waits=True), state)
        runtime.submit("queued", writing("b"), state)
        turns = collect(runtime)
        runtime.submit("later", writing("c"), state)
        turns |= dict(runtime.poll())  # at once: no worker is needed to say so
        state.gate.set()
    assert turns["hung"][0].status is CallStatus.TIMEOUT
    assert state.broken == "a call did not end within 0.3 s and was given up."
    for key in ("queued", "later"):
        assert turns[key][0].status is CallStatus.ERROR and state.broken in turns[key][0].content


@INLINE_OR_NOT
def test_an_async_call_that_is_cancelled_at_its_deadline_breaks_its_state_too(num_workers):
    state = Notebook()
    with runtime_of(num_workers, timeout_s=0.2) as runtime:
        runtime.submit("turn", [ToolCall("write_slowly", {"word": "a"})], state)
        assert collect(runtime)["turn"][0].status is CallStatus.TIMEOUT
    assert state.broken == "a call did not end within 0.2 s and was given up."


def test_an_error_of_a_call_leaves_its_state_alone():
    state = Notebook()
    with runtime_of() as runtime:
        runtime.submit("turn", [*writing("a", seconds=-1.0), *writing("b")], state)
        results = collect(runtime)["turn"]
    assert [result.status for result in results] == [CallStatus.ERROR, CallStatus.OK]
    assert state.broken is None and state.words == ["b"]


def test_a_call_on_a_state_is_neither_cached_nor_retried(tmp_path):
    class Flaky(Notebook):
        def write(self, word: str) -> str:
            super().write(word)
            raise TransientToolError("busy")

    @tool_options(cached=True, num_retries=5)
    def write(word: str):
        return f"no state knows {word}"

    state = Flaky()
    with ResultCache(tmp_path) as cache, ToolRuntime([write], cache=cache) as runtime:
        runtime.submit("stateful", writing("a", "a"), state)
        stateful = collect(runtime)["stateful"]
        runtime.submit("stateless", writing("a"))
        stateless = collect(runtime)["stateless"]
    assert state.words == ["a", "a"] and [result.attempts for result in stateful] == [1, 1]
    assert contents(stateless) == ["no state knows a"] and not stateless[0].cached


def test_abandoned_calls_leave_the_lane_to_those_behind_them():
    state = Notebook()
    with runtime_of(num_workers=1) as runtime:
        runtime.submit("running", writing("a", waits=True), state)
        runtime.submit("dropped", writing("b", "c", "d"), state)
        runtime.prepare(state, lambda: state.words.append("prepared"))
        runtime.abandon("dropped")
        state.gate.set()
        assert runtime.settle([state], timeout_s=20.0)
        assert set(collect(runtime)) == {"running"}
    assert state.words == ["a", "prepared"]


def test_work_on_a_state_repeats_calls_as_the_runtime_would_have_run_them():
    parent, child, found = Notebook(), Notebook(), []

    def replay() -> None:
        calls = [*writing("a", "b"), *writing("x", seconds=-1.0), ToolCall("browse")]
        found.extend(runtime.perform(call, child) for call in calls)

    with runtime_of(num_workers=1) as runtime:
        runtime.fork(parent, child, replay)
        runtime.submit("branch", writing("c"), child)
        assert contents(collect(runtime)["branch"]) == ["a b c"]
    assert contents(found)[:2] == ["a", "a b"]
    assert [result.status for result in found[2:]] == [CallStatus.ERROR, CallStatus.UNKNOWN_TOOL]


def test_1000_branches_of_one_state_each_hold_what_their_parent_held():
    root, children = Notebook(), [Notebook() for _ in range(1000)]
    with runtime_of() as runtime:
        for index, child in enumerate(children):
            runtime.submit(f"parent {index}", writing(str(index)), root)
            runtime.fork(root, child, lambda child=child: root.copy_into(child))
            runtime.submit(f"child {index}", writing("end"), child)
        turns = collect(runtime)
    assert len(turns) == 2000 and len(root.words) == 1000
    for index, child in enumerate(children):
        assert child.words == [str(number) for number in range(index + 1)] + ["end"]


def test_what_stands_behind_an_abandoned_call_that_waits_for_its_rate_goes_on():
    @tool_options(rate_per_s=0.001)
    def write(word: str):
        raise AssertionError("the state's own function runs instead")

    state, other, child = Notebook(), Notebook(), Notebook()
    with ToolRuntime([write], num_workers=4, timeout_s=30.0) as runtime:
        runtime.submit("takes the start", writing("a"), other)
        collect(runtime)
        runtime.submit("waits a quarter of an hour", writing("b"), state)
        runtime.fork(state, child, lambda: state.copy_into(child))
        assert not runtime.settle([child], timeout_s=0.3)  # all workers sleep by now
        runtime.abandon("waits a quarter of an hour")
        assert runtime.settle([state, child], timeout_s=20.0)
    assert state.words == child.words == []


def test_what_was_abandoned_before_it_began_is_forgotten(tmp_path):
    release = threading.Event()

    def block() -> None:
        release.wait(timeout=30.0)

    @tool_options(cached=True)
    def look(word: str) -> str:
        return word

    with ResultCache(tmp_path) as cache, ToolRuntime([block, look], num_workers=1, cache=cache) as runtime:
        runtime.submit("blocked", [ToolCall("block")])
        for turn in ("first", "twin"):
            runtime.submit(turn, [ToolCall("look", {"word": "a"})])
        runtime.abandon("first")
        assert len(runtime._twins._first) == 1  # for the twin
        runtime.abandon("twin")
        assert not runtime._twins._first
        release.set()
        assert set(collect(runtime)) == {"blocked"}
