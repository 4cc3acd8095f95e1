"""The rollout loop on scripted engines: what branches, from where, and what becomes of every trajectory."""

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from word_tokenizer import ids, word_tokenizer, words

from trl_agentic.rewards import arpo_reward
from trl_agentic.rollout.batch import RolloutBatch, depth_first, rollout_metrics
from trl_agentic.rollout.engine import Request, SamplingSettings, Script, ScriptedEngine
from trl_agentic.rollout.limits import BUDGET_NOTE, Limits
from trl_agentic.rollout.loop import Prompt, RolloutLoop
from trl_agentic.rollout.policy import EntropyBranching, NoBranching
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.tools.runtime import ToolRuntime
from trl_agentic.types import CallStatus, Kind, Status

PROMPT = ids("what is a")
CALL = ids("need a <search> a </search>")
ANSWER = ids("found b <answer> \\boxed{ b } </answer> <eos>")


def search(query: str) -> str:
    """
    Look something up.

    Args:
        query: What to look for.
    """
    return f"{query} is b"


def branching(**options) -> EntropyBranching:
    return EntropyBranching(**({"initial_rollouts": 2, "beam_size": 2, "window": 2, "vocab_size": 100} | options))


def grow(answer, policy=None, tools=(search,), prompts=1, size=4, workers=0, context=4096, **limits):
    engine = ScriptedEngine(answer, max_model_length=context)
    limits = Limits(**({"max_completion_length": 100} | limits))
    with ToolRuntime(list(tools), num_workers=workers, timeout_s=2.0) as runtime:
        loop = RolloutLoop(
            engine, runtime, TagDialect(word_tokenizer(), tools), policy or NoBranching(), SamplingSettings(), limits
        )
        trees = loop.run([Prompt(str(i), PROMPT, size) for i in range(prompts)])
    assert engine.num_unfinished == 0
    return trees, engine


def continuation(request: Request) -> str:
    return words(request.token_ids[len(PROMPT) :])


def search_then_answer(request: Request) -> Script:
    """Search first; answer when there is a result. Certain at the beginning, uncertain after the result."""
    if "<result>" in continuation(request):
        return Script(ANSWER, entropies=(2.0,) * len(ANSWER))
    return Script(CALL, entropies=(0.5,) * len(CALL))


def test_a_rollout_searches_and_then_answers():
    trees, engine = grow(search_then_answer, size=1)
    (trajectory,) = trees[0].trajectories
    assert words(trajectory.token_ids) == (
        "need a <search> a </search> <result> a is b </result> found b <answer> \\boxed{ b } </answer> <eos>"
    )
    assert trajectory.status is Status.FINISHED
    assert trajectory.sampled_mask == [1] * 5 + [0] * 5 + [1] * 8
    assert [result.content for result in trajectory.results] == ["a is b"]
    assert len(engine.requests) == 2


def test_the_concatenated_row_is_what_the_engine_saw():
    trees, engine = grow(search_then_answer, size=1)
    final = engine.requests[-1]
    assert tuple(trees[0].prompt_ids) + tuple(trees[0].trajectories[0].token_ids) == final.token_ids + ANSWER


def test_a_branch_starts_right_after_the_result_while_its_parent_goes_on():
    trees, engine = grow(search_then_answer, branching(), size=4)
    tree = trees[0]
    assert [trajectory.kind for trajectory in tree.trajectories] == [Kind.INITIAL] * 2 + [Kind.BRANCH] * 2
    child, parent = tree.trajectories[2], tree.trajectories[tree.trajectories[2].parent]
    assert child.fork == 10 and child.token_ids[:10] == parent.token_ids[:10]
    prefix = engine.requests[[request.id for request in engine.requests].index("0/2/1")].token_ids
    assert words(prefix).endswith("</result>")  # without the probe tokens of the parent
    assert len(engine.requests) == 2 * 2 + 2


def test_the_decision_follows_the_formula_by_hand():
    (tree,), _ = grow(search_then_answer, branching(vocab_size=100, alpha=0.5, weight=0.2), size=4)
    point = tree.points[0]
    assert point.initial_entropy == 0.5 and point.entropy == 2.0
    assert point.change == pytest.approx(1.5 / 4.60517, abs=1e-5)
    assert point.score == pytest.approx(0.5 + 0.2 * 0.325721, abs=1e-5)


