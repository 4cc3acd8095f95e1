"""Runs Python that a model wrote, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class SandboxError(RuntimeError):
    """A program exceeded a limit other than time, or its process was lost."""


class PythonSandbox:
    """Runs programs one call at a time in fresh processes."""

    def __init__(
        self,
        *,
        timeout_s: float = 10.0,
        cpu_s: float | None = None,
        memory_mb: int = 512,
        disk_mb: int = 16,
        max_output_chars: int = 100_000,
        max_processes: int = 16,
        preload: Sequence[str] = (),
        namespaces: bool = True,
    ):
        raise NotImplementedError

    def run(self, code: str) -> str:
        """Run a program and return what it printed."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the sandbox's process."""
        raise NotImplementedError

    def __enter__(self) -> PythonSandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def make_python_tool(sandbox: PythonSandbox | None = None) -> Callable[[str], str]:
    """Make the tool `python`."""
    raise NotImplementedError


def sandbox_report(sandbox: PythonSandbox | None = None) -> dict[str, str | bool]:
    """What this machine enforces."""
    raise NotImplementedError
