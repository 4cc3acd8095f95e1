"""
The browser: fetches a page, reads it, and answers a question about it.

Example:
    ```python
    browse = make_browser_tool()
    browse("https://en.wikipedia.org/wiki/Cuba", "What is the capital?")
    ```
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable

from .calls.texts import cut_text
from .options import NoResult, tool_options
from .web.page_fetch import FetchedPage, PageError, PageFetcher
from .web.page_parser import PageParser, page_parser
from .web.page_reader import PageReader, best_passages
from .web.page_text.decoding import UnreadablePageError, clean
from .web.page_text.extraction import Limits, PageText

_VERSION = "2"
_MAX_QUESTION_CHARS = 2_000


def make_browser_tool(
    fetcher: PageFetcher | None = None,
    reader: PageReader | None = None,
    *,
    top_k: int = 4,
    timeout_s: float = 45.0,
    max_result_chars: int = 8_000,
    max_page_chars: int = 400_000,
    max_pdf_pages: int = 100,
    max_concurrency: int | None = None,
    num_retries: int = 1,
    parser: PageParser | None = None,
) -> Callable[[str, str], str]:
    """
    Make the tool `browse`, to be passed in `tools=[...]`.

    HTML, PDF, JSON, XML and plain text are read; scripts are not run. Only public addresses can be reached, see
    [`PageFetcher`].

    Args:
        fetcher ([`PageFetcher`], *optional*):
            Fetches pages.
        reader ([`PageReader`], *optional*):
            Answers questions about a page. Without one, the tool shows the passages that share most words with the
            question.
        top_k (`int`, *optional*, defaults to `4`):
            Most passages to show when there is no reader.
        timeout_s (`float`, *optional*, defaults to `45.0`):
            Deadline of a call in seconds: the page, its text and the answer together.
        max_result_chars (`int`, *optional*, defaults to `8_000`):
            Most characters of a result.
        max_page_chars (`int`, *optional*, defaults to `400_000`):
            Most characters of a page that are searched for the answer.
        max_pdf_pages (`int`, *optional*, defaults to `100`):
            Most pages of a PDF that are read.
        max_concurrency (`int`, *optional*):
            Most calls at the same time.
        num_retries (`int`, *optional*, defaults to `1`):
            Attempts after the first, where a server or the reader asks to come back later.
        parser ([`PageParser`], *optional*):
            Reads pages; by default one that all browser tools of the process share.

    Returns:
        `Callable[[str, str], str]`:
            A function named `browse`. It returns a text that is never empty, or raises [`PageError`],
            [`ReaderError`] or [`TransientToolError`] with a message for the model.

    Raises:
        ImportError: If a library of the extras `browser` and `search` is not installed.
        ValueError: If a limit is out of range.
    """
    limits = (("top_k", top_k), ("max_page_chars", max_page_chars), ("max_pdf_pages", max_pdf_pages))
    for name, value, least in (*((*limit, 1) for limit in limits), ("max_result_chars", max_result_chars, 200)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}.")
    if importlib.util.find_spec("bm25s") is None:
        raise ImportError("Finding passages in a page needs bm25s. Install it with `pip install trl-agentic[search]`.")
    fetcher = PageFetcher() if fetcher is None else fetcher
    parser = page_parser() if parser is None else parser
    version = f"{_VERSION}/{top_k}/{max_result_chars}/{max_page_chars}/{max_pdf_pages}/{reader and reader.version}"

    @tool_options(
        timeout_s=timeout_s, max_concurrency=max_concurrency, num_retries=num_retries, cached=True, version=version
    )
    def browse(url: str, question: str) -> str:
        """
        Read a web page and find what you want to know in it.

        Args:
            url: Address of the page, for example from a search result.
            question: What you want to know from the page.

        Returns:
            The answer, or the passages of the page that fit best.
        """
        deadline = time.monotonic() + 0.95 * timeout_s  # an answer of our own comes before the runtime's
        question = clean(question, _MAX_QUESTION_CHARS)
        if not url.strip():
            raise PageError("The url is empty. Give the address of a page.")
        parser.warm()
        fetched = fetcher.fetch(url, timeout_s=deadline - time.monotonic())
        page = _read(parser, fetched, Limits(max_page_chars, max_pdf_pages, _left(deadline)))
        head = "\n".join(filter(None, [page.title, fetched.url, page.remark and f"({page.remark})"]))
        if reader is not None:
            answer = reader.answer(page, question, timeout_s=_left(deadline))
            text = cut_text(f"{head}\n\n{answer}", max_result_chars)
        else:
            text = _passages(page, head, question, top_k, max_result_chars)
        return NoResult(text) if fetched.broke_off else text  # a cache soon forgets what may be whole next time

    return browse


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.01)


def _read(parser: PageParser, fetched: FetchedPage, limits: Limits) -> PageText:
    try:
        return parser.read(fetched.content, fetched.content_type, is_complete=fetched.is_complete, limits=limits)
    except UnreadablePageError as error:
        raise PageError(f"{fetched.url}: {error}") from error


def _passages(page: PageText, head: str, question: str, top_k: int, max_chars: int) -> str:
    """The best passages of a page, each cut to its share, or its beginning."""
    left = max_chars - len(head)
    passages = best_passages(page.text, question, top_k)
    if not passages:
        reason = "No passage shares a word with the question. " if question else ""
        return NoResult(cut_text(f"{head}\n\n{reason}The page begins:\n{page.text[: left - 100]}", max_chars))
    share = max(left // len(passages) - 8, 20)
    shown = [f"[{number}] {cut_text(passage, share)}" for number, passage in enumerate(passages, start=1)]
    return cut_text("\n\n".join([head, *shown]), max_chars)
