"""
BM25 over local documents.

Example:
    ```python
    backend = BM25Search([Document("Cuba", "Its capital is Havana."), Document("Peru", "Its capital is Lima.")])
    backend.search("capital of Cuba", top_k=1)  # [Passage("Cuba", "Its capital is Havana.", score=...)]
    backend.push_to_hub("me/capitals")
    ```
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np

from .bm25_library import import_bm25s
from .passages import (
    PASSAGES_FILE,
    Document,
    Passage,
    check_top_k,
    cut_documents,
    passages_digest,
    read_passages,
    write_passages,
)
from .terms import TERMS_VERSION, index_terms, tokenize

_VERSION_FILE = "terms.index.json"

_CARD = """---
tags: [bm25s, trl-agentic]
configs:
- config_name: default
  data_files: {passages}
---

# {name}

{count:,} passages with a BM25 index ([bm25s](https://github.com/xhluca/bm25s)).

```python
from trl_agentic.tools import BM25Search

backend = BM25Search.from_hub("{repo_id}")
```
"""


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
        self._passages = cut_documents(documents, passage_words)
        self._index = import_bm25s().BM25()
        tokens = [index_terms(f"{passage.title} {passage.text}") for passage in self._passages]
        self._index.index(tokens, create_empty_token=True, show_progress=False)

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
            FileNotFoundError: If there is no such file.
            ValueError: If the file is not such a mapping, or holds no page.
        """
        pages: dict[str, None] = {}  # a set that keeps the order
        for text in _read_arpo_cache(Path(path)):
            for page in re.split(r"^Page \d+:\s*", text, flags=re.MULTILINE):
                if page.strip() and page.strip() != "No search results found.":
                    pages[page.strip()] = None
        if not any(map(tokenize, pages)):
            raise ValueError(f"{path} holds no page to search: every query in it is without results.")
        return cls((Document("", page) for page in pages), passage_words=passage_words)

    def __len__(self) -> int:
        return len(self._passages)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the passages, and what they can be found by."""
        return f"bm25 {TERMS_VERSION} {passages_digest(self._passages)}"

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
        check_top_k(top_k)
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
        write_passages(Path(folder), self._passages)
        self._index.save(folder, show_progress=False)
        (Path(folder) / _VERSION_FILE).write_text(json.dumps({"version": TERMS_VERSION}), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> BM25Search:
        """
        Read what [`BM25Search.save`] wrote.

        Args:
            folder (`str` or `Path`):
                The folder.

        Returns:
            [`BM25Search`]:
                The backend.

        Raises:
            FileNotFoundError: If it is no such folder.
            ValueError: If a file of it is broken, index and passages do not belong together, or it was written by a
                release that cut texts into other words.
        """
        backend = cls.__new__(cls)
        backend._passages = read_passages(Path(folder), "BM25Search.save")
        backend._index = _read_index(Path(folder), len(backend._passages))
        return backend

    def push_to_hub(
        self, repo_id: str, *, private: bool | None = None, token: str | None = None, endpoint: str | None = None
    ) -> str:
        """
        Upload index and passages as a dataset, with a card, in one commit.

        Args:
            repo_id (`str`):
                Dataset on the Hub, `"user/name"`; made if need be.
            private (`bool`, *optional*):
                Whether a new dataset is private; the account's default if `None`.
            token (`str`, *optional*):
                Token that may write; the one of the environment by default.
            endpoint (`str`, *optional*):
                Address of the Hub; the one of the environment by default.

        Returns:
            `str`: Address of the commit.
        """
        from huggingface_hub import HfApi

        api = HfApi(endpoint=endpoint, token=token)
        api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
        name = repo_id.split("/")[-1]
        card = _CARD.format(passages=PASSAGES_FILE, name=name, count=len(self), repo_id=repo_id)
        with tempfile.TemporaryDirectory() as folder:
            self.save(folder)
            Path(folder, "README.md").write_text(card, encoding="utf-8")
            commit = api.upload_folder(
                repo_id=repo_id, folder_path=folder, repo_type="dataset", commit_message="Upload search index"
            )
        return commit.commit_url

    @classmethod
    def from_hub(
        cls, repo_id: str, *, revision: str | None = None, token: str | None = None, endpoint: str | None = None
    ) -> BM25Search:
        """
        Download what [`BM25Search.push_to_hub`] uploaded.

        Args:
            repo_id (`str`):
                Dataset on the Hub, `"user/name"`.
            revision (`str`, *optional*):
                Branch, tag or commit; name a commit for a run that can be repeated. The main branch by default.
            token (`str`, *optional*):
                Token that may read; the one of the environment by default.
            endpoint (`str`, *optional*):
                Address of the Hub; the one of the environment by default.

        Returns:
            [`BM25Search`]:
                The backend.

        Raises:
            FileNotFoundError, ValueError: If the dataset holds no index, as in [`BM25Search.load`].
        """
        from huggingface_hub import HfApi

        patterns = [PASSAGES_FILE, "*.index.npy", "*.index.json"]
        api = HfApi(endpoint=endpoint, token=token)
        return cls.load(
            api.snapshot_download(repo_id, repo_type="dataset", revision=revision, allow_patterns=patterns)
        )


def _read_arpo_cache(path: Path) -> list[str]:
    """The texts of an ARPO search cache, one for each query."""
    expected = "expected a JSON object of query to text, as the search cache that ARPO publishes"
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}: {expected}.")
    try:
        cache = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON ({error}): {expected}. Download it again if it was cut off.") from error
    if not isinstance(cache, dict) or not all(isinstance(text, str) for text in cache.values()):
        raise ValueError(f"{path} is no ARPO search cache: {expected}.")
    return list(cache.values())


def _read_index(folder: Path, num_passages: int):
    remedy = "Write the folder again with BM25Search.save."
    path = folder / _VERSION_FILE
    try:
        version = json.loads(path.read_bytes())["version"] if path.exists() else 1
        index = import_bm25s().BM25.load(folder, backend="numpy", show_progress=False)
        num_indexed = len(index.get_scores(list(index.vocab_dict)[:1]))
    except FileNotFoundError as error:
        missing = Path(error.filename).name if error.filename else "a file"
        raise FileNotFoundError(f"The index in {folder} is not complete: {missing} is missing. {remedy}") from error
    except (ValueError, TypeError, KeyError, IndexError, EOFError, AttributeError) as error:
        raise ValueError(f"The index in {folder} can not be read ({error}). {remedy}") from error
    if version != TERMS_VERSION:
        raise ValueError(
            f"The index in {folder} is of version {version}, expected {TERMS_VERSION}: its words were cut in "
            f"another way than those of a query, which would not find them. Build it from its documents. {remedy}"
        )
    if num_indexed != num_passages:
        raise ValueError(
            f"The index in {folder} is of {num_indexed} passages, but {PASSAGES_FILE} holds {num_passages}. {remedy}"
        )
    return index
