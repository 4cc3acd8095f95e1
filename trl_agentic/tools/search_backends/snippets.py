"""Makes plain, bounded text of what strangers wrote: snippets of web pages, titles, addresses."""

from __future__ import annotations

import html
import math
import re
import unicodedata
from collections.abc import Callable
from typing import Any

# Markup by which search engines set off the words of the query. Anything else in angle brackets may be meant as text.
_HIGHLIGHTS = re.compile(r"</?(?:b|strong|em|i|u|mark|span|font|small|sub|sup|wbr)(?:\s[^<>]*)?/?>", re.IGNORECASE)
_BREAKS = re.compile(r"</?(?:br|p)(?:\s[^<>]*)?/?>", re.IGNORECASE)
_JOINERS = "\u200c\u200d"  # Persian, Indic scripts and emoji are misspelt without them
_URL = re.compile(r"https?://[^\s<>\"']+", re.IGNORECASE)
MAX_URL_CHARS = 2_000
MAX_KEY_CHARS = 1_000


def plain_text(text: str) -> str:
    """
    Take out what can not be seen: control characters, marks that turn the direction of reading, lone surrogates.

    Args:
        text (`str`):
            Any text.

    Returns:
        `str`:
            Valid Unicode on one line, words separated by single spaces.
    """
    if not (text.isascii() and text.isprintable()):
        text = "".join(map(_visible, text))
    return " ".join(text.split())


def _visible(character: str) -> str:
    if character.isspace():
        return " "
    if character in _JOINERS:
        return character
    return "" if unicodedata.category(character) in ("Cc", "Cf", "Cs") else character


def snippet_text(value: Any, max_chars: int, redact: Callable[[str], str] | None = None) -> str:
    """
    Read a title or snippet out of an API's answer.

    Highlights (`<b>`, `<strong>`) are removed, entities are resolved once, and the rest stays as it is: a text about
    `</search>` is still about it.

    Args:
        value (`Any`):
            What the API put there. Numbers are written out; what is neither text nor number counts as missing.
        max_chars (`int`):
            Most characters of the result, with an ellipsis in the place of what is cut off.
        redact (`Callable[[str], str]`, *optional*):
            Takes a key out of the plain text, before it is cut: a part of a key would not be known as one.

    Returns:
        `str`:
            The text, on one line; empty if there is none.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    whole = str(value)
    text = whole[: 20 * max_chars]  # what follows takes time for each character
    text = plain_text(html.unescape(_BREAKS.sub(" ", _HIGHLIGHTS.sub("", text))))
    if redact is not None:
        text = redact(text)
        if len(whole) > 20 * max_chars:  # the end may be a part of a key
            text = text[:-MAX_KEY_CHARS]
    return cut_end(text, max_chars)


def cut_end(text: str, max_chars: int) -> str:
    """The text, its end replaced by an ellipsis if it has more than `max_chars` characters."""
    return text if len(text) <= max_chars else text[: max_chars - 1].rstrip() + "…"


def snippet_url(value: Any) -> str:
    """The address if it is one of the web, of at most 2,000 characters; else the empty text."""
    if not isinstance(value, str) or len(value) > MAX_URL_CHARS:
        return ""
    url = plain_text(value)
    return url if _URL.fullmatch(url) else ""
