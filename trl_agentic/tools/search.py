"""
Search: the protocol of a backend, BM25 over local documents, and the tool that a model calls.

Example:
    ```python
    backend = BM25Search([Document("Cuba", "Its capital is Havana."), Document("Peru", "Its capital is Lima.")])
    search = make_search_tool(backend, top_k=1)
    search("capital of Cuba")  # "[1] Cuba\\nIts capital is Havana."
    ```
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from .bm25_library import import_bm25s


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
    """

    title: str
    text: str
    score: float


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


def tokenize(text: str) -> list[str]:
    """The words and numbers of a text, without case or accents, in order: `"São Tomé, 1,001 km²"` has five."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    return re.findall(r"\w+", "".join(character for character in plain if not unicodedata.combining(character)))


def split_passages(text: str, max_words: int) -> list[str]:
    """
    Cut a text into passages of whole sentences.

    Args:
        text (`str`):
            The text.
        max_words (`int`):
            Most words of a passage. A longer sentence is cut at this many words.

    Returns:
        `list[str]`:
            The passages in order, none of them empty.
    """
    passages: list[str] = []
    current: list[str] = []
    for sentence in re.split(r"(?<=[.!?。])\s+|\n+", text):
        words = sentence.split()
        while words:
            if len(current) + min(len(words), max_words) > max_words:
                passages.append(" ".join(current))
                current = []
            current.extend(words[:max_words])
            words = words[max_words:]
    if current:
        passages.append(" ".join(current))
    return passages


class BM25Search:
    """
    Okapi BM25 over passages of local documents, in memory.

    Equal scores are ordered by the position of the passage, so that the same query always gets the same answer. A
    query takes about a millisecond on a few thousand passages. Searching is safe from many threads.

    Args:
        documents (`Iterable[Document]`):
            What to search. At least one must have a text.
        passage_words (`int`, *optional*, defaults to `120`):
            Most words of a passage; sentences stay whole where they fit.

    Raises:
        ImportError: If `bm25s` is not installed.
        ValueError: If there is no text to search.
    """

    def __init__(self, documents: Iterable[Document], *, passage_words: int = 120):
        if passage_words < 1:
            raise ValueError(f"passage_words must be at least 1, got {passage_words}.")
        passages = [
            Document(document.title, text)
            for document in documents
            for text in split_passages(document.text, passage_words)
        ]
        tokens = [tokenize(f"{passage.title} {passage.text}") for passage in passages]
        if not any(tokens):
            raise ValueError("There is nothing to search: pass at least one document whose text has a word.")
        index = import_bm25s().BM25()
        index.index(tokens, create_empty_token=True, show_progress=False)
        self._passages = passages
        self._index = index

    @classmethod
    def from_arpo_cache(cls, path: str | Path, *, passage_words: int = 120) -> BM25Search:
        """
        Build a backend over the texts of an ARPO search cache.

        Only the results are indexed, each page once; the queries are not.

        Args:
            path (`str` or `Path`):
                A JSON file that maps each query to its results, `"Page 1: ...\\nPage 2: ..."`.
            passage_words (`int`, *optional*, defaults to `120`):
                Most words of a passage.

        Returns:
            [`BM25Search`]:
                The backend.

        Raises:
            ValueError: If the file is not such a mapping.
        """
        cache = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(cache, dict) or not all(isinstance(text, str) for text in cache.values()):
            raise ValueError(f"{path} is no ARPO search cache: expected a JSON object of query to text.")
        pages: dict[str, None] = {}  # a set that keeps the order
        for text in cache.values():
            for page in re.split(r"^Page \d+:\s*", text, flags=re.MULTILINE):
                if page.strip() and page.strip() != "No search results found.":
                    pages[page.strip()] = None
        return cls((Document("", page) for page in pages), passage_words=passage_words)

    def __len__(self) -> int:
        return len(self._passages)

    def search(self, query: str, top_k: int) -> list[Passage]:
        """
        Find the passages that match best.

        Args:
            query (`str`):
                Words in any order. Words that occur nowhere are ignored.
            top_k (`int`):
                Most passages to return; at least 1.

        Returns:
            `list[Passage]`:
                Best first, only passages that share a word with the query; empty when there are none.

        Raises:
            ValueError: If `top_k` is below 1.
        """
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}.")
        words = [word for word in tokenize(query) if word in self._index.vocab_dict]
        if not words:
            return []
        scores = self._index.get_scores(words)  # (num_passages,)
        kept = min(top_k, len(scores))
        threshold = np.partition(scores, -kept)[-kept]
        candidates = np.flatnonzero((scores >= threshold) & (scores > 0))
        best = candidates[np.argsort(-scores[candidates], kind="stable")][:top_k]
        return [
            Passage(self._passages[position].title, self._passages[position].text, float(scores[position]))
            for position in best.tolist()
        ]

    def save(self, folder: str | Path) -> None:
        """Write index and passages into a folder, which is created where it is missing."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._index.save(folder, show_progress=False)
        lines = [json.dumps(asdict(passage), ensure_ascii=False) + "\n" for passage in self._passages]
        (folder / "passages.jsonl").write_text("".join(lines), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> BM25Search:
        """Read what [`BM25Search.save`] wrote."""
        backend = cls.__new__(cls)
        with open(Path(folder) / "passages.jsonl", encoding="utf-8") as lines:
            backend._passages = [Document(**json.loads(line)) for line in lines]
        backend._index = import_bm25s().BM25.load(folder, show_progress=False)
        return backend


def make_search_tool(backend: SearchBackend, top_k: int = 3) -> Callable[[str], str]:
    """
    Make the tool `search`, to be passed in `tools=[...]`.

    Args:
        backend ([`SearchBackend`]):
            Where to search.
        top_k (`int`, *optional*, defaults to `3`):
            Most passages to show.

    Returns:
        `Callable[[str], str]`:
            A function named `search`. It always returns a text, also for an empty query and when nothing was found.
    """
    if top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}.")

    def search(query: str) -> str:
        """
        Search for passages about a topic.

        Args:
            query: What to look for, in a few words.

        Returns:
            The passages that match best.
        """
        if not query.strip():
            return "The query is empty. Give the words to look for."
        passages = backend.search(query, top_k)
        if not passages:
            return f"No results for {query[:200]!r}. Try other words."
        return "\n\n".join(_show(number, passage) for number, passage in enumerate(passages, start=1))

    return search


def _show(number: int, passage: Passage) -> str:
    return f"[{number}] {passage.title}\n{passage.text}" if passage.title else f"[{number}] {passage.text}"
