"""
Measure what a call in the Python sandbox costs, and what forking a session costs.

    python scripts/bench_sandbox.py --output docs/results/sandbox.md

Each program is run in turn by the sandbox, by a session, and in a bare fork of this process that has imported the same
modules: what the fork needs for the code alone, its own time, is subtracted. Prints a table and writes it where asked.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from trl_agentic.tools import PythonSandbox, PythonSession, sandbox_report

PROGRAMS = {
    "pass": "pass",
    "numpy": "import numpy as np\nprint(np.linalg.eigvalsh(np.arange(100.0).reshape(10, 10)).sum())",
    "sympy": "import sympy\nx = sympy.symbols('x')\nprint(sympy.factor(x**4 - 1))",
}
PRELOAD = ("numpy", "sympy")
Samples = dict[str, list[float]]  # milliseconds by arm


def seconds(action: Callable[[], object]) -> float:
    """Seconds that an action takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def own_seconds(code: str) -> float:
    """Seconds that code takes in a fresh fork of this process, without the fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        program = compile(code, "<python>", "exec")
        with contextlib.redirect_stdout(io.StringIO()):
            taken = seconds(lambda: exec(program, {"__name__": "__main__"}))
        os.write(writing, repr(taken).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as answer:
        taken = float(answer.read())
    os.waitpid(child, 0)
    return taken


def measure_calls(sandbox: PythonSandbox, session: PythonSession, repeats: int) -> dict[str, Samples]:
    """Own time, a call of the sandbox and a call of the session, in turn, by program."""
    found: dict[str, Samples] = {name: {"own": [], "sandbox": [], "session": []} for name in PROGRAMS}
    for turn in range(repeats + 3):
        for name, code in PROGRAMS.items():
            taken = {"own": own_seconds(code), "sandbox": seconds(lambda code=code: sandbox.run(code))}
            with session.fork() as child:  # which has run nothing yet, so that caches are as cold as elsewhere
                taken["session"] = seconds(lambda code=code, child=child: child.run(code))
            if turn >= 3:  # the first ones warm up
                for arm, value in taken.items():
                    found[name][arm].append(value * 1e3)
    return found


def measure_forks(sandbox: PythonSandbox, repeats: int) -> dict[str, Samples]:
    """A fork, and the first call of a child against a call of its parent, by size of the state."""
    states = {
        "empty": "pass",
        "100 MB of variables, 4 MB in 4 files": "x = bytearray(b'a' * 100_000_000)\n"
        "for name in 'abcd': open(name, 'wb').write(b'a' * 1_000_000)",
    }
    found: dict[str, Samples] = {}
    for name, code in states.items():
        samples: Samples = {"fork": [], "first call of the fork": [], "call of the parent": []}
        with sandbox.session() as session:
            session.run(code)
            for _ in range(repeats):
                start = time.perf_counter()
                child = session.fork()
                samples["fork"].append((time.perf_counter() - start) * 1e3)
                samples["first call of the fork"].append(seconds(lambda child=child: child.run("pass")) * 1e3)
                samples["call of the parent"].append(seconds(lambda session=session: session.run("pass")) * 1e3)
                child.close()
        found[name] = samples
    return found


def percentile(values: list[float], share: float) -> float:
    """The value that a share of all values does not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def over_own(samples: Samples, arm: str) -> list[float]:
    """What each call took beyond the own time that was measured right before it."""
    return [taken - own for taken, own in zip(samples[arm], samples["own"], strict=True)]


def row(*cells: str | float) -> str:
    """A line of a table."""
    return "| " + " | ".join(cell if isinstance(cell, str) else f"{cell:.2f}" for cell in cells) + " |"


def tables(calls: dict[str, Samples], forks: dict[str, Samples]) -> str:
    """Both tables, in Markdown."""
    lines = [row("program", "own", "sandbox over own, median", "p95", "session over own, median", "p95")]
    lines.append("|" + "---|" * 6)
    for name, samples in calls.items():
        extra = [over_own(samples, arm) for arm in ("sandbox", "session")]
        figures = [figure for each in extra for figure in (statistics.median(each), percentile(each, 0.95))]
        lines.append(row(f"`{name}`", statistics.median(samples["own"]), *figures))
    lines += ["", row("state", "fork, median", "p95", "first call of the fork, median", "call of the parent, median")]
    lines.append("|" + "---|" * 5)
    for name, samples in forks.items():
        later = [statistics.median(samples[arm]) for arm in ("first call of the fork", "call of the parent")]
        lines.append(row(name, statistics.median(samples["fork"]), percentile(samples["fork"], 0.95), *later))
    return "\n".join(lines)


def document(args: argparse.Namespace, report: dict[str, str | bool], body: str) -> str:
    """The page for `docs/results`."""
    enforced = ", ".join(name for name, value in report.items() if value is True)
    programs = "\n".join(f"- `{name}`: `{code.splitlines()[-1]}`" for name, code in PROGRAMS.items())
    return f"""# What the Python sandbox costs

## Measured with

```sh
python scripts/bench_sandbox.py --repeats {args.repeats} --output {args.output}
```

Python {platform.python_version()}, Linux {platform.release()}, {os.cpu_count()} processors, a load of
{os.getloadavg()[0]:.1f} at the end. Enforced: {enforced}. `numpy` and `sympy` are
preloaded, as in `make_python_tool()`. {args.repeats} rounds, in each of which the arms take turns. Milliseconds.

{body}

Last lines of the programs:

{programs}

*Own* is the code alone in a fresh fork of a process that has imported the same modules. Neither the sandbox's process
nor the session has run the code before, so that caches inside the libraries are cold in every arm.

Forking a session only notes where it stands. What has to be copied is copied by every call, of a parent and of a fork
alike, because each call runs in a copy of its session: the last two columns show that nothing was put off.
"""


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=100, help="rounds (default: 100)")
    parser.add_argument("--output", type=Path, help="write the tables to this Markdown file")
    parser.add_argument("--json", type=Path, help="write all samples, in milliseconds, to this file")
    args = parser.parse_args()
    for name in PRELOAD:
        importlib.import_module(name)
    with PythonSandbox(preload=PRELOAD) as sandbox:
        report = sandbox_report(sandbox)
        with sandbox.session() as session:
            calls = measure_calls(sandbox, session, args.repeats)
        forks = measure_forks(sandbox, args.repeats)
    body = tables(calls, forks)
    print(body)
    if args.output:
        args.output.write_text(document(args, report, body), encoding="utf-8")
    if args.json:
        args.json.write_text(
            json.dumps({"report": report, "calls": calls, "forks": forks}, indent=1), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
