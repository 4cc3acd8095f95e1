"""The rollout loop over environments: every branch goes on from the state of its branch point."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import threading
import time

import pytest
from counting_environments import ALL, WAYS, Copied, Forked, Moody, Replayed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from word_tokenizer import ids, word_tokenizer, words

from trl_agentic.rollout.engine import SamplingSettings, Script, ScriptedEngine
from trl_agentic.rollout.limits import Limits
from trl_agentic.rollout.loop import Prompt, RolloutLoop
from trl_agentic.rollout.policy import EntropyBranching, NoBranching
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.tools.runtime import ToolRuntime
from trl_agentic.tools.state import Origin, ToolState, method_names
from trl_agentic.types import CallStatus, Kind, Status

PROMPT = ids("what is a")
ANSWER = ids("found b <answer> \\boxed{ b } </answer> <eos>")
CALLS = [ids(f"need <search> {number} </search>") for number in range(1, 4)]


def counting(kind: type) -> type:
    """An environment of that kind whose `add` is called `search` and takes words, as the scripts write it."""

    def search(self, query: str) -> str:
        """
        Add to the counter.

        Args:
            query: How much.
        """
        return self.add(int(query)).removeprefix("now ")

    return type(kind.__name__, (kind,), {"search": search, "fork": _fork} if kind is Forked else {"search": search})


def _fork(self):
    other = type(self)()
    other.counts = list(self.counts)
    return other


class Run:
    """One run of the loop over an environment, and what it left."""

    def __init__(
        self,
        answer,
        kind,
        policy=None,
        size=4,
        workers=0,
        prompts=1,
        tool_timeout_s=5.0,
        max_result_tokens=None,
        **limits,
    ):
        self.engine = ScriptedEngine(answer)
        tools = [kind().search]
        with ToolRuntime(tools, num_workers=workers, timeout_s=tool_timeout_s) as runtime:
            roots = [ToolState(Origin(kind, {"start": 10 * number}, method_names(kind))) for number in range(prompts)]
            for root in roots:
                runtime.prepare(root, root.reset)
            runtime.settle(roots)
            limits = Limits(**({"max_completion_length": 100} | limits))
            loop = RolloutLoop(
                self.engine,
                runtime,
                TagDialect(word_tokenizer(), tools, max_result_tokens=max_result_tokens),
                policy or NoBranching(),
                SamplingSettings(),
                limits,
            )
            self.trees = loop.run([Prompt(str(number), PROMPT, size, root) for number, root in enumerate(roots)])
            self.states = loop.states
            runtime.settle([state for states in self.states for state in states], 10.0)

    def rows(self):
        """Each trajectory with its state, and what its tree started to count from."""
        for number, (tree, states) in enumerate(zip(self.trees, self.states, strict=True)):
            for trajectory, state in zip(tree.trajectories, states, strict=True):
                yield trajectory, state, 10 * number


def branching(**options) -> EntropyBranching:
    return EntropyBranching(**({"initial_rollouts": 2, "beam_size": 2, "window": 2, "vocab_size": 100} | options))


def counts_then_answers(num_calls: int):
    """Adds 1, 2, 3 in turn, ever more uncertain, and then answers."""

    def answer(request):
        results = words(request.token_ids).count("<result>")
        script = ANSWER if results == num_calls else CALLS[results % 3]
        return Script(script, entropies=(0.5 + results,) * len(script))

    return answer


def own_count(trajectory, start: int) -> list[str]:
    """What a trajectory's calls must have answered, counted from scratch."""
    count, answers = start, []
    for result in trajectory.results:
        if result.status is CallStatus.OK:
            count += int(result.call.arguments["query"])
            answers.append(str(count))
    return answers