def test_falling_entropy_does_not_branch_and_the_rest_is_filled_in_one_batch():
    def answer(request):
        script = search_then_answer(request)
        level = 0.1 if "<result>" in continuation(request) else 0.5
        return Script(script.token_ids, entropies=(level,) * len(script.token_ids))

    (tree,), engine = grow(answer, branching(), size=5)
    assert [trajectory.kind for trajectory in tree.trajectories] == [Kind.INITIAL] * 2 + [Kind.FILL] * 3
    fills = [number for number, request in enumerate(engine.requests) if request.id in ("0/2/1", "0/3/1", "0/4/1")]
    assert fills == [4, 5, 6]


def test_a_child_is_not_tested_where_it_was_born_but_at_its_next_result():
    def answer(request):
        results = continuation(request).count("<result>")
        script = ANSWER if results == 2 else CALL
        return Script(script, entropies=(0.5 + results,) * len(script))

    (tree,), _ = grow(answer, branching(initial_rollouts=1), size=8, max_tool_turns=5)
    born = [(trajectory.parent, trajectory.fork) for trajectory in tree.trajectories if trajectory.kind is Kind.BRANCH]
    assert (0, 10) in born and (0, 20) in born and (1, 20) in born
    assert all(point.position > tree.trajectories[point.trajectory].fork for point in tree.points)


def test_points_of_one_poll_are_served_by_score_and_ties_by_index():
    levels = iter([1.0, 3.0, 2.0])

    def answer(request):
        if "<result>" in continuation(request):
            return Script(ANSWER, entropies=(next(levels, 0.0),) * len(ANSWER))
        return Script(CALL, entropies=(0.5,) * len(CALL))

    (tree,), _ = grow(answer, branching(initial_rollouts=3), size=5)
    assert [point.entropy for point in tree.points] == [3.0, 2.0, 1.0]
    assert [point.granted for point in tree.points] == [1, 1, 0]
    assert [trajectory.parent for trajectory in tree.trajectories[3:]] == [1, 2]


def test_a_short_segment_is_tested_when_it_ends_before_its_own_call_runs():
    calls = []

    def recording(query: str) -> str:
        """
        Look something up.

        Args:
            query: What to look for.
        """
        calls.append(query)
        return "b"

    recording.__name__ = "search"

    def answer(request):
        results = continuation(request).count("<result>")
        script = ANSWER if results == 2 else CALL
        return Script(script, entropies=(0.5 + results,) * len(script))

    (tree,), _ = grow(answer, branching(initial_rollouts=1, window=50), tools=(recording,), size=2)
    assert tree.points[0].position == 8 and tree.points[0].entropy == 1.5
    assert tree.trajectories[1].fork == 8


def test_budgets_are_per_trajectory_and_never_negative():
    trees, engine = grow(search_then_answer, size=3, max_completion_length=13)
    for trajectory in trees[0].trajectories:
        assert len(trajectory) == 13 and trajectory.status is Status.TRUNCATED
    assert {request.max_tokens for request in engine.requests} == {13, 3}


def test_of_a_result_that_does_not_fit_the_part_that_does_is_kept_and_the_rollout_ends_as_truncated():
    (tree,), _ = grow(search_then_answer, size=1, max_completion_length=7)
    (trajectory,) = tree.trajectories
    assert trajectory.status is Status.TRUNCATED and len(trajectory) == 7
    assert words(trajectory.token_ids).endswith("<result> a")
    assert [(result.content, result.truncated) for result in trajectory.results] == [("a", True)]


def test_rewards_messages_and_metrics_see_a_long_result_as_the_model_saw_it():
    def search(query: str) -> str:
        """
        Look something up.

        Args:
            query: What to look for.
        """
        return "c " * 100

    dialect = TagDialect(word_tokenizer(), [search], max_result_tokens=32)
    with ToolRuntime([search], num_workers=0) as runtime:
        loop = RolloutLoop(
            ScriptedEngine(search_then_answer), runtime, dialect, NoBranching(), SamplingSettings(), Limits(100)
        )
        (tree,) = loop.run([Prompt("0", PROMPT, 1)])
    (trajectory,) = tree.trajectories
    shown = words(trajectory.segments[1].token_ids).removeprefix("<result> ").removesuffix(" </result>")
    assert len(shown.split()) == 32 and shown.startswith("c c") and shown.endswith("c c")
    batch = RolloutBatch.from_trees([tree], dialect, eos_token_id=1)
    assert [message["content"] for message in batch.completions[0] if message["role"] == "tool"] == [shown]
    assert [call["result"] for call in batch.extra_fields["rollout_calls"][0]] == [shown]
    assert trajectory.results[0].truncated and rollout_metrics([tree])["tools/search/truncation_rate"] == 1.0


