"""Search by meaning over vectors that can be checked by hand, and the fusion of rankings."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback_search_apis import KEY
from tokenizers import Tokenizer, models, pre_tokenizers

from trl_agentic.tools import (
    BM25Search,
    DenseSearch,
    Document,
    HybridSearch,
    Passage,
    SerperSearch,
    TransientToolError,
    make_search_tool,
)

# One axis is cities, one is animals; the last word has no meaning.
MEANINGS = {
    "capital": (1, 0),
    "city": (1, 0),
    "town": (0.9, 0.1),
    "cat": (0, 1),
    "dog": (0, 1),
    "zoo": (0.7, 0.7),
    "not": (-1, -1),
    "the": (0, 0),
}
DOCUMENTS = [Document("", "the cat"), Document("", "the zoo"), Document("", "the capital"), Document("", "the not")]


class Meanings:
    """Encodes a text as the sum of its words' vectors, and remembers how many texts came at once."""

    def __init__(self):
        self.batches: list[int] = []

    def encode(self, texts: list[str]) -> list[list[float]]:
        self.batches.append(len(texts))
        vectors = [np.sum([MEANINGS.get(word, (0, 0)) for word in text.split()], axis=0) for text in texts]
        return [list(np.broadcast_to(vector, 2)) for vector in vectors]


def static_model():
    """A real model2vec model of these words."""
    from model2vec import StaticModel

    words = ["[UNK]", *MEANINGS]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    vectors = np.array([(0, 0), *MEANINGS.values()], dtype=np.float32)
    return StaticModel(vectors, tokenizer, config={"normalize": True})


def texts(passages: list[Passage]) -> list[str]:
    return [passage.text for passage in passages]


def test_passages_are_ordered_by_the_angle_to_the_query():
    found = DenseSearch(DOCUMENTS, Meanings()).search("city", 4)
    assert texts(found) == ["the capital", "the zoo"]  # the cat is at a right angle, and the last one opposite
    assert [passage.score for passage in found] == pytest.approx([1.0, 0.5**0.5])


def test_a_model_of_model2vec_finds_what_shares_no_word():
    backend = DenseSearch(DOCUMENTS, static_model())
    assert texts(backend.search("dog", 1)) == ["the cat"]
    assert texts(backend.search("town", 1)) == ["the capital"]
    assert BM25Search(DOCUMENTS).search("dog", 1) == []


def test_a_model_is_loaded_by_the_name_of_its_folder(tmp_path):
    static_model().save_pretrained(str(tmp_path))
    assert texts(DenseSearch(DOCUMENTS, str(tmp_path)).search("dog", 1)) == ["the cat"]


def test_equal_scores_keep_the_order_of_the_documents():
    backend = DenseSearch([Document(str(number), "city") for number in range(20)], Meanings())
    assert [passage.title for passage in backend.search("capital", 5)] == ["0", "1", "2", "3", "4"]


def test_documents_are_cut_into_passages_under_their_title():
    backend = DenseSearch([Document("zoo", "cat cat. dog dog. city city.")], Meanings(), passage_words=2)
    assert len(backend) == 3
    found = backend.search("city", 1)
    assert (found[0].title, found[0].text) == ("zoo", "city city.")


def test_passages_are_encoded_in_batches():
    encoder = Meanings()
    DenseSearch([Document("", "city")] * 7, encoder, batch_size=3)
    assert encoder.batches == [3, 3, 1]


