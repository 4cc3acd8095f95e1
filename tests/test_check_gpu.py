"""`scripts/check_gpu.py`: its lines and table, what it makes of processes that fail, and all of it on a CPU (slow)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture(scope="module")
def scripts():
    """The modules of the script, which imports its neighbours by their bare names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        import check_gpu
        import check_report

        yield check_gpu, check_report


@pytest.fixture
def check(scripts):
    """Makes a check of a function."""
    return lambda measure, name="speed": scripts[1].Check(name, "all", "at most 3", measure)


def returned(value):
    return lambda shared: value


def raised(error):
    def measure(shared):
        raise error

    return measure


@pytest.mark.parametrize(
    ("measure", "line"),
    [
        (returned((True, "2 s")), "[ok] speed: 2 s (at most 3)"),
        (returned((False, "4 s")), "[FAILED] speed: 4 s (at most 3)"),
        (raised(ValueError("no such\n  device")), "[FAILED] speed: ValueError: no such device (at most 3)"),
        (raised(KeyError("x")), "[FAILED] speed: KeyError: 'x' (at most 3)"),
        (raised(AssertionError()), "[FAILED] speed: AssertionError: (at most 3)"),
    ],
)
def test_a_check_is_one_line_whatever_happens_in_it(check, measure, line):
    assert str(check(measure).run(None)) == line


def test_a_check_that_cannot_be_made_says_why(scripts, check):
    skipped = check(raised(scripts[1].Skip("there is no GPU"))).run(None)
    assert str(skipped) == "[skipped] speed: there is no GPU (at most 3)"
    assert scripts[1].exit_code([skipped]) == 0


def test_a_long_figure_is_cut(check):
    assert check(raised(ValueError("x" * 1000))).run(None).figure == "ValueError: " + 387 * "x" + "…"


@pytest.mark.parametrize(("states", "code"), [("", 0), ("ok", 0), ("ok skipped", 0), ("ok FAILED skipped", 1)])
def test_the_exit_code_is_1_when_one_failed(check, scripts, states, code):
    results = [check(None).result(state, "") for state in states.split()]
    assert scripts[1].exit_code(results) == code


def test_the_table_has_failures_first_and_keeps_its_columns(check, scripts):
    results = [
        check(None, "one").result("ok", "a | b"),
        check(None, "two").result("skipped", "no GPU"),
        check(None, "three").result("FAILED", "4 s"),
    ]
    head, empty, columns, line, *rows = scripts[1].markdown(results).splitlines()
    assert (head, empty) == ("`scripts/check_gpu.py`: 1 ok, 1 FAILED, 1 skipped", "")
    assert rows == [
        "| three | FAILED | 4 s | at most 3 |",
        r"| one | ok | a \| b | at most 3 |",
        "| two | skipped | no GPU | at most 3 |",
    ]


def test_results_are_found_among_what_libraries_print(check, scripts):
    result = check(None).result("ok", "2 s, “fast”")
    lines = ["INFO loading", result.dump(), "", "[ok] speed: 1 s (not ours)"]
    assert list(scripts[1].read_results(lines)) == [result]


@pytest.mark.parametrize(
    ("code", "timeout_s", "reason"),
    [
        ("import os; print('out of memory'); os._exit(3)", 60, "the process ended with code 3: out of memory"),
        ("import os; os.kill(os.getpid(), 9)", 60, "the process ended with code -9: nothing was printed"),
        ("raise SystemExit('no module vllm')", 60, "the process ended with code 1: no module vllm"),
        ("import time; time.sleep(60)", 0.2, "the process was killed after 0.2 s: nothing was printed"),
    ],
)
def test_a_process_that_ends_early_fails_the_checks_that_it_had_not_made(check, scripts, code, timeout_s, reason):
    made, missing = check(None, "one"), check(None, "two")
    code = f"print({made.result('ok', 'fine').dump()!r}, flush=True); {code}" if "print" in code else code
    results = list(scripts[0].run_process([sys.executable, "-c", code], [made, missing], os.environ, timeout_s))
    assert str(results[-1]) == f"[FAILED] two: {reason} (at most 3)"
    assert [result.state for result in results] == (["ok", "FAILED"] if "print" in code else ["FAILED", "FAILED"])


@pytest.mark.parametrize(
    ("group", "visible", "seen"),
    [
        ("arpo", {}, "0"),
        ("lora", {"CUDA_VISIBLE_DEVICES": "2,3"}, "2"),
        ("sleep", {"CUDA_VISIBLE_DEVICES": ""}, ""),  # none
        ("fsdp2", {"CUDA_VISIBLE_DEVICES": "2,3"}, "2,3"),
        ("machine", {}, None),
    ],
)
def test_a_group_sees_one_gpu_unless_it_is_about_all_of_them(scripts, group, visible, seen):
    environment = scripts[0].environment_for(group, visible | {"VLLM_LOGGING_LEVEL": "INFO"})
    assert environment.get("CUDA_VISIBLE_DEVICES") == seen
    assert environment["VLLM_LOGGING_LEVEL"] == "INFO"  # the user's word


def test_only_takes_names_and_an_unknown_one_is_told_which_there_are(check, scripts):
    checks = [check(None, name) for name in ("one", "two", "three")]
    chosen = scripts[0].chosen
    assert chosen(checks, None) == checks
    assert [each.name for each in chosen(checks, ["three", "one"])] == ["one", "three"]
    with pytest.raises(SystemExit, match=r"There is no check four\. `--only` takes one, two, three\."):
        chosen(checks, ["one", "four"])


@pytest.mark.slow
def test_all_that_a_cpu_can_check_is_well_here():
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "check_gpu.py")],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPTS.parent)},
    )
    states = {name: state for state, name in re.findall(r"^\[(\w+)\] (\w+): ", done.stdout, re.MULTILINE)}
    on_gpus_alone = {"memory", "sleep", "fsdp2"}
    here = {"versions", "kernels", "engine", "log_probs", "entropies", "prefix_cache", "arpo", "checkpoint", "appo"}
    assert states == dict.fromkeys(here | {"lora"}, "ok") | dict.fromkeys(on_gpus_alone, "skipped"), done.stdout
    assert done.returncode == 0
    assert "`scripts/check_gpu.py`: 10 ok, 0 FAILED, 3 skipped" in done.stdout