@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize("kind", ALL)
def test_every_branch_counts_on_from_its_branch_point_and_hears_nothing_of_its_siblings(kind, workers):
    run = Run(counts_then_answers(3), counting(kind), branching(), size=6, workers=workers, prompts=2)
    assert any(trajectory.kind is Kind.BRANCH for trajectory, *_ in run.rows())
    for trajectory, state, start in run.rows():
        assert [result.content for result in trajectory.results] == own_count(trajectory, start)
        assert state.environment.counts[-1] == start + 6 and state.broken is None
        assert state.made_by == WAYS[kind]
    environments = [state.environment for _, state, _ in run.rows()]
    assert len(set(map(id, environments))) == len(environments) == 12


def test_a_branch_forks_before_its_parents_next_call_runs_even_when_the_segment_ends_at_once():
    run = Run(counts_then_answers(2), counting(Copied), branching(initial_rollouts=1, window=50), size=2)
    parent, child = run.trees[0].trajectories
    assert child.fork == run.trees[0].points[0].position
    assert [result.content for result in parent.results] == [result.content for result in child.results] == ["1", "3"]


def test_rollouts_that_fill_the_group_begin_at_the_beginning():
    def falling(request):
        script = counts_then_answers(2)(request)
        return Script(script.token_ids, entropies=(0.0,) * len(script.token_ids))

    run = Run(falling, counting(Copied), branching(), size=5)
    assert [trajectory.kind for trajectory, *_ in run.rows()] == [Kind.INITIAL] * 2 + [Kind.FILL] * 3
    assert all(state.environment.counts == [0, 1, 3] for _, state, _ in run.rows())


def test_a_state_that_cannot_be_replayed_is_reported_and_the_model_reads_so(caplog):
    with caplog.at_level(logging.WARNING):
        run = Run(counts_then_answers(2), counting(Moody), branching(initial_rollouts=1), size=2)
    parent, child = run.trees[0].trajectories
    assert [result.status for result in parent.results] == [CallStatus.OK] * 2
    lost = child.results[1]
    assert lost.status is CallStatus.ERROR and "its state is lost: it could not be restored" in lost.content
    assert child.status is Status.FINISHED and run.states[0][1].num_mismatches == 1
    assert caplog.text.count("could not be replayed") == 1


class Wordy(Replayed):
    """Counts in many words."""

    def search(self, query: str) -> str:
        """
        Add to the counter.

        Args:
            query: How much.
        """
        return self.add(int(query)).removeprefix("now ") + " c" * 100


def test_a_replay_is_compared_with_whole_results_where_the_model_saw_them_cut():
    run = Run(counts_then_answers(3), Wordy, branching(), size=6, max_result_tokens=32, max_completion_length=200)
    assert any(trajectory.kind is Kind.BRANCH for trajectory, *_ in run.rows())
    for trajectory, state, _ in run.rows():
        assert state.made_by == "replay" and state.broken is None and state.num_mismatches == 0
        assert [result.content.split()[0] for result in trajectory.results] == ["1", "3", "6"]
        assert all(result.truncated and len(result.content.split()) == 32 for result in trajectory.results)
        assert [result.content for result in state.history] == [f"{count}{' c' * 100}" for count in (1, 3, 6)]


def test_a_run_that_raises_leaves_the_states_that_it_made():
    class Interrupted(ScriptedEngine):
        def poll(self):
            if len(self.requests) == 4:
                raise KeyboardInterrupt
            return super().poll()

    kind = counting(Copied)
    with ToolRuntime([kind().search], num_workers=0) as runtime:
        root = ToolState(Origin(kind, {}, method_names(kind)))
        runtime.prepare(root, root.reset)
        dialect = TagDialect(word_tokenizer(), [kind().search])
        engine = Interrupted(counts_then_answers(1))
        loop = RolloutLoop(engine, runtime, dialect, NoBranching(), SamplingSettings(), Limits(100))
        with pytest.raises(KeyboardInterrupt):
            loop.run([Prompt("0", PROMPT, 2, root)])
    assert [[state.environment.counts for state in states] for states in loop.states] == [[[0, 1], [0, 1]]]
    assert engine.num_unfinished == 0


