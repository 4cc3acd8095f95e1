"""Branches of finished trees over environments and stateful tools: each has the state of its position."""

from __future__ import annotations

import logging
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from byte_tokenizer import byte_tokenizer
from counting_environments import ALL, WAYS, Copied, Forked, Moody, Replayed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from regrown_trees import ANSWER, PROMPT, growing, sampled_positions
from word_tokenizer import ids, word_tokenizer, words

from trl_agentic.rollout.engine import Request, Script
from trl_agentic.rollout.loop import RolloutLoop
from trl_agentic.rollout.path import Fork, Prompt
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.tools.python_session import PythonEnvironment
from trl_agentic.tools.state import Origin, ToolState, method_names
from trl_agentic.tools.state_fork import state_metrics
from trl_agentic.types import BranchTree, CallStatus, Status

START = 10
CALLS = [f"need <search> {number} </search>" for number in (1, 2, 3)]


def searching(kind: type) -> type:
    """An environment of that kind whose `add` is called `search` and takes words, as the scripts write it."""

    def search(self, query: str) -> str:
        """
        Add to the counter.

        Args:
            query: How much.
        """
        return self.add(int(query)).removeprefix("now ")

    def fork(self):
        other = type(self)()
        other.counts = list(self.counts)
        return other

    return type(kind.__name__, (kind,), {"search": search} | ({"fork": fork} if kind is Forked else {}))


class Grown:
    """One tree, the states of its trajectories, and a loop to grow it on."""

    def __init__(self, loop: RolloutLoop, origin: Origin, size: int = 1):
        self.loop = loop
        self.origin = origin
        root = ToolState(origin)
        loop.runtime.prepare(root, root.reset)
        assert loop.runtime.settle([root], 60.0)
        (self.tree,) = loop.run([Prompt("0", PROMPT, size, root)])
        self.states: list[ToolState] = []
        self.take_states()

    def take_states(self) -> None:
        (self.states,) = self.loop.states
        assert self.loop.runtime.settle(self.states, 60.0)

    def close(self) -> None:
        """Close all states, as a trainer does after the rewards."""
        for state in self.states:
            self.loop.runtime.prepare(state, state.close)
        assert self.loop.runtime.settle(self.states, 60.0)

    def extend(self, *forks: Fork) -> list[ToolState]:
        """Grow branches; the states of these."""
        size = len(self.states)
        (self.tree,) = self.loop.extend([self.tree], [forks], [self.states])
        self.take_states()
        return self.states[size:]

    def counts(self) -> list[list[int] | None]:
        """What was counted in each state, `None` in a closed one."""
        return [None if state.is_closed else list(state.environment.counts) for state in self.states]


@contextmanager
def counted(kind: type, answer=None, size: int = 1, **options) -> Iterator[Grown]:
    """A tree over counting environments of one kind."""
    environment = searching(kind)
    with growing(answer or counts_then_adds_four, tools=(environment().search,), **options) as loop:
        yield Grown(loop, Origin(environment, {"start": START}, method_names(environment)), size)


def counts_then_adds_four(request: Request) -> Script:
    """Initial rollouts add 1, 2 and 3 and answer; branches add 4, complete the call that was begun, and answer."""
    _, index, number = request.id.split("/")
    num_results = words(request.token_ids).count("<result>")
    if index == "0":
        return Script(ANSWER if num_results == 3 else ids(CALLS[num_results]))
    if number == "1":
        return Script(ids("need <search> 4 </search>")[len(request.turn_ids) :])
    return Script(ANSWER)


