"""Tools an agent may call: the runtime that runs them, local search, and sandboxed Python."""

from .metrics import tool_metrics
from .options import NoResult, ToolOptions, TransientToolError, tool_options
from .python import PythonSandbox, SandboxError, make_python_tool, sandbox_report
from .runtime import ToolRuntime
from .search import BM25Search, Document, Passage, SearchBackend, make_search_tool
from .texts import cut_text, result_text

__all__ = [
    "BM25Search",
    "Document",
    "NoResult",
    "Passage",
    "PythonSandbox",
    "SandboxError",
    "SearchBackend",
    "ToolOptions",
    "ToolRuntime",
    "TransientToolError",
    "cut_text",
    "make_python_tool",
    "make_search_tool",
    "result_text",
    "sandbox_report",
    "tool_metrics",
    "tool_options",
]
