"""Branches of finished trees on scripted engines: from any sampled token, with what the prefix has left."""

from __future__ import annotations

import functools
import itertools
import random
import threading
from dataclasses import replace

import pytest
from byte_tokenizer import byte_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from regrown_trees import (
    ANSWER,
    CALL,
    PROMPT,
    as_their_parents,
    chat_byte_tokenizer,
    content_of,
    growing,
    grown,
    regrown,
    sampled_positions,
    search,
    search_then_answer,
    searched_tree,
)
from word_tokenizer import ids, word_tokenizer, words

from trl_agentic.rollout.batch import RolloutBatch
from trl_agentic.rollout.engine import Script, ScriptedEngine
from trl_agentic.rollout.limits import BUDGET_NOTE
from trl_agentic.rollout.policy import EntropyBranching
from trl_agentic.rollout.stop_texts import StopTexts
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.rollout.template_dialect import TemplateDialect
from trl_agentic.types import CallStatus, Kind, Status, ToolCall

FOUND = "found b <answer> \\boxed{ b } </answer> <eos>"
SEARCHED = "need a <search> a </search> <result> a is b </result>"


def says(*texts: str):
    """An answer to each request in turn; the log-probs tell its tokens from a parent's."""
    scripts = iter([Script(ids(text), logprobs=(-2.0,) * len(text.split())) for text in texts])
    return lambda request: next(scripts)


# --- where a branch can start


@pytest.mark.parametrize(
    ("position", "kept", "new", "result"),
    [
        (0, "", "got <search> c </search>", "<result> c is b </result>"),  # the first token
        (1, "need", "c <search> c </search>", "<result> c is b </result>"),  # in a thought
        (3, "need a <search>", "c </search>", "<result> c is b </result>"),  # in the query
        (4, "need a <search> a", "</search>", "<result> a is b </result>"),  # the end of the call
        (10, SEARCHED, "nothing <search> d </search>", "<result> d is b </result>"),  # right behind a result
        (13, f"{SEARCHED} found b <answer>", "c </answer> <eos>", None),  # in the answer
        (17, f"{SEARCHED} {FOUND.removesuffix(' <eos>')}", "<eos>", None),  # the last token
    ],
)
def test_a_branch_keeps_the_first_tokens_and_samples_the_rest_through_the_same_loop(position, kept, new, result):
    tree = searched_tree()
    (grown_on,), requests = regrown(says(new, FOUND), [tree], [[(0, position)]])
    branch = grown_on.trajectories[1]
    assert words(branch.token_ids) == " ".join(f"{kept} {new} {result or ''} {FOUND if result else ''}".split())
    assert (branch.kind, branch.parent, branch.fork) == (Kind.BRANCH, 0, position)
    assert branch.status is Status.FINISHED and len(requests) == (2 if result else 1)
    assert requests[0].token_ids == PROMPT + ids(kept)
    assert len(requests[0].turn_ids) == (position if position < 10 else position - 10)
    parent = tree.trajectories[0]
    assert branch.logprobs[:position] == parent.logprobs[:position]
    assert {value for value in branch.logprobs[position:] if value is not None} == {-2.0}
    num_results = len(result.split()) if result else 0
    assert branch.sampled_mask[position:] == [1] * len(new.split()) + [0] * num_results + [1] * (8 if result else 0)
    if result:
        assert branch.results[-1].content == " ".join(result.split()[1:-1])


def test_the_parents_stay_and_branches_follow_them_in_the_order_of_the_forks():
    trees = grown(search_then_answer, size=2, prompts=3)
    forks = [[(1, 10), (0, 3), (1, 10), (0, 0)], [], [(1, 17)]]
    answer = as_their_parents(trees, forks)
    grown_on, _ = regrown(answer, trees, forks)
    assert grown_on[1] == trees[1]
    for tree, before, places in zip(grown_on, trees, forks, strict=True):
        assert tree.trajectories[:2] == before.trajectories and tree.points == before.points
        assert (tree.prompt_id, tree.prompt_ids) == (before.prompt_id, before.prompt_ids)
        assert [(branch.parent, branch.fork) for branch in tree.trajectories[2:]] == places
        assert all(branch.kind is Kind.BRANCH for branch in tree.trajectories[2:])
    shared = grown_on[0].shared_lengths()
    assert shared[2][:2] == [0, 10] and shared[3][2] == 0 and shared[4][2] == 10 and shared[5] == [0] * 5 + [18]


