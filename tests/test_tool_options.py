"""What a tool says about itself: deadlines, concurrency, rates and retries, in threads and inline."""

from __future__ import annotations

import threading
import time

import pytest
import tenacity

from trl_agentic.tools import NoResult, ToolOptions, ToolRuntime, TransientToolError, tool_options
from trl_agentic.tools.calls import execution
from trl_agentic.types import CallStatus, ToolCall, ToolResult

INLINE_OR_NOT = pytest.mark.parametrize("num_workers", [0, 4], ids=["inline", "threads"])


@pytest.fixture
def quick_backoff(monkeypatch):
    monkeypatch.setattr(execution, "_backoff", tenacity.wait_fixed(0.01))


def run_turn(runtime: ToolRuntime, *calls: ToolCall) -> list[ToolResult]:
    runtime.submit("turn", calls)
    ((key, results),) = runtime.poll(wait_s=20.0)
    assert key == "turn"
    return results


def run_one(tool, num_workers: int = 4, timeout_s: float = 10.0) -> ToolResult:
    with ToolRuntime([tool], num_workers=num_workers, timeout_s=timeout_s) as runtime:
        return run_turn(runtime, ToolCall(tool.__name__))[0]


def test_options_are_attached_to_the_function_itself():
    def search():
        return "found"

    assert tool_options(rate_per_s=2.0, version="3")(search) is search
    assert search.tool_options == ToolOptions(rate_per_s=2.0, version="3")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"timeout_s": 0.0}, ValueError),
        ({"timeout_s": float("nan")}, ValueError),
        ({"timeout_s": float("inf")}, ValueError),
        ({"timeout_s": 1e12}, ValueError),
        ({"rate_per_s": -1.0}, ValueError),
        ({"rate_per_s": float("nan")}, ValueError),
        ({"rate_per_s": float("inf")}, ValueError),
        ({"rate_per_s": 1e-12}, ValueError),
        ({"version": "\ud800"}, ValueError),
        ({"version": 2}, TypeError),
        ({"max_concurrency": 0}, ValueError),
        ({"num_retries": -1}, ValueError),
        ({"transient": ("ConnectionError",)}, TypeError),
        ({"transient": 5}, TypeError),
    ],
)
def test_options_out_of_range_are_refused(options, error):
    with pytest.raises(error, match=next(iter(options))):
        tool_options(**options)


def test_a_single_class_may_be_declared_transient():
    assert ToolOptions(transient=ValueError).transient == (ValueError,)


def test_a_decorator_without_parentheses_is_refused():
    with pytest.raises(TypeError, match=r"Write it with parentheses above the tool: @tool_options\("):

        @tool_options
        def search():
            return "found"


def test_options_of_another_kind_are_refused():
    def search():
        return "found"

    search.tool_options = {"rate_per_s": 2.0}
    with pytest.raises(TypeError, match=r"search.tool_options must be a ToolOptions"):
        ToolRuntime([search])


def test_a_tool_has_a_deadline_of_its_own():
    release = threading.Event()

    @tool_options(timeout_s=0.2)
    def hang():
        release.wait(timeout=30.0)

    result = run_one(hang, timeout_s=30.0)
    release.set()
    assert (result.status, result.content) == (
        CallStatus.TIMEOUT,
        "hang did not answer within 0.2 s and was stopped.",
    )


def test_no_more_calls_of_a_tool_run_than_it_allows_and_those_of_others_overtake():
    release, lock, now, most = threading.Event(), threading.Lock(), [0], [0]

    @tool_options(max_concurrency=2)
    def narrow():
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        release.wait(timeout=30.0)
        with lock:
            now[0] -= 1

    def other():
        return "overtook"

    with ToolRuntime([narrow, other], num_workers=3) as runtime:
        runtime.submit("narrow", [ToolCall("narrow")] * 6)
        runtime.submit("other", [ToolCall("other")] * 5)
        ((key, results),) = runtime.poll(wait_s=20.0)  # although four calls of `narrow` have waited for longer
        assert (key, [result.content for result in results]) == ("other", ["overtook"] * 5)
        release.set()
        assert [key for key, _ in runtime.poll(wait_s=20.0)] == ["narrow"]
    assert most[0] == 2


def test_a_call_that_was_given_up_no_longer_counts_against_the_limit():
    release = threading.Event()

    @tool_options(max_concurrency=1, timeout_s=0.1)
    def hang():
        release.wait(timeout=30.0)

    with ToolRuntime([hang], num_workers=4) as runtime:
        results = run_turn(runtime, *[ToolCall("hang")] * 3)
        assert runtime.metrics["tools/abandoned_threads"] == 3.0
        release.set()
    assert [result.status for result in results] == [CallStatus.TIMEOUT] * 3


def test_starts_are_as_far_apart_as_the_rate_says_and_deadlines_begin_with_them():
    starts = []

    @tool_options(rate_per_s=10.0, timeout_s=5.0)
    def slow():
        starts.append(time.monotonic())

    with ToolRuntime([slow]) as runtime:
        results = run_turn(runtime, *[ToolCall("slow")] * 4)
    assert [result.status for result in results] == [CallStatus.OK] * 4
    assert all(later - earlier > 0.09 for earlier, later in zip(starts[:-1], starts[1:], strict=True))