# Each call is 4 tokens, and each result 3: positions of the branch, what was counted there, and the parent's calls.
PLACES = [
    (0, [10], 0),
    (2, [10], 0),
    (7, [10, 11], 1),
    (9, [10, 11], 1),
    (14, [10, 11, 13], 2),
    (21, [10, 11, 13, 16], 3),
]


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("kind", ALL)
def test_a_branch_has_the_state_that_its_parent_had_at_that_position(kind, is_closed, workers):
    with counted(kind, workers=workers) as grown:
        (parent,) = grown.tree.trajectories
        assert parent.sampled_mask == ([1] * 4 + [0] * 3) * 3 + [1] * 8
        assert grown.counts() == [[10, 11, 13, 16]]
        (own,), before = grown.states, grown.tree.trajectories[0]
        environment, history = own.environment, list(own.history)
        if is_closed:
            grown.close()
        states = grown.extend(*[(0, position) for position, *_ in PLACES])
        branches = grown.tree.trajectories[1:]
        for branch, state, (position, counts, num_calls) in zip(branches, states, PLACES, strict=True):
            assert branch.status is Status.FINISHED
            assert state.environment.counts == [*counts, counts[-1] + 4]
            assert branch.results[-1].content == str(counts[-1] + 4)
            assert [result.content for result in state.history] == [*map(str, counts[1:]), str(counts[-1] + 4)]
            assert state.broken is None and state.num_mismatches == 0
            assert state.made_by == ("replay" if is_closed or num_calls < 3 else WAYS[kind]), position
        assert grown.tree.trajectories[0] == before
        assert (own.history, own.num_mismatches, own.broken, own.is_closed) == (history, 0, None, is_closed)
        assert environment.counts == [10, 11, 13, 16] and own.environment is (None if is_closed else environment)
        assert len({id(state.environment) for state in states}) == len(states)


@pytest.mark.parametrize("kind", ALL)
def test_a_branch_of_a_branch_has_the_state_of_the_branch_whose_parent_is_closed(kind):
    with counted(kind) as grown:
        grown.close()
        (once,) = grown.extend((0, 9))  # 11, then 4 more
        assert once.environment.counts == [10, 11, 15]
        branch = grown.tree.trajectories[1]
        assert branch.sampled_mask == [1] * 4 + [0] * 3 + [1] * 4 + [0] * 3 + [1] * 8
        last, before = grown.extend((1, 14), (1, 9))
        assert last.environment.counts == [10, 11, 15, 19] and last.made_by == WAYS[kind]
        assert before.environment.counts == [10, 11, 15] and before.made_by == "replay"
        assert once.environment.counts == [10, 11, 15]


class Notes:
    """A stateful tool: what was noted so far."""

    def __init__(self, seen=()):
        self.seen = list(seen)
        self.is_closed = False

    def fork(self):
        assert not self.is_closed
        return Notes(self.seen)

    def search(self, query: str) -> str:
        """
        Note a word.

        Args:
            query: The word.
        """
        self.seen.append(query)
        return " ".join(self.seen)

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("is_closed", [False, True])
def test_stateful_tools_are_forked_where_the_parent_stands_and_replayed_elsewhere(is_closed):
    notes = Notes()
    with growing(counts_then_adds_four, tools=(notes.search,)) as loop:
        grown = Grown(loop, Origin(tools=(notes.search,)))
        if is_closed:
            grown.close()
        results = [len(segment) for segment in grown.tree.trajectories[0].segments[1::2]]
        assert results == [3, 4, 5]
        first, last = grown.extend((0, 7), (0, 4 * 3 + sum(results)))
    contents = [[result.content for result in branch.results] for branch in grown.tree.trajectories[1:]]
    assert contents == [["1", "1 4"], ["1", "1 2", "1 2 3", "1 2 3 4"]]
    assert (first.made_by, last.made_by) == ("replay", "replay" if is_closed else "fork")
    assert notes.seen == []


def test_a_replay_is_compared_with_whole_results_where_the_model_saw_them_cut():
    class Wordy(Replayed):
        def search(self, query: str) -> str:
            """
            Add to the counter.

            Args:
                query: How much.
            """
            return self.add(int(query)).removeprefix("now ") + " c" * 100

    dialect = TagDialect(word_tokenizer(), [Wordy().search], max_result_tokens=32)
    with growing(counts_then_adds_four, tools=(Wordy().search,), dialect=dialect, max_completion_length=400) as loop:
        grown = Grown(loop, Origin(Wordy, {"start": START}, method_names(Wordy)))
        grown.close()
        behind_two = 2 * (4 + 34)
        assert sampled_positions(grown.tree.trajectories[0])[8] == behind_two
        (state,) = grown.extend((0, behind_two))
        assert all(result.truncated for result in grown.tree.trajectories[1].results)
        assert state.broken is None and state.num_mismatches == 0 and state.environment.counts == [10, 11, 13, 17]


