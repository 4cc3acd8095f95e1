"""
Cuts a text into words, and into characters where a script puts no spaces between words.

Standard library only, for search and rewards alike: both compare texts word by word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

# Han and kana, Thai, Lao, Burmese, Khmer; their digits and punctuation are not in it.
_UNSPACED = (
    "\u3005-\u3007\u3041-\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf"
    "\u1000-\u103f\u1050-\u108f\u109a-\u109d\uaa60-\uaa76\u1780-\u17d3\u17dc\u17dd"
)
# Vowel signs, tones and accents, which `\w` leaves out
_MARKS = "".join(sign for sign in map(chr, range(0x300, 0x10000)) if unicodedata.category(sign)[0] == "M")
_CHARACTER = re.compile(f"[{_UNSPACED}][{_MARKS}]*")
_RUN = re.compile(rf"((?:{_CHARACTER.pattern})+)|(?:(?![{_UNSPACED}])[\w{_MARKS}])+")

_LONGEST_PIECE = 50  # characters: few words are longer, and a text without any space is still cut
_PIECE = re.compile(rf"{_CHARACTER.pattern}[^\w\s]{{0,9}}|(?:(?![{_UNSPACED}])\S){{1,{_LONGEST_PIECE}}}")


def find_pieces(text: str) -> Iterator[re.Match[str]]:
    """
    The places where a text can be cut: what stands between spaces, punctuation included.

    Where a script has no spaces each character is a piece, with the punctuation behind it. None has more than 50.

    Args:
        text (`str`):
            The text.

    Returns:
        `Iterator[re.Match[str]]`:
            A match for each piece, in order.
    """
    return _PIECE.finditer(text)


def split_words(text: str, num_characters: int = 1) -> list[str]:
    """
    The words of a text, in order and without punctuation: `"2008年, Seoul 서울시"` has four.

    Chinese, Japanese, Thai, Lao, Khmer and Burmese are written without spaces: there every character, with its marks,
    stands for a word. Case and accents are left as they are.

    Args:
        text (`str`):
            The text.
        num_characters (`int`, *optional*, defaults to `1`):
            Characters of such a script that are taken together. With 2, `"北京市"` gives `"北京"` and `"京市"`.

    Returns:
        `list[str]`:
            The words.
    """
    words: list[str] = []
    for run in _RUN.finditer(text):
        if run[1] is None:
            words.append(run[0])
            continue
        characters = _CHARACTER.findall(run[0])
        last = max(len(characters) - num_characters, 0)
        words += ["".join(characters[start : start + num_characters]) for start in range(last + 1)]
    return words


def space_characters(text: str) -> str:
    """
    Put spaces between words and the characters of scripts that have none: `"2008年"` becomes `"2008 年 "`.

    Args:
        text (`str`):
            The text.

    Returns:
        `str`:
            The text, with spaces around every such character.
    """
    return _CHARACTER.sub(r" \g<0> ", text)
