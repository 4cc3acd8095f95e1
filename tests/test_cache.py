"""Results on disk: what counts as equal, what is stored for how long, replay, and every way a disk can fail."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_agentic.tools import (
    CachedResult,
    NoResult,
    ReplayMiss,
    ResultCache,
    ToolRuntime,
    TransientToolError,
    cache_file,
    import_arpo_cache,
    tool_options,
)
from trl_agentic.types import CallStatus, ToolCall, ToolResult

ARPO_CACHE = Path(__file__).resolve().parents[2] / "shared" / "data" / "arpo" / "search_cache.json"
FOUND = CachedResult("Havana", negative=False, truncated=False)
NOTHING = CachedResult("Nothing was found.", negative=True, truncated=False)


class Search:
    """A tool that counts how often it really ran."""

    def __init__(self, answer=lambda query: f"about {query}", **options):
        self.queries: list[str] = []
        self._answer = answer

        @tool_options(**({"cached": True} | options))
        def search(query: str):
            self.queries.append(query)
            return self._answer(query)

        self.tool = search

    def ask(self, cache: ResultCache | None, *queries: str, **settings) -> list[ToolResult]:
        with ToolRuntime([self.tool], **({"cache": cache, "timeout_s": 20.0} | settings)) as runtime:
            runtime.submit("turn", [ToolCall("search", {"query": query}) for query in queries])
            return runtime.poll(wait_s=30.0)[0][1]


@pytest.fixture
def cache(tmp_path):
    with ResultCache(tmp_path) as opened:
        yield opened


def stored(cache: ResultCache, result: CachedResult = FOUND, **arguments) -> CachedResult | None:
    """What comes back for a call after a result has been put for it."""
    key = cache.key("search", arguments or {"query": "capital of Cuba"})
    cache.put(key, result)
    return cache.get(key)


@pytest.mark.parametrize("num_workers", [0, 4], ids=["inline", "threads"])
def test_an_equal_call_is_answered_without_running_the_tool(cache, num_workers):
    search = Search()
    (first,) = search.ask(cache, "Cuba", num_workers=num_workers)
    (second,) = search.ask(cache, "Cuba", num_workers=num_workers)
    assert (first.content, first.cached, first.attempts) == ("about Cuba", False, 1)
    assert (second.content, second.cached, second.attempts) == ("about Cuba", True, 0)
    assert search.queries == ["Cuba"]
    assert cache.metrics == {"cache/hits": 1.0, "cache/misses": 1.0, "cache/errors": 0.0}


def test_a_hit_needs_no_worker(cache):
    release = threading.Event()

    def block():
        release.wait(timeout=30.0)

    search = Search()
    search.ask(cache, "Cuba")
    with ToolRuntime([search.tool, block], num_workers=1, cache=cache) as runtime:
        runtime.submit("blocked", [ToolCall("block")])
        runtime.submit("hit", [ToolCall("search", {"query": "Cuba"})])
        assert [key for key, _ in runtime.poll()] == ["hit"]
        release.set()


def test_only_tools_that_ask_for_it_are_cached(cache):
    search = Search(cached=False)
    search.ask(cache, "Cuba")
    search.ask(cache, "Cuba")
    assert search.queries == ["Cuba", "Cuba"] and cache.metrics["cache/misses"] == 0.0


def test_another_version_of_a_tool_has_results_of_its_own(cache):
    Search(version="1").ask(cache, "Cuba")
    newer = Search(version="2")
    newer.ask(cache, "Cuba")
    assert newer.queries == ["Cuba"]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"query": "Sa\u0303o Tome\u0301"}, {"query": "S\u00e3o Tom\u00e9"}, True),
        ({"query": ["e\u0301"]}, {"query": ("\u00e9",)}, True),
        ({"code": "if x:\n    y"}, {"code": "if x:\ny"}, False),
        ({"query": "Cuba"}, {"query": "cuba"}, False),
        ({"query": "Cuba"}, {"query": "Cuba "}, False),
        ({"n": 1}, {"n": "1"}, False),
        ({"n": 1}, {"n": 1.0}, False),
        ({"n": 1}, {"n": True}, False),
        ({"query": "Cuba"}, {"query": "Cuba", "top_k": 3}, False),
    ],
)
def test_arguments_are_equal_whatever_their_order_and_normal_form(cache, one, other, equal):
    assert (cache.key("search", one) == cache.key("search", other)) is equal


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=3))
def test_a_key_survives_being_written_and_read_as_json(arguments):
    key = ResultCache.key("search", arguments)
    assert ResultCache.key("search", json.loads(json.dumps(arguments))) == key
    assert len(key.digest) == 32


@pytest.mark.parametrize("value", [{1: "a"}, {"a": {2: "b"}}, {"a": object()}, {"a": b"bytes"}])
def test_arguments_that_json_does_not_know_are_not_cached(cache, value):
    assert cache.key("search", value) is None


def test_calls_that_cannot_be_cached_are_run(cache):
    @tool_options(cached=True)
    def give(value):
        return "ran"

    with ToolRuntime([give], cache=cache) as runtime:
        runtime.submit("turn", [ToolCall("give", {"value": {1: 2}})] * 2)
        assert [result.content for result in runtime.poll(wait_s=20.0)[0][1]] == ["ran", "ran"]


@pytest.mark.parametrize("text", ["Havana", "naïve 東京 \u0000 \U0001f600", "x" * 1_000_000, "a\ud800b"])
def test_any_text_comes_back_as_it_was(cache, text):
    result = stored(cache, CachedResult(text, negative=False, truncated=True))
    assert result == CachedResult(text.replace("\ud800", "?"), negative=False, truncated=True)


def test_results_live_on_in_the_next_run(tmp_path):
    with ResultCache(tmp_path) as cache:
        stored(cache)
    with ResultCache(tmp_path) as cache:
        assert cache.get(cache.key("search", {"query": "capital of Cuba"})) == FOUND


def test_results_expire_and_negative_ones_sooner(tmp_path):
    with ResultCache(tmp_path, expire_s=0.0) as cache:
        assert stored(cache) is None
    with ResultCache(tmp_path, negative_expire_s=0.0) as cache:
        assert stored(cache) == FOUND and stored(cache, NOTHING) is None
    with ResultCache(tmp_path, expire_s=0.0) as cache:
        assert stored(cache, NOTHING) == NOTHING


def test_what_has_expired_is_run_and_stored_again(tmp_path):
    search = Search()
    with ResultCache(tmp_path, expire_s=0.0) as cache:
        search.ask(cache, "Cuba")
        assert not search.ask(cache, "Cuba")[0].cached
    with ResultCache(tmp_path) as cache:
        assert search.ask(cache, "Cuba")[0].cached
    assert len(search.queries) == 2


def test_a_tool_that_found_nothing_gives_a_negative_result(tmp_path):
    search = Search(lambda query: NoResult("Nothing was found."))
    with ResultCache(tmp_path, negative_expire_s=0.0) as cache:
        results = search.ask(cache, "Cuba") + search.ask(cache, "Cuba")
    assert [result.content for result in results] == ["Nothing was found."] * 2
    assert [result.status for result in results] == [CallStatus.OK] * 2
    assert len(search.queries) == 2
    with ResultCache(tmp_path) as cache:
        assert search.ask(cache, "Cuba")[0].cached


@pytest.mark.parametrize("num_workers", [0, 4], ids=["inline", "threads"])
def test_failures_answer_a_replay_and_no_other_call(tmp_path, num_workers):
    async def fail(query):
        if query == "hangs":
            await asyncio.sleep(60.0)
        raise ValueError("broken")

    search = Search(fail, timeout_s=0.2)
    with ResultCache(tmp_path) as cache:
        for _ in range(2):
            search.ask(cache, "raises", "hangs", num_workers=num_workers)
    assert sorted(search.queries) == ["hangs", "hangs", "raises", "raises"]
    with ResultCache(tmp_path, mode="replay") as cache:
        raised, hung = search.ask(cache, "raises", "hangs", num_workers=num_workers)
    assert (raised.status, raised.content) == (CallStatus.ERROR, "ValueError: broken")
    assert (hung.status, hung.content) == (CallStatus.TIMEOUT, "search did not answer within 0.2 s and was stopped.")
    assert raised.cached and hung.cached and len(search.queries) == 4


def test_a_hung_call_is_stored_when_the_runtime_closes(tmp_path):
    release = threading.Event()
    search = Search(lambda query: release.wait(timeout=60.0), timeout_s=0.1)
    with ResultCache(tmp_path) as cache:
        assert search.ask(cache, "Cuba")[0].status is CallStatus.TIMEOUT
    with ResultCache(tmp_path, mode="replay") as cache:
        assert search.ask(cache, "Cuba")[0].status is CallStatus.TIMEOUT
    release.set()


def test_a_replay_answers_with_what_came_last_and_a_failure_takes_the_place_of_no_result(tmp_path):
    answers = iter(["found", ValueError("broken")])

    def answer(query):
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    search = Search(answer)
    with ResultCache(tmp_path) as cache:
        search.ask(cache, "Cuba")
    with ResultCache(tmp_path, mode="refresh") as cache:
        assert search.ask(cache, "Cuba")[0].status is CallStatus.ERROR
    with ResultCache(tmp_path, mode="replay") as cache:
        assert search.ask(cache, "Cuba")[0].content == "ValueError: broken"
    with ResultCache(tmp_path) as cache:
        assert search.ask(cache, "Cuba")[0].content == "found"


def test_what_fails_because_the_runtime_closes_is_not_stored(tmp_path):
    begun = threading.Event()

    def busy(query):
        begun.set()
        raise TransientToolError("busy", retry_after_s=30.0)

    search = Search(busy, num_retries=3, timeout_s=60.0)
    before = set(threading.enumerate())
    with ResultCache(tmp_path) as cache:
        with ToolRuntime([search.tool], cache=cache) as runtime:
            runtime.submit("turn", [ToolCall("search", {"query": "Cuba"})])
            assert begun.wait(timeout=30.0)
        for thread in set(threading.enumerate()) - before:
            thread.join(timeout=30.0)
    with ResultCache(tmp_path, mode="replay") as cache, pytest.raises(ReplayMiss):
        search.ask(cache, "Cuba")


def test_a_result_that_comes_after_the_deadline_is_not_stored(cache):
    release, ended = threading.Event(), threading.Event()

    def late(query):
        release.wait(timeout=30.0)
        ended.set()
        return "late"

    search = Search(late, timeout_s=0.1)
    assert search.ask(cache, "Cuba")[0].status is CallStatus.TIMEOUT
    release.set()
    assert ended.wait(timeout=30.0)
    assert search.ask(cache, "Cuba")[0].content == "late" and len(search.queries) == 2


def test_a_cut_result_says_so_when_it_comes_from_the_cache(cache):
    search = Search(lambda query: "x" * 2000)
    first, second = (search.ask(cache, "Cuba", max_result_chars=1000)[0] for _ in range(2))
    assert first.truncated and second.truncated and second.cached and first.content == second.content
    shorter = search.ask(cache, "Cuba", max_result_chars=500)[0]
    assert shorter.cached and len(shorter.content) == 500


def test_equal_calls_in_flight_are_run_once(cache):
    release = threading.Event()

    def slow(query):
        assert release.wait(timeout=30.0)
        return "once"

    search = Search(slow)
    with ToolRuntime([search.tool], num_workers=4, cache=cache, timeout_s=30.0) as runtime:
        for turn in range(20):
            runtime.submit(str(turn), [ToolCall("search", {"query": "Cuba"})] * 2)
        release.set()
        turns = {}
        while runtime.num_pending:
            turns.update(runtime.poll(wait_s=10.0))
    results = [result for results in turns.values() for result in results]
    assert len(results) == 40 and {result.content for result in results} == {"once"}
    assert search.queries == ["Cuba"] and sum(result.cached for result in results) == 39


def test_equal_calls_share_an_error_too(cache):
    release = threading.Event()

    def fail(query):
        assert release.wait(timeout=30.0)
        raise ValueError("broken")

    search = Search(fail)
    with ToolRuntime([search.tool], cache=cache, timeout_s=30.0) as runtime:
        runtime.submit("turn", [ToolCall("search", {"query": "Cuba"})] * 3)
        release.set()
        results = runtime.poll(wait_s=20.0)[0][1]
    assert [result.status for result in results] == [CallStatus.ERROR] * 3 and len(search.queries) == 1
    assert not any(result.cached for result in results)


def test_a_call_is_run_for_its_twin_even_if_its_own_turn_is_abandoned(cache):
    release = threading.Event()

    def block():
        assert release.wait(timeout=30.0)

    search = Search()
    with ToolRuntime([block, search.tool], num_workers=1, cache=cache, timeout_s=30.0) as runtime:
        runtime.submit("blocked", [ToolCall("block")])
        runtime.submit("first", [ToolCall("search", {"query": "Cuba"}), ToolCall("search", {"query": "Peru"})])
        runtime.submit("twin", [ToolCall("search", {"query": "Cuba"})])
        runtime.abandon("first")
        runtime.submit("late twin", [ToolCall("search", {"query": "Peru"})])
        release.set()
        turns = {}
        while runtime.num_pending:
            turns.update(runtime.poll(wait_s=10.0))
    assert turns["twin"][0].content == "about Cuba" and turns["late twin"][0].content == "about Peru"
    assert sorted(search.queries) == ["Cuba", "Peru"]


@pytest.mark.parametrize("num_workers", [0, 4], ids=["inline", "threads"])
def test_a_replay_answers_from_the_cache_alone(tmp_path, num_workers):
    search = Search()
    with ResultCache(tmp_path, expire_s=0.0) as cache:
        search.ask(cache, "Cuba")
    with ResultCache(tmp_path, mode="replay", expire_s=0.0) as cache:
        (result,) = search.ask(cache, "Cuba", num_workers=num_workers)
        assert (result.content, result.cached, search.queries) == ("about Cuba", True, ["Cuba"])
        with pytest.raises(ReplayMiss, match=r'search\(\{"query":"Peru"\}\) is not in the cache .*read_write') as miss:
            search.ask(cache, "Peru", num_workers=num_workers)
        assert (miss.value.tool, miss.value.arguments) == ("search", '{"query":"Peru"}')
        assert cache.metrics["cache/misses"] == 1.0
    assert search.queries == ["Cuba"]


def test_a_miss_leaves_the_runtime_usable(tmp_path):
    search = Search()
    with ResultCache(tmp_path) as cache:
        search.ask(cache, "Cuba")
    with ResultCache(tmp_path, mode="replay") as cache, ToolRuntime([search.tool], cache=cache) as runtime:
        with pytest.raises(ReplayMiss):
            runtime.submit("turn", [ToolCall("search", {"query": query}) for query in ("Cuba", "Peru")])
        assert runtime.num_pending == 0
        runtime.submit("turn", [ToolCall("search", {"query": "Cuba"})])
        assert runtime.poll(wait_s=20.0)[0][1][0].cached
        assert runtime.metrics["tools/cache/misses"] == 1.0


def test_a_replay_writes_nothing(tmp_path):
    with ResultCache(tmp_path) as cache:
        stored(cache)
    before = (tmp_path / "results.sqlite").read_bytes()
    with ResultCache(tmp_path, mode="replay") as cache:
        cache.put(cache.key("search", {"query": "Peru"}), FOUND)
        with pytest.raises(ValueError, match="mode='replay' writes nothing"):
            cache.fill([])
    assert (tmp_path / "results.sqlite").read_bytes() == before


def test_a_refresh_runs_every_call_and_stores_its_result(tmp_path):
    answers = iter(["old", "new"])
    search = Search(lambda query: next(answers))
    with ResultCache(tmp_path) as cache:
        search.ask(cache, "Cuba")
    with ResultCache(tmp_path, mode="refresh") as cache:
        assert search.ask(cache, "Cuba")[0].content == "new"
    with ResultCache(tmp_path) as cache:
        assert search.ask(cache, "Cuba")[0].content == "new"


def test_there_must_be_something_to_replay(tmp_path):
    with pytest.raises(ValueError, match="no tool cache at .* fill one with mode='read_write'"):
        ResultCache(tmp_path, mode="replay")


@pytest.mark.parametrize(
    "settings", [{"mode": "append"}, {"expire_s": -1.0}, {"negative_expire_s": float("nan")}], ids=str
)
def test_settings_out_of_range_are_refused(tmp_path, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        ResultCache(tmp_path, **settings)


def test_a_directory_that_cannot_be_made_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(OSError, match="cannot be opened for writing.*Pass a directory that can be"):
        ResultCache(tmp_path / "file" / "cache")


def test_the_database_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "results.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE accounts (name TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ValueError, match="is no tool cache of this version"):
        ResultCache(tmp_path)
    assert path.read_bytes() == before


def damage(path: Path) -> None:
    path.write_bytes(b"not a database at all, " * 1000)


def test_a_damaged_file_is_moved_aside_and_begun_anew(tmp_path, caplog):
    with ResultCache(tmp_path) as cache:
        stored(cache)
    damage(cache.path)
    with pytest.raises(ValueError, match="is damaged .* Open it once with mode='read_write'"):
        ResultCache(tmp_path, mode="replay")
    with ResultCache(tmp_path) as cache:
        assert stored(cache) == FOUND
    assert "has been moved to" in caplog.text
    (aside,) = tmp_path.glob("results.damaged-*.sqlite")
    assert aside.read_bytes().startswith(b"not a database")


def test_a_page_that_is_damaged_is_found_when_the_file_is_opened(tmp_path, caplog):
    with ResultCache(tmp_path) as cache:
        cache.fill((cache.key("search", {"query": str(n)}), FOUND) for n in range(200))
    content = bytearray(cache.path.read_bytes())
    content[8192:12288] = os.urandom(4096)
    cache.path.write_bytes(content)
    with ResultCache(tmp_path) as cache:
        assert cache.get(cache.key("search", {"query": "1"})) is None
    assert "has been moved to" in caplog.text


def test_a_file_that_is_damaged_in_mid_run_costs_no_call_and_one_warning(cache, caplog):
    search = Search()
    search.ask(cache, "Cuba")
    damage(cache.path)
    with caplog.at_level(logging.WARNING):
        results = search.ask(cache, *[str(n) for n in range(50)]) + search.ask(cache, "Cuba")
    assert [result.status for result in results] == [CallStatus.OK] * 51
    assert caplog.text.count("could not be read") == 1 and "written" not in caplog.text
    assert cache.metrics["cache/errors"] >= 51.0


def test_an_entry_that_is_damaged_counts_as_missing_and_is_stored_anew(cache):
    stored(cache)
    cache._file.write("UPDATE results SET content = ?", [(b"x\x9cgarbage",)])
    key = cache.key("search", {"query": "capital of Cuba"})
    assert cache.get(key) is None and cache.metrics["cache/errors"] == 1.0
    cache.put(key, FOUND)
    assert cache.get(key) == FOUND


def test_a_file_that_another_process_keeps_locked_is_passed_over(cache, monkeypatch):
    monkeypatch.setattr("trl_agentic.tools.cache_file.BUSY_S", 0.1)
    stored(cache)
    with ResultCache(cache.path.parent) as patient:  # opened with the short patience
        other = sqlite3.connect(cache.path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        search = Search()
        assert search.ask(patient, "Peru")[0].content == "about Peru"
        other.execute("ROLLBACK")
        other.close()
        assert patient.metrics["cache/errors"] >= 1.0
        search.ask(patient, "Peru")
        assert search.ask(patient, "Peru")[0].cached  # back in use


def test_a_file_that_is_being_written_to_is_waited_for_by_a_worker_and_not_by_the_engine(cache, monkeypatch):
    monkeypatch.setattr("trl_agentic.tools.calls.admission.LOOK_S", 60.0)
    search = Search()
    search.ask(cache, "Cuba")
    with ResultCache(cache.path.parent) as patient, ToolRuntime([search.tool], cache=patient) as runtime:
        assert patient.get(patient.key("search", {"query": "Cuba"})) is not None  # both have opened the file
        other = sqlite3.connect(cache.path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        start = time.monotonic()
        runtime.submit("turn", [ToolCall("search", {"query": "Cuba"})])
        assert time.monotonic() - start < 20.0 and runtime.poll() == []
        other.execute("ROLLBACK")
        other.close()
        (result,) = runtime.poll(wait_s=60.0)[0][1]
    assert (result.content, result.cached, result.attempts) == ("about Cuba", True, 0)
    assert search.queries == ["Cuba"] and patient.metrics["cache/errors"] == 0.0


def test_a_locked_file_costs_no_call_and_stops_no_deadline(cache):
    """Two seconds of patience per lookup and per write, as SQLite has, would be more than these deadlines allow."""
    release = threading.Event()
    search = Search(lambda query: release.wait(timeout=60.0) if query == "hangs" else f"about {query}", timeout_s=5.0)
    other = sqlite3.connect(cache.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with ToolRuntime([search.tool], cache=cache, num_workers=4) as runtime:
        start = time.monotonic()
        for query in ["hangs", *(str(number) for number in range(12)), "0", "0"]:
            runtime.submit(
                f"turn {len(search.queries)} {query} {time.monotonic()}", [ToolCall("search", {"query": query})]
            )
        results = []
        while runtime.num_pending:
            results += [result for _, turn in runtime.poll(wait_s=30.0) for result in turn]
        assert time.monotonic() - start < 30.0
        assert sorted(result.status for result in results) == sorted([CallStatus.OK] * 14 + [CallStatus.TIMEOUT])
        assert len(set(search.queries)) == len(search.queries) == 13  # what is not yet written answers calls already
        other.execute("ROLLBACK")
    other.close()
    release.set()
    assert cache.metrics["cache/errors"] >= 1.0


def test_a_backlog_behind_a_lock_is_given_up_quickly(cache):
    other = sqlite3.connect(cache.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    start = time.monotonic()
    for number in range(20):
        cache.put_later(cache.key("search", {"query": str(number)}), FOUND)
    assert time.monotonic() - start < 1.5
    assert cache.flush(timeout_s=30.0) and time.monotonic() - start < 20.0  # and not 20 times 2 s
    assert cache.metrics["cache/errors"] == 20.0
    other.execute("ROLLBACK")
    other.close()
    cache.put_later(key := cache.key("search", {"query": "later"}), FOUND)
    assert cache.flush() and cache._read(key, None) == FOUND


def test_a_key_that_cannot_be_written_is_passed_over(cache):
    cache.put(cache.key("search", {"query": "Cuba"}, "\ud800"), FOUND)
    assert cache.metrics["cache/errors"] == 1.0


def test_a_replay_says_what_keeps_it_from_reading(tmp_path, monkeypatch):
    monkeypatch.setattr("trl_agentic.tools.cache_file.BUSY_S", 0.1)
    search = Search()
    with ResultCache(tmp_path) as cache:
        search.ask(cache, "Cuba")
    with ResultCache(tmp_path, mode="replay") as cache:
        other = sqlite3.connect(cache.path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match=r'could not be read for search\(\{"query":"Cuba"\}\).*database is locked'):
            search.ask(cache, "Cuba")
        other.execute("ROLLBACK")
        assert search.ask(cache, "Cuba")[0].cached
        other.execute("UPDATE results SET content = ?", [b"x\x9cgarbage"])
        other.close()
        with pytest.raises(OSError, match="could not be read for search.*error: Error -3 while decompressing"):
            search.ask(cache, "Cuba")
        assert cache.metrics["cache/errors"] == 2.0 and cache.metrics["cache/misses"] == 0.0


def test_a_closed_cache_is_passed_over(tmp_path):
    cache = ResultCache(tmp_path)
    cache.close()
    cache.close()
    assert Search().ask(cache, "Cuba")[0].content == "about Cuba"


WRITER = """
import sys
from trl_agentic.tools.cache import CachedResult, ResultCache
directory, name = sys.argv[1:]
with ResultCache(directory) as cache:
    for number in range(200):
        shared, own = cache.key("search", {"query": str(number)}), cache.key("search", {"query": f"{name} {number}"})
        cache.put(shared, CachedResult(f"result {number}", False, False))
        cache.put(own, CachedResult(name * 500, False, False))
        assert cache.get(own).content == name * 500 and cache.get(shared).content == f"result {number}"
    assert cache.metrics["cache/errors"] == 0.0, cache.metrics