def test_without_forks_the_engine_is_asked_for_nothing():
    trees = grown(search_then_answer, size=2, prompts=2)
    assert regrown(says(), trees, [[], []]) == (trees, [])


def test_a_branch_of_a_branch_descends_from_it():
    tree = searched_tree()
    (once,), _ = regrown(says("c </search>", FOUND), [tree], [[(0, 3)]])
    (twice,), requests = regrown(says("a a <eos>"), [once], [[(1, 12)]])
    assert twice.trajectories[:2] == once.trajectories
    assert words(twice.trajectories[2].token_ids).startswith("need a <search> c </search> <result> c is b </result>")
    assert (twice.trajectories[2].parent, twice.trajectories[2].fork) == (1, 12)
    assert requests[0].id == "0/2/1" and len(requests[0].turn_ids) == 2
    assert twice.shared_lengths()[2] == [3, 12, 15]


def test_the_turn_that_a_branch_cuts_stays_one_message_for_rewards_and_templates():
    tree = searched_tree()
    (grown_on,), _ = regrown(says("c </search>", FOUND), [tree], [[(0, 3)]])
    branch = grown_on.trajectories[1]
    assert [segment.sampled for segment in branch.segments] == [True, True, False, True]
    dialect = TagDialect(word_tokenizer(), [search])
    messages = dialect.messages(branch.segments)
    assert [message["role"] for message in messages] == ["assistant", "tool", "assistant"]
    assert messages[0]["content"] == "need a <search> c </search>"
    assert messages[0]["tool_calls"][0]["function"] == {"name": "search", "arguments": {"query": "c"}}
    assert RolloutBatch.from_trees([grown_on], dialect, eos_token_id=1).completions[1] == messages


def test_a_closing_tag_in_a_thought_is_no_call_of_a_branch_that_keeps_it_either():
    def answer(request):
        thought = ids("<think> <search> a </search>")
        return Script(ids("</think>") + ANSWER if words(request.token_ids).endswith(">") else thought)

    (tree,) = grown(answer)
    assert tree.trajectories[0].results == []
    (grown_on,), _ = regrown(says("</search>", "c </think> <search> d </search>", FOUND), [tree], [[(0, 3)]])
    assert [result.call.arguments for result in grown_on.trajectories[1].results] == [{"query": "d"}]
    (grown_on,), requests = regrown(says("c </think> <search> d </search>", FOUND), [tree], [[(0, 4)]])
    assert [result.call.arguments for result in grown_on.trajectories[1].results] == [{"query": "d"}]
    assert words(requests[0].token_ids).endswith("</search>")


# --- calls that begin in the prefix, in both dialects


@functools.cache
def byte_tags() -> TagDialect:
    return TagDialect(byte_tokenizer(), [search])


BYTE_TURN = "hm <search>abc</search>.\n"
BYTE_END = "<answer>b</answer><eos>"


def byte_answer(request):
    """Whatever of the call is missing, then the answer; it stops where a real engine would."""
    tokenizer = byte_tokenizer()
    turn, end = tokenizer(BYTE_TURN)["input_ids"], tokenizer(BYTE_END)["input_ids"]
    kept = list(request.turn_ids)
    if "</result>" in tokenizer.decode(request.token_ids):
        return Script(tuple(end[len(kept) :]))
    rest = turn[len(kept) :]
    assert turn[: len(kept)] == kept
    return Script(tuple(rest[: StopTexts(tokenizer, byte_tags().stop).find(turn, len(rest))]))


def test_a_call_that_begins_in_the_prefix_is_run_wherever_the_cut_goes_through_its_tags():
    (tree,) = grown(byte_answer, dialect=byte_tags(), prompt=[40, 41], max_completion_length=200)
    (parent,) = tree.trajectories
    assert byte_tokenizer().decode(parent.token_ids).startswith("hm <search>abc</search>.<result>")
    positions = sampled_positions(parent)
    first_turn = [position for position in positions if position < parent.sampled_mask.index(0)]
    kept = {byte_tokenizer().decode(parent.token_ids[:position]) for position in first_turn}
    assert {"hm <search>ab", "hm <search>abc</", "hm <search>abc</search"} <= kept
    (grown_on,), requests = regrown(
        byte_answer,
        [tree],
        [[(0, position) for position in positions]],
        dialect=byte_tags(),
        max_completion_length=200,
    )
    for branch, position in zip(grown_on.trajectories[1:], positions, strict=True):
        assert content_of(branch) == content_of(parent), position
        assert [result.call for result in branch.results] == [ToolCall("search", {"query": "abc"})]


