"""From the body of a response to what a model can read."""

from __future__ import annotations

import json
from dataclasses import dataclass

from .decoding import UnreadablePageError, clean, decode, refuse_binary
from .markup import html_text, page_title, visible_text
from .pdf import pdf_text

_MARKUP_STARTS = ("<!doctype html", "<html", "<head", "<body")


@dataclass(frozen=True)
class PageText:
    """
    The text of a page.

    Args:
        title (`str`):
            What the page calls itself, in one line; may be empty.
        text (`str`):
            Its text; not empty, valid Unicode, without control characters.
        remark (`str`, *optional*, defaults to `""`):
            What was left out, as half a sentence.
    """

    title: str
    text: str
    remark: str = ""


@dataclass(frozen=True)
class Limits:
    """
    What may be spent on a page.

    Args:
        max_chars (`int`, *optional*, defaults to `400_000`):
            Most characters of the text.
        max_pages (`int`, *optional*, defaults to `100`):
            Most pages of a PDF.
        timeout_s (`float`, *optional*, defaults to `20.0`):
            Seconds after which no further page of a PDF is begun.
    """

    max_chars: int = 400_000
    max_pages: int = 100
    timeout_s: float = 20.0


def extract(
    content: bytes, content_type: str, *, is_complete: bool = True, plain: bool = False, limits: Limits | None = None
) -> PageText:
    """
    Read a page.

    Args:
        content (`bytes`):
            The body of the response.
        content_type (`str`):
            Its header, with parameters; may be empty or wrong.
        is_complete (`bool`, *optional*, defaults to `True`):
            Whether `content` is the whole body.
        plain (`bool`, *optional*, defaults to `False`):
            Take all text of an HTML page, without looking for the main content.
        limits ([`Limits`], *optional*):
            What may be spent.

    Returns:
        [`PageText`]:
            Title, text and remark.

    Raises:
        UnreadablePageError: If there is no text.
    """
    limits = Limits() if limits is None else limits
    if not content.strip():
        raise UnreadablePageError("The page is empty: the server sent nothing.")
    kind = content_type.partition(";")[0].strip().lower()
    if b"%PDF-" in content[:1024]:
        if not is_complete:
            raise UnreadablePageError("This PDF is too long, or was cut on the way: a part of it can not be read.")
        return PageText(*pdf_text(content, limits.max_chars, limits.max_pages, limits.timeout_s))
    if kind == "application/pdf":
        raise UnreadablePageError("This is said to be a PDF, and is none.")
    refuse_binary(content, content_type)
    text = decode(content, content_type)
    remark = "" if is_complete else "only the beginning of the page was read"
    title, text = _from_text(text, kind, limits.max_chars, plain)
    if not text:
        raise UnreadablePageError("The page has no text.")
    return PageText(title, text, remark or ("the page goes on" if len(text) >= limits.max_chars - 1 else ""))


def _from_text(text: str, kind: str, max_chars: int, plain: bool) -> tuple[str, str]:
    start = text[:1024].lstrip("\ufeff \t\r\n").lower()
    if kind in ("text/html", "application/xhtml+xml") or start.startswith(_MARKUP_STARTS):
        return html_text(text, max_chars, plain)
    if kind.endswith(("/xml", "+xml")) or start.startswith("<?xml"):
        plain_text = visible_text(text.replace("<![CDATA[", " ").replace("]]>", " "), hidden=())
        return page_title(text), clean(plain_text, max_chars)
    if kind.endswith(("/json", "+json")):
        text = _spread(text)
    return "", clean(text, max_chars, is_code=True)


def _spread(text: str) -> str:
    """JSON over several lines, so that it can be cut into passages; as it is where it is none."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=1)
    except (ValueError, RecursionError):
        return text
