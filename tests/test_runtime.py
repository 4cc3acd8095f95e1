"""Every way a tool call can go, and what the model gets to read about it."""

from __future__ import annotations

import asyncio
import functools
import math
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError as FutureCancelledError
from typing import Literal

import pytest

from trl_agentic.tools import ToolRuntime, cut_text, result_text, tool_metrics
from trl_agentic.tools.calls import workers
from trl_agentic.types import CallStatus, ToolCall, ToolResult


def echo(text: str, times: int = 1) -> str:
    """
    Repeat a text.

    Args:
        text: The text.
        times: How often.
    """
    return text * times


def give(value):
    return value


def hang(seconds: float = 60.0):
    time.sleep(seconds)


async def wait(seconds: float) -> str:
    """
    Wait, then answer.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return f"waited {seconds}"


def run_turn(runtime: ToolRuntime, *calls: ToolCall, wait_s: float = 10.0) -> list[ToolResult]:
    runtime.submit("turn", calls)
    turns = runtime.poll(wait_s=wait_s)
    assert [key for key, _ in turns] == ["turn"]
    return turns[0][1]


def run_one(function, arguments=None, **settings) -> ToolResult:
    with ToolRuntime([function], **({"timeout_s": 5.0} | settings)) as runtime:
        (result,) = run_turn(runtime, ToolCall(function.__name__, {} if arguments is None else arguments))
        return result


def tool_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("trl-agentic-tool")}


@pytest.fixture
def others() -> set[threading.Thread]:
    """Threads that earlier tests left behind in a hung call."""
    return tool_threads()


def test_a_text_comes_back_as_it_is():
    result = run_one(echo, {"text": "Havana ", "times": 2})
    assert (result.content, result.status) == ("Havana Havana ", CallStatus.OK)
    assert result.latency_s >= 0.0 and not result.cached


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "(the tool returned nothing)"),
        ("", "(no output)"),
        (" \n", "(no output)"),
        (b"caf\xc3\xa9 \xff", "café �"),
        (["é", 1, None], '["é", 1, null]'),
        ({"a": (1, 2)}, '{"a": [1, 2]}'),
        ({(1, 2): "a key that JSON does not know"}, "{(1, 2): 'a key that JSON does not know'}"),
        ({"when": ValueError("x")}, '{"when": "x"}'),
        (True, "True"),
        (0, "0"),
        (2.5, "2.5"),
        ("a\ud800b", "a?b"),
    ],
)
def test_any_value_becomes_a_text(value, text):
    assert run_one(give, {"value": value}).content == text == result_text(value)


def test_a_list_that_contains_itself_becomes_a_text():
    knot: list = [1]
    knot.append(knot)
    assert result_text(knot) == '[1, "[...]"]'


def test_a_megabyte_keeps_head_and_tail_and_marks_the_cut():
    result = run_one(give, {"value": "a" * 500_000 + "b" * 500_000}, max_result_chars=1000)
    assert result.status is CallStatus.OK and len(result.content) == 1000
    assert result.content.startswith("aaaa") and result.content.endswith("bbbb")
    assert "[... 1000000 characters, the middle is left out ...]" in result.content


def test_a_cut_text_has_exactly_the_length_that_was_allowed():
    for allowed in (0, 5, 60, 61, 100, 199):
        assert len(cut_text("x" * 200, allowed)) == allowed
    assert cut_text("x" * 200, 200) == "x" * 200


def test_a_tool_that_raises_is_answered_with_one_short_line():
    def broken():
        raise TypeError("first line\nsecond line " + "x" * 10_000)

    result = run_one(broken)
    assert result.status is CallStatus.ERROR
    assert result.content.startswith("TypeError: first line second line xxx")
    assert len(result.content) == 500 and "Traceback" not in result.content and "\n" not in result.content


def test_a_tool_that_exits_does_not_take_the_worker_along():
    def leave():
        sys.exit("bye")

    with ToolRuntime([leave, echo], num_workers=1) as runtime:
        results = run_turn(runtime, ToolCall("leave"), ToolCall("echo", {"text": "still here"}))
    assert [result.status for result in results] == [CallStatus.ERROR, CallStatus.OK]
    assert results[0].content == "SystemExit: bye"


def test_a_timeout_of_the_tool_itself_counts_as_one():
    def slow_server():
        raise TimeoutError("the server took 5 s")

    result = run_one(slow_server)
    assert (result.status, result.content) == (CallStatus.TIMEOUT, "TimeoutError: the server took 5 s")


def test_a_hung_tool_is_answered_at_its_deadline():
    result = run_one(hang, timeout_s=0.2)
    assert result.status is CallStatus.TIMEOUT
    assert result.content == "hang did not answer within 0.2 s and was stopped."
    assert 0.2 <= result.latency_s < 2.0


def test_the_deadline_counts_from_the_start_of_the_call_and_not_from_its_submission():
    with ToolRuntime([hang], num_workers=1, timeout_s=0.5) as runtime:
        results = run_turn(runtime, *[ToolCall("hang", {"seconds": 0.3})] * 3)
    assert [result.status for result in results] == [CallStatus.OK] * 3


def test_200_hanging_calls_do_not_starve_later_ones():
    with ToolRuntime([hang, echo], num_workers=20, timeout_s=0.1) as runtime:
        runtime.submit("hung", [ToolCall("hang", {"seconds": 3.0})] * 200)
        runtime.submit("later", [ToolCall("echo", {"text": "here"})])
        turns = {}
        while runtime.num_pending:
            turns.update(runtime.poll(wait_s=10.0))
    assert turns["later"][0].content == "here"
    assert [result.status for result in turns["hung"]] == [CallStatus.TIMEOUT] * 200


def test_a_result_that_comes_after_the_deadline_is_ignored():
    with ToolRuntime([hang], num_workers=1, timeout_s=0.1) as runtime:
        first = run_turn(runtime, ToolCall("hang", {"seconds": 0.3}))
        time.sleep(0.4)
        assert runtime.poll() == [] and runtime.num_pending == 0
    assert first[0].status is CallStatus.TIMEOUT


def test_async_tools_run_at_the_same_time_and_keep_their_order():
    start = time.monotonic()
    with ToolRuntime([wait]) as runtime:
        results = run_turn(runtime, *(ToolCall("wait", {"seconds": seconds}) for seconds in (0.4, 0.3, 0.2, 0.1)))
    assert [result.content for result in results] == ["waited 0.4", "waited 0.3", "waited 0.2", "waited 0.1"]
    assert time.monotonic() - start < 0.9


def test_an_async_tool_is_cancelled_at_its_deadline():
    seen = threading.Event()

    async def endless():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.set()
            raise

    assert run_one(endless, timeout_s=0.2).status is CallStatus.TIMEOUT
    assert seen.wait(timeout=5.0)


def test_an_async_tool_is_cancelled_at_its_deadline_in_inline_mode_too():
    result = run_one(wait, {"seconds": 60.0}, num_workers=0, timeout_s=0.2)
    assert (result.status, result.content) == (CallStatus.TIMEOUT, "wait did not answer within 0.2 s and was stopped.")


def test_a_coroutine_that_blocks_the_loop_does_not_stop_the_others():
    release = threading.Event()

    async def block():
        release.wait(timeout=30)

    try:
        with ToolRuntime([block, wait], timeout_s=3.0) as runtime:
            runtime.submit("blocked", [ToolCall("block")])
            time.sleep(0.1)
            assert run_turn(runtime, ToolCall("wait", {"seconds": 0.0}))[0].content == "waited 0.0"
            release.set()
            assert runtime.poll(wait_s=5.0)[0][0] == "blocked"
    finally:
        release.set()


def test_an_async_tool_that_raises_is_answered_with_its_error():
    async def broken():
        raise KeyError("capital")

    assert run_one(broken).content == "KeyError: 'capital'"


def test_parallel_results_stand_in_the_order_of_the_calls():
    with ToolRuntime([hang, echo, wait], num_workers=4) as runtime:
        results = run_turn(
            runtime,
            ToolCall("hang", {"seconds": 0.3}),
            ToolCall("wait", {"seconds": 0.1}),
            ToolCall("echo", {"text": "at once"}),
            ToolCall("echo", {"text": "at once"}),
        )
    assert [result.call.name for result in results] == ["hang", "wait", "echo", "echo"]
    assert results[2].content == results[3].content == "at once"


def test_the_turn_that_ends_first_is_returned_first():
    with ToolRuntime([hang], num_workers=2) as runtime:
        runtime.submit("slow", [ToolCall("hang", {"seconds": 0.5})])
        runtime.submit("fast", [ToolCall("hang", {"seconds": 0.05})])
        assert [key for key, _ in runtime.poll(wait_s=5.0)] == ["fast"]
        assert runtime.num_pending == 1
        assert [key for key, _ in runtime.poll(wait_s=5.0)] == ["slow"]
        assert runtime.num_pending == 0


def test_poll_waits_no_longer_than_it_is_told():
    with ToolRuntime([hang]) as runtime:
        runtime.submit("slow", [ToolCall("hang", {"seconds": 1.0})])
        start = time.monotonic()
        assert runtime.poll() == []
        assert time.monotonic() - start < 0.2
        assert runtime.poll(wait_s=0.2) == []
        assert 0.15 < time.monotonic() - start < 0.9


def test_poll_returns_at_once_when_nothing_is_pending():
    with ToolRuntime([echo]) as runtime:
        start = time.monotonic()
        assert runtime.poll(wait_s=30.0) == []
        assert time.monotonic() - start < 1.0


def test_a_turn_without_calls_is_ready_at_once():
    with ToolRuntime([echo]) as runtime:
        runtime.submit("turn", [])
        assert runtime.poll() == [("turn", [])]


def test_no_more_calls_run_at_a_time_than_there_are_workers():
    lock, now, most = threading.Lock(), [0], [0]

    def count():
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1

    with ToolRuntime([count], num_workers=3) as runtime:
        run_turn(runtime, *[ToolCall("count")] * 30)
    assert most[0] == 3


def test_a_malformed_call_is_answered_with_its_problem():
    with ToolRuntime([echo]) as runtime:
        (result,) = run_turn(runtime, ToolCall("echo", problem="The tag <search> is never closed."))
    assert (result.content, result.status) == ("The tag <search> is never closed.", CallStatus.MALFORMED)


def test_an_unknown_tool_is_answered_with_the_tools_there_are():
    with ToolRuntime([echo, give]) as runtime:
        (result,) = run_turn(runtime, ToolCall("browse", {"url": "x"}))
    assert result.status is CallStatus.UNKNOWN_TOOL
    assert result.content == "There is no tool named 'browse'. Tools: echo, give."


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "missing a required argument: 'text'"),
        ({"text": "a", "size": 2}, "got an unexpected keyword argument 'size'"),
        ({"text": 3}, "text must be a valid string, got 3"),
        ({"text": ["a"]}, 'text must be a valid string, got ["a"]'),
        ({"text": None}, "text must be a valid string, got null"),
        ({"text": "a", "times": "two"}, 'times must be a valid integer, got "two"'),
        ({"text": "a", "times": True}, "times must be a valid integer, got true"),
        ({"text": "a", "times": 2.5}, "times must be a valid integer, got 2.5"),
        (["a"], "the arguments are ['a'], not an object"),
        ("not JSON", "the arguments are a text, not an object"),
        ({1: "a"}, "the names of arguments must be strings"),
    ],
)
def test_wrong_arguments_are_answered_with_what_was_expected(arguments, problem):
    result = run_one(echo, arguments)
    assert result.status is CallStatus.INVALID_ARGUMENTS
    assert result.content == f"Wrong arguments for echo: {problem}. Expected echo(text: string, times: integer = 1)."


def test_arguments_that_are_json_text_are_read():
    assert run_one(echo, '{"text": "a", "times": 3}').content == "aaa"


def test_a_choice_is_checked_against_its_values():
    def convert(unit: Literal["km", "mi"]) -> str:
        """
        Convert.

        Args:
            unit: The unit.
        """
        return unit

    assert run_one(convert, {"unit": "km"}).content == "km"
    assert "unit must be 'km' or 'mi', got \"m\"" in run_one(convert, {"unit": "m"}).content


def test_an_optional_argument_may_be_null():
    def look(place: str | None = None) -> str:
        """
        Look.

        Args:
            place: Where.
        """
        return str(place)

    assert run_one(look, {"place": None}).content == "None"
    assert run_one(look, {"place": 3}).status is CallStatus.INVALID_ARGUMENTS


def test_a_tool_without_type_hints_is_checked_by_its_signature_alone():
    assert run_one(give, {"value": object}).status is CallStatus.OK
    assert run_one(give).content == (
        "Wrong arguments for give: missing a required argument: 'value'. Expected give(value)."
    )


def test_a_tool_that_changes_its_arguments_leaves_the_call_alone():
    def take(items):
        items.clear()

    call = ToolCall("take", {"items": [1, 2]})
    with ToolRuntime([take]) as runtime:
        run_turn(runtime, call)
    assert call.arguments == {"items": [1, 2]}


def test_inline_calls_run_in_order_and_inside_submit(others):
    seen = []

    def note(step):
        seen.append((step, threading.current_thread() is threading.main_thread()))

    with ToolRuntime([note], num_workers=0) as runtime:
        runtime.submit("a", [ToolCall("note", {"step": 1}), ToolCall("browse"), ToolCall("note", {"step": 2})])
        runtime.submit("b", [ToolCall("note", {"step": 3})])
        assert seen == [(1, True), (2, True), (3, True)]
        assert tool_threads() <= others
        turns = runtime.poll()
    assert [key for key, _ in turns] == ["a", "b"]
    assert [result.status for result in turns[0][1]] == [CallStatus.OK, CallStatus.UNKNOWN_TOOL, CallStatus.OK]


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("not even this")


class Unreadable:
    def __str__(self):
        raise Unprintable


class Escape(BaseException):
    pass


@pytest.mark.parametrize("num_workers", [0, 4], ids=["inline", "threads"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("error", "line"),
    [
        (Unprintable(), "Unprintable: <exception str() failed>"),
        (Escape("out"), "Escape: out"),
        (SystemExit("bye"), "SystemExit: bye"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError(), "CancelledError"),
        (FutureCancelledError("no longer wanted"), "CancelledError: no longer wanted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_a_tool_raises_is_an_error_that_can_be_read(num_workers, is_async, error, line):
    def fail():
        raise error

    async def fail_later():
        raise error

    with ToolRuntime([fail, fail_later, wait], num_workers=num_workers, timeout_s=20.0) as runtime:
        name = "fail_later" if is_async else "fail"
        results = run_turn(runtime, ToolCall(name), ToolCall("wait", {"seconds": 0.0}))
    assert (results[0].status, results[0].content) == (CallStatus.ERROR, line)
    assert results[1].content == "waited 0.0"  # neither the worker nor the event loop went down


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_that_cannot_even_be_described_costs_no_thread(num_workers):
    class Undescribable(Exception):
        @property
        def __cause__(self):
            raise ValueError("no cause")

    def search(query):
        if query == "bad":
            raise Undescribable("hm")
        return query

    with ToolRuntime([search], num_workers=num_workers, timeout_s=10.0) as runtime:
        for query, expected in (("bad", (CallStatus.ERROR, "Undescribable")), ("good", (CallStatus.OK, "good"))):
            runtime.submit(query, [ToolCall("search", {"query": query})])
            ((_, (result,)),) = runtime.poll(wait_s=20.0)
            assert (result.status, result.content) == expected


def test_an_interrupt_inside_a_thread_is_the_error_of_its_tool():
    def interrupted():
        raise KeyboardInterrupt

    assert run_one(interrupted).content == "KeyboardInterrupt"


def test_a_result_that_cannot_be_written_out_is_an_error():
    result = run_one(Unreadable)
    assert (result.status, result.content) == (CallStatus.ERROR, "Unprintable: <exception str() failed>")


def test_a_cut_is_noted_in_the_result():
    assert run_one(give, {"value": "x" * 1001}, max_result_chars=1000).truncated
    assert not run_one(give, {"value": "x" * 1000}, max_result_chars=1000).truncated


def test_asking_when_nothing_is_ready_costs_microseconds_with_thousands_of_calls_waiting():
    release = threading.Event()

    def block():
        release.wait(timeout=60.0)

    with ToolRuntime([block], num_workers=2, timeout_s=60.0) as runtime:
        start = time.perf_counter()
        for turn in range(5000):
            runtime.submit(str(turn), [ToolCall("block")])
        assert time.perf_counter() - start < 10.0
        start = time.perf_counter()
        for _ in range(10_000):
            assert runtime.poll() == []
        assert time.perf_counter() - start < 2.0  # 0.2 ms each at the very most
        release.set()
        turns = []
        while runtime.num_pending:
            turns += runtime.poll(wait_s=10.0)
    assert len(turns) == 5000


def test_a_system_that_has_no_thread_to_give_is_asked_again(monkeypatch, caplog):
    start, refusals = threading.Thread.start, iter([RuntimeError("can't start new thread")] * 3)

    def start_later(thread):
        if thread.name == "trl-agentic-tool-work" and (error := next(refusals, None)) is not None:
            raise error
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    monkeypatch.setattr(workers, "_RESTART_S", 0.05)
    assert run_one(echo, {"text": "late"}, timeout_s=20.0).content == "late"
    assert "can't start new thread: 0 of 1 tool workers run, the rest is tried again." in caplog.text


def test_a_turn_that_was_abandoned_is_not_mistaken_for_its_successor():
    release = threading.Event()

    def block(answer):
        if answer == "old":
            release.wait(timeout=30.0)
        return answer

    with ToolRuntime([block]) as runtime:
        runtime.submit("turn", [ToolCall("block", {"answer": "old"})])
        runtime.abandon("turn")
        runtime.submit("turn", [ToolCall("block", {"answer": "new"})])
        assert [result.content for result in runtime.poll(wait_s=10.0)[0][1]] == ["new"]
        release.set()
    assert runtime.poll() == []


def test_an_interrupt_from_the_keyboard_passes():
    def interrupted():
        raise KeyboardInterrupt

    with ToolRuntime([interrupted], num_workers=0) as runtime, pytest.raises(KeyboardInterrupt):
        runtime.submit("turn", [ToolCall("interrupted")])


def test_no_thread_is_left_behind_after_1000_calls(others):
    with ToolRuntime([echo, wait]) as runtime:
        calls = [ToolCall("echo", {"text": "a"})] * 950 + [ToolCall("wait", {"seconds": 0.0})] * 50
        assert len(run_turn(runtime, *calls)) == 1000
        assert 1 < len(tool_threads() - others) <= 10
    assert tool_threads() <= others


def test_an_abandoned_thread_ends_with_its_call(others):
    with ToolRuntime([hang], timeout_s=0.1) as runtime:
        run_turn(runtime, ToolCall("hang", {"seconds": 0.5}))
        assert tool_threads() - others
    deadline = time.monotonic() + 5.0
    while tool_threads() - others and time.monotonic() < deadline:
        time.sleep(0.05)
    assert tool_threads() <= others


def test_a_hung_tool_does_not_keep_the_interpreter_from_exiting():
    program = """