def test_a_replay_whose_results_differ_is_counted_and_the_model_reads_that_its_state_is_lost(caplog):
    with caplog.at_level(logging.WARNING), counted(Moody) as grown:
        grown.close()
        length = len(grown.tree.trajectories[0].segments[0]) + len(grown.tree.trajectories[0].segments[1])
        lost, sound = grown.extend((0, length), (0, 0))
        assert lost.num_mismatches == 1 and lost.broken is not None
        assert "its state is lost: it could not be restored" in grown.tree.trajectories[1].results[-1].content
        assert grown.tree.trajectories[1].results[-1].status is CallStatus.ERROR
        assert sound.num_mismatches == 0 and sound.broken is None and sound.environment.counts == [10, 14]
        assert state_metrics([lost, sound])["rollout/replay_mismatches"] == 1.0
    assert caplog.text.count("could not be replayed") == 1


# --- parents whose state was lost


def test_a_state_that_a_call_lost_later_is_sound_before_that_call_and_lost_behind_it():
    forever = threading.Event()

    class Stuck(Copied):
        def add(self, amount: int = 1) -> str:
            if amount == 2:
                forever.wait(120)
            return super().add(amount)

    try:
        with counted(Stuck, workers=4, tool_timeout_s=1.5, max_completion_length=200) as grown:
            (parent,) = grown.tree.trajectories
            assert [result.status.value for result in parent.results] == ["ok", "timeout", "error"]
            reason = grown.states[0].broken
            behind_timeout = sum(map(len, parent.segments[:4]))
            first, before, behind = grown.extend((0, 2), (0, 7), (0, behind_timeout))
    finally:
        forever.set()
    assert first.broken is None and first.environment.counts == [10, 14]
    assert before.broken is None and before.environment.counts == [10, 11, 15] and before.made_by == "replay"
    assert behind.broken == reason and "given up" in reason and behind.made_by is None
    assert "its state is lost" in grown.tree.trajectories[3].results[-1].content


def test_a_state_that_the_deadline_cut_in_a_call_is_replayed_up_to_that_call():
    release = threading.Event()

    class Slow(Copied):
        def add(self, amount: int = 1) -> str:
            if amount == 2:
                release.wait(120)
            return super().add(amount)

    try:
        with counted(Slow, workers=4, timeout_s=1.0, tool_timeout_s=3.0) as grown:
            (parent,) = grown.tree.trajectories
            assert parent.status is Status.DEADLINE and words(parent.token_ids).endswith("2 </search>")
            assert grown.states[0].broken == "the rollout phase ended in the middle of a call."
            release.set()
            grown.loop.limits = type(grown.loop.limits)(100)
            (state,) = grown.extend((0, 9))
            assert state.broken is None and state.made_by == "replay" and state.environment.counts == [10, 11, 15]
            assert grown.tree.trajectories[0] == parent
    finally:
        release.set()


def test_a_state_that_fails_to_close_can_be_replayed():
    class Leaky(Copied):
        def close(self) -> None:
            raise OSError("the port is gone")

    with counted(Leaky) as grown:
        grown.close()
        assert grown.states[0].broken == "preparing it failed with OSError: the port is gone"
        all_calls, one_call = grown.extend((0, 21), (0, 7))
        assert all_calls.environment.counts == [10, 11, 13, 16, 20] and all_calls.broken is None
        assert one_call.environment.counts == [10, 11, 15] and one_call.broken is None


def test_a_replay_that_failed_is_not_tried_again_for_a_branch_of_that_branch(caplog):
    with caplog.at_level(logging.WARNING), counted(Moody) as grown:
        grown.close()
        first = sum(map(len, grown.tree.trajectories[0].segments[:2]))
        (lost,) = grown.extend((0, first))
        (heir,) = grown.extend((1, first))
        assert heir.broken == lost.broken and heir.num_mismatches == 0
    assert caplog.text.count("could not be replayed") == 1


# --- deadlines and failures


def test_at_the_deadline_a_branch_whose_replay_hangs_ends_and_leaves_its_state_in_the_loop():
    release, is_replay = threading.Event(), threading.Event()

    class Hanging(Replayed):
        def reset(self, start: int = 0, **row: object) -> str:
            if is_replay.is_set():
                release.wait(120)
            return super().reset(start)

    try:
        with counted(Hanging, workers=2) as grown:
            grown.close()
            is_replay.set()
            before, parents = grown.tree, list(grown.states)
            grown.loop.limits = type(grown.loop.limits)(100, timeout_s=0.5)
            (tree,) = grown.loop.extend([before], [[(0, 7), (0, 0)]], [parents])
            assert [each.status for each in tree.trajectories] == [Status.FINISHED] + [Status.DEADLINE] * 2
            assert tree.trajectories[0] == before.trajectories[0]
            (states,) = grown.loop.states
            assert states[0] is parents[0] and len(states) == 3
            assert all("middle of a call" in state.broken for state in states[1:])
            assert parents[0].broken is None
            release.set()
            assert grown.loop.runtime.settle(states, 60.0)
    finally:
        release.set()


