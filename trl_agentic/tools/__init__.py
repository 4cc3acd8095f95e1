"""Tools an agent may call: the runtime that runs them, search, a browser, and sandboxed Python."""

from .arpo_cache import import_arpo_cache
from .browser import make_browser_tool
from .cache import CachedResult, CacheKey, ReplayMiss, ResultCache
from .calls.jobs import CallState
from .calls.texts import cut_text, result_text
from .executors import make_executor_tool, open_executor
from .metrics import tool_metrics
from .options import NoResult, ToolOptions, TransientToolError, tool_options
from .python import PythonSandbox, SandboxError, make_python_tool
from .python_report import sandbox_report
from .python_session import PythonEnvironment, PythonSession
from .runtime import ToolRuntime
from .search import BM25Search, Document, Passage, SearchBackend, make_search_tool
from .search_backends.dense import DenseSearch, TextEncoder
from .search_backends.hybrid import HybridSearch
from .search_backends.search_engines import BraveSearch, BrightDataSearch, SerperSearch, TavilySearch
from .web.json_api import ApiLimits, SearchError
from .web.page_fetch import PageError, PageFetcher
from .web.page_reader import PageReader, ReaderError

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
    "PageError",
    "PageFetcher",
    "PageReader",
    "Passage",
    "PythonEnvironment",
    "PythonSandbox",
    "PythonSession",
    "ReaderError",
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
    "make_browser_tool",
    "make_executor_tool",
    "make_python_tool",
    "make_search_tool",
    "open_executor",
    "result_text",
    "sandbox_report",
    "tool_metrics",
    "tool_options",
]
