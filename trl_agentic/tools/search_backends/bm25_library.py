"""Imports `bm25s` without `numba`, which it would take along wherever that is installed."""

from __future__ import annotations

import logging
import sys
from types import ModuleType


def import_bm25s() -> ModuleType:
    """
    Import `bm25s`.

    It gives the same scores without `numba`, which takes a second to import, and once `numba` is imported vLLM 0.31
    cannot build an engine on CPU in the same process: it searches all modules for kernels and fails at `llvmlite`.

    Returns:
        `ModuleType`:
            The module `bm25s`.

    Raises:
        ImportError: If `bm25s` is not installed.
    """
    hidden = "bm25s" not in sys.modules and "numba" not in sys.modules
    if hidden:
        sys.modules["numba"] = None  # type: ignore[assignment]  # makes `import numba` raise ImportError
    try:
        import bm25s
    except ImportError as error:
        raise ImportError("Local search needs bm25s: install it with `pip install trl-agentic[search]`.") from error
    finally:
        if hidden:
            del sys.modules["numba"]
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets DEBUG, and a line per index would be printed
    return bm25s