@pytest.mark.parametrize("is_closed", [False, True])
def test_an_engine_that_raises_leaves_the_states_of_parents_and_branches_in_the_loop(is_closed):
    with counted(Copied) as grown:
        if is_closed:
            grown.close()
        parents = list(grown.states)
        poll, grown.loop.engine.poll = grown.loop.engine.poll, lambda: 1 / 0
        with pytest.raises(ZeroDivisionError):
            grown.loop.extend([grown.tree], [[(0, 7), (0, 21)]], [parents])
        (states,) = grown.loop.states
        assert states[0] is parents[0] and grown.loop.engine.num_unfinished == 0
        assert [state.environment.counts for state in states[1:]] == [[10, 11], [10, 11, 13, 16]]
        grown.loop.engine.poll = poll
        (state,) = grown.extend((0, 7))
        assert state.environment.counts == [10, 11, 15]


# --- real Python, and everything at once


@pytest.mark.timeout(300)
def test_python_of_a_closed_session_is_run_again_up_to_the_branch_point():
    tokenizer = byte_tokenizer()
    tool = PythonEnvironment().python
    lines = ["x = 3", "x = x * 5; open('log', 'w').write(str(x))", "print(x, open('log').read())"]
    turns = [f"<python>{line}</python>" for line in lines]

    def answer(request: Request) -> Script:
        num_results = tokenizer.decode(request.token_ids).count("<result>")
        if num_results == 3:
            return Script((*tokenizer("<answer>b</answer>")["input_ids"], tokenizer.eos_token_id))
        return Script(tuple(tokenizer(turns[num_results])["input_ids"][len(request.turn_ids) :]))

    dialect = TagDialect(tokenizer, [tool])
    options = {"workers": 2, "tool_timeout_s": 120.0, "max_completion_length": 2000}
    with growing(answer, tools=(tool,), dialect=dialect, **options) as loop:
        grown = Grown(loop, Origin(PythonEnvironment, {}, method_names(PythonEnvironment)))
        grown.close()
        parent = grown.tree.trajectories[0]
        behind_two = sum(map(len, parent.segments[:4]))
        (state,) = grown.extend((0, behind_two + 10))
        branch = grown.tree.trajectories[1]
        grown.close()
    assert [result.status for result in parent.results] == [CallStatus.OK] * 3
    assert [result.content for result in branch.results] == [result.content for result in parent.results]
    assert branch.results[2].content.split() == ["15", "15"]
    assert state.made_by == "replay" and state.broken is None and state.num_mismatches == 0


def recounted(kind: type, tree: BranchTree, place: int) -> list[int]:
    """What the calls of one trajectory make of a fresh environment."""
    fresh = searching(kind)()
    fresh.reset(start=START)
    for result in tree.trajectories[place].results:
        if result.status is CallStatus.OK:
            assert fresh.search(**result.call.arguments) == result.content
    return fresh.counts


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(ALL),
    workers=st.sampled_from([0, 3]),
    closes=st.tuples(st.booleans(), st.booleans()),
)
def test_the_state_of_every_branch_is_what_its_calls_make_of_a_fresh_one(seed, kind, workers, closes):
    rng = random.Random(seed)

    def answer(request: Request) -> Script:
        roll = rng.random()
        return Script(ids(rng.choice(CALLS)) if roll < 0.6 else ids("<search> a </search>") if roll < 0.7 else ANSWER)

    with counted(kind, answer, size=2, workers=workers, max_tool_turns=4) as grown:
        for is_closed in closes:
            if is_closed:
                grown.close()
            before = grown.counts()
            forks = [
                (place, position)
                for place, trajectory in enumerate(grown.tree.trajectories)
                for position in rng.sample(sampled_positions(trajectory), k=2)
            ]
            size = len(grown.states)
            states = grown.extend(*forks)
            for place, state in enumerate(states, start=size):
                assert state.environment.counts == recounted(kind, grown.tree, place)
                assert state.broken is None and state.num_mismatches == 0
                assert not any(re.search("lost", result.content) for result in grown.tree.trajectories[place].results)
            assert grown.counts()[:size] == before