import time
from trl_agentic.tools import ToolRuntime
from trl_agentic.types import ToolCall
def hang(): time.sleep(600)
runtime = ToolRuntime([hang], timeout_s=0.1)
runtime.submit("turn", [ToolCall("hang")] * 3)
print(runtime.poll(wait_s=10.0)[0][1][0].status.value, flush=True)
runtime.submit("again", [ToolCall("hang")])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "timeout\n")


def test_a_closed_runtime_takes_no_calls():
    runtime = ToolRuntime([echo])
    runtime.close()
    runtime.close()
    with pytest.raises(RuntimeError, match="closed"):
        runtime.submit("turn", [])


def test_a_key_in_flight_cannot_be_used_again():
    with ToolRuntime([hang]) as runtime:
        runtime.submit("turn", [ToolCall("hang", {"seconds": 0.2})])
        with pytest.raises(ValueError, match="'turn' is in flight"):
            runtime.submit("turn", [])


@pytest.mark.parametrize(
    ("tools", "error", "message"),
    [
        ([3], TypeError, "must be a function, got int"),
        ([dict], TypeError, "dict does not say which arguments it takes; wrap it"),
        ([getattr], TypeError, "getattr does not say which arguments it takes; wrap it"),
        ([lambda: 1], ValueError, "pass a named function"),
        ([functools.partial(echo, "a")], ValueError, "pass a named function"),
        ([echo, echo], ValueError, "Two tools are named 'echo'"),
    ],
)
def test_tools_that_cannot_be_called_by_name_are_refused(tools, error, message):
    with pytest.raises(error, match=message):
        ToolRuntime(tools)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_workers": -1},
        *[{"timeout_s": value} for value in (0.0, math.nan, math.inf, 1e12)],
        {"max_result_chars": 10},
    ],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        ToolRuntime([echo], **settings)


