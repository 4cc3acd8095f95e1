"""Tools an agent may call: the runtime that runs them, local search, and sandboxed Python."""

from .metrics import tool_metrics
from .python import PythonSandbox, SandboxError, make_python_tool, sandbox_report
from .runtime import ToolRuntime
from .search import BM25Search, Document, Passage, SearchBackend, make_search_tool
from .texts import cut_text, result_text

__all__ = [
    "BM25Search",
    "Document",
    "Passage",
    "PythonSandbox",
    "SandboxError",
    "SearchBackend",
    "ToolRuntime",
    "cut_text",
    "make_python_tool",
    "make_search_tool",
    "result_text",
    "sandbox_report",
    "tool_metrics",
]
