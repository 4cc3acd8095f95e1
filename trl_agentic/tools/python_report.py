"""Says what this machine enforces for programs in [`PythonSandbox`]."""

from __future__ import annotations

import contextlib
import functools
import logging
import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .python import PythonSandbox

logger = logging.getLogger(__name__)


def sandbox_report(sandbox: PythonSandbox | None = None) -> dict[str, str | bool]:
    """
    Say what this machine enforces for programs in the sandbox. Its summary is also logged when a sandbox starts, once
    in a process: as a warning if something is not enforced.

    To have all of it, allow users to make namespaces: `user.max_user_namespaces` above 0, on Debian
    `kernel.unprivileged_userns_clone=1`. Where `kernel.apparmor_restrict_unprivileged_userns` is 1, as by default from
    Ubuntu 24.04 on, AppArmor leaves namespaces to root and to programs whose profile says `userns,`: write one for the
    executable of this Python, or set it to 0. A profile for `bwrap` does not help.

    Args:
        sandbox ([`PythonSandbox`], *optional*):
            The sandbox to ask; one with the default limits if not given.

    Returns:
        `dict[str, str | bool]`:
            `network`, `filesystem` and `processes`: whether a program is cut off from the machine's; `account`:
            whether it runs as nobody; `seccomp`: whether calls that no program needs are denied; `limits`: time,
            memory, output, always; `kernel`; and `summary`, a sentence or two.
    """
    from .python import PythonSandbox

    with contextlib.ExitStack() as stack:
        report = (sandbox or stack.enter_context(PythonSandbox())).report
    return {**report, "limits": True, "kernel": platform.release(), "summary": _summary(report)}


def log_report(report: dict[str, bool]) -> None:
    """Log what a sandbox enforces, unless the same has been logged in this process."""
    enforced = all(report[name] for name in ("network", "filesystem", "processes", "seccomp"))
    advice = "" if enforced else " What to do: see the documentation of `sandbox_report`."
    log_once(logging.INFO if enforced else logging.WARNING, f"Python sandbox: {_summary(report)}{advice}")


@functools.cache
def log_once(level: int, text: str) -> None:
    """Log a text, unless it has been logged in this process."""
    logger.log(level, text)


def _summary(report: dict[str, bool]) -> str:
    open_ends = [name for name in ("network", "filesystem", "processes") if not report[name]]
    summary = "Programs are cut off from network, file system and processes of this machine."
    if open_ends:
        summary = (
            f"Programs run under limits, but are NOT cut off from this machine's {', '.join(open_ends)}: the "
            "namespaces for that are switched off, or its kernel does not allow them."
        )
    if not report["seccomp"]:
        summary += " They may make every system call: the kernel takes no filter here."
    return summary