def test_a_context_shorter_than_the_prompt_ends_every_rollout_as_truncated():
    (tree,), engine = grow(search_then_answer, branching(), size=4, context=3)
    assert [trajectory.status for trajectory in tree.trajectories] == [Status.TRUNCATED] * 4
    assert engine.requests == []
    batch = RolloutBatch.from_trees([tree], TagDialect(word_tokenizer(), [search]), eos_token_id=1)
    assert batch.completion_ids == [[1]] * 4 and batch.sampled_mask == [[0]] * 4


def test_a_call_in_a_thought_that_the_prompt_has_opened_is_not_run():
    answer = "</think> <search> b </search>", "<answer> \\boxed{ b } </answer> <eos>"
    scripts = iter([Script(CALL), *(Script(ids(text)) for text in answer)])
    engine = ScriptedEngine(lambda request: next(scripts))
    dialect = TagDialect(word_tokenizer(), [search])
    with ToolRuntime([search], num_workers=0) as runtime:
        limits = Limits(max_completion_length=200, max_tool_turns=2)
        loop = RolloutLoop(engine, runtime, dialect, NoBranching(), SamplingSettings(), limits)
        (tree,) = loop.run([Prompt("p", ids("what is a <think>"), 1)])
    (trajectory,) = tree.trajectories
    assert [result.call.arguments for result in trajectory.results] == [{"query": "b"}]
    assert trajectory.status is Status.FINISHED
    (messages,) = RolloutBatch.from_trees([tree], dialect, eos_token_id=1).completions
    assert messages[0]["content"] == f"<think>{words(CALL)} </think> <search> b </search>"
    assert arpo_reward(["q"], [messages], ["b"], ["finished"], rollout_dialect=["tags"]) == [1]


def test_a_model_that_calls_for_ever_is_told_once_and_then_stopped():
    (tree,), _ = grow(lambda request: Script(CALL), size=1, max_tool_turns=2)
    (trajectory,) = tree.trajectories
    assert trajectory.status is Status.TOOL_BUDGET
    assert [result.status for result in trajectory.results] == [CallStatus.OK, CallStatus.OK, CallStatus.BUDGET]
    assert trajectory.results[-1].content == BUDGET_NOTE


class TwiceDialect(TagDialect):
    """Reads every call twice, as a model writes it that makes parallel calls."""

    def parse(self, *token_ids):
        turn = super().parse(*token_ids)
        return replace(turn, calls=turn.calls * 2)


def test_of_parallel_calls_those_beyond_the_limit_are_answered_with_the_note():
    engine = ScriptedEngine(lambda request: Script(CALL))
    dialect = TwiceDialect(word_tokenizer(), [search])
    with ToolRuntime([search], num_workers=0) as runtime:
        limits = Limits(max_completion_length=200, max_tool_turns=9, max_calls=3)
        loop = RolloutLoop(engine, runtime, dialect, NoBranching(), SamplingSettings(), limits)
        (tree,) = loop.run([Prompt("p", ids("what is a"), 1)])
    (trajectory,) = tree.trajectories
    assert [result.status.value for result in trajectory.results] == ["ok", "ok", "ok", "budget"]
    assert trajectory.status is Status.TOOL_BUDGET


def test_broken_calls_are_answered_and_end_the_rollout_after_too_many():
    broken = ids("need <search> </search>")
    (tree,), _ = grow(lambda request: Script(broken), size=1, max_invalid_turns=2, max_tool_turns=9)
    (trajectory,) = tree.trajectories
    assert trajectory.status is Status.INVALID_CALLS
    assert [result.status for result in trajectory.results] == [CallStatus.MALFORMED] * 3


def test_a_closing_tag_inside_a_thought_is_no_call_and_the_turn_goes_on():
    def answer(request):
        if continuation(request).endswith("</search>"):
            return Script(ids("</think>") + ANSWER)
        return Script(ids("<think> <search> a </search>"))

    (tree,), engine = grow(answer, size=1)
    (trajectory,) = tree.trajectories
    assert trajectory.status is Status.FINISHED and trajectory.results == []
    assert len(trajectory.segments) == 1 and len(engine.requests) == 2