@functools.cache
def chat() -> tuple[TemplateDialect, list[int], list[int]]:
    """The template dialect; a turn with two calls side by side, and a final one."""
    tokenizer = chat_byte_tokenizer()
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "QUERY"}}\n</tool_call>'
    turn = f"hm\n{call.replace('QUERY', 'ab')}\n{call.replace('QUERY', 'cd')}<|im_end|>"
    dialect = TemplateDialect(tokenizer, [search])
    return dialect, tokenizer(turn)["input_ids"], tokenizer("it is b<|im_end|>")["input_ids"]


def chat_answer(request):
    _, turn, end = chat()
    kept = list(request.turn_ids)
    return Script(tuple((turn if turn[: len(kept)] == kept and not is_answered(request) else end)[len(kept) :]))


def is_answered(request) -> bool:
    return "<tool_response>" in chat_byte_tokenizer().decode(request.token_ids)


def test_parallel_calls_of_a_chat_template_are_run_together_wherever_the_cut_goes_through_them():
    dialect, turn, end = chat()
    options = {"dialect": dialect, "max_completion_length": 800}
    (tree,) = grown(chat_answer, prompt=dialect.encode_prompt("What is ab?"), **options)
    (parent,) = tree.trajectories
    assert [result.content for result in parent.results] == ["ab is b", "cd is b"]
    positions = sampled_positions(parent)
    assert len(positions) == len(turn) + len(end)
    chosen = [0, 1, *range(3, len(turn), 7), len(turn) - 2, len(turn) - 1, *positions[-len(end) :]]
    (grown_on,), _ = regrown(chat_answer, [tree], [[(0, position) for position in chosen]], **options)
    expected = dialect.messages(parent.segments)
    assert [message["role"] for message in expected] == ["assistant", "tool", "tool", "assistant"]
    for branch, position in zip(grown_on.trajectories[1:], chosen, strict=True):
        assert content_of(branch) == content_of(parent), position
        assert dialect.messages(branch.segments) == expected


def test_of_parallel_calls_a_branch_may_change_the_second():
    dialect, turn, _ = chat()
    tokenizer = chat_byte_tokenizer()
    options = {"dialect": dialect, "max_completion_length": 800}
    (tree,) = grown(chat_answer, prompt=dialect.encode_prompt("What is ab?"), **options)
    position = next(place for place in range(len(turn)) if tokenizer.decode(turn[:place]).endswith(': "cd'))
    rest = tokenizer('x"}}\n</tool_call><|im_end|>')["input_ids"]
    scripts = iter([tuple(rest), tuple(tokenizer("b<|im_end|>")["input_ids"])])
    (grown_on,), _ = regrown(lambda request: Script(next(scripts)), [tree], [[(0, position)]], **options)
    assert [result.content for result in grown_on.trajectories[1].results] == ["ab is b", "cdx is b"]


# --- budgets


@pytest.mark.parametrize(("position", "num_executed"), [(0, 2), (10, 1), (20, 0)])
def test_a_branch_may_use_the_tool_turns_that_its_prefix_has_left(position, num_executed):
    def answer(request):
        return Script(ANSWER if words(request.token_ids).count("<result>") == 3 else CALL)

    (tree,) = grown(answer, max_tool_turns=2)
    assert [result.status.value for result in tree.trajectories[0].results] == ["ok", "ok", "budget"]
    (grown_on,), _ = regrown(lambda request: Script(CALL), [tree], [[(0, position)]], max_tool_turns=2)
    branch = grown_on.trajectories[1]
    assert [result.status for result in branch.results] == [CallStatus.OK] * 2 + [CallStatus.BUDGET]
    assert [result.status for result in branch.own_results] == [CallStatus.OK] * num_executed + [CallStatus.BUDGET]
    assert branch.status is Status.TOOL_BUDGET and branch.results[-1].content == BUDGET_NOTE


