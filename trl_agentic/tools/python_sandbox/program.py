"""Runs the code of one call, in the process that was forked for it. Standard library only."""

from __future__ import annotations

import ast
import atexit
import builtins
import contextlib
import io
import os
import sys
import threading
import types
from typing import Any

from .notations import advice, parse, shows_figure

EXIT_OUT_OF_MEMORY, EXIT_NOT_STARTED = 86, 87


def show_error(kind: type[BaseException], error: BaseException | None, trace: types.TracebackType | None) -> None:
    """Print an uncaught exception as one line, `"ZeroDivisionError: division by zero (line 3)"`."""
    if issubclass(kind, MemoryError):
        os._exit(EXIT_OUT_OF_MEMORY)
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<python>":
            line = trace.tb_lineno
        trace = trace.tb_next
    message = "(its message cannot be shown)"
    with contextlib.suppress(BaseException):  # whatever a method of the program's own exception raises
        message = str(error)
        if isinstance(error, SyntaxError):
            message, line = str(error.msg), line or error.lineno
    where = "" if line is None else f" (line {line})"
    show(f"{kind.__name__}: {message}{where}" if message else f"{kind.__name__}{where}")


def show(line: str) -> None:
    """Print a line, even if the program has put something else in the place of the output."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or no stream any more
        sys.__stdout__.flush()  # type: ignore[union-attr]
    with contextlib.suppress(OSError):
        os.write(1, line.encode("utf-8", "backslashreplace") + b"\n")


def flush() -> None:
    """Print what has been kept back, if the program has left the streams as they were."""
    for stream in (sys.stdout, sys.__stdout__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # type: ignore[union-attr]


def leave(code: int) -> None:
    """
    End the program's process as the interpreter would, but without tearing every module down: that takes longer than
    most programs. Where there are other threads, return, so that the interpreter waits for them.
    """
    if threading.active_count() > 1:
        return
    atexit._run_exitfuncs()
    flush()
    os._exit(code)


def show_last_error(*failed: Any) -> None:
    """What happens to an exception that ends the program."""
    show_error(*failed)
    leave(1)


def open_output() -> None:
    """Let everything that is printed go to descriptor 1, as it is written."""
    output = io.FileIO(1, "w", closefd=False)
    stream = io.TextIOWrapper(io.BufferedWriter(output), "utf-8", "backslashreplace", line_buffering=True)
    sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = stream  # type: ignore[misc]


def prepare_main() -> types.ModuleType:
    """A fresh module `__main__`, in an interpreter set up as programs expect it."""
    threading.excepthook = lambda failed: show_error(failed.exc_type, failed.exc_value, failed.exc_traceback)
    sys.argv = [""]
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # elsewhere the module `site` adds them
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    return main


def execute(code: str, main: types.ModuleType) -> None:
    """Run code in a module, and show the value of its last expression as an interactive session does."""
    try:
        tree = parse(code)
        has_figure = shows_figure(tree)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        program = compile(tree, "<python>", "exec")
        value = compile(ast.Expression(last.value), "<python>", "eval") if isinstance(last, ast.Expr) else None
    except SyntaxError as error:
        error.msg = advice(error) or error.msg
        raise
    exec(program, vars(main))
    if value is not None:
        sys.displayhook(eval(value, vars(main)))
    if has_figure:
        show("(figures cannot be shown here; print the numbers that you want to see)")


def run_program(code: str) -> None:
    """Run the code as `__main__`, and end the process."""
    open_output()
    sys.excepthook = show_last_error
    execute(code, prepare_main())
    leave(0)