def test_a_group_whose_reset_failed_ends_with_errors_and_asks_the_engine_for_nothing():
    class Failing(Copied):
        def reset(self, start: int = 0):
            if start == 10:
                raise ConnectionError("no server")
            return super().reset(start)

    run = Run(counts_then_answers(1), counting(Failing), branching(), size=3, prompts=3)
    statuses = [[trajectory.status for trajectory in tree.trajectories] for tree in run.trees]
    assert statuses == [[Status.FINISHED] * 3, [Status.ERROR] * 3, [Status.FINISHED] * 3]
    assert not any(request.id.startswith("1/") for request in run.engine.requests)
    assert [trajectory.token_ids for trajectory in run.trees[1].trajectories] == [[]] * 3


class Polled(ScriptedEngine):
    """Counts its polls, and gives other threads a chance at each."""

    polls = 0

    def poll(self):
        self.polls += 1
        time.sleep(0.001)
        return super().poll()


def test_a_slow_fork_stops_nobody_else():
    class Slow(Forked):
        def fork(self):
            time.sleep(0.5)
            return _fork(self)

    kind = counting(Slow)
    finished_at: dict[str, int] = {}
    engine: Polled

    def answer(request):
        finished_at[request.id] = engine.polls
        return counts_then_answers(1)(request) if request.id.startswith("0/") else Script(ANSWER * 20)

    engine = Polled(answer)
    with ToolRuntime([kind().search], num_workers=2) as runtime:
        root = ToolState(Origin(kind, {}, method_names(kind)))
        runtime.prepare(root, root.reset)
        loop = RolloutLoop(
            engine,
            runtime,
            TagDialect(word_tokenizer(), [kind().search]),
            NoBranching(),
            SamplingSettings(),
            Limits(200),
        )
        slow, free = loop.run([Prompt("0", PROMPT, 1, root), Prompt("1", PROMPT, 1)])
    assert [trajectory.results[0].content for trajectory in slow.trajectories] == ["1"]
    # While the fork slept, the other rollout sampled on: all of it before the slow one's second request.
    assert engine.polls > 160 and finished_at["0/0/2"] >= 100
    assert free.trajectories[0].status is Status.FINISHED


def test_a_fork_that_hangs_is_cut_at_the_deadline_and_the_rollout_ends():
    forever = threading.Event()

    class Hanging(Forked):
        forks = 0

        def fork(self):
            Hanging.forks += 1
            if Hanging.forks == 2:
                forever.wait(60)
            return _fork(self)

    try:
        start = time.monotonic()
        run = Run(counts_then_answers(1), counting(Hanging), size=3, workers=2, tool_timeout_s=0.5)
        assert time.monotonic() - start < 20
    finally:
        forever.set()
    contents = [trajectory.results[0].content for trajectory in run.trees[0].trajectories]
    assert [content for content in contents if content == "1"] == ["1", "1"]
    (lost,) = [content for content in contents if content != "1"]
    assert "its state is lost: copying it at the branch point did not end within 0.5 s" in lost
    assert [trajectory.status for trajectory in run.trees[0].trajectories] == [Status.FINISHED] * 3


def test_a_fork_that_fails_is_read_by_the_model_and_costs_its_branch_alone():
    class Full(Forked):
        forks = 0

        def fork(self):
            Full.forks += 1
            if Full.forks == 2:
                raise MemoryError("no room")
            return _fork(self)

    run = Run(counts_then_answers(1), counting(Full), size=3)
    first, second, third = (trajectory.results[0].content for trajectory in run.trees[0].trajectories)
    assert first == third == "1"
    assert "its state is lost: copying it at the branch point failed with MemoryError: no room" in second


def test_async_environments_stay_on_one_event_loop_when_they_are_replayed():
    class Connected(Copied):
        def __init__(self):
            self.lock = threading.Lock()
            self.loop = None

        async def search(self, query: str) -> str:
            """
            Add to the counter.

            Args:
                query: How much.
            """
            self.loop = self.loop or asyncio.get_running_loop()
            assert self.loop is asyncio.get_running_loop(), "a connection is bound to its loop"
            return self.add(int(query)).removeprefix("now ")

    run = Run(counts_then_answers(3), Connected, branching(), size=6, workers=2)
    for trajectory, state, start in run.rows():
        assert [result.content for result in trajectory.results] == own_count(trajectory, start) == ["1", "3", "6"]
        assert state.made_by == "replay"


