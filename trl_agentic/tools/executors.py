"""
Python on another machine, through the executors of `smolagents`, as the tool `python`.

Example:
    ```python
    with open_executor("docker") as executor:
        trainer = ARPOTrainer(..., tools=[make_executor_tool(executor)])
    ```
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Literal, Protocol

from .zygote import SandboxError

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_LOCAL_PREFIX = re.compile(r"^Code (?:execution|parsing) failed .*? due to: ", re.DOTALL)
_E2B_MARK = "Executing code yielded an error:"
_NOTHING = "(no output; print what you want to see)\n"


class ExecutorOutput(Protocol):
    """
    What an executor returns: `smolagents.local_python_executor.CodeOutput`.

    Attributes:
        output (`Any`):
            Value of the last line.
        logs (`str`):
            What was printed.
    """

    output: Any
    logs: str


class Executor(Protocol):
    """The part of a `smolagents` executor that is used here."""

    def __call__(self, code_action: str) -> ExecutorOutput:
        """Run code; raises `smolagents.utils.AgentError` or `InterpreterError` for an error in it."""
        ...


@contextlib.contextmanager
def open_executor(
    kind: Literal["docker", "e2b", "modal"], packages: tuple[str, ...] = (), **options: Any
) -> Iterator[Executor]:
    """
    Start one of the remote executors of `smolagents`, and stop it in the end.

    Args:
        kind (`str`):
            `"docker"` (`DockerExecutor`), `"e2b"` (`E2BExecutor`) or `"modal"` (`ModalExecutor`). Each needs its own
            client library (`pip install 'smolagents[docker]'` and so on), and E2B and Modal an account.
        packages (`tuple[str, ...]`, *optional*, defaults to `()`):
            Python packages to install there.
        **options (`Any`):
            Passed on, such as `image_name` or `container_run_kwargs` for Docker.

    Yields:
        [`Executor`]:
            The executor. It prints nothing.

    Raises:
        ImportError: If `smolagents` or the client library is not installed.
        ValueError: If there is no such kind.
    """
    smolagents = _import_smolagents()
    classes = {
        "docker": smolagents.DockerExecutor,
        "e2b": smolagents.E2BExecutor,
        "modal": smolagents.ModalExecutor,
    }
    if kind not in classes:
        raise ValueError(f"There is no executor {kind!r}; known are {', '.join(map(repr, classes))}.")
    quiet = smolagents.AgentLogger(level=smolagents.LogLevel.OFF)
    executor = classes[kind](list(packages), quiet, **options)
    try:
        yield executor
    finally:
        executor.cleanup()


def make_executor_tool(executor: Executor) -> Callable[[str], str]:
    """
    Make the tool `python` from an executor, with the conventions of [`make_python_tool`].

    Variables stay from call to call, and everybody who shares the executor shares them: for rollouts that must not
    see one another's use [`PythonSandbox`], or one executor for each. What isolates the code, and what limits it, is
    the executor's business; the tool runtime's deadline ends the waiting, not the code. The kernels in Docker and
    Modal run one call after another, and return the error alone of code that fails, without what was printed before.

    Args:
        executor ([`Executor`]):
            A `smolagents` executor: `DockerExecutor`, `E2BExecutor`, `ModalExecutor`, or for tests
            `LocalPythonExecutor`, which is no sandbox.

    Returns:
        `Callable[[str], str]`:
            A function named `python`.

    Raises:
        ImportError: If `smolagents` is not installed.
        TypeError: If `executor` cannot be called.
    """
    smolagents = _import_smolagents()
    if not callable(executor):
        raise TypeError(f"An executor is called with code, but {type(executor).__name__} cannot be called.")
    local: Any = executor if isinstance(executor, smolagents.LocalPythonExecutor) else None
    if local is not None and local.static_tools is None:  # without them not even `print` is known
        local.send_tools({})
    errors = (smolagents.utils.AgentError, smolagents.local_python_executor.InterpreterError)
    too_long = smolagents.local_python_executor.ExecutionTimeoutError

    def python(code: str) -> str:
        """
        Run Python code and return what it prints.

        Args:
            code: The code. The value of a last line that is an expression is shown too.

        Returns:
            The output.
        """
        try:
            result = executor(code)
        except errors as error:
            return _error_text(str(error))
        except too_long as error:
            raise TimeoutError(str(error)) from None
        return _output_text(result, code, local is not None)

    return python


def _output_text(result: ExecutorOutput, code: str, is_local: bool) -> str:
    text = str(result.logs)
    if text and not text.endswith("\n"):
        text += "\n"
    if result.output is not None and (not is_local or _ends_with_expression(code)):
        shown = result.output if isinstance(result.output, str) and not is_local else repr(result.output)
        text += f"{shown}\n"
    return text or _NOTHING


def _ends_with_expression(code: str) -> bool:
    """`LocalPythonExecutor` returns the value of an assignment too, which an interactive session does not show."""
    body = ast.parse(code).body
    return bool(body) and isinstance(body[-1], ast.Expr)


def _error_text(message: str) -> str:
    """What was printed, where the message has that, and the line that names the error: the last of a traceback."""
    printed, mark, rest = _COLORS.sub("", message).rpartition(_E2B_MARK)
    local = _LOCAL_PREFIX.match(rest)
    lines = [line for line in rest[local.end() if local else 0 :].splitlines() if line.strip()]
    if not lines:
        raise SandboxError("the executor reported an error without saying which")
    printed = printed.strip("\n") + "\n" if mark and printed.strip() else ""
    return f"{printed}{lines[0 if local else -1]}\n"


def _import_smolagents() -> ModuleType:
    try:
        import smolagents  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(
            "Remote executors need smolagents, which is not installed: pip install trl-agentic[executors]"
        ) from error
    return smolagents
