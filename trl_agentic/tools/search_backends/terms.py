"""What search compares: the words of a text, and pieces of words where a script has no spaces."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator

from ...words import split_words

TERMS_VERSION = 2  # of what `index_terms` gives: an index of another version would not find all that it holds

# Of Latin, Greek, Cyrillic, Hebrew and Arabic. In other scripts such marks make another letter.
_ACCENTS = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20f0\ufe20-\ufe2f]"
)
_KOREAN = re.compile("[\uac00-\ud7a3]+")
_RUN = re.compile(f"({_KOREAN.pattern})|[^\uac00-\ud7a3]+")


def tokenize(text: str) -> list[str]:
    """
    The words and numbers of a text, without case or accents, in order: `"São Tomé, 1,001 km²"` has five.

    Where a script has no spaces, as in Chinese, Japanese or Thai, every two neighbouring characters count as a word;
    in Korean they do so beside the word itself, which may end in a particle.

    Args:
        text (`str`):
            The text.

    Returns:
        `list[str]`:
            The words.
    """
    return _terms(text, num_characters=2)


def index_terms(text: str) -> list[str]:
    """What a text can be found by: its words, see [`tokenize`], and the single characters that are within them."""
    words = tokenize(text)
    return words if text.isascii() else words + list((Counter(_terms(text, 1)) - Counter(words)).elements())


def _terms(text: str, num_characters: int) -> list[str]:
    if text.isascii():
        return re.findall(r"\w+", text.lower())
    plain = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text.casefold())))
    words = split_words(plain, num_characters)
    return list(_with_korean_pieces(words, num_characters)) if _KOREAN.search(plain) else words


def _with_korean_pieces(words: list[str], num_characters: int) -> Iterator[str]:
    """Words of one script each, `k` and `팝은` of `k팝은`, and behind a longer one in Korean its pieces."""
    for run in (run for word in words for run in _RUN.finditer(word)):
        yield run[0]
        if run[1] is not None and len(run[0]) > num_characters:
            yield from (run[0][start : start + num_characters] for start in range(len(run[0]) - num_characters + 1))
