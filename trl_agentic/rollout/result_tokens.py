"""How the text of a tool result becomes tokens that can't be mistaken for the chat's own control tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from ..types import Segment, ToolResult

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

    def segment(
        self,
        frames: Sequence[Sequence[int]],
        texts: Sequence[str],
        results: Sequence[ToolResult],
        room: int | None = None,
    ) -> Segment:
        """
        The results of one turn with what stands around them.

        Args:
            frames (`Sequence[Sequence[int]]`):
                Tokens before the first result, between each two, and behind the last.
            texts (`Sequence[str]`), results (`Sequence[ToolResult]`):
                The results, and how each is written; one less than frames.
            room (`int`, *optional*):
                Most tokens of the segment; `None` for no limit.

        Returns:
            [`Segment`]:
                Tokens and results. Of a result that is cut, by its own limit or by the room that is left, `content` is
                the text that its tokens show, and `truncated` is set.
        """
        token_ids = list(frames[0])
        shown = []
        for result, text, frame in zip(results, texts, frames[1:], strict=True):
            encoded, is_cut = self._encode(text)
            fitting = encoded if room is None else encoded[: max(room - len(token_ids), 0)]
            if is_cut or len(fitting) < len(encoded):
                result = replace(result, content=self._decode(fitting), truncated=True)
            shown.append(result)
            token_ids += [*encoded, *frame]
        return Segment(tuple(token_ids[:room]), sampled=False, results=tuple(shown))

    def _encode(self, text: str) -> tuple[list[int], bool]:
        """Tokens of a result, and whether they were cut in the middle."""
        token_ids = self._encode_plain(text)
        if self._max_tokens is None or len(token_ids) <= self._max_tokens:
            return token_ids, False
        # The number in the mark can only shrink by digits once the mark's own length is known: one pass is enough.
        mark = self._cut_mark(len(token_ids))
        kept = max(self._max_tokens - len(mark), 2)
        head, tail = kept - kept // 2, kept // 2
        return token_ids[:head] + self._cut_mark(len(token_ids) - kept) + token_ids[-tail:], True

    def _decode(self, token_ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

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
