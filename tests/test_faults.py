"""
What tools can do to a run: raise, hang, flood, lose their process, their disk or their server.

Each test runs whole rollouts. Every rollout must end with a status and hold a result for each of its calls, within the
time that the deadlines allow, and nothing may be left behind: no thread, no process, no open file.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import psutil
import pytest
from word_tokenizer import ids, word_tokenizer, words

from trl_agentic.rollout.engine import Request, SamplingSettings, Script, ScriptedEngine
from trl_agentic.rollout.limits import Limits
from trl_agentic.rollout.loop import Prompt, RolloutLoop
from trl_agentic.rollout.policy import NoBranching
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.tools import PythonSandbox, ResultCache, ToolRuntime, TransientToolError, tool_options
from trl_agentic.types import BranchTree, CallStatus, Status, ToolResult

PROMPT = ids("what is a")
ANSWER = ids("<answer> \\boxed{ b } </answer> <eos>")
NUMBERS = [str(number) for number in range(1, 16)]
MEGABYTE = "b " * 500_000


def query_of(number: int) -> str:
    """A query of its own for each number, in words that the tokenizer knows."""
    return " ".join(NUMBERS[number // 15**place % 15] for place in range(4))


def calling(queries: Callable[[int, int], str], num_calls: int, tags: tuple[str, ...] = ("search",)):
    """An engine's script: rollout `i` makes its `k`-th call with `queries(i, k)`, and answers after the last."""

    def answer(request: Request) -> Script:
        made = words(request.token_ids).count("</result>")
        if made == num_calls:
            return Script(ANSWER)
        prompt, row = (int(part) for part in request.id.split("/")[:2])
        tag = tags[made % len(tags)]
        return Script(ids(f"<{tag}> {queries(prompt * 10 + row, made)} </{tag}>"))

    return answer


def grow(runtime: ToolRuntime, answer, tools, num_rollouts: int, **limits) -> list[BranchTree]:
    """Trees of at most ten rollouts each."""
    engine = ScriptedEngine(answer, max_model_length=100_000)
    limits = Limits(**({"max_completion_length": 50_000, "max_tool_turns": 10, "timeout_s": 120.0} | limits))
    dialect = TagDialect(word_tokenizer(), tools, max_result_tokens=64)
    sizes = [min(10, num_rollouts - first) for first in range(0, num_rollouts, 10)]
    trees = RolloutLoop(engine, runtime, dialect, NoBranching(), SamplingSettings(), limits).run(
        [Prompt(str(index), PROMPT, size) for index, size in enumerate(sizes)]
    )
    assert [len(tree.trajectories) for tree in trees] == sizes and runtime.num_pending == 0
    return trees