def test_a_stop_text_inside_a_thought_does_not_close_the_entropy_window():
    def answer(request):
        if not continuation(request):  # three certain tokens, then a stop text that is no call
            return Script(ids("<think> <search> a </search>"), entropies=(0.0,) * 4)
        if continuation(request).endswith("</search>") and "</think>" not in continuation(request):
            return Script(ids("</think>") + CALL, entropies=(1.0,) * 6)
        return Script(ANSWER, entropies=(0.4,) * len(ANSWER))

    (tree,), _ = grow(answer, branching(initial_rollouts=1, window=8), size=2)
    assert tree.points[0].initial_entropy == pytest.approx(4 / 8)  # four zeros and four ones, not four zeros


def test_calls_that_wait_are_dropped_with_their_rollout():
    started = []

    def search(query: str) -> str:
        """
        Look something up.

        Args:
            query: What to look for.
        """
        started.append(query)
        time.sleep(1.0)
        return "late"

    engine = ScriptedEngine(search_then_answer)
    with ToolRuntime([search], num_workers=1, timeout_s=5.0) as runtime:
        dialect = TagDialect(word_tokenizer(), [search])
        limits = Limits(100, timeout_s=0.3)
        RolloutLoop(engine, runtime, dialect, NoBranching(), SamplingSettings(), limits).run([Prompt("0", PROMPT, 6)])
        assert runtime.num_pending == 0
        time.sleep(1.5)
    assert started == ["a"]


def test_a_tool_that_raises_or_hangs_is_a_result_and_the_others_go_on():
    def search(query: str) -> str:
        """
        Look something up.

        Args:
            query: What to look for.
        """
        if query == "a":
            raise ValueError("no such thing")
        time.sleep(60)
        return "late"

    calls = iter(["a", "b"])

    def answer(request):
        if "<result>" in continuation(request):
            return Script(ANSWER)
        return Script(ids(f"<search> {next(calls)} </search>"))

    (tree,), _ = grow(answer, tools=(search,), size=2, workers=4)
    statuses = [trajectory.results[0].status for trajectory in tree.trajectories]
    assert statuses == [CallStatus.ERROR, CallStatus.TIMEOUT]
    assert [trajectory.status for trajectory in tree.trajectories] == [Status.FINISHED] * 2


def test_at_the_deadline_every_trajectory_still_has_a_status():
    def search(query: str) -> str:
        """
        Look something up.

        Args:
            query: What to look for.
        """
        time.sleep(1.5)
        return "late"

    trees, _ = grow(search_then_answer, branching(), tools=(search,), size=4, workers=2, timeout_s=0.3)
    assert [trajectory.status for trajectory in trees[0].trajectories] == [Status.DEADLINE] * 4
    assert [trajectory.kind for trajectory in trees[0].trajectories] == [Kind.INITIAL] * 2 + [Kind.FILL] * 2


def test_an_engine_error_ends_one_trajectory_and_no_other():
    scripts = iter([Script(ids("a b"), finish_reason="error")])
    (tree,), _ = grow(lambda request: next(scripts, Script(ANSWER)), size=3)
    assert [trajectory.status for trajectory in tree.trajectories] == [Status.ERROR] + [Status.FINISHED] * 2


def test_without_entropies_nothing_branches():
    class Silent(ScriptedEngine):
        def poll(self):
            return [
                type(event)(event.request_id, event.token_ids, event.logprobs, None, event.finish_reason)
                for event in super().poll()
            ]

    with ToolRuntime([search], num_workers=0) as runtime:
        dialect = TagDialect(word_tokenizer(), [search])
        loop = RolloutLoop(
            Silent(search_then_answer), runtime, dialect, branching(), SamplingSettings(temperature=0.0), Limits(100)
        )
        (tree,) = loop.run([Prompt("0", PROMPT, 4)])
    assert tree.points == () and len(tree.trajectories) == 4
    assert tree.trajectories[0].entropies == [None] * len(tree.trajectories[0])


def test_the_stochastic_gate_draws_every_child():
    policy = branching(gate="stochastic", beam_size=101, rng=random.Random(0))
    point = policy.test(0, 10, initial=1.0, current=1.0)  # P = alpha = 0.5
    assert 35 <= point.wanted <= 65
    assert policy.test(0, 10, 0.0, 1.0).wanted != 100


def test_the_released_signal_looks_before_the_result_and_sums():
    def answer(request):
        level = 3.0 if "<result>" in continuation(request) else 0.5
        script = ANSWER if continuation(request).count("<result>") == 2 else CALL
        return Script(script, entropies=(level,) * len(script))

    (tree,), _ = grow(answer, branching(initial_rollouts=1, signal="released", window=20), size=2)
    first, second = tree.points[:2]
    assert first.initial_entropy == first.entropy == 5 * 0.5 and first.wanted == 0
    assert second.entropy == 5 * 3.0 and second.position == 20 and second.wanted == 1
    metrics = rollout_metrics([tree])
    assert metrics["branch/entropy_sum"] == (2.5 + 15.0) / 2 and metrics["branch/initial_entropy_sum"] == 2.5
    assert {"branch/entropy", "branch/initial_entropy", "branch/entropy_change"}.isdisjoint(metrics)


