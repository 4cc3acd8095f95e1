"""Remote executors of smolagents as the tool `python`: the seam to smolagents, and the conventions of the text."""

from __future__ import annotations

import inspect
import json
import sys
import threading
from collections.abc import Iterator

import pytest

from trl_agentic.tools import ToolRuntime, make_executor_tool, open_executor
from trl_agentic.types import CallStatus, ToolCall

smolagents = pytest.importorskip("smolagents", reason="smolagents is not installed: trl-agentic[executors]")


@pytest.fixture
def local():
    """Runs code in this process, which is no sandbox: for tests of the seam alone."""
    return make_executor_tool(smolagents.LocalPythonExecutor([], timeout_seconds=5))


# The seam.


@pytest.mark.parametrize("name", ["DockerExecutor", "E2BExecutor", "ModalExecutor"])
def test_a_remote_executor_is_called_with_code_and_cleaned_up(name):
    kind = getattr(smolagents, name)
    assert issubclass(kind, smolagents.remote_executors.RemotePythonExecutor)
    assert list(inspect.signature(kind.__call__).parameters) == ["self", "code_action"]
    assert list(inspect.signature(kind).parameters)[:2] == ["additional_imports", "logger"]
    assert list(inspect.signature(kind.cleanup).parameters) == ["self"]


def test_an_executor_returns_output_and_logs():
    fields = smolagents.local_python_executor.CodeOutput.__dataclass_fields__
    assert {"output", "logs"} <= set(fields)


def test_the_local_executor_has_no_tools_before_they_are_sent():
    assert smolagents.LocalPythonExecutor([]).static_tools is None


# The text, with an executor that really runs code.


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print('a')\n6 * 7", "a\n42\n"),
        ("'b'", "'b'\n"),
        ("x = 1", "(no output; print what you want to see)\n"),
        ("print('a')", "a\n"),
        ("None", "(no output; print what you want to see)\n"),
        ("1 / 0", "ZeroDivisionError: division by zero\n"),
    ],
)
def test_output_last_value_and_error_read_as_those_of_the_sandbox(local, code, text):
    assert local(code) == text


def test_a_syntax_error_is_text_for_the_model(local):
    assert local("x = = 1").startswith("SyntaxError: invalid syntax")


def test_variables_stay_from_call_to_call(local):
    local("x = [1]")
    assert local("x.append(2)\nx") == "[1, 2]\n"


def test_code_that_runs_too_long_is_a_timeout():
    import time

    executor = smolagents.LocalPythonExecutor(["time"], timeout_seconds=1)
    tool = make_executor_tool(executor)
    before = threading.active_count()
    with pytest.raises(TimeoutError, match="1 seconds"):
        tool("import time\ntime.sleep(2)")
    for _ in range(500):  # smolagents lets the thread run to its end
        if threading.active_count() <= before:
            break
        time.sleep(0.02)
    assert threading.active_count() <= before


# The text, with what remote kernels answer, through smolagents' own client code.


class RecordedKernel:
    """A websocket that plays a Jupyter kernel: it answers each request with the messages given for it."""

    def __init__(self, *messages: tuple[str, dict]):
        self._messages = messages
        self._answers: Iterator[str] = iter(())

    def send(self, request: str) -> None:
        parent = {"parent_header": {"msg_id": json.loads(request)["header"]["msg_id"]}}
        idle = ("status", {"execution_state": "idle"})
        self._answers = iter(
            json.dumps({"msg_type": kind, "content": content, **parent}) for kind, content in [*self._messages, idle]
        )

    def recv(self) -> str:
        return next(self._answers)


class KernelExecutor(smolagents.remote_executors.RemotePythonExecutor):
    """What Docker and Modal executors do once they are connected."""

    def __init__(self, kernel: RecordedKernel):
        super().__init__([], smolagents.AgentLogger(level=smolagents.LogLevel.OFF))
        self._kernel = kernel

    def run_code_raise_errors(self, code: str):
        return smolagents.remote_executors._websocket_run_code_raise_errors(code, self._kernel, self.logger)


def test_a_kernel_s_value_is_shown_as_it_writes_it():
    printed = ("stream", {"name": "stdout", "text": "a\n"})
    value = ("execute_result", {"data": {"text/plain": "'b'"}})
    tool = make_executor_tool(KernelExecutor(RecordedKernel(printed, value)))
    assert tool("print('a'); 'b'") == "a\n'b'\n"


def test_a_kernel_s_traceback_becomes_its_last_line_without_colors():
    traceback = [
        "\x1b[0;31m---------\x1b[0m",
        "Cell In[1], line 1",
        "\x1b[0;31mZeroDivisionError\x1b[0m: division by zero",
    ]
    error = ("error", {"ename": "ZeroDivisionError", "evalue": "division by zero", "traceback": traceback})
    tool = make_executor_tool(KernelExecutor(RecordedKernel(error)))
    assert tool("1 / 0") == "ZeroDivisionError: division by zero\n"


def test_a_kernel_that_says_nothing_is_told_to_the_model():
    tool = make_executor_tool(KernelExecutor(RecordedKernel()))
    assert tool("x = 1") == "(no output; print what you want to see)\n"


def test_what_e2b_printed_before_an_error_is_kept():
    class Failing:
        def __call__(self, code_action):
            message = "a\nb\nExecuting code yielded an error:\nKeyError\n'x'\nTraceback ...\nKeyError: 'x'"
            raise smolagents.utils.AgentError(message, smolagents.AgentLogger(level=smolagents.LogLevel.OFF))

    assert make_executor_tool(Failing())("d['x']") == "a\nb\nKeyError: 'x'\n"


def test_a_lost_connection_is_an_error_of_the_tool_and_not_of_the_code():
    class Gone:
        def __call__(self, code_action):
            raise ConnectionError("the container has gone away")

    with ToolRuntime([make_executor_tool(Gone())], num_workers=0) as runtime:
        runtime.submit("turn", [ToolCall("python", {"code": "1"})])
        ((_, (result,)),) = runtime.poll(wait_s=5.0)
    assert result.status == CallStatus.ERROR
    assert result.content == "ConnectionError: the container has gone away"


# Wrong use.


def test_the_tool_is_named_python_and_has_a_schema(local):
    from transformers.utils import get_json_schema

    function = get_json_schema(local)["function"]
    assert function["name"] == "python"
    assert function["parameters"]["required"] == ["code"]


def test_something_that_cannot_be_called_is_no_executor():
    with pytest.raises(TypeError, match="int cannot be called"):
        make_executor_tool(3)


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="no executor 'podman'; known are 'docker', 'e2b', 'modal'"):
        with open_executor("podman"):
            pass


@pytest.mark.parametrize("kind", ["docker", "e2b", "modal"])
def test_a_missing_client_library_is_named(kind, monkeypatch):
    for library in ("docker", "e2b_code_interpreter", "modal"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"smolagents\[{kind}\]"):
        with open_executor(kind):
            pass


def test_missing_smolagents_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "smolagents", None)
    with pytest.raises(ImportError, match=r"pip install trl-agentic\[executors\]"):
        make_executor_tool(lambda code: None)
