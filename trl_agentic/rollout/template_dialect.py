"""Calls as the model's own chat template writes them, read with TRL's response parser."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import (
    add_response_schema,
    get_training_chat_template,
    is_chat_template_prefix_preserving,
    supports_tool_calling,
)

from ..types import Segment, ToolResult
from .dialect import Turn
from .result_tokens import ResultTokenizer, valid_text
from .template_calls import NO_NAME, TemplateCalls
from .tool_schemas import read_signatures
from .turns import read_messages


def template_supports_tools(tokenizer: PreTrainedTokenizerBase, chat_template: str | None = None) -> bool:
    """
    Whether a chat template can render a conversation with tool calls, by TRL's own check.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The model's tokenizer.
        chat_template (`str`, *optional*):
            Chat template to use in place of the tokenizer's own.

    Returns:
        `bool`:
            `True` if it can.
    """
    return bool(supports_tool_calling(_with_template(tokenizer, chat_template)))


class TemplateDialect:
    """
    The dialect of the tokenizer's chat template, as in TRL's own tool loop.

    Prompts, calls and results are tokenised and parsed with TRL's functions. Beyond them, a call that can't be parsed
    is a call with a problem and no final answer, a call in code is none, a tag inside a JSON string is text, and
    special tokens inside a result are, too.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The model's tokenizer.
        tools (`Sequence[Callable]`):
            The tools, with type hints and Google docstrings as `transformers` wants them.
        eos_token_ids (`Sequence[int]`, *optional*, defaults to `()`):
            Further tokens that end a message (the model's generation config may name several).
        max_result_tokens (`int`, *optional*):
            Most tokens of one result, what the template writes around it not counted. Longer ones are cut in the
            middle. `None` for no limit.
        chat_template (`str`, *optional*):
            Chat template to use in place of the tokenizer's own.
        chat_template_kwargs (`Mapping[str, Any]`, *optional*):
            Further arguments of the chat template.

    Raises:
        ValueError: If the template does not support tools, TRL does not know how its calls are parsed, the tokenizer
            has no end token, or a tool's docstring can't be used.
    """

    name = "template"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tools: Sequence[Callable[..., Any]],
        *,
        eos_token_ids: Sequence[int] = (),
        max_result_tokens: int | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ):
        if tokenizer.eos_token_id is None:
            raise ValueError(
                "The tokenizer has no eos token, so no message could ever end. Set `tokenizer.eos_token` to the token "
                "with which the model ends its messages."
            )
        self._tools = read_signatures(tools)
        self._schemas = [tool.schema for tool in self._tools.values()]
        self._tokenizer = _for_training(_with_template(tokenizer, chat_template))
        self._eos = tuple(dict.fromkeys((tokenizer.eos_token_id, *eos_token_ids)))
        self._results = ResultTokenizer(tokenizer, max_result_tokens)
        self._template_kwargs = dict(chat_template_kwargs or {})
        # A turn is parsed together with the opening that the template wrote for it (it may hold a <think>).
        self._reader = TemplateCalls(self._tokenizer, self._tools, self._schemas, self.encode_prompt("x"))

    @property
    def stop(self) -> tuple[str, ...]:
        """Nothing: a turn ends with an end token."""
        return ()

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokens with which the model ends a message."""
        return self._eos

    def encode_prompt(self, prompt: str | list[dict[str, Any]]) -> list[int]:
        """
        Tokens of a prompt, the tools rendered by the template.

        Args:
            prompt (`str` or `list[dict]`):
                A text (one user message) or messages.

        Returns:
            `list[int]`:
                The tokens, generation prompt included.
        """
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if not messages:
            raise ValueError("The prompt holds no messages. Give it at least a user message.")
        token_ids = self._tokenizer.apply_chat_template(
            messages,
            tools=self._schemas or None,  # some templates write boilerplate for an empty list
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **self._template_kwargs,
        )
        return list(token_ids)

    def parse(self, token_ids: Sequence[int], before: Sequence[int] | None = None) -> Turn:
        """
        Read one turn. What TRL takes for a final message because a call in it is broken, is a broken call.

        Args:
            token_ids (`Sequence[int]`):
                All tokens that were sampled since the prompt or the last result.
            before (`Sequence[int]`, *optional*):
                Not needed here: the template opens every turn alike.

        Returns:
            [`Turn`]:
                With all calls of the turn, in order.
        """
        return self._reader.read(self._without_padding(token_ids))

    def _without_padding(self, token_ids: Sequence[int]) -> list[int]:
        end = len(token_ids)
        while end and (token_ids[end - 1] in self._eos or token_ids[end - 1] == self._tokenizer.pad_token_id):
            end -= 1
        # The first end token belongs to the turn: some parsers look for it.
        return list(token_ids[: end + 1] if end < len(token_ids) and token_ids[end] in self._eos else token_ids[:end])

    def render(self, turn_ids: Sequence[int], results: Sequence[ToolResult], room: int | None = None) -> Segment:
        """
        What the template writes behind a turn: all its results together, and the opening of the next turn.

        Args:
            turn_ids (`Sequence[int]`):
                The turn that is answered. If it does not end with an end token, the rendered tokens begin with one.
            results (`Sequence[ToolResult]`):
                All its results, in the order of the calls.
            room (`int`, *optional*):
                Most tokens that may follow; `None` for no limit.

        Returns:
            [`~trl_agentic.types.Segment`]:
                Control tokens inside a result are plain text in it. A result that is cut says so, see
                [`Dialect.render`].

        Raises:
            ValueError: If the template writes earlier messages differently once results follow, or drops a result.
        """
        mark = "resultmark"
        while any(mark in result.content for result in results):
            mark += "x"
        ended = bool(turn_ids) and turn_ids[-1] in self._eos
        pieces = self._suffix(results, mark, ended).split(mark)  # the mark stands on both sides of every result
        return self._results.segment([self._encode_frame(frame) for frame in pieces[::2]], pieces[1::2], results, room)

    def _suffix(self, results: Sequence[ToolResult], mark: str, ended: bool) -> str:
        # As in TRL, one call stands for all, since some templates know a single call only. Its name is never text of
        # the model's own, which could hold control tokens.
        names = [result.call.name if result.call.name in self._tools else NO_NAME for result in results]
        call = {"type": "function", "function": {"name": names[0], "arguments": {}}}
        turn: list[dict[str, Any]] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        answers = [
            {"role": "tool", "name": name, "content": f"{mark}{valid_text(result.content)}{mark}"}
            for name, result in zip(names, results, strict=True)
        ]
        before, after = self._render_text(turn), self._render_text(turn + answers, add_generation_prompt=True)
        # The turn ends with its end token; what the template writes behind that token belongs to the results.
        body, end, _ = before.rpartition(self._tokenizer.eos_token)
        before = body + end if end else before
        if not after.startswith(before):
            raise ValueError(
                "The chat template writes a turn differently once tool results follow it, so tokens that were sampled "
                "already would change. Use a template that keeps earlier messages as they are, or tool_dialect='tags'."
            )
        suffix = after[len(before if ended else body) :] if end else after[len(before) :]
        if suffix.count(mark) != 2 * len(results):
            raise ValueError(
                f"The chat template does not show each of {len(results)} tool results exactly once. Use a template "
                "that does, or tool_dialect='tags'."
            )
        return suffix

    def _render_text(self, messages: list[dict[str, Any]], add_generation_prompt: bool = False) -> str:
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt, **self._template_kwargs
        )
        assert isinstance(text, str)
        return text

    def _encode_frame(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def messages(self, segments: Sequence[Segment], prompt_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """A completion as chat messages, see [`read_messages`]."""
        return read_messages(segments, self.parse, prompt_ids)


def _with_template(tokenizer: PreTrainedTokenizerBase, chat_template: str | None) -> PreTrainedTokenizerBase:
    """A tokenizer of our own, so that the caller's keeps its template and parser."""
    own = copy.copy(tokenizer)
    if chat_template is not None:
        own.chat_template = chat_template
    return own


def _for_training(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Give it TRL's parser and, where its template rewrites earlier messages, TRL's template that does not."""
    if not supports_tool_calling(tokenizer):
        raise ValueError(
            "The tokenizer has no chat template that can render tool calls and their results. Use "
            "tool_dialect='tags', which works with every tokenizer, or set `tokenizer.chat_template` to a template "
            "with tools."
        )
    try:
        if tokenizer.response_template is None:
            add_response_schema(tokenizer)
        if not is_chat_template_prefix_preserving(tokenizer):
            tokenizer.chat_template = get_training_chat_template(tokenizer)
    except ValueError as error:
        raise ValueError(
            f"TRL can't train with this chat template: {error} Use tool_dialect='tags', which works with every "
            "tokenizer, or give the tokenizer one of TRL's templates."
        ) from error
    return tokenizer