"""


def test_many_processes_share_one_cache(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, name], stderr=subprocess.PIPE, text=True) for name in "abc"]
    errors = [writer.communicate(timeout=120)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0], errors
    with ResultCache(tmp_path, mode="replay") as cache:
        for name in "abc":
            assert cache.get(cache.key("search", {"query": f"{name} 199"})).content == name * 500


def test_many_threads_share_one_cache(cache):
    def use(name: str) -> None:
        for number in range(100):
            key = cache.key("search", {"query": f"{name} {number}"})
            cache.put(key, CachedResult(name, False, False))
            assert cache.get(key).content == name

    threads = [threading.Thread(target=use, args=(str(index),)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60.0)
    assert cache.metrics == {"cache/hits": 800.0, "cache/misses": 0.0, "cache/errors": 0.0}


def test_a_process_that_is_killed_while_it_writes_leaves_a_sound_file(tmp_path):
    program = WRITER.replace("range(200)", "range(10**9)").replace(
        "with ResultCache", "print(flush=True)\nwith ResultCache"
    )
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", program, str(tmp_path), "a"], stdout=subprocess.PIPE)
        writer.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(timeout=0.5)
        writer.kill()
        writer.communicate()
    with ResultCache(tmp_path) as cache:
        assert cache.get(cache.key("search", {"query": "a 0"})).content == "a" * 500
    assert not list(tmp_path.glob("results.damaged-*"))


HALF_DONE = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = TRUNCATE")
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
for number in range(300):
    row = (os.urandom(32), "ok", "search", "", "{}", os.urandom(3000), 0, 0, 0.0)
    connection.execute("INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_replay_of_a_half_done_write_names_the_repair(tmp_path):
    search = Search()
    with ResultCache(tmp_path) as cache:
        search.ask(cache, "Cuba")
    killed = subprocess.run([sys.executable, "-c", HALF_DONE, str(cache.path)], timeout=60)
    assert killed.returncode == -9
    with pytest.raises(OSError, match="was killed in the middle: open the cache once with mode='read_write'"):
        ResultCache(tmp_path, mode="replay")
    ResultCache(tmp_path).close()
    with ResultCache(tmp_path, mode="replay") as cache:
        assert search.ask(cache, "Cuba")[0].cached


def test_a_forked_process_uses_the_cache_on_its_own(cache):
    stored(cache)
    parents = {cache._file._reader._connection, cache._file._writer._connection}  # not even closed by the child
    child = os.fork()
    if child == 0:
        with_own = stored(cache, FOUND, query="of the child") == FOUND and parents <= set(cache_file._inherited)
        os._exit(0 if with_own and stored(cache) == FOUND else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.get(cache.key("search", {"query": "of the child"})) == FOUND


def test_no_file_descriptor_is_left_open(tmp_path):
    def num_open() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = num_open()
    for _ in range(20):
        with ResultCache(tmp_path) as cache:
            stored(cache)
    assert num_open() == before


def test_an_arpo_cache_answers_the_same_queries(tmp_path):
    entries = {"capital of Cuba": "Page 1: Havana", "capital of Mars": "No search results found.\n"}
    (tmp_path / "search_cache.json").write_text(json.dumps(entries), encoding="utf-8")
    search = Search()
    with ResultCache(tmp_path / "cache", negative_expire_s=0.0) as cache:
        assert import_arpo_cache(tmp_path / "search_cache.json", cache) == 2
        assert import_arpo_cache(tmp_path / "search_cache.json", cache) == 0
        cuba, mars = search.ask(cache, "capital of Cuba", "capital of Mars")
    assert (cuba.content, cuba.cached) == ("Page 1: Havana", True)
    assert (mars.cached, search.queries) == (False, ["capital of Mars"])


def test_an_arpo_cache_answers_a_tool_that_has_a_version(tmp_path):
    (tmp_path / "search_cache.json").write_text('{"capital of Cuba": "Page 1: Havana"}', encoding="utf-8")
    search = Search(version="2 top_k=3")
    with ResultCache(tmp_path / "cache") as cache:
        assert import_arpo_cache(tmp_path / "search_cache.json", cache, tool=search.tool) == 1
        (found,) = search.ask(cache, "capital of Cuba")
        assert import_arpo_cache(tmp_path / "search_cache.json", cache, tool=search.tool, version="3") == 1
    assert (found.content, found.cached, search.queries) == ("Page 1: Havana", True, [])


def test_an_import_keeps_what_the_cache_has_already(tmp_path):
    (tmp_path / "search_cache.json").write_text('{"capital of Cuba": "Page 1: old"}')
    with ResultCache(tmp_path) as cache:
        stored(cache)
        assert import_arpo_cache(tmp_path / "search_cache.json", cache) == 0
        assert cache.get(cache.key("search", {"query": "capital of Cuba"})) == FOUND


@pytest.mark.parametrize("content", ['{"query": ', '["a"]', '{"query": 3}'])
def test_what_is_no_arpo_cache_is_refused(tmp_path, cache, content):
    (tmp_path / "search_cache.json").write_text(content)
    with pytest.raises(ValueError, match="search_cache.json"):
        import_arpo_cache(tmp_path / "search_cache.json", cache)


@pytest.mark.skipif(not ARPO_CACHE.exists(), reason="needs ARPO's released search_cache.json in ../shared/data/arpo")
def test_the_released_arpo_cache_is_imported_whole(tmp_path):
    entries = json.loads(ARPO_CACHE.read_text(encoding="utf-8"))
    with ResultCache(tmp_path) as cache:
        assert import_arpo_cache(ARPO_CACHE, cache) == len(entries) == 1000
        results = [cache.get(cache.key("search", {"query": query})) for query in entries]
    assert [result.content for result in results] == list(entries.values())
    assert sum(result.negative for result in results) == 4