def test_behind_the_note_that_no_calls_are_left_a_further_call_ends_the_branch_and_an_answer_finishes_it():
    def answer(request):
        return Script(ANSWER if words(request.token_ids).count("<result>") == 2 else CALL)

    (tree,) = grown(answer, max_tool_turns=1)
    (parent,) = tree.trajectories
    assert parent.results[-1].status is CallStatus.BUDGET
    behind = len(parent) - len(ANSWER)
    scripts = iter([Script(CALL), Script(ANSWER)])
    forks = [[(0, behind), (0, behind + 2)]]
    (grown_on,), requests = regrown(lambda request: next(scripts), [tree], forks, max_tool_turns=1)
    asked, answered = grown_on.trajectories[1:]
    assert asked.status is Status.TOOL_BUDGET and asked.own_results == [] and len(asked) == behind + 5
    assert answered.status is Status.FINISHED and answered.own_results == [] and len(requests) == 2


class TwiceDialect(TagDialect):
    """Reads every call twice, as a model writes it that makes parallel calls."""

    def parse(self, *token_ids):
        turn = super().parse(*token_ids)
        return replace(turn, calls=turn.calls * 2)


def test_calls_of_the_prefix_count_against_the_most_calls():
    options = {"dialect": TwiceDialect(word_tokenizer(), [search]), "max_tool_turns": 9, "max_completion_length": 200}
    (tree,) = grown(search_then_answer, max_calls=3, **options)
    behind = len(tree.trajectories[0]) - len(ANSWER)
    (grown_on,), _ = regrown(lambda request: Script(CALL), [tree], [[(0, behind), (0, 2)]], max_calls=3, **options)
    for branch in grown_on.trajectories[1:]:
        assert [result.status.value for result in branch.results] == ["ok", "ok", "ok", "budget"]
        assert branch.status is Status.TOOL_BUDGET


def test_broken_calls_of_the_prefix_count_as_turns_in_a_row():
    broken = ids("need <search> </search>")

    def answer(request):
        return Script(ANSWER if words(request.token_ids).count("<result>") == 2 else broken)

    (tree,) = grown(answer, max_invalid_turns=2)
    (parent,) = tree.trajectories
    assert [result.status for result in parent.results] == [CallStatus.MALFORMED] * 2
    first, second = 3 + len(parent.segments[1]), len(parent) - len(ANSWER)
    (grown_on,), _ = regrown(
        lambda request: Script(broken), [tree], [[(0, 0), (0, first), (0, second)]], max_invalid_turns=2
    )
    branches = grown_on.trajectories[1:]
    assert [len(branch.own_results) for branch in branches] == [3, 2, 1]
    assert [branch.status for branch in branches] == [Status.INVALID_CALLS] * 3
    scripts = iter([Script(CALL), Script(broken), Script(broken), Script(ANSWER)])
    (grown_on,), _ = regrown(lambda request: next(scripts), [tree], [[(0, second)]], max_invalid_turns=2)
    assert grown_on.trajectories[1].status is Status.FINISHED  # a sound call begins a new row


def test_tokens_of_the_prefix_count_against_the_budget_and_the_context():
    tree = searched_tree()
    forks = [[(0, 0), (0, 4), (0, 10)]]
    _, requests = regrown(lambda request: Script(ANSWER), [tree], forks, max_completion_length=30)
    assert [request.max_tokens for request in requests] == [30, 26, 20]
    _, requests = regrown(lambda request: Script(ANSWER), [tree], forks, context=25)
    assert [request.max_tokens for request in requests] == [22, 18, 12]  # three tokens are the prompt's
    (grown_on,), _ = regrown(lambda request: Script(ANSWER), [tree], forks, max_completion_length=14)
    assert [len(branch) for branch in grown_on.trajectories[1:]] == [8, 12, 14]
    assert grown_on.trajectories[3].status is Status.TRUNCATED


def test_a_branch_without_room_ends_as_truncated_and_asks_the_engine_for_nothing():
    tree = searched_tree()
    (grown_on,), requests = regrown(lambda request: Script(ANSWER), [tree], [[(0, 12)]], max_completion_length=12)
    assert requests == [] and grown_on.trajectories[1].status is Status.TRUNCATED
    assert grown_on.trajectories[1].token_ids == tree.trajectories[0].token_ids[:12]


# --- forks that are none