@given(st.lists(st.lists(st.sampled_from(list(MEANINGS)), min_size=1, max_size=4), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_scores_are_those_of_the_formula(documents):
    passages = [" ".join(words) for words in documents]
    found = DenseSearch([Document("", text) for text in passages], Meanings()).search("city dog", 3)
    expected = []
    for words in documents:
        x, y = (sum(MEANINGS[word][axis] for word in words) for axis in (0, 1))
        length = (x * x + y * y) ** 0.5
        expected.append((x + y) / length / 2**0.5 if length > 1e-9 else 0.0)
    best = sorted((score for score in expected if score > 1e-6), reverse=True)[:3]
    assert [passage.score for passage in found if passage.score > 1e-6] == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("query", ["", "  ", "the", "unknown"])
def test_a_query_without_meaning_finds_nothing(query):
    assert DenseSearch(DOCUMENTS, Meanings()).search(query, 3) == []


def test_the_least_similarity_can_be_raised():
    assert texts(DenseSearch(DOCUMENTS, Meanings(), min_score=0.9).search("city", 9)) == ["the capital"]


def test_a_saved_index_answers_as_before(tmp_path):
    backend = DenseSearch(DOCUMENTS, static_model())
    backend.save(tmp_path / "new" / "folder")
    loaded = DenseSearch.load(tmp_path / "new" / "folder", static_model())
    assert len(loaded) == 4
    for query in ("dog", "town", "zoo", ""):
        assert loaded.search(query, 4) == backend.search(query, 4)


def test_an_index_is_not_loaded_with_another_encoder(tmp_path):
    DenseSearch(DOCUMENTS, Meanings()).save(tmp_path)

    class Swapped(Meanings):
        def encode(self, texts):
            return [vector[::-1] for vector in super().encode(texts)]

    class Wider(Meanings):
        def encode(self, texts):
            return [[*vector, 0.0] for vector in super().encode(texts)]

    for encoder in (Swapped(), Wider()):
        with pytest.raises(ValueError, match="was not written with this encoder"):
            DenseSearch.load(tmp_path, encoder)


def test_a_missing_or_broken_file_of_an_index_is_an_error_that_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="Expected a folder that DenseSearch.save wrote"):
        DenseSearch.load(tmp_path, Meanings())
    DenseSearch(DOCUMENTS, Meanings()).save(tmp_path)
    vectors = tmp_path / "vectors.npy"
    for content in (b"", b"junk", vectors.read_bytes()[:-4], b"PK\x03\x04"):
        vectors.write_bytes(content)
        with pytest.raises(ValueError, match=f"{vectors} is no array that can be read"):
            DenseSearch.load(tmp_path, Meanings())
    np.save(vectors, np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"of shape \(3, 2\): expected a row for each of 4 passages"):
        DenseSearch.load(tmp_path, Meanings())
    vectors.unlink()
    with pytest.raises(FileNotFoundError, match=f"There is no {vectors}. Write the folder again"):
        DenseSearch.load(tmp_path, Meanings())


@pytest.mark.parametrize("vectors", [[], [[1.0]], [1.0] * 4, [[float("nan")]] * 4, [[float("inf")]] * 4])
def test_an_encoder_that_makes_no_vector_of_each_text_is_an_error(vectors):
    class Broken:
        def encode(self, texts):
            return vectors

    with pytest.raises(ValueError, match="Broken.encode made .* of 4 texts: expected one vector of finite numbers"):
        DenseSearch(DOCUMENTS, Broken())


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="nothing to search"):
        DenseSearch([], Meanings())
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        DenseSearch(DOCUMENTS, Meanings(), batch_size=0)
    with pytest.raises(ValueError, match="top_k must be at least 1, got 0"):
        DenseSearch(DOCUMENTS, Meanings()).search("city", 0)


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_tools_loads_no_search_library():
    loaded = "{'bm25s', 'model2vec', 'numba', 'llvmlite', 'trafilatura'} & set(sys.modules)"
    assert run(f"import sys, trl_agentic.tools; print({loaded})") == "set()\n"


def test_an_embedding_model_does_not_bring_numba_along():
    program = "import sys, model2vec; print({'numba', 'llvmlite'} & set(sys.modules))"
    assert run(program) == "set()\n"


def test_without_model2vec_the_error_says_what_to_install():
    program = """
import sys
sys.modules["model2vec"] = None
from trl_agentic.tools import DenseSearch, Document
try:
    DenseSearch([Document("", "Havana")], "some/model")
except ImportError as error:
    print(error)
"""
    assert run(program) == (
        "The encoder 'some/model' needs model2vec: install it with `pip install trl-agentic[search]`, or pass an "
        "object with a method encode(texts).\n"
    )


# Fusion


class Ranking:
    """A backend that finds these, whatever is asked for."""

    def __init__(self, *titles: str, url: str = ""):
        self.passages = [Passage(title, f"about {title}", 0.0, url and url + title) for title in titles]
        self.asked: list[tuple[str, int]] = []

    def search(self, query: str, top_k: int) -> list[Passage]:
        self.asked.append((query, top_k))
        return self.passages[:top_k]


def test_ranks_are_fused_by_their_reciprocals():
    found = HybridSearch([Ranking("a", "b", "c"), Ranking("c", "b", "d")]).search("x", 4)
    assert [passage.title for passage in found] == ["c", "b", "a", "d"]
    expected = [1 / 63 + 1 / 61, 1 / 62 + 1 / 62, 1 / 61, 1 / 63]
    assert [passage.score for passage in found] == pytest.approx(expected)


