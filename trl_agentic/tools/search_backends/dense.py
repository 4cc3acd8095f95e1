"""
Search by meaning: embeddings of local documents, compared with the query's.

Example:
    ```python
    backend = DenseSearch(documents, "minishlab/potion-base-8M")  # model2vec: no GPU, thousands of texts a second
    backend = DenseSearch(documents, SentenceTransformer("BAAI/bge-small-en-v1.5"))
    backend.search("Which city governs Cuba?", top_k=3)
    ```
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .passages import (
    Document,
    Passage,
    check_top_k,
    cut_documents,
    passages_digest,
    read_passages,
    write_passages,
)

VECTORS_FILE = "vectors.npy"


class TextEncoder(Protocol):
    """An embedding model: `SentenceTransformer` and model2vec's `StaticModel` are two."""

    def encode(self, sentences: list[str], /) -> Any:
        """One vector per text, as anything that NumPy takes, of shape `(num_texts, dimension)`."""
        ...


class DenseSearch:
    """
    Cosine similarity between the query and passages of local documents, exact, in memory.

    Equal scores are ordered by the position of the passage. Searching is safe from many threads if the encoder is.

    Args:
        documents (`Iterable[Document]`):
            What to search. At least one must have a text.
        encoder ([`TextEncoder`] or `str`):
            The embedding model, or the name of a model2vec model on the Hub or in a folder.
        passage_words (`int`, *optional*, defaults to `120`):
            Most words of a passage; sentences stay whole where they fit.
        batch_size (`int`, *optional*, defaults to `256`):
            Passages that are encoded at once while the index is built.
        min_score (`float`, *optional*, defaults to `0.0`):
            Passages are returned if their cosine similarity is above this.

    Raises:
        ImportError: If `encoder` is a name and `model2vec` is not installed.
        ValueError: If there is no text to search, or the encoder does not return one finite vector per text.
    """

    def __init__(
        self,
        documents: Iterable[Document],
        encoder: TextEncoder | str,
        *,
        passage_words: int = 120,
        batch_size: int = 256,
        min_score: float = 0.0,
    ):
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        self._passages = cut_documents(documents, passage_words)
        self._encoder = _load_encoder(encoder)
        self._min_score = min_score
        texts = [f"{passage.title} {passage.text}".strip() for passage in self._passages]
        batches = [texts[start : start + batch_size] for start in range(0, len(texts), batch_size)]
        self._vectors = np.concatenate([_unit_vectors(self._encoder, batch) for batch in batches])  # (passages, dim)

    def __len__(self) -> int:
        return len(self._passages)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of passages and vectors."""
        vectors = hashlib.sha256(np.ascontiguousarray(self._vectors).data).hexdigest()[:16]
        return f"dense {passages_digest(self._passages)} {vectors} {self._min_score:g}"

    def search(self, query: str, top_k: int) -> list[Passage]:
        """
        Find the passages that are closest in meaning.

        Args:
            query (`str`):
                A question or a few words.
            top_k (`int`):
                Most passages to return; at least 1.

        Returns:
            `list[Passage]`:
                Best first, with their cosine similarity as score; empty for an empty query.

        Raises:
            ValueError: If `top_k` is below 1.
        """
        check_top_k(top_k)
        if not query.strip():
            return []
        scores = self._vectors @ _unit_vectors(self._encoder, [query])[0]  # (num_passages,)
        best = np.argsort(-scores, kind="stable")[:top_k]
        return [
            Passage(self._passages[position].title, self._passages[position].text, float(scores[position]))
            for position in best.tolist()
            if scores[position] > self._min_score
        ]

    def save(self, folder: str | Path) -> None:
        """Write vectors and passages into a folder, which is created where it is missing. The encoder stays out."""
        write_passages(Path(folder), self._passages)
        np.save(Path(folder) / VECTORS_FILE, self._vectors)

    @classmethod
    def load(cls, folder: str | Path, encoder: TextEncoder | str, *, min_score: float = 0.0) -> DenseSearch:
        """
        Read what [`DenseSearch.save`] wrote.

        Args:
            folder (`str` or `Path`):
                The folder.
            encoder ([`TextEncoder`] or `str`):
                The model that encoded the passages.
            min_score (`float`, *optional*, defaults to `0.0`):
                Passages are returned if their cosine similarity is above this.

        Returns:
            [`DenseSearch`]:
                The backend.

        Raises:
            FileNotFoundError: If it is no such folder.
            ValueError: If a file of it is broken, or its first passage is not what this encoder makes of it.
        """
        backend = cls.__new__(cls)
        backend._passages = read_passages(Path(folder), "DenseSearch.save")
        backend._vectors = _read_vectors(Path(folder) / VECTORS_FILE, len(backend._passages))
        backend._encoder = _load_encoder(encoder)
        backend._min_score = min_score
        first = backend._passages[0]
        expected = _unit_vectors(backend._encoder, [f"{first.title} {first.text}".strip()])[0]
        if expected.shape != backend._vectors[0].shape or np.abs(expected - backend._vectors[0]).max() > 0.05:
            raise ValueError(
                f"{folder} was not written with this encoder: its vectors differ. Pass the model that encoded the "
                "passages, or build a new DenseSearch."
            )
        return backend


def _load_encoder(encoder: TextEncoder | str) -> TextEncoder:
    if not isinstance(encoder, str):
        return encoder
    try:
        from model2vec import StaticModel
    except ImportError as error:
        raise ImportError(
            f"The encoder {encoder!r} needs model2vec: install it with `pip install trl-agentic[search]`, or pass an "
            "object with a method encode(texts)."
        ) from error
    return StaticModel.from_pretrained(encoder, force_download=False)


def _unit_vectors(encoder: TextEncoder, texts: list[str]) -> np.ndarray:
    """Vectors of length 1 (of length 0 for a text without meaning to the encoder), of shape `(num_texts, dim)`."""
    vectors = np.asarray(encoder.encode(texts), dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
        raise ValueError(
            f"{type(encoder).__name__}.encode made {vectors.shape} of {len(texts)} texts: expected one vector of "
            "finite numbers for each."
        )
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def _read_vectors(path: Path, num_passages: int) -> np.ndarray:
    remedy = "Write the folder again with DenseSearch.save."
    if not path.is_file():
        raise FileNotFoundError(f"There is no {path}. {remedy}")
    try:
        with open(path, "rb") as file:
            vectors = np.lib.format.read_array(file, allow_pickle=False).astype(np.float32)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is no array that can be read ({error}). {remedy}") from error
    if vectors.ndim != 2 or len(vectors) != num_passages:
        raise ValueError(
            f"{path} holds an array of shape {vectors.shape}: expected a row for each of {num_passages} passages. "
            + remedy
        )
    return vectors
