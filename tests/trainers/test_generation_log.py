"""Metrics of several processes as one: counts add up, rates and means are averaged."""

from dataclasses import replace

import pytest
from tiny import scripted_engine, search
from word_tokenizer import ids, word_tokenizer

from trl_agentic.rollout.batch import rollout_metrics
from trl_agentic.rollout.engine import SamplingSettings
from trl_agentic.rollout.limits import Limits
from trl_agentic.rollout.loop import Prompt, RolloutLoop
from trl_agentic.rollout.policy import EntropyBranching
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.tools import ToolRuntime, tool_metrics
from trl_agentic.tools.state import Origin, ToolState
from trl_agentic.tools.state_fork import state_metrics
from trl_agentic.trainers.generation_log import COUNTS, merge_metrics
from trl_agentic.types import CallStatus, ToolCall, ToolResult


def test_a_count_that_one_process_lacks_is_zero_there_and_a_rate_is_averaged_over_those_that_have_it():
    first = {"branch/rate": 0.5, "tools/search/calls": 10.0, "tools/search/latency_s": 1.0}
    first["tools/failures/timeout"] = 8.0
    second = {"branch/rate": 0.25, "tools/search/calls": 6.0, "tools/search/latency_s": 3.0}
    third = {"branch/rate": 0.0}
    assert merge_metrics([first, second, third]) == {
        "branch/rate": 0.25,
        "tools/failures/timeout": 8.0,
        "tools/search/calls": 16.0,
        "tools/search/latency_s": 2.0,
    }


def test_per_trajectory_means_that_only_sound_like_counts_are_averaged():
    names = ["rollout/tool_calls", "rollout/executed_calls", "branch/points", "tools/call_frequency"]
    assert merge_metrics([dict.fromkeys(names, 2.0), dict.fromkeys(names, 4.0)]) == dict.fromkeys(names, 3.0)


@pytest.mark.parametrize("status", [status for status in CallStatus if status is not CallStatus.OK])
def test_every_kind_of_failure_adds_up(status):
    metrics = tool_metrics([ToolResult(ToolCall("search"), "", status)])
    doubled = merge_metrics([metrics, metrics])
    assert {name: doubled[name] for name in metrics if "/failures/" in name} == {
        name: 2.0 for name in metrics if "/failures/" in name
    }


def test_what_doubles_with_the_rollouts_is_a_count_and_what_does_not_is_none():
    policy = EntropyBranching(initial_rollouts=2, beam_size=2, window=2, vocab_size=100)
    with ToolRuntime([search], num_workers=0) as runtime:
        dialect = TagDialect(word_tokenizer(), [search])
        loop = RolloutLoop(scripted_engine(), runtime, dialect, policy, SamplingSettings(), Limits(64))
        trees = loop.run([Prompt(str(number), ids("what is a"), 4) for number in range(4)])
    copies = [replace(tree, prompt_id=f"copy of {tree.prompt_id}") for tree in trees]
    states = [ToolState(Origin()) for _ in trees]
    for state, way in zip(states, ("fork", "copy", "replay", "replay"), strict=True):
        state.made_by, state.num_mismatches, state.fork_s = way, 1, 0.5
    once = rollout_metrics(trees) | state_metrics(states)
    twice = rollout_metrics([*trees, *copies]) | state_metrics(states * 2)
    assert {name for name, value in once.items() if value} >= {"branch/rate", "tools/search/calls"}
    for name, value in once.items():
        assert twice[name] == pytest.approx(2 * value if name.endswith(COUNTS) else value), name
    assert merge_metrics([once, once]) == pytest.approx(twice)
