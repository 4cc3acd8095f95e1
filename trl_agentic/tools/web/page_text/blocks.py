"""Marks up as paragraphs what stands in other blocks, which trafilatura would leave out of a page with paragraphs."""

from __future__ import annotations

import re

from lxml.html import HtmlElement

from .decoding import hold_spaces

_UNREAD = frozenset(
    "a button iframe input link meta noscript object script select style svg template textarea".split()
)
_INLINE = _UNREAD.union(
    "abbr acronym b bdi bdo big br cite code data del dfn em font i img ins kbd label mark nobr q ruby s samp small "
    "span strike strong sub sup tt u var wbr".split()
)
_CONTAINERS = frozenset("article body center details div figcaption main section".split())
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6", "summary", "dt")
_HIDDEN = re.compile(r"(?:display\s*:\s*none|visibility\s*:\s*hidden)\b", re.IGNORECASE)
_MOST_HIDDEN = 0.75  # of the characters
_NOTICES = frozenset(
    "advert advertisement breadcrumb breadcrumbs comment comments consent contentinfo cookie cookies copyright dialog "
    "footer gdpr login menu meta navigation newsletter popup promo promotion recommended related share sharing signup "
    "sponsor sponsored subscribe subscription tags teaser widget".split()
)
_PARTS_OF_NOTICES = frozenset("bar box bio buttons card icons info links list media share".split())
# Names that blog systems give to whole articles, and page builders to any block
_NO_NOTICE = re.compile(r"(?:tag|category|has|is|no|elementor|wp-block)[-_]|.*[-_](?:open|closed|enabled)$", re.I)
_NAME_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_WORD = re.compile(r"\w")


def empty_hidden(tree: HtmlElement) -> None:
    """Empty what a browser does not show. A page that hides nearly all of itself until its scripts run is kept."""
    hidden = [element for element in tree.iter() if _is_hidden(element)]
    outermost = [element for element in hidden if not any(map(_is_hidden, element.iterancestors()))]
    if sum(map(_num_chars, outermost)) <= _MOST_HIDDEN * _num_chars(tree):
        for element in outermost:
            element.clear(keep_tail=True)


def _is_hidden(element: HtmlElement) -> bool:
    if element.tag in ("html", "body"):
        return False
    is_closed = element.tag == "template" or (element.tag == "dialog" and element.get("open") is None)
    is_marked = element.get("hidden", "until-found") != "until-found"
    return is_closed or is_marked or _HIDDEN.search(element.get("style", "")) is not None


def _num_chars(element: HtmlElement) -> int:
    return sum(len((each.text or "").strip()) for each in element.iter() if each.tag not in ("script", "style"))


def hold_code(tree: HtmlElement) -> None:
    """Make each `<pre>` a paragraph whose spaces and lines are held, see [`hold_spaces`]."""
    for code in [each for each in tree.iter("pre") if next(each.iterancestors("pre"), None) is None]:
        for line in code.iter("br", "div", "li", "p", "tr"):
            line.tail = "\n" + (line.tail or "").removeprefix("" if line.tag == "br" else "\n")
        text = "".join(code.itertext()).strip("\r\n").rstrip()
        within = next(code.iterancestors("li", "dd", "td"), None) is not None  # where a paragraph begins no line
        code.clear(keep_tail=True)
        code.tag, code.text = "p", hold_spaces("\n" * within + text)


def mark_paragraphs(tree: HtmlElement) -> None:
    """
    Make paragraphs of text that stands in a `<div>`, a caption or between blocks.

    Dates and the buttons of headings become plain text too, and custom elements blocks. What is made of links alone or
    is called a notice stays as it is.

    Args:
        tree (`lxml.html.HtmlElement`):
            The page, changed in place.
    """
    _rename(tree)
    elements = list(tree.iter())
    holding: set[HtmlElement] = set()  # elements with a block in them
    for element in reversed(elements):
        parent = element.getparent()
        if parent is not None and (element.tag not in _INLINE or element in holding):
            holding.add(parent)
    sizes = _sizes(elements)
    notices: set[HtmlElement] = set()
    for element in elements:
        if element.getparent() in notices or (_is_notice(element) and sizes[element] <= sizes[tree] / 2):
            notices.add(element)
        elif element.tag in _CONTAINERS or (element in holding and element.tag in _INLINE - _UNREAD):
            if element in holding or element.tag == "body":
                _wrap_runs(element, holding)
            elif _is_prose(element.text, list(element)):
                element.tag = "p"


def _rename(tree: HtmlElement) -> None:
    for element in tree.iter("figure", "time", "button", "label"):
        if element.tag == "figure":
            element.tag = "div"
        elif element.tag == "time" or next(element.iterancestors(_HEADINGS), None) is not None:
            element.tag = "span"
    for element in list(tree.iter()):
        if "-" in element.tag:  # a custom element
            element.tag = "div" if next(element.iterancestors("p", *_HEADINGS), None) is None else "span"
    for element in tree.xpath("//*[contains(@class, 'caption') or contains(@id, 'caption')]"):
        for name in ("class", "id"):  # by which trafilatura leaves out captions
            element.set(name, element.get(name, "").replace("caption", ""))
    for element in tree.xpath("//*[@class]"):  # where trafilatura would see notices
        element.set("class", " ".join(name for name in element.get("class").split() if not _NO_NOTICE.match(name)))


def _sizes(elements: list[HtmlElement]) -> dict[HtmlElement, int]:
    """Characters of text in each element, those of its descendants included."""
    sizes: dict[HtmlElement, int] = {}
    for element in reversed(elements):
        within = sum(sizes[child] + len((child.tail or "").strip()) for child in element)
        sizes[element] = len((element.text or "").strip()) + within
    return sizes


def _is_notice(element: HtmlElement) -> bool:
    names = " ".join(element.get(name, "") for name in ("class", "id", "role")).split()
    return element.tag not in ("html", "body", "article", "main") and any(map(_names_notice, names))


def _names_notice(name: str) -> bool:
    if _NO_NOTICE.match(name):
        return False
    words = [word.lower() for word in _NAME_WORD.findall(name)]
    is_part = bool(words) and (len(words) == 1 or not _PARTS_OF_NOTICES.isdisjoint(words))
    ambiguous = is_part and not {"author", "social"}.isdisjoint(words)
    return ambiguous or not _NOTICES.isdisjoint([*words, "".join(words)])


def _wrap_runs(container: HtmlElement, holding: set[HtmlElement]) -> None:
    """Enclose each run of text between two blocks in a paragraph."""
    text, run, block = container.text, [], None
    for child in [*container, None]:
        if child is not None and child.tag in _INLINE and child not in holding:
            run.append(child)
            continue
        if _is_prose(text, run):
            paragraph = container.makeelement("p")
            paragraph.text = text
            if block is None:
                container.text = None
                container.insert(0, paragraph)
            else:
                block.tail = None
                block.addnext(paragraph)
            paragraph.extend(run)
        if child is not None:
            text, run, block = child.tail, [], child


def _is_prose(text: str | None, children: list[HtmlElement]) -> bool:
    """Whether there is a word outside of links and scripts."""
    texts = [text, *(child.tail for child in children)]
    texts += ["".join(child.itertext()) for child in children if child.tag not in _UNREAD]
    return any(_WORD.search(each) for each in texts if each)
