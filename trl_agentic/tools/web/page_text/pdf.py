"""From a PDF to text."""

from __future__ import annotations

import io
import time

from .decoding import UnreadablePageError, clean

_TITLE_CHARS = 300


def pdf_text(content: bytes, max_chars: int, max_pages: int, timeout_s: float) -> tuple[str, str, str]:
    """
    The title and the text of a PDF.

    Args:
        content (`bytes`):
            The file.
        max_chars (`int`), max_pages (`int`):
            Most characters and pages to read.
        timeout_s (`float`):
            Seconds after which no further page is begun.

    Returns:
        `tuple[str, str, str]`:
            Title, text, and a remark if pages were left out; title and remark may be empty.

    Raises:
        UnreadablePageError: If the file is broken, encrypted with a password, or holds no text.
    """
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, FileNotDecryptedError, PyPdfError, WrongPasswordError

    # A broken file leads pypdf anywhere, so that it raises nearly anything
    broken = (PyPdfError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
    stop = time.monotonic() + timeout_s
    try:
        reader = PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadablePageError("This PDF can only be opened with a password.")
        num_pages = len(reader.pages)
        title = _title(reader)
    except (DependencyError, FileNotDecryptedError, WrongPasswordError) as error:
        raise UnreadablePageError(f"This PDF is encrypted and can not be opened: {error}") from error
    except broken as error:
        raise UnreadablePageError(f"This PDF is broken: {type(error).__name__}: {str(error)[:200]}") from error
    texts: list[str] = []
    num_broken = num_chars = 0
    for number in range(min(num_pages, max_pages)):
        if time.monotonic() > stop or num_chars > max_chars:
            break
        try:
            texts.append(clean(reader.pages[number].extract_text(), max_chars))
        except broken:
            num_broken += 1
            texts.append("")
        num_chars += len(texts[-1])
    return title, _joined(texts, num_pages, num_broken, max_chars), _remark(len(texts), num_pages, num_broken)


def _title(reader) -> str:
    title = reader.metadata.title if reader.metadata is not None else ""
    return clean(title or "", _TITLE_CHARS).replace("\n", " ")


def _joined(texts: list[str], num_pages: int, num_broken: int, max_chars: int) -> str:
    text = "\n\n".join(filter(None, texts))[:max_chars]
    if text:
        return text
    reason = f"{num_broken} of its pages are broken" if num_broken else "it may be made of scanned images"
    raise UnreadablePageError(f"This PDF of {num_pages} pages holds no text that can be read: {reason}.")


def _remark(num_read: int, num_pages: int, num_broken: int) -> str:
    remarks = [f"only the first {num_read} of {num_pages} pages were read"] if num_read < num_pages else []
    remarks += [f"{num_broken} pages are broken"] if num_broken else []
    return "; ".join(remarks)
