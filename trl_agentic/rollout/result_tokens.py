"""How the text of a tool result becomes tokens that can't be mistaken for the chat's own control tokens."""

from __future__ import annotations

import re
from functools import cached_property

from transformers import PreTrainedTokenizerBase

_MARKUP = re.compile(r"<.+>")
MIN_RESULT_TOKENS = 32  # room for the mark that stands in for what was cut, and something on both sides of it


class ResultTokenizer:
    """
    Tokenises tool results as plain text, whatever they hold.

    A `<|im_end|>` inside a result must not end the turn, so text that equals a control token is encoded in pieces.
    Control tokens are the special tokens and the added tokens that look like markup (`<tool_call>`). No BOS is added.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The model's tokenizer.
        max_result_tokens (`int`, *optional*):
            Most tokens of one result, the mark of the cut included; `None` for no limit.

    Raises:
        ValueError: If `max_result_tokens` is too small to show anything.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_result_tokens: int | None = None):
        if max_result_tokens is not None and max_result_tokens < MIN_RESULT_TOKENS:
            raise ValueError(
                f"max_result_tokens={max_result_tokens} leaves no room for a result and the mark of its cut. Use at "
                f"least {MIN_RESULT_TOKENS}, or None for no limit."
            )
        self._tokenizer = tokenizer
        self._max_tokens = max_result_tokens

    @cached_property
    def control_tokens(self) -> tuple[str, ...]:
        """Texts that the tokenizer would turn into a control token, longest first."""
        added = [text for text in self._tokenizer.get_added_vocab() if _MARKUP.fullmatch(text)]
        return tuple(sorted({*added, *self._tokenizer.all_special_tokens}, key=len, reverse=True))

    @cached_property
    def _reserved(self) -> frozenset[int]:
        # SmolLM2 writes <|endoftext|> for the few bytes that it has no token for: nothing is better than that.
        tokenizer = self._tokenizer
        reserved = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
        words_of_their_own = {tokenizer.unk_token_id} - reserved
        return frozenset(set(tokenizer.all_special_ids) - words_of_their_own)

    @cached_property
    def _inside_control_token(self) -> re.Pattern[str]:
        # Matches the empty place behind the first character of a control token.
        return re.compile(
            "|".join(f"(?<={re.escape(t[0])})(?={re.escape(t[1:])})" for t in self.control_tokens if t[1:])
        )

    def encode(self, text: str) -> list[int]:
        """Tokens of a result, cut in the middle where it is longer than `max_result_tokens`."""
        token_ids = self._encode_plain(text)
        if self._max_tokens is None or len(token_ids) <= self._max_tokens:
            return token_ids
        # The number in the mark can only shrink by digits once the mark's own length is known: one pass is enough.
        mark = self._cut_mark(len(token_ids))
        kept = max(self._max_tokens - len(mark), 2)
        head, tail = kept - kept // 2, kept // 2
        return token_ids[:head] + self._cut_mark(len(token_ids) - kept) + token_ids[-tail:]

    def _cut_mark(self, num_tokens: int) -> list[int]:
        return self._encode_plain(f"\n[... {num_tokens} tokens left out ...]\n")

    def _encode_plain(self, text: str) -> list[int]:
        text = valid_text(text)
        pieces = self._inside_control_token.split(text) if self.control_tokens else [text]
        token_ids: list[int] = []
        for piece in pieces:
            encoded = self._tokenizer(piece, add_special_tokens=False, split_special_tokens=True, verbose=False)
            token_ids.extend(token for token in encoded["input_ids"] if token not in self._reserved)
        return token_ids


def valid_text(text: str) -> str:
    """The text with lone surrogates, which no tokenizer takes, replaced by question marks."""
    return text.encode("utf-8", errors="replace").decode("utf-8")