@pytest.mark.parametrize(
    ("fork", "message"),
    [
        ((0, -1), "trajectory 0: it has 18 tokens. Pass the position of the token to be sampled anew"),
        ((0, 18), "trajectory 0: it has 18 tokens"),
        ((0, 400), "trajectory 0: it has 18 tokens"),
        ((0, 5), "trajectory 0: that token belongs to a tool result. Pass the position of a sampled"),
        ((0, 9), "trajectory 0: that token belongs to a tool result"),
        (
            (2, 0),
            "trajectory 2: the tree has 2 trajectories. Name one of them by its position, from 0 on; for a branch",
        ),
        ((-1, 0), "trajectory -1: the tree has 2 trajectories"),
    ],
)
def test_a_fork_where_nothing_was_sampled_is_refused_before_anything_begins(fork, message):
    trees = grown(search_then_answer, size=2, prompts=2)
    with growing(says()) as loop:
        with pytest.raises(ValueError, match=f"A branch of prompt '1' cannot start at token [-0-9]+ of {message}"):
            loop.extend(trees, [[(0, 0)], [(1, 4), fork]], [[None] * 2] * 2)
        assert loop.engine.requests == [] and loop.states == []


def test_nothing_follows_a_result_that_ended_its_rollout():
    tree = searched_tree(max_completion_length=7)
    assert tree.trajectories[0].status is Status.TRUNCATED
    with pytest.raises(ValueError, match="trajectory 0: it has 7 tokens"):
        regrown(says(), [tree], [[(0, 7)]])


# --- deadlines and failures


