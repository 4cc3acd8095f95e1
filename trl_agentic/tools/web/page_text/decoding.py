"""From bytes to characters: what a body is, which encoding it has, and what of it can be read."""

from __future__ import annotations

import codecs
import re

_SIGNATURES = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"RIFF": "an image, a sound or a film",
    b"PK\x03\x04": "a ZIP archive or an Office document",
    b"\x1f\x8b": "a gzip archive",
    b"\x7fELF": "a program",
    b"MZ": "a program",
    b"\xd0\xcf\x11\xe0": "an Office document",
}
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_DECLARED = re.compile(r"""charset\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE)
_META = re.compile(
    rb"""<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE
)
_META_BYTES = 4_096
_SAMPLE_BYTES = 65_536
_GUESS_BYTES = 200  # fewer do not show an encoding
# Their bytes are valid UTF-8 too, with another meaning.
_NOT_ASCII = ("utf-16", "utf-32", "iso2022", "hz")
_AS_BROWSERS_DO = {"iso8859-1": "cp1252", "ascii": "cp1252", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}
# Text encodings of Python that no page has, and that are slow or warn.
_FOREIGN = ("idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7")

# Control characters, marks that reorder or hide text, tags (invisible letters), and halves of characters.
_UNREADABLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_LINE_END = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_HELD = "␠␉␊␠"  # pictures of a space, a tab and a line end


class UnreadablePageError(ValueError):
    """A page holds no text. The message is written for the model that asked for it."""


def refuse_binary(content: bytes, declared: str) -> None:
    """
    Raise [`UnreadablePageError`] if a body is no text, whatever it was declared as.

    Args:
        content (`bytes`):
            The body, not empty.
        declared (`str`):
            Its content type, with parameters.
    """
    for signature, kind in _SIGNATURES.items():
        if content.startswith(signature):
            raise UnreadablePageError(f"This is {kind}, not a page with text.")
    sample = content[:_META_BYTES]
    if content.startswith(tuple(_MARKS)) or _is_not_ascii(_codec(_declared(declared))):
        return
    controls = len(sample) - len(sample.translate(None, bytes({*range(32)} - {9, 10, 12, 13, 27})))
    if controls > len(sample) // 4:
        raise UnreadablePageError("This is binary data, not a page with text.")


def decode(content: bytes, declared: str) -> str:
    """
    Read a body in the encoding that it has, which is not always the one that was declared.

    A byte order mark decides. A body that is valid UTF-8 is UTF-8: hardly any text in another encoding is. Then comes
    what the header says, what the page says, and what its bytes look like.

    Args:
        content (`bytes`):
            The body; a character that was cut at its end is left out.
        declared (`str`):
            Its content type, with parameters.

    Returns:
        `str`:
            The text, with bytes that can not be read as U+FFFD.
    """
    for mark, name in _MARKS.items():
        if content.startswith(mark):
            return _decoded(content[len(mark) :], name, "replace")
    named = _META.search(content[:_META_BYTES])
    codecs_named = [_codec(_declared(declared)), _codec(named[1].decode("ascii") if named else "")]
    if _is_not_ascii(codecs_named[0]):
        return _decoded(content, codecs_named[0], "replace")
    loose = content.decode("utf-8", "replace")
    broken = loose.count("\ufffd")
    intact = len(loose) - broken - len(loose.encode("ascii", "ignore"))
    if broken * 4 <= intact:  # none at all, or a stray byte in what is UTF-8 otherwise
        return _decoded(content, "utf-8", "replace")
    for name in codecs_named:
        if name not in ("", "utf-8"):
            return _decoded(content, name, "replace")
    return _decoded(content, _guessed(content), "replace")


def clean(text: str, max_chars: int, *, is_code: bool = False) -> str:
    """
    Leave out what can not be read: control characters, invisible marks, empty lines, and all behind `max_chars`.

    Args:
        text (`str`):
            Any text.
        max_chars (`int`):
            Most characters to keep.
        is_code (`bool`, *optional*, defaults to `False`):
            Keep the spaces within and before a line, as indentation and columns need them.

    Returns:
        `str`:
            Valid Unicode, with at most one empty line in a row.
    """
    text = _UNREADABLE.sub("", _LINE_END.sub("\n", text[: 2 * max_chars]))
    if is_code:
        lines = [line.rstrip() for line in text.replace("\xa0", " ").split("\n")]
    else:
        lines = [" ".join(line.split()) for line in text.split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")[:max_chars].rstrip()


def hold_spaces(text: str) -> str:
    """Put pictures in the place of spaces and line ends, so that no extractor nor [`clean`] takes them out."""
    return _LINE_END.sub("\n", text).translate(str.maketrans(" \t\n\xa0", _HELD))


def release_spaces(text: str) -> str:
    """Undo [`hold_spaces`]."""
    return text.translate(str.maketrans(_HELD[:3], " \t\n"))


def _declared(content_type: str) -> str:
    found = _DECLARED.search(content_type)
    return found[1] if found else ""


def _codec(name: str) -> str:
    """The name that Python has for an encoding, or `""` for one that it does not know or no page has."""
    try:
        known = codecs.lookup(name).name if name else ""
        b"a".decode(known or "utf-8", "replace")  # a LookupError for codecs that make no text, such as zlib's
    except (LookupError, UnicodeError, ValueError):
        return ""
    if known in _FOREIGN:
        return ""
    return _AS_BROWSERS_DO.get(known, known)


def _is_not_ascii(codec: str) -> bool:
    return codec.startswith(_NOT_ASCII)


def _decoded(content: bytes, name: str, errors: str) -> str:
    return codecs.getincrementaldecoder(name)(errors).decode(content)


def _guessed(content: bytes) -> str:
    if len(content) < _GUESS_BYTES:
        return "cp1252"
    import charset_normalizer  # trafilatura requires it

    best = charset_normalizer.from_bytes(content[:_SAMPLE_BYTES]).best()
    return "cp1252" if best is None else best.encoding
