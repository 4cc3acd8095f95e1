"""Threads for what may hang: their results, their errors, and an interpreter that exits without them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from trl_agentic.tools.calls.daemon_threads import DaemonThreads, run_together


def test_results_stand_in_the_order_of_the_tasks_which_run_at_the_same_time():
    both = threading.Barrier(2, timeout=30.0)
    before = threading.active_count()
    assert run_together([lambda: (both.wait(), "a")[1], lambda: (both.wait(), "b")[1]], "test") == ["a", "b"]
    assert threading.active_count() == before


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit("bye")], ids=str)
def test_the_error_of_a_task_is_raised_once_all_have_ended(error):
    ended = []

    def fail() -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        run_together([fail, lambda: ended.append("other")], "test")
    assert ended == ["other"]


def test_an_event_loop_takes_them_as_its_default_executor():
    async def work() -> tuple[bool, str]:
        asyncio.get_running_loop().set_default_executor(DaemonThreads())
        is_daemon = await asyncio.to_thread(lambda: threading.current_thread().daemon)
        with pytest.raises(KeyError, match="capital"):
            await asyncio.to_thread({}.__getitem__, "capital")
        return is_daemon, await asyncio.to_thread("{}{}".format, "Hav", "ana")

    assert asyncio.run(work()) == (True, "Havana")


def test_tasks_that_hang_take_no_place_from_others():
    release = threading.Event()
    threads = DaemonThreads()
    hanging = [threads.submit(release.wait, 60.0) for _ in range(50)]
    assert threads.submit(lambda: "here").result(timeout=30.0) == "here"
    release.set()
    assert [task.result(timeout=30.0) for task in hanging] == [True] * 50


EXIT = """
import asyncio, time
from trl_agentic.tools import HybridSearch, ToolRuntime, make_search_tool
from trl_agentic.types import ToolCall

async def wait():
    await asyncio.to_thread(time.sleep, 600)

class Hanging:
    def search(self, query, top_k):
        time.sleep(600)

runtime = ToolRuntime([wait, make_search_tool(HybridSearch([Hanging(), Hanging()]))], timeout_s=0.2)
runtime.submit("turn", [ToolCall("wait"), ToolCall("search", {"query": "Cuba"})])
print(*(result.status.value for result in runtime.poll(wait_s=30.0)[0][1]), flush=True)
"""


def test_neither_a_thread_of_an_async_tool_nor_a_backend_keeps_the_interpreter_from_exiting():
    ended = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout) == (0, "timeout timeout\n"), ended.stderr


LOOK_UP = """
import socket, time
import httpx
from trl_agentic.tools.web.json_api import ApiLimits, fetch_json
from trl_agentic.tools import TransientToolError

socket.getaddrinfo = lambda *host, **options: time.sleep(600)
try:
    fetch_json(httpx.Request("GET", "http://search.test/"), "Search", ApiLimits(0.2, 0.2, 0.2), str)
except TransientToolError as error:
    print(error, flush=True)
"""


def test_a_look_up_that_hangs_outlives_neither_its_request_nor_the_interpreter():
    ended = subprocess.run([sys.executable, "-c", LOOK_UP], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0 and ended.stdout.startswith("Search did not answer"), ended.stderr
