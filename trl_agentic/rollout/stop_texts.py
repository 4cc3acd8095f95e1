"""Stop texts: which token completes one."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase


class StopTexts:
    """
    Looks for texts at which a segment ends, without decoding every token.

    Only a token that holds the last character of a stop text can complete one, so nothing is decoded until such a
    token arrives. An engine that detokenises as it goes spends a tenth of its time on it with a small model.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer of the model.
        texts (`Sequence[str]`):
            The texts. Special tokens are text to them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]):
        self._tokenizer = tokenizer
        self._texts = tuple(texts)
        # Tokens are a byte or more each; one token more, since some tokenizers drop the space in front of the first.
        self._window = 1 + max((len(text.encode()) for text in texts), default=0)
        self._last_tokens = _tokens_with(tokenizer, {text[-1] for text in texts if text})

    def find(self, turn_ids: Sequence[int], num_new: int) -> int | None:
        """
        Find the first of the new tokens that completes a stop text.

        Args:
            turn_ids (`Sequence[int]`):
                All tokens of the turn, the new ones at the end.
            num_new (`int`):
                How many are new.

        Returns:
            `int`, *optional*:
                How many of the new tokens there are up to and including the completing one; `None` if there is none.
        """
        first = len(turn_ids) - num_new
        for end in range(first + 1, len(turn_ids) + 1):
            if (self._last_tokens is None or turn_ids[end - 1] in self._last_tokens) and self._completes(
                turn_ids, end
            ):
                return end - first
        return None

    def _completes(self, turn_ids: Sequence[int], end: int) -> bool:
        """Whether the last of `end` tokens makes a stop text complete; an earlier one in the window does not count."""
        window = list(turn_ids[max(end - self._window, 0) : end])
        text = self._decode(window)
        if not any(stop in text for stop in self._texts):
            return False
        before = self._decode(window[:-1])
        return any(text.count(stop) > before.count(stop) for stop in self._texts)

    def _decode(self, token_ids: list[int]) -> str:
        text = self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


def _tokens_with(tokenizer: PreTrainedTokenizerBase, characters: set[str]) -> frozenset[int] | None:
    """Tokens that may hold one of the characters; `None` for any token, since only ASCII looks the same in all."""
    if not all(character.isascii() and character.isprintable() and character != " " for character in characters):
        return None
    vocabulary = tokenizer.get_vocab()  # added tokens included
    return frozenset(token for text, token in vocabulary.items() if characters & set(text))
