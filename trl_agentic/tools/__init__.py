"""Tools an agent may call: the runtime that runs them, search, and sandboxed Python."""

from .arpo_cache import import_arpo_cache
from .cache import CacheKey, CachedResult, ReplayMiss, ResultCache
from .dense_search import DenseSearch, TextEncoder
from .executors import make_executor_tool, open_executor
from .hybrid_search import HybridSearch
from .jobs import CallState
from .json_api import ApiLimits, SearchError
from .metrics import tool_metrics
from .options import NoResult, ToolOptions, TransientToolError, tool_options
from .python import PythonSandbox, SandboxError, make_python_tool
from .python_report import sandbox_report
from .python_session import PythonEnvironment, PythonSession
from .runtime import ToolRuntime
from .search import BM25Search, Document, Passage, SearchBackend, make_search_tool
from .search_engines import BraveSearch, BrightDataSearch, SerperSearch, TavilySearch
from .texts import cut_text, result_text

__all__ = [
    "ApiLimits",
    "BM25Search",
    "BraveSearch",
    "BrightDataSearch",
    "CacheKey",
    "CachedResult",
    "CallState",
    "DenseSearch",
    "Document",
    "HybridSearch",
    "NoResult",
    "Passage",
    "PythonEnvironment",
    "PythonSandbox",
    "PythonSession",
    "ReplayMiss",
    "ResultCache",
    "SandboxError",
    "SearchBackend",
    "SearchError",
    "SerperSearch",
    "TavilySearch",
    "TextEncoder",
    "ToolOptions",
    "ToolRuntime",
    "TransientToolError",
    "cut_text",
    "import_arpo_cache",
    "make_executor_tool",
    "make_python_tool",
    "make_search_tool",
    "open_executor",
    "result_text",
    "sandbox_report",
    "tool_metrics",
    "tool_options",
]
