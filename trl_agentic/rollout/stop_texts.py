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

    def find(self, sampled: Sequence[int], num_new: int) -> int | None:
        """
        Find the first of the new tokens that completes a stop text.

        Args:
            sampled (`Sequence[int]`):
                All tokens of the request, the new ones at the end.
            num_new (`int`):
                How many are new.

        Returns:
            `int`, *optional*:
                Number of tokens up to and including the completing one; `None` if there is none.
        """
        for end in range(len(sampled) - num_new + 1, len(sampled) + 1):
            if self._last_tokens is not None and sampled[end - 1] not in self._last_tokens:
                continue
            text = self._tokenizer.decode(
                list(sampled[max(end - self._window, 0) : end]),
                skip_special_tokens=False,
                clean_up_tokenization_spaces=False,
            )
            if any(stop in text for stop in self._texts):
                return end
        return None


def _tokens_with(tokenizer: PreTrainedTokenizerBase, characters: set[str]) -> frozenset[int] | None:
    """Tokens that may hold one of the characters; `None` for any token, since only ASCII looks the same in all."""
    if not all(character.isascii() and character.isprintable() and character != " " for character in characters):
        return None
    vocabulary = tokenizer.get_vocab()  # added tokens included
    return frozenset(token for text, token in vocabulary.items() if characters & set(text))