def results_of(trees: list[BranchTree], num_calls: int) -> list[ToolResult]:
    """All results, after a look at what must hold of every rollout, whatever its tools did."""
    trajectories = [trajectory for tree in trees for trajectory in tree.trajectories]
    assert {trajectory.status for trajectory in trajectories} == {Status.FINISHED}
    assert {len(trajectory.results) for trajectory in trajectories} == {num_calls}
    return [result for trajectory in trajectories for result in trajectory.results]


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Threads, processes and open files are those of before, a moment after the test."""

    def held() -> tuple[int, int, int]:
        gc.collect()
        me = psutil.Process()
        return me.num_threads(), me.num_fds(), len(me.children(recursive=True))

    word_tokenizer()("a")  # starts the tokenizers' own threads, where it has any
    before = held()
    yield
    deadline = time.monotonic() + 20.0
    while any(now > then for now, then in zip(held(), before, strict=True)) and time.monotonic() < deadline:
        time.sleep(0.05)
    after = held()
    assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after, threading.enumerate())


class Faults:
    """Of forty calls four raise, two hang until they are released, two return a megabyte, and the others are fine."""

    KINDS = dict.fromkeys((0, 11, 20, 31), "raise") | dict.fromkeys((6, 25), "hang") | dict.fromkeys((16, 35), "flood")

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.release = threading.Event()
        self._lock = threading.Lock()

    def kind(self, query: str) -> str:
        number = sum(NUMBERS.index(word) * 15**place for place, word in enumerate(query.split()))
        return self.KINDS.get(number % 40, "fine")

    def begin(self, query: str) -> str:
        with self._lock:
            self.calls[query] += 1
        if self.kind(query) == "raise":
            raise RuntimeError(f"no answer to {query}")
        return self.kind(query)

    def search(self, query: str) -> str:
        """
        Look something up, in a thread.

        Args:
            query: What to look for.
        """
        kind = self.begin(query)
        if kind == "hang":
            self.release.wait(timeout=300.0)
        return MEGABYTE if kind == "flood" else f"found {query}"

    async def python(self, code: str) -> str:
        """
        Look something up, on the event loop.

        Args:
            code: What to look for.
        """
        kind = self.begin(code)
        if kind == "hang":
            await asyncio.Event().wait()
        return MEGABYTE if kind == "flood" else f"found {code}"


@pytest.mark.parametrize("num_rollouts", [250, pytest.param(2500, marks=pytest.mark.slow)])
def test_calls_that_raise_hang_or_flood_cost_no_rollout_and_leave_nothing_behind(num_rollouts):
    faults = Faults()
    tools, num_calls, timeout_s = [faults.search, faults.python], 4, 2.0  # far above what a busy machine delays a call
    queries = [query_of(number) for number in range(num_rollouts * num_calls)]
    num_hung = [faults.kind(query) for query in queries].count("hang")
    start = time.monotonic()
    with ToolRuntime(tools, num_workers=32, timeout_s=timeout_s, max_result_chars=2000) as runtime:
        script = calling(lambda rollout, made: queries[rollout * num_calls + made], num_calls, ("search", "python"))
        results = results_of(grow(runtime, script, tools, num_rollouts), num_calls)
        assert time.monotonic() - start < timeout_s * (num_hung / 32 + num_calls) + 60.0
        while runtime.metrics["tools/abandoned_threads"] > num_hung / 2 and time.monotonic() - start < 120.0:
            time.sleep(0.05)
        # A hung thread is held until its call ends; a hung coroutine is cancelled and holds nothing
        assert runtime.metrics["tools/abandoned_threads"] == num_hung / 2
        faults.release.set()
    # Each call was made once, and each rollout holds the results of its own calls, in order.
    assert faults.calls == Counter(queries) and max(faults.calls.values()) == 1
    assert [next(iter(result.call.arguments.values())) for result in results] == queries
    expected = {"raise": CallStatus.ERROR, "hang": CallStatus.TIMEOUT, "flood": CallStatus.OK, "fine": CallStatus.OK}
    for query, result in zip(queries, results, strict=True):
        assert result.status is expected[faults.kind(query)]
        assert result.truncated == (faults.kind(query) == "flood") and len(result.content) <= 2000
        assert result.latency_s < 30.0


def test_the_rollout_phase_ends_at_its_deadline_whatever_hangs():
    faults = Faults()
    start = time.monotonic()
    with ToolRuntime([faults.search], num_workers=4, timeout_s=60.0) as runtime:
        trees = grow(runtime, calling(lambda rollout, made: query_of(6), 1), [faults.search], 20, timeout_s=0.5)
        assert time.monotonic() - start < 20.0
    faults.release.set()
    assert {trajectory.status for tree in trees for trajectory in tree.trajectories} == {Status.DEADLINE}


def children_since_now() -> Callable[[], list[psutil.Process]]:
    """A function that lists what this process has started since, and not what earlier tests keep warm."""
    before = set(psutil.Process().children(recursive=True))
    return lambda: [process for process in psutil.Process().children(recursive=True) if process not in before]


def test_a_sandbox_whose_processes_are_killed_in_mid_call_is_an_error_and_then_a_new_one():
    programs = {"a": "import time\ntime.sleep(60)", "b": "print(6 * 7)"}
    running = threading.Event()

    def python(code: str) -> str:
        """
        Run a program.

        Args:
            code: Its name.
        """
        running.set()
        return sandbox.run(programs[code.strip()])

    new_children = children_since_now()

    def kill() -> None:
        assert running.wait(timeout=60.0)
        deadline = time.monotonic() + 30.0
        while len(new_children()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        for process in new_children():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    killer = threading.Thread(target=kill)
    with PythonSandbox(timeout_s=90.0) as sandbox, ToolRuntime([python], num_workers=4, timeout_s=120.0) as runtime:
        killer.start()
        script = calling(lambda rollout, made: "ab"[made], 2, ("python",))
        results = results_of(grow(runtime, script, [python], 4, timeout_s=300.0), 2)
        killer.join()
    assert [result.status for result in results[::2]] == [CallStatus.ERROR] * 4
    assert all("SandboxError" in result.content for result in results[::2])
    assert [result.content for result in results[1::2]] == ["42\n"] * 4


def test_programs_that_hang_are_killed_with_all_that_they_started():
    spawning = "import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n        break\ntime.sleep(600)"

    def python(code: str) -> str:
        """
        Run a program that never ends.

        Args:
            code: Its name.
        """
        return sandbox.run(spawning)

    new_children = children_since_now()
    with PythonSandbox(timeout_s=0.5) as sandbox, ToolRuntime([python], num_workers=4, timeout_s=60.0) as runtime:
        script = calling(lambda rollout, made: "a", 1, ("python",))
        results = results_of(grow(runtime, script, [python], 4), 1)
        deadline = time.monotonic() + 20.0
        while len(new_children()) > 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(new_children()) <= 2, new_children()  # the sandbox's own wait for the next program
    assert [result.status for result in results] == [CallStatus.TIMEOUT] * 4


class Librarian:
    """A cached search whose `fault` strikes before its 50th call."""

    def __init__(self, fault: Callable[[], None]):
        self.queries: list[str] = []
        self._fault = fault

        @tool_options(cached=True)
        def search(query: str) -> str:
            """
            Look something up.

            Args:
                query: What to look for.
            """
            self.queries.append(query)
            if len(self.queries) == 50:
                self._fault()
            return f"found {query} " + os.urandom(2000).hex()  # so that it cannot be compressed

        self.tool = search

    def answer(self, cache: ResultCache) -> None:
        """Make 200 calls, each query twice, one rollout after the other."""
        with ToolRuntime([self.tool], num_workers=0, cache=cache) as runtime:
            script = calling(lambda rollout, made: query_of(rollout), 2)
            results = results_of(grow(runtime, script, [self.tool], 100), 2)
        assert all(result.status is CallStatus.OK for result in results)
        assert all(result.content.startswith(f"found {result.call.arguments['query']}") for result in results)
        assert len(self.queries) + sum(result.cached for result in results) == 200


def test_a_cache_that_is_damaged_in_mid_run_costs_no_call(tmp_path, caplog):
    with ResultCache(tmp_path) as cache:
        Librarian(lambda: cache.path.write_bytes(b"garbage" * 1000)).answer(cache)
        assert cache.metrics["cache/errors"] > 0
    assert caplog.text.count("Calls go on without it") == 1


def test_a_cache_that_is_deleted_in_mid_run_costs_no_call(tmp_path):
    with ResultCache(tmp_path / "cache") as cache:
        Librarian(lambda: [path.unlink() for path in (tmp_path / "cache").iterdir()]).answer(cache)


def test_a_disk_that_is_full_costs_no_call(tmp_path, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ResultCache(tmp_path) as cache:
        librarian = Librarian(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (cache.path.stat().st_size, hard)))
        try:
            librarian.answer(cache)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert cache.metrics["cache/errors"] > 0
    assert caplog.text.count("Calls go on without it") == 1
    with ResultCache(tmp_path, mode="replay") as cache:  # what had been stored before is sound
        assert cache.get(cache.key("search", {"query": query_of(0)})) is not None


@pytest.fixture
def tiny_disk(tmp_path) -> Iterator[str]:
    """A file system of 256 KB, of which the cache soon needs more."""
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system in memory")
    yield str(tmp_path)
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_small_disk_that_fills_up_costs_no_call(tiny_disk, caplog):
    with ResultCache(tiny_disk) as cache:
        Librarian(lambda: None).answer(cache)
        metrics = cache.metrics
    assert metrics["cache/errors"] > 0 and metrics["cache/hits"] > 0
    assert caplog.text.count("Calls go on without it") == 1


class Backend(BaseHTTPRequestHandler):
    """Busy at first, broken for ever, or answering one byte at a time, as the query asks for."""

    asked: Counter[str]
    closing: threading.Event

    def do_GET(self) -> None:
        query = self.path.rpartition("=")[2]
        self.asked[query] += 1
        if query.startswith("a") and self.asked[query] == 1:
            self.send_response(429)
            self.send_header("Retry-After", "0.1")
            self.end_headers()
        elif query.startswith("b"):
            self.send_error(500)
        else:
            self.send_response(200)
            self.end_headers()
            while query.startswith("c") and not self.closing.wait(timeout=0.05):
                self.wfile.write(b".")
                self.wfile.flush()
            self.wfile.write(b"found")

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client gave up
            super().handle()

    def log_message(self, *message: object) -> None:
        pass


@pytest.fixture
def backend() -> Iterator[tuple[str, type[Backend]]]:
    handler = type("FreshBackend", (Backend,), {"asked": Counter(), "closing": threading.Event()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/search", handler
        handler.closing.set()
        server.shutdown()
        thread.join()


def check(response: httpx.Response) -> str:
    if response.status_code == 429 or response.status_code >= 500:
        after = response.headers.get("Retry-After")
        raise TransientToolError(f"HTTP {response.status_code}", None if after is None else float(after))
    return response.text


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_server_that_is_busy_broken_or_endless_costs_its_own_calls_alone(backend, is_async):
    url, handler = backend

    def search(query: str) -> str:
        """
        Ask the server.

        Args:
            query: What to look for.
        """
        with httpx.Client(trust_env=False, timeout=10.0) as client:
            return check(client.get(url, params={"q": query}))

    async def search_later(query: str) -> str:
        """
        Ask the server.

        Args:
            query: What to look for.
        """
        async with httpx.AsyncClient(trust_env=False, timeout=10.0) as client:
            return check(await client.get(url, params={"q": query}))

    search_later.__name__ = "search"
    tool = tool_options(num_retries=1, timeout_s=4.0)(search_later if is_async else search)
    start = time.monotonic()
    with ToolRuntime([tool], num_workers=8) as runtime:
        script = calling(lambda rollout, made: f"{'abcd'[rollout % 4]} {rollout + 1}", 1)
        results = results_of(grow(runtime, script, [tool], 8), 1)
        assert time.monotonic() - start < 60.0
        handler.closing.set()
    assert [(result.status, result.attempts) for result in results] == 2 * [
        (CallStatus.OK, 2),
        (CallStatus.ERROR, 2),
        (CallStatus.TIMEOUT, 1),
        (CallStatus.OK, 1),
    ]
    assert [result.content for result in results[:2]] == ["found", "TransientToolError: HTTP 500"]
    assert sum(handler.asked.values()) == 2 * (2 + 2 + 1 + 1)
