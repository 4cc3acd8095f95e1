"""From HTML to text: the main content by trafilatura, or all of the text where that finds too little."""

from __future__ import annotations

import copy
import html
import re
from collections import Counter
from typing import TYPE_CHECKING

from .decoding import UnreadablePageError, clean, hold_spaces, release_spaces

if TYPE_CHECKING:
    from lxml.html import HtmlElement

_RICH_CHARS = 3_000_000  # trafilatura takes some 5 s for a million characters of table
_FEW_CHARS = 250  # less than a paragraph: a page that short is better shown whole
_NEARLY_ALL = 0.9  # of characters or words
_TITLE_CHARS = 300
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,2000})", re.IGNORECASE)
_HEADING = re.compile(r"<h1[^>]{0,1000}>([^<]{1,2000})", re.IGNORECASE)
_HEAD_CHARS = 200_000
_NAME = re.compile(r"/?([a-zA-Z][a-zA-Z0-9]*)")
_HIDDEN = ("script", "style", "template", "svg", "title", "textarea")
_SCRIPTS = {"sup": "^", "sub": "_"}  # no digits of the number before them
_CELL_BREAK = (" | ", "")  # before and behind a cell of a table
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code del dfn em font i ins kbd label mark nobr q s samp small span strike "
    "script strong style sub sup svg template time tt u var wbr".split()
)


def html_text(markup: str, max_chars: int, plain: bool = False) -> tuple[str, str]:
    """
    The title and the text of an HTML page.

    Args:
        markup (`str`):
            The page, however broken.
        max_chars (`int`):
            Most characters of the text.
        plain (`bool`, *optional*, defaults to `False`):
            Take all of the text, navigation included, without building a tree: always works, in linear time.

    Returns:
        `tuple[str, str]`:
            Title and text; the title may be empty.

    Raises:
        UnreadablePageError: If there is no text outside scripts.
    """
    title = page_title(markup)
    is_rich = not plain and len(markup) <= _RICH_CHARS
    main, whole = _read_tree(markup) if is_rich else ("", visible_text(markup))
    text = clean(main, max_chars)
    if len(text) < _FEW_CHARS:
        text = max(clean(whole, max_chars), text, key=lambda each: len("".join(each.split())))
    if not text:
        named = f" Its title is {title!r}." if title else ""
        scripts = " It is built by scripts, which are not run." if "<script" in markup.lower() else ""
        raise UnreadablePageError(f"The page has no text.{scripts}{named}")
    return title, release_spaces(text)


def page_title(markup: str) -> str:
    """What a page calls itself: its `<title>`, else its first `<h1>`, else `""`."""
    head = markup[:_HEAD_CHARS]
    found = _TITLE.search(head) or _HEADING.search(head)
    return clean(html.unescape(found[1]), _TITLE_CHARS).replace("\n", " ") if found else ""


def visible_text(markup: str, hidden: tuple[str, ...] = _HIDDEN) -> str:
    """
    All text of a page that is not in a script or a style sheet.

    One pass over the pieces between `<`: no tree and no recursion, so that nesting and missing ends cost nothing. The
    spaces in `<pre>` are held, see [`hold_spaces`].

    Args:
        markup (`str`):
            HTML or XML, however broken.
        hidden (`tuple[str, ...]`, *optional*):
            Elements whose content is left out; for HTML by default.

    Returns:
        `str`:
            The text, a line for each block.
    """
    first, *pieces = markup.split("<")
    shown = [html.unescape(first)]
    closing = ""  # the tag that ends the element which is being left out
    in_comment = in_code = False
    for piece in pieces:
        if closing and piece[: len(closing)].lower() != closing:
            continue
        if in_comment or piece.startswith("!--"):
            _, end, text = piece.partition("-->")
            in_comment = not end
            shown.append(html.unescape(text))
            continue
        tag, is_open, text = _read_tag(piece)
        closing = f"/{tag}" if is_open and tag in hidden else ""
        in_code = is_open if tag == "pre" else in_code
        if in_code:
            line = text.lstrip("\n")
            text = "\n" * (line != text) + hold_spaces(line)
        shown.append("" if closing else text)
    return "\n".join(line for line in "".join(shown).split("\n") if line.strip(" |\t\r\xa0"))


def _read_tag(piece: str) -> tuple[str, bool, str]:
    """Name of a tag, whether it opens an element, and what follows it, on a line of its own unless it is inline."""
    name = _NAME.match(piece)
    inside, _, text = piece.partition(">")
    if name is None:
        is_markup = piece.startswith(("!", "?", "/"))
        return "", False, html.unescape(text if is_markup else f"<{piece}")  # "a < b"
    tag = name[1].lower()
    is_end = piece.startswith("/")
    before = "" if tag in _INLINE else _CELL_BREAK[is_end] if tag in ("td", "th") else "\n"
    script = "" if is_end else _SCRIPTS.get(tag, "")
    return tag, not is_end and not inside.endswith("/"), before + script + html.unescape(text)


def _read_tree(markup: str) -> tuple[str, str]:
    """The main content of a page, and all of its text; both with exponents, formulas and code in plain characters."""
    import trafilatura
    from lxml.html import tostring

    from .blocks import empty_hidden, hold_code, mark_paragraphs
    from .notation import write_formulas, write_scripts

    tree = trafilatura.load_html(markup)
    if tree is None:
        return "", visible_text(markup)
    for rewrite in (write_formulas, empty_hidden, write_scripts, hold_code):
        rewrite(tree)
    whole = visible_text(tostring(tree, encoding="unicode"))
    unmarked = copy.deepcopy(tree)
    mark_paragraphs(tree)
    main = _main_text(tree)
    if len(main) < _NEARLY_ALL * len(whole):
        # With more paragraphs to choose from, trafilatura may take another part of the page for its main content
        expected = Counter((plain := _main_text(unmarked)).split())
        if (expected & Counter(main.split())).total() < _NEARLY_ALL * expected.total():
            main = plain
    return main, whole


def _main_text(tree: HtmlElement) -> str:
    import trafilatura

    return trafilatura.extract(tree, favor_recall=True, include_comments=False, include_tables=True) or ""
