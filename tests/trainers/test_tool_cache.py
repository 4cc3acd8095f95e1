"""The result cache of a run: filled by one, replayed by the next, and shared by name of its folder."""

import pytest
from tiny import config, scripted_engine, trainer

from trl_agentic.tools import ReplayMiss, tool_options


def counted_search(calls):
    @tool_options(cached=True)
    def search(query: str) -> str:
        """
        Look something up.

        Args:
            query: What to look for.
        """
        calls.append(query)
        return f"{query} is b"

    return search


def train(output_dir, cache, calls, **options):
    run = trainer(output_dir, scripted_engine(), tools=[counted_search(calls)], tool_cache_dir=str(cache), **options)
    run.train()
    return run


def test_a_run_that_was_cached_is_replayed_without_its_tool(tmp_path):
    asked, again = [], []
    first = train(tmp_path / "first", tmp_path / "cache", asked)
    second = train(tmp_path / "second", tmp_path / "cache", again, tool_cache_mode="replay")
    assert asked == ["a"]  # the scripted model asks for nothing else
    assert again == []
    losses = [[entry["loss"] for entry in run.state.log_history if "loss" in entry] for run in (first, second)]
    assert losses[0] == losses[1]
    assert second.state.log_history[0]["tools/search/cache_hit_rate"] == 1.0
    assert second.state.log_history[0]["tools/cache/misses"] == 0.0


def test_a_replay_that_misses_a_call_ends_the_run_and_names_the_call(tmp_path):
    run = trainer(tmp_path / "seed", tools=[counted_search([])], tool_cache_dir=str(tmp_path / "cache"))
    run.runtime.close()
    replay = trainer(
        tmp_path / "run", tools=[counted_search([])], tool_cache_dir=str(tmp_path / "cache"), tool_cache_mode="replay"
    )
    with pytest.raises(ReplayMiss, match=r'search\(\{"query":"a"\}\) is not in the cache'):
        replay.train()


def test_a_cache_mode_without_a_cache_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`tool_cache_mode='replay'` needs a cache: set `tool_cache_dir`"):
        config(tmp_path, tool_cache_mode="replay")
    with pytest.raises(ValueError, match="Unknown `tool_cache_mode` 'never'"):
        config(tmp_path, tool_cache_mode="never", tool_cache_dir=str(tmp_path))