@given(st.lists(st.permutations("abcdef").map(lambda titles: titles[:4]), min_size=1, max_size=4), st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_fused_scores_are_those_of_the_formula(rankings, top_k):
    found = HybridSearch([Ranking(*titles) for titles in rankings], smoothing=3).search("x", top_k)
    scores = {t: sum(1 / (4 + r.index(t)) for r in rankings if t in r) for t in {t for r in rankings for t in r}}
    assert [passage.score for passage in found] == pytest.approx(sorted(scores.values(), reverse=True)[:top_k])
    assert all(passage.score == pytest.approx(scores[passage.title]) for passage in found)


def test_what_several_backends_find_is_shown_once():
    by_words, by_meaning = Ranking("Old  Havana"), Ranking("old havana")
    found = HybridSearch([by_words, by_meaning]).search("x", 5)
    assert len(found) == 1 and found[0].title == "Old  Havana"
    same_address = HybridSearch([Ranking("a", url="https://x.org/"), Ranking("a", url="https://x.org/")])
    assert len(same_address.search("x", 5)) == 1


def test_a_backend_that_finds_something_twice_does_not_count_twice():
    found = HybridSearch([Ranking("a", "a", "b")]).search("x", 5)
    assert [(passage.title, passage.score) for passage in found] == [("a", 1 / 61), ("b", 1 / 62)]


def test_every_backend_is_asked_for_more_than_is_shown():
    backends = [Ranking("a"), Ranking("b")]
    HybridSearch(backends, depth=10).search("x", 2)
    HybridSearch(backends, depth=10).search("x", 30)
    assert backends[0].asked == backends[1].asked == [("x", 10), ("x", 30)]


def test_words_and_meaning_find_together_what_each_misses():
    backend = HybridSearch([BM25Search(DOCUMENTS), DenseSearch(DOCUMENTS, static_model())])
    assert texts(backend.search("zoo dog", 9))[:2] == ["the zoo", "the cat"]


def test_backends_are_asked_at_the_same_time():
    both = threading.Barrier(2, timeout=30)

    class Meeting(Ranking):
        def search(self, query, top_k):
            both.wait()  # breaks unless the other one is here too
            return super().search(query, top_k)

    assert len(HybridSearch([Meeting("a"), Meeting("b")]).search("x", 2)) == 2


def test_a_backend_that_fails_fails_the_query():
    class Busy:
        def search(self, query, top_k):
            raise TransientToolError("Serper is asked too often (HTTP 429).", 7.0)

    for backends in ([Ranking("a"), Busy()], [Busy(), Ranking("a")]):
        with pytest.raises(TransientToolError, match="Serper is asked too often") as raised:
            HybridSearch(backends).search("x", 2)
        assert raised.value.retry_after_s == 7.0


def test_fusion_is_cached_if_a_web_backend_takes_part(monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    words = BM25Search(DOCUMENTS)
    local = HybridSearch([words, DenseSearch(DOCUMENTS, static_model())])
    web = HybridSearch([words, SerperSearch()])
    assert local.cache_version is None and not hasattr(make_search_tool(local), "tool_options")
    assert "Serper" in web.cache_version and make_search_tool(web).tool_options.cached
    assert HybridSearch([web]).cache_version is not None
    assert HybridSearch([Ranking("a"), SerperSearch()]).cache_version is None  # nobody knows what a ranking depends on


def test_other_local_passages_or_vectors_are_another_version_of_a_fusion(monkeypatch, tmp_path):
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    fewer = DOCUMENTS[:3]
    backends = [
        BM25Search(DOCUMENTS),
        BM25Search(fewer),
        DenseSearch(DOCUMENTS, static_model()),
        DenseSearch(fewer, static_model()),
        DenseSearch(DOCUMENTS, static_model(), min_score=0.5),
    ]
    versions = [HybridSearch([backend, SerperSearch()]).cache_version for backend in backends]
    assert len(set(versions)) == 5 and None not in versions
    backends[0].save(tmp_path)
    again = HybridSearch([BM25Search.load(tmp_path), SerperSearch()])
    assert again.cache_version == versions[0]


def test_fusion_refuses_numbers_out_of_range():
    for options in ({"smoothing": -1}, {"depth": 0}):
        with pytest.raises(ValueError, match="smoothing must be at least 0 and depth at least 1"):
            HybridSearch([Ranking("a")], **options)
    with pytest.raises(ValueError, match="at least one backend, got none"):
        HybridSearch([])
    with pytest.raises(ValueError, match="top_k must be at least 1"):
        HybridSearch([Ranking("a")]).search("x", 0)
