"""Says what this machine enforces for programs in [`PythonSandbox`]."""

from __future__ import annotations

import contextlib
import platform

from .python import PythonSandbox


def sandbox_report(sandbox: PythonSandbox | None = None) -> dict[str, str | bool]:
    """
    Say what this machine enforces for programs in the sandbox.

    Args:
        sandbox ([`PythonSandbox`], *optional*):
            The sandbox to ask; one with the default limits if not given.

    Returns:
        `dict[str, str | bool]`:
            `network`, `filesystem` and `processes`: whether a program is cut off from the machine's; `account`:
            whether it runs as nobody; `seccomp`: whether calls that no program needs are denied; `limits`: time,
            memory, output, always; `kernel`; and `summary`, a sentence or two.
    """
    with contextlib.ExitStack() as stack:
        report = (sandbox or stack.enter_context(PythonSandbox())).report
    open_ends = [name for name in ("network", "filesystem", "processes") if not report[name]]
    summary = "Programs are cut off from network, file system and processes of this machine."
    if open_ends:
        summary = (
            f"Programs run under limits, but are NOT cut off from this machine's {', '.join(open_ends)}: its kernel "
            "does not allow the namespaces for that."
        )
    if not report["seccomp"]:
        summary += " They may make every system call: the kernel takes no filter here."
    return {**report, "limits": True, "kernel": platform.release(), "summary": summary}
