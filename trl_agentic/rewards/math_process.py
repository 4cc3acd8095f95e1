"""The process that compares formulas, as its callers see it."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import threading
from functools import cache, lru_cache
from pathlib import Path

_START_S = 120.0  # importing sympy on a busy machine
_ANSWER_S = 2.0  # all that wait share one process; the slowest pair of docs/answer_pairs.tsv takes 0.2 s


@lru_cache(maxsize=4096)
def symbolically_equal(answer: str, prediction: str) -> bool:
    """
    Whether two formulas are equal, by math-verify in a process of its own.

    Args:
        answer (`str`):
            The accepted answer, in LaTeX.
        prediction (`str`):
            What the model answered, in LaTeX.

    Returns:
        `bool`:
            Whether they are equal; `False` if that takes too long or too much memory.

    Raises:
        ImportError: If math-verify is not installed.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError(
            f"The accepted answer {answer!r} is mathematics, and comparing it needs math-verify. Install it with "
            "`pip install trl-agentic[math]`."
        )
    return _comparer(os.getpid()).ask([answer, prediction])


class _Comparer:
    """The process behind [`symbolically_equal`], started when first needed and again after it had to be killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = os.getpid()

    def ask(self, sides: list[str]) -> bool:
        """Whether two formulas are equal; `False` if no answer comes in time."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self.close()
                self._process = self._start()
            answer = ""
            with contextlib.suppress(BrokenPipeError):
                print(json.dumps(sides), file=self._process.stdin, flush=True)
                answer = self._read(self._process, _ANSWER_S)
            if not answer:
                self.close()
            return answer == "true"

    def _start(self) -> subprocess.Popen[str]:
        script = str(Path(__file__).with_name("math_worker.py"))
        process = subprocess.Popen(
            [sys.executable, "-P", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for the training run
        )
        if self._read(process, _START_S) != "ready":
            self._end(process)
            raise RuntimeError(
                "The process that compares mathematical answers did not start. Check that "
                "`python -c 'import math_verify'` works in this environment."
            )
        return process

    @staticmethod
    def _read(process: subprocess.Popen[str], timeout_s: float) -> str:
        # One line, or an empty text if none comes in time.
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            return process.stdout.readline().strip() if selector.select(timeout_s) else ""

    def close(self) -> None:
        """End the process, if there is one and it is ours."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            self._end(process)

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        process.kill()
        process.wait()
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


@cache
def _comparer(owner: int) -> _Comparer:
    # One per process: after a fork the pipes are still the parent's.
    comparer = _Comparer()
    atexit.register(comparer.close)
    return comparer
