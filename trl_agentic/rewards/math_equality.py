"""Equality of mathematical answers: plain numbers exactly, everything else symbolically with math-verify."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import re
import selectors
import subprocess
import sys
import threading
from fractions import Fraction
from functools import cache, lru_cache
from pathlib import Path

_START_S = 120.0  # importing sympy on a busy machine
_ANSWER_S = 5.0

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
NUMBER = rf"[-+]?(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{{1,2}})?(?:\s*/\s*\d+)?(?:\s*%)?"
_NUMBER = re.compile(NUMBER)
_SIMPLE_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{\s*(\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))")
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|operatorname|mbox)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\[,;:!> ]|\\(?:left|right|quad|qquad|displaystyle)(?![A-Za-z])|~")
_ESCAPED = re.compile(r"\\([%$&#_])")
_SIGNS = str.maketrans({"\u2212": "-", "\u2013": "-", "\ufe63": "-", "\uff0d": "-", "\u00b2": "^2", "\u00b3": "^3"})

_COUNTING = re.compile(r"\d+(?:[-:]\d+)+|\d+(?:/\d+){2,}|\d+(?:\.\d+){2,}|\d+'?s")  # dates, scores, versions, decades
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_]{2,}")
_FUNCTIONS = frozenset("arccos arcsin arctan cos cot exp gcd lcm ln log max min mod pi sin sqrt tan".split())
_OPERATION = re.compile(r"\d|[\w)}\]!]\s*[\^=<>+*]\s*[-\w({\[]")


def plain_latex(text: str) -> str:
    """
    Remove LaTeX that carries no meaning: delimiters, text wrappers, spacing, escapes; `\\frac{1}{2}` becomes `1/2`.

    Args:
        text (`str`):
            An answer.

    Returns:
        `str`:
            The same answer with less markup.
    """
    text = _WRAPPED.sub(r"\1", text.translate(_SIGNS).replace("{,}", ","))
    text = _SPACING.sub(" ", re.sub(r"\\[()\[\]]", " ", text))
    text = _SIMPLE_FRACTION.sub(lambda found: f"{found[1] or found[2]}/{found[3] or found[4]}", text)
    return re.sub(r"(?<!\\)\$(?!\d)|^\$(?=.*\$$)", "", _ESCAPED.sub(r"\1", text).strip()).strip()


def read_number(text: str) -> Fraction | None:
    """
    The value of a plain number: integer, decimal or fraction, with thousands separators, a currency or percent sign.

    Args:
        text (`str`):
            An answer, such as `"-3"`, `"110,879"`, `"1/2"`, `"10%"`, `"\\frac{1}{2}"` or `"$5"`.

    Returns:
        `Fraction`, *optional*:
            Its value; `None` if the text is anything else.
    """
    text = plain_latex(text).strip()
    found = _NUMBER.fullmatch(re.sub(r"^([-+]?)\s*[$€£¥]\s*", r"\1", text))
    if not found or not found[0]:
        return None
    digits = re.sub(r"[,\s]", "", found[0])
    numerator, _, denominator = digits.rstrip("%").partition("/")
    divisor = int(denominator or 1) * (100 if digits.endswith("%") else 1)
    return Fraction(numerator) / divisor if divisor else None


def looks_mathematical(text: str) -> bool:
    """
    Whether an accepted answer is to be compared as mathematics, not as words.

    Numbers and formulas are; names, single letters, dates, times and scores such as `3-1` are not.

    Args:
        text (`str`):
            The accepted answer.

    Returns:
        `bool`:
            `True` for mathematics.
    """
    if read_number(text) is not None:
        return True
    plain = plain_latex(text)
    if _COUNTING.fullmatch(plain):
        return False
    if _COMMAND.search(plain):
        return True
    if any(word.lower() not in _FUNCTIONS for word in _WORD.findall(plain)):
        return False
    return bool(_OPERATION.search(plain))


def math_equal(prediction: str, answer: str) -> bool:
    """
    Whether two mathematical answers are equal.

    Plain numbers are compared exactly (`"10%"` is 0.1, not 10); a decimal equals a value that it rounds to six places.
    Formulas are compared symbolically by math-verify, in a process of its own: a comparison that takes longer than
    five seconds, or too much memory, counts as unequal, in whatever thread it is asked for.

    Args:
        prediction (`str`):
            What the model answered.
        answer (`str`):
            The accepted answer.

    Returns:
        `bool`:
            Whether they are equal.

    Raises:
        ImportError: If a formula has to be compared and math-verify is not installed.
    """
    if not prediction.strip() or not answer.strip():
        return False
    if "".join(prediction.split()) == "".join(answer.split()):
        return True
    left, right = read_number(prediction), read_number(answer)
    if left is None or right is None:
        return _symbolically_equal(_explicit(answer), _explicit(prediction))
    tolerance = min(Fraction(1), abs(right)) / 10**6 if "." in prediction + answer else 0
    return abs(left - right) <= tolerance


def _explicit(text: str) -> str:
    # math-verify takes 10% for 10 as well as for 0.1, and reads pi and sqrt(2) as products of letters.
    text = re.sub(r"(\d+(?:\.\d+)?)\s*\\?%", r"\\frac{\1}{100}", text.translate(_SIGNS))
    text = re.sub(r"(?<![\\A-Za-z])sqrt\(([^()]*)\)", r"\\sqrt{\1}", text.replace("**", "^"))
    return re.sub(r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi ", text)


@lru_cache(maxsize=4096)
def _symbolically_equal(answer: str, prediction: str) -> bool:
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError(
            f"The accepted answer {answer!r} is mathematics, and comparing it needs math-verify. Install it with "
            "`pip install trl-agentic[math]`."
        )
    return _comparer(os.getpid()).ask([answer, prediction])


class _Comparer:
    """The process behind [`math_equal`], started when first needed and again after it had to be killed."""

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
