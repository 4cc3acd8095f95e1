"""What search works on: documents, the passages they are cut into, and the protocol of a backend."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from ...words import find_pieces
from .terms import tokenize

PASSAGES_FILE = "passages.jsonl"
# A full stop of another script needs no space behind it. Thai, Lao, Khmer and Burmese have a space in its place.
_SENTENCE_END = re.compile(
    r"(?<=[.!?])\s+|[。！？｡।॥؟۔።។៕။]+[”’」』）】》]*|"
    r"(?<=[\u0e01-\u0edf\u1000-\u109f\u1780-\u17dd]) +(?=[\u0e01-\u0edf\u1000-\u109f\u1780-\u17dd])|\n+"
)


@dataclass(frozen=True)
class Document:
    """
    A text to be searched.

    Args:
        title (`str`):
            Title, searched along with every passage of the text; may be empty.
        text (`str`):
            The text.
    """

    title: str
    text: str


@dataclass(frozen=True)
class Passage:
    """
    A piece of a document that answers a query.

    Args:
        title (`str`):
            Title of the document.
        text (`str`):
            The passage.
        score (`float`):
            How well it matches; higher is better, comparable within one query only.
        url (`str`, *optional*, defaults to `""`):
            Where the document is, if it has an address.
    """

    title: str
    text: str
    score: float
    url: str = ""


class SearchBackend(Protocol):
    """Finds passages for a query."""

    def search(self, query: str, top_k: int) -> list[Passage]:
        """
        Find the passages that match best.

        Args:
            query (`str`):
                What to look for; may be empty.
            top_k (`int`):
                Most passages to return.

        Returns:
            `list[Passage]`:
                Best first; empty when nothing matches.
        """
        ...


@runtime_checkable
class VersionedBackend(Protocol):
    """A backend whose answers may be worth keeping, and that says what they depend on."""

    @property
    def cache_version(self) -> str | None:
        """What an answer depends on beside the query; `None` if it costs nothing to ask again."""
        ...


@runtime_checkable
class LocalBackend(Protocol):
    """A backend that answers too fast to be cached by itself, and that says what it holds."""

    @property
    def fingerprint(self) -> str:
        """A digest of all that an answer depends on beside the query."""
        ...


def passages_digest(passages: Iterable[Document]) -> str:
    """A digest of passages in their order."""
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(json.dumps([passage.title, passage.text]).encode() + b"\n")
    return digest.hexdigest()[:16]


def split_passages(text: str, max_words: int) -> list[str]:
    """
    Cut a text into passages of whole sentences.

    Args:
        text (`str`):
            The text.
        max_words (`int`):
            Most words of a passage; in scripts without spaces, most characters. A longer sentence is cut at this many.

    Returns:
        `list[str]`:
            The passages in order, none of them empty, with their lines and indentation as they stand in the text.
    """
    passages: list[str] = []
    current: list[tuple[int, int]] = []  # places of the words
    behind = 0  # the last passage
    for words in _sentences(text):
        for first in range(0, len(words), max_words):
            chunk = words[first : first + max_words]
            if current and len(current) + len(chunk) > max_words:
                passages.append(_cut_out(text, behind, current))
                behind, current = current[-1][1], []
            current += chunk
    return [*passages, _cut_out(text, behind, current)] if current else passages


def _sentences(text: str) -> Iterator[list[tuple[int, int]]]:
    """The places of the words of each sentence."""
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]:
        yield [(start + piece.start(), start + piece.end()) for piece in find_pieces(text[start:end])]
        start = end


def _cut_out(text: str, behind: int, words: list[tuple[int, int]]) -> str:
    start, end = words[0][0], words[-1][1]
    line = text.rfind("\n", behind, start) + 1
    is_indented = line >= behind and text[line:start].isspace()
    return text[line if is_indented else start : end]


def cut_documents(documents: Iterable[Document], passage_words: int) -> list[Document]:
    """
    Cut documents into passages, each under the title of its document.

    Args:
        documents (`Iterable[Document]`):
            The documents.
        passage_words (`int`):
            Most words of a passage.

    Returns:
        `list[Document]`:
            The passages in order.

    Raises:
        ValueError: If `passage_words` is below 1, or no document has a word.
    """
    if passage_words < 1:
        raise ValueError(f"passage_words must be at least 1, got {passage_words}.")
    passages = [
        Document(document.title, text)
        for document in documents
        for text in split_passages(document.text, passage_words)
    ]
    if not any(tokenize(f"{passage.title} {passage.text}") for passage in passages):
        raise ValueError("There is nothing to search: pass at least one document whose text has a word.")
    return passages


def check_top_k(top_k: int) -> None:
    """Raise a `ValueError` if `top_k` is below 1."""
    if top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}.")


def identity(passage: Passage) -> tuple[str, ...]:
    """What makes two passages the same: their address if they have one, else title and text up to case and spaces."""
    if passage.url:
        return (passage.url.rstrip("/"),)
    return tuple(" ".join(text.casefold().split()) for text in (passage.title, passage.text))


def write_passages(folder: Path, passages: Sequence[Document]) -> None:
    """Write passages into a folder, which is created where it is missing, one JSON object a line."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(passage), ensure_ascii=False) + "\n" for passage in passages]
    # A lone surrogate, as JSON may hold one, is no text that can be written.
    (folder / PASSAGES_FILE).write_text("".join(lines), encoding="utf-8", errors="replace")


def read_passages(folder: Path, writer: str) -> list[Document]:
    """
    Read what [`write_passages`] wrote.

    Args:
        folder (`Path`):
            The folder.
        writer (`str`):
            What writes such folders, `"BM25Search.save"`, for the error messages.

    Returns:
        `list[Document]`:
            The passages.

    Raises:
        FileNotFoundError: If the folder has no passages.
        ValueError: If a line is broken, or there is none.
    """
    path = folder / PASSAGES_FILE
    if not path.is_file():
        raise FileNotFoundError(f"There is no {path}. Expected a folder that {writer} wrote.")
    passages = []
    try:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                fields = json.loads(line)
                passages.append(Document(title=_text(fields["title"]), text=_text(fields["text"])))
    except (ValueError, TypeError, KeyError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise ValueError(
            f'{path}, line {len(passages) + 1}: expected an object like {{"title": "...", "text": "..."}}. '
            f"Write the folder again with {writer}."
        ) from error
    if not passages:
        raise ValueError(f"{path} is empty: expected one passage a line. Write the folder again with {writer}.")
    return passages


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {type(value).__name__}")
    return value
