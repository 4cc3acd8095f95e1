"""Turns what the sandbox's process replies about a program into what the model gets to read."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

from .zygote import SandboxError

_ROLLED_BACK = "; the session is as it was before this call"


@dataclass(frozen=True)
class Limits:
    """
    The limits of a program, as its errors name them.

    Args:
        timeout_s (`float`), cpu_s (`float`):
            Wall-clock seconds, and CPU seconds of a process.
        memory_mb (`int`), max_output_bytes (`int`):
            Memory of a process, and bytes of output.
    """

    timeout_s: float
    cpu_s: float
    memory_mb: int
    max_output_bytes: int


def read_reply(reply: dict[str, Any], limits: Limits) -> str:
    """
    Read a reply.

    Args:
        reply (`dict[str, Any]`):
            `reason`, `code` and `output`; of a session also `kept`, whether it has moved on.
        limits ([`Limits`]):
            What the program was held to.

    Returns:
        `str`:
            The output, never empty.

    Raises:
        TimeoutError: If the program ran too long.
        SandboxError: If it exceeded another limit, or could not be run.
    """
    reason, text, code = reply["reason"], reply["output"], reply.get("code", 0)
    end = _ROLLED_BACK if reply.get("kept") is False else ""
    if reason == "timeout":
        raise TimeoutError(f"the program ran longer than {limits.timeout_s:g} s and was stopped{end}")
    if reason == "output":
        limit = limits.max_output_bytes
        raise SandboxError(f"the program printed more than {limit} bytes and was stopped; print less{end}")
    if reason == "memory":
        raise SandboxError(f"the program used more than {limits.memory_mb} MB of memory{end}")
    if reason == "error":
        raise SandboxError(f"the program could not be run: {text}{end}")
    if code == -signal.SIGXCPU:
        raise TimeoutError(f"the program used more than {limits.cpu_s:g} s of CPU time and was stopped{end}")
    if text and not text.endswith("\n"):
        text += "\n"
    if code < 0:
        text += f"(the program was ended by {_signal_name(-code)}{end})\n"
    elif end or code > 1 or (code == 1 and not text):
        text += f"(the program ended with exit code {code}{end})\n"
    return text or "(no output; print what you want to see)\n"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals, most of which have no name
        return f"signal {number}"