def test_shared_calls_count_once_as_executed_and_in_each_row_as_frequency():
    trees, _ = grow(search_then_answer, branching(), size=4)
    metrics = rollout_metrics(trees)
    assert metrics["tools/call_frequency"] == metrics["rollout/tool_calls"] == 1.0
    assert metrics["rollout/executed_calls"] == 0.5  # two of the four rows are branches behind the call
    assert metrics["tools/failure_frequency"] == 0.0 and metrics["branch/rate"] == 0.5
    assert metrics["rollout/sampled_tokens"] == 2 * 5 + 4 * 8


def test_depth_first_keeps_relatives_together():
    def answer(request):
        results = continuation(request).count("<result>")
        script = ANSWER if results == 2 else CALL
        return Script(script, entropies=(0.5 + results,) * len(script))

    (tree,), _ = grow(answer, branching(initial_rollouts=2), size=8)
    ordered = depth_first(tree)
    parents = [trajectory.parent for trajectory in ordered.trajectories]
    roots = [row for row, parent in enumerate(parents) if parent is None]
    for row, parent in enumerate(parents):
        if parent is not None:
            assert max(root for root in roots if root <= row) == max(root for root in roots if root <= parent)
    texts = sorted(words(trajectory.token_ids) for trajectory in tree.trajectories)
    assert sorted(words(trajectory.token_ids) for trajectory in ordered.trajectories) == texts


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 12), initial=st.integers(1, 12), beam=st.integers(1, 4))
def test_every_prompt_gets_exactly_its_trajectories_each_from_requests_of_its_own(seed, size, initial, beam):
    rng = random.Random(seed)

    def answer(request):
        script = rng.choice([CALL, CALL, ANSWER, ids("a b c"), ids("<search> </search>")])
        reason = "error" if script == ids("a b c") and rng.random() < 0.1 else "stop"
        ended = script + (ids("<eos>") if script == ids("a b c") else ())
        return Script(ended, reason, tuple(rng.random() * 3 for _ in ended))

    policy = branching(initial_rollouts=min(initial, size), beam_size=beam)
    trees, engine = grow(answer, policy, prompts=3, size=size, max_completion_length=60)
    assert [len(tree.trajectories) for tree in trees] == [size] * 3
    starts = {request.id.rsplit("/", 1)[0] for request in engine.requests}
    assert starts == {f"{number}/{index}" for number in range(3) for index in range(size)}
    for tree in trees:
        for point in tree.points:
            change = (point.entropy - point.initial_entropy) / 4.605170185988092
            assert point.change == pytest.approx(change)
            assert point.wanted == (beam - 1 if 0.5 + 0.2 * change > 0.5 else 0)
            assert 0 <= point.granted <= point.wanted
        branches = [trajectory for trajectory in tree.trajectories if trajectory.kind is Kind.BRANCH]
        assert len(branches) == sum(point.granted for point in tree.points)
        forks = sorted((trajectory.parent, trajectory.fork) for trajectory in branches)
        granted = [(point.trajectory, point.position) for point in tree.points for _ in range(point.granted)]
        assert forks == sorted(granted)
        shared = tree.shared_lengths()
        for row, trajectory in enumerate(tree.trajectories):
            assert len(trajectory) <= 60 and trajectory.status is not None
            for column, other in enumerate(tree.trajectories):
                length = shared[row][column]
                assert trajectory.token_ids[:length] == other.token_ids[:length]
    metrics = rollout_metrics(trees)
    assert sum(value for name, value in metrics.items() if name.startswith("rollout/status/")) == pytest.approx(1.0)


def test_inline_tools_make_a_run_repeat_exactly():
    def run():
        rng = random.Random(7)

        def answer(request):
            script = CALL if rng.random() < 0.6 else ANSWER
            return Script(script, entropies=tuple(rng.random() for _ in script))

        return grow(answer, branching(initial_rollouts=3), prompts=2, size=6)[0]

    first, second = run(), run()
    texts = [[(words(t.token_ids), t.parent, t.fork) for t in tree.trajectories] for tree in first]
    assert texts == [[(words(t.token_ids), t.parent, t.fork) for t in tree.trajectories] for tree in second]