class Ticking:
    """A clock that the engine's polls drive."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TickingEngine(ScriptedEngine):
    """Every poll takes a second."""

    def __init__(self, answer, clock):
        super().__init__(answer)
        self.clock = clock

    def poll(self):
        self.clock.now += 1.0
        return super().poll()


def test_at_the_deadline_parents_and_finished_branches_keep_their_status_and_the_others_end(caplog):
    tree = searched_tree()
    clock = Ticking()
    scripts = iter([Script(ids("b <eos>")), Script(ids("a") * 50)])
    engine = TickingEngine(lambda request: next(scripts), clock)
    (grown_on,), _ = regrown(None, [tree], [[(0, 10), (0, 0)]], engine=engine, clock=clock, timeout_s=5.0)
    assert grown_on.trajectories[0] == tree.trajectories[0]
    assert [each.status for each in grown_on.trajectories] == [Status.FINISHED, Status.FINISHED, Status.DEADLINE]
    assert words(grown_on.trajectories[2].token_ids) == "a a a a a a"
    assert "1 unfinished trajectories end with status 'deadline'" in caplog.text


def test_a_branch_that_waits_for_a_tool_at_the_deadline_ends_and_its_calls_are_dropped():
    release, begun = threading.Event(), []

    def stuck(query: str) -> str:
        """
        Look something up.

        Args:
            query: What to look for.
        """
        begun.append(query)
        release.wait(60)
        return query

    stuck.__name__ = "search"
    tree = searched_tree()
    try:
        (grown_on,), _ = regrown(
            lambda request: Script(ids("</search>")),
            [tree],
            [[(0, 4), (0, 4), (0, 4)]],
            tools=(stuck,),
            workers=1,
            timeout_s=0.5,
        )
    finally:
        release.set()
    assert [branch.status for branch in grown_on.trajectories] == [Status.FINISHED] + [Status.DEADLINE] * 3
    assert all(words(branch.token_ids) == "need a <search> a </search>" for branch in grown_on.trajectories[1:])
    assert begun == ["a"]


class Failing(ScriptedEngine):
    """Raises at some poll, or at some request."""

    def __init__(self, answer, polls=10**6, requests=10**6):
        super().__init__(answer)
        self.polls_left, self.requests_left = polls, requests

    def poll(self):
        self.polls_left -= 1
        if self.polls_left < 0:
            raise RuntimeError("the engine is gone")
        return super().poll()

    def submit(self, request):
        self.requests_left -= 1
        if self.requests_left < 0:
            raise RuntimeError("the engine is full")
        super().submit(request)


@pytest.mark.parametrize("where", [{"polls": 0}, {"polls": 3}, {"requests": 1}, {"requests": 2}])
def test_an_engine_that_raises_leaves_nothing_behind_and_the_loop_can_go_on(where):
    tree = searched_tree()
    engine = Failing(search_then_answer, **where)
    with growing(None, engine=engine) as loop:
        with pytest.raises(RuntimeError, match="the engine is"):
            loop.extend([tree], [[(0, 4), (0, 0)]], [[None]])
        assert engine.num_unfinished == 0 and loop.runtime.num_pending == 0
        engine.polls_left = engine.requests_left = 10**6
        engine._answer = lambda request: Script(ANSWER)
        (grown_on,) = loop.extend([tree], [[(0, 4), (0, 0)]], [[None]])
        assert [branch.status for branch in grown_on.trajectories] == [Status.FINISHED] * 3


def test_an_engine_error_ends_its_branch_alone():
    tree = searched_tree()
    scripts = iter([Script(ids("a b"), finish_reason="error"), Script(ANSWER)])
    (grown_on,), _ = regrown(lambda request: next(scripts), [tree], [[(0, 2), (0, 10)]])
    assert [each.status for each in grown_on.trajectories] == [Status.FINISHED, Status.ERROR, Status.FINISHED]
    assert words(grown_on.trajectories[1].token_ids) == "need a a b"


# --- the policy, and everything at once


@pytest.mark.parametrize("signal", ["after_result", "released"])
def test_a_policy_that_would_branch_has_no_say_where_branches_are_given(signal):
    def answer(request):
        results = words(request.token_ids).count("<result>")
        script = ANSWER if results == 2 else CALL
        return Script(script, entropies=(0.5 + results,) * len(script))

    policy = EntropyBranching(1, 3, window=2, vocab_size=100, threshold=-1.0, signal=signal)
    (tree,) = grown(answer, size=3, policy=policy)
    assert tree.points
    (grown_on,), _ = regrown(answer, [tree], [[(0, 0), (0, 10)]], policy=policy)
    assert grown_on.points == tree.points and len(grown_on.trajectories) == 5


TURNS = [
    *[CALL] * 3,
    ids("<search> b </search>"),
    ids("<search> </search>"),  # a broken call
    ids("<think> <search> c </search>"),  # no call: the turn goes on
    ids("</think> a"),
    ANSWER,
    ids("a b c <eos>"),
]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6),
    max_tool_turns=st.integers(0, 4),
    max_invalid_turns=st.integers(0, 2),
    max_calls=st.none() | st.integers(1, 3),
    max_completion_length=st.integers(8, 70),
)
def test_a_branch_that_samples_what_its_parent_sampled_becomes_its_parent(seed, max_completion_length, **limits):
    rng = random.Random(seed)

    def answer(request):
        script = rng.choice(TURNS)
        reason = "error" if rng.random() < 0.03 else "stop"
        if reason == "stop" and script[-1] not in (ids("<eos>")[0], ids("</search>")[0]):
            script += ids("<eos>")
        numbers = [tuple(rng.random() for _ in script) for _ in range(2)]
        return Script(script, reason, *numbers)

    options = {"max_completion_length": max_completion_length, "dialect": dialect(), **limits}
    trees = grown(answer, size=2, prompts=2, **options)
    for _ in range(2):  # the second time from branches, too
        forks = [
            [
                (parent, position)
                for parent, trajectory in enumerate(tree.trajectories)
                for position in rng.sample(sampled_positions(trajectory), k=min(2, len(sampled_positions(trajectory))))
            ]
            for tree in trees
        ]
        grown_on, requests = regrown(as_their_parents(trees, forks), trees, forks, **options)
        assert all(len(request.token_ids) + request.max_tokens <= 3 + max_completion_length for request in requests)
        for tree, before, places in zip(grown_on, trees, forks, strict=True):
            size = len(before.trajectories)
            assert tree.trajectories[:size] == before.trajectories
            for branch, (parent, position) in zip(tree.trajectories[size:], places, strict=True):
                assert content_of(branch) == content_of(tree.trajectories[parent])
                assert (branch.kind, branch.parent, branch.fork) == (Kind.BRANCH, parent, position)
                messages = dialect().messages(branch.segments)
                assert messages == dialect().messages(tree.trajectories[parent].segments)
                assert all(left["role"] != right["role"] for left, right in itertools.pairwise(messages))
        trees = grown_on


@functools.cache
def dialect() -> TagDialect:
    return TagDialect(word_tokenizer(), [search])