def test_a_call_that_hangs_loses_the_state_for_its_rollout_alone():
    forever = threading.Event()

    class Stuck(Copied):
        def add(self, amount: int = 1) -> str:
            if amount == 2:
                forever.wait(60)
            return super().add(amount)

    first = iter([CALLS[1]])

    def answer(request):
        results = words(request.token_ids).count("<result>")
        return Script(ANSWER if results == 2 else next(first, CALLS[0]))

    try:
        run = Run(answer, counting(Stuck), size=3, workers=4, tool_timeout_s=0.5)
    finally:
        forever.set()
    stuck, *others = run.trees[0].trajectories
    assert [result.status for result in stuck.results] == [CallStatus.TIMEOUT, CallStatus.ERROR]
    assert "state is lost" in stuck.results[1].content
    for other in others:
        assert [result.content for result in other.results] == ["1", "2"]


def test_at_the_deadline_a_state_in_the_middle_of_a_call_is_lost_and_others_are_kept():
    class Slow(Copied):
        def add(self, amount: int = 1) -> str:
            if amount == 2:
                time.sleep(1.5)
            return super().add(amount)

    scripts = iter([CALLS[0], CALLS[1]])

    def answer(request):
        return Script(ANSWER) if "<result>" in words(request.token_ids) else Script(next(scripts))

    run = Run(answer, counting(Slow), branching(), size=4, workers=2, timeout_s=0.5)
    statuses = [trajectory.status for trajectory in run.trees[0].trajectories]
    assert statuses == [Status.FINISHED] + [Status.DEADLINE] * 3
    quick, late, *never_begun = run.states[0]
    assert quick.broken is None and quick.environment.counts == [0, 1]
    assert late.broken == "the rollout phase ended in the middle of a call."
    assert all(state.environment is None and state.broken is None for state in never_begun)


def test_stateless_tools_cost_no_state():
    def search(query: str) -> str:
        """
        Look something up.

        Args:
            query: What to look for.
        """
        return query

    with ToolRuntime([search], num_workers=0) as runtime:
        dialect = TagDialect(word_tokenizer(), [search])
        loop = RolloutLoop(
            ScriptedEngine(counts_then_answers(1)), runtime, dialect, branching(), SamplingSettings(), Limits(100)
        )
        loop.run([Prompt("0", PROMPT, 4)])
    assert loop.states == [[None] * 4]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(ALL),
    size=st.integers(1, 8),
    initial=st.integers(1, 3),
    beam=st.integers(1, 3),
    window=st.integers(1, 8),
    workers=st.sampled_from([0, 3]),
)
def test_the_state_of_every_trajectory_is_what_its_own_calls_make_of_a_fresh_one(
    seed, kind, size, initial, beam, window, workers
):
    rng = random.Random(seed)

    def answer(request):
        roll = rng.random()
        script = rng.choice(CALLS) if roll < 0.6 else ids("need <search> a </search>") if roll < 0.7 else ANSWER
        return Script(script, entropies=tuple(rng.uniform(0, 3) for _ in script))

    policy = branching(initial_rollouts=initial, beam_size=beam, window=window)
    run = Run(
        answer, counting(kind), policy, size=size, workers=workers, prompts=2, max_tool_turns=3, max_invalid_turns=2
    )
    for trajectory, state, start in run.rows():
        fresh = counting(kind)()
        fresh.reset(start=start)
        for result in trajectory.results:
            if result.status is CallStatus.OK:
                assert fresh.search(**result.call.arguments) == result.content
        assert state.broken is None and state.environment.counts == fresh.counts
        assert not any(re.search("lost", result.content) for result in trajectory.results)