def test_names_and_schemas_follow_the_order_of_the_tools():
    runtime = ToolRuntime([give, echo])
    assert runtime.names == ["give", "echo"]
    assert [schema["function"]["name"] for schema in runtime.schemas] == ["echo"]


def test_metrics_count_calls_latencies_and_failures():
    def result(name: str, status: CallStatus, latency_s: float = 0.0, **facts) -> ToolResult:
        return ToolResult(ToolCall(name), "", status, latency_s, **facts)

    metrics = tool_metrics(
        [
            result("search", CallStatus.OK, 1.0),
            result("search", CallStatus.TIMEOUT, 3.0),
            result("search", CallStatus.INVALID_ARGUMENTS),
            result("search", CallStatus.OK, 2.0, attempts=3, truncated=True),
            result("search", CallStatus.OK, 0.0, cached=True, attempts=0),
            result("python", CallStatus.INVALID_ARGUMENTS),
            result("made up", CallStatus.UNKNOWN_TOOL),
            result("search", CallStatus.BUDGET),
            result("search", CallStatus.MALFORMED),
        ]
    )
    assert metrics == {
        "tools/search/calls": 5.0,
        "tools/search/latency_s": 2.0,
        "tools/search/latency_p50_s": 2.0,
        "tools/search/latency_p95_s": 3.0,
        "tools/search/failure_rate": 0.4,
        "tools/search/cache_hit_rate": 0.2,
        "tools/search/truncation_rate": 0.2,
        "tools/search/retries": 2.0,
        "tools/search/failures/timeout": 1.0,
        "tools/search/failures/invalid_arguments": 1.0,
        "tools/python/calls": 1.0,
        "tools/python/latency_s": 0.0,
        "tools/python/latency_p50_s": 0.0,
        "tools/python/latency_p95_s": 0.0,
        "tools/python/failure_rate": 1.0,
        "tools/python/cache_hit_rate": 0.0,
        "tools/python/truncation_rate": 0.0,
        "tools/python/retries": 0.0,
        "tools/python/failures/invalid_arguments": 1.0,
        "tools/failures/timeout": 1.0,
        "tools/failures/invalid_arguments": 2.0,
        "tools/failures/unknown_tool": 1.0,
        "tools/failures/budget": 1.0,
        "tools/failures/malformed": 1.0,
    }
    assert tool_metrics([]) == {}


def test_the_95th_percentile_of_20_latencies_is_the_19th():
    results = [ToolResult(ToolCall("search"), "", CallStatus.OK, float(seconds)) for seconds in range(20, 0, -1)]
    metrics = tool_metrics(results)
    assert (metrics["tools/search/latency_p50_s"], metrics["tools/search/latency_p95_s"]) == (10.0, 19.0)


def test_a_tool_whose_type_hints_cannot_be_resolved_has_no_schema():
    def look(place: Place) -> str:  # noqa: F821
        """
        Look.

        Args:
            place: Where.
        """
        return place

    assert ToolRuntime([look]).schemas == []
    assert run_one(look, {"place": "Havana"}).content == "Havana"