def test_a_call_that_waits_for_its_rate_occupies_no_worker():
    @tool_options(rate_per_s=0.001)
    def rare():
        return "once"

    def other():
        return "here"

    with ToolRuntime([rare, other], num_workers=1) as runtime:
        runtime.submit("rare", [ToolCall("rare")] * 3)
        runtime.submit("other", [ToolCall("other")])
        assert [key for key, _ in runtime.poll(wait_s=20.0)] == ["other"]
        runtime.abandon("rare")
        assert runtime.num_pending == 0


def test_inline_calls_sleep_until_the_rate_allows_them():
    starts = []

    @tool_options(rate_per_s=10.0)
    def slow():
        starts.append(time.monotonic())

    with ToolRuntime([slow], num_workers=0) as runtime:
        run_turn(runtime, *[ToolCall("slow")] * 3)
    assert starts[2] - starts[0] > 0.19


@INLINE_OR_NOT
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_transient_error_is_tried_again(quick_backoff, num_workers, is_async):
    tries = []

    def answer():
        tries.append(1)
        if len(tries) < 3:
            raise TransientToolError("429 Too Many Requests")
        return "found"

    async def answer_later():
        return answer()

    tool = tool_options(num_retries=3)(answer_later if is_async else answer)
    result = run_one(tool, num_workers)
    assert (result.content, result.status, result.attempts, len(tries)) == ("found", CallStatus.OK, 3, 3)


def test_an_exception_may_be_declared_transient(quick_backoff):
    tries = []

    @tool_options(num_retries=1, transient=(ConnectionError,))
    def search():
        tries.append(1)
        raise ConnectionResetError("by peer")

    result = run_one(search)
    assert (result.content, result.attempts, len(tries)) == ("ConnectionResetError: by peer", 2, 2)


@pytest.mark.parametrize(
    ("options", "outcome", "status"),
    [
        ({"num_retries": 3}, ValueError("no such page"), CallStatus.ERROR),
        ({}, TransientToolError("busy"), CallStatus.ERROR),
        ({"num_retries": 3}, "", CallStatus.OK),
        ({"num_retries": 3}, None, CallStatus.OK),
        ({"num_retries": 3}, NoResult("Nothing was found."), CallStatus.OK),
    ],
    ids=["another error", "retries that were not asked for", "an empty text", "nothing", "no result"],
)
def test_all_else_is_tried_once(quick_backoff, options, outcome, status):
    tries = []

    @tool_options(**options)
    def search():
        tries.append(1)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    result = run_one(search)
    assert (result.status, result.attempts, len(tries)) == (status, 1, 1)


@INLINE_OR_NOT
def test_no_attempt_is_made_that_would_begin_after_the_deadline(num_workers):
    @tool_options(num_retries=5, timeout_s=5.0)
    def search():
        raise TransientToolError("come back tomorrow", retry_after_s=86_400.0)

    result = run_one(search, num_workers)
    assert (result.status, result.content) == (CallStatus.ERROR, "TransientToolError: come back tomorrow")
    assert result.attempts == 1 and result.latency_s < 4.0


def test_the_other_side_says_how_long_to_wait(quick_backoff):
    moments = []

    @tool_options(num_retries=1)
    def search():
        moments.append(time.monotonic())
        if len(moments) == 1:
            raise TransientToolError("busy", retry_after_s=0.4)
        return "found"

    assert run_one(search).content == "found"
    assert moments[1] - moments[0] >= 0.4


def test_attempts_count_as_starts_for_the_rate(quick_backoff):
    moments = []

    @tool_options(num_retries=2, rate_per_s=4.0)
    def search():
        moments.append(time.monotonic())
        raise TransientToolError("busy")

    run_one(search)
    assert len(moments) == 3 and moments[2] - moments[0] > 0.49


def test_the_back_off_grows_and_varies():
    def waits(attempt: int) -> set[float]:
        state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
        state.attempt_number = attempt
        return {execution._backoff(state) for _ in range(20)}

    assert all(0.25 <= pause_s <= 0.5 for pause_s in waits(1)) and len(waits(1)) > 1
    assert all(2.0 <= pause_s <= 2.25 for pause_s in waits(4))
    assert all(8.0 <= pause_s <= 8.25 for pause_s in waits(50))


def test_a_call_that_waits_for_another_attempt_does_not_outlive_the_runtime():
    tried = threading.Event()

    @tool_options(num_retries=5)
    def search():
        tried.set()
        raise TransientToolError("busy", retry_after_s=20.0)

    before = set(threading.enumerate())  # of tests whose tools hang
    with ToolRuntime([search]) as runtime:
        runtime.submit("turn", [ToolCall("search")])
        assert tried.wait(timeout=20.0)
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(timeout=10.0)
    assert not any(thread.is_alive() for thread in left)
