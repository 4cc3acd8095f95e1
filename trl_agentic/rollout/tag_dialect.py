"""The format of the papers: `<search>…</search>` calls, `<result>…</result>` answers, `<answer>…</answer>` ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from ..types import Segment, ToolCall, ToolResult
from .dialect import Turn
from .result_tokens import ResultTokenizer
from .tag_calls import describe, read_call
from .tag_syntax import STRUCTURE, read_turn
from .tool_schemas import read_signatures
from .turns import read_messages

_INSTRUCTIONS = """\
Answer the question step by step. Think between <think> and </think>. You may use tools: write a tool's input between \
the tags of its name and stop there; what it returns is then given to you between <result> and </result>. Use as many \
calls as you need, one at a time.

Tools:
{tools}

When you know the answer, give it once, between <answer> and </answer>, with the result itself in \\boxed{{}}:
<answer>The capital is \\boxed{{Paris}}.</answer>"""

_OPENED_THOUGHT = re.compile(r"<think>\s*\Z")
_OPENING_TOKENS = 16  # more than it takes to write that


class TagDialect:
    """
    The tag dialect of ARPO and APPO. Works with any tokenizer, with or without a chat template.

    A turn is `<think>…</think><search>query</search>`; its result follows in the same message, on lines of its own,
    between `<result>` and `</result>`. The last turn holds `<answer>…\\boxed{…}…</answer>` and ends with the
    end token of the model.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The model's tokenizer.
        tools (`Sequence[Callable]`):
            The tools, with type hints and Google docstrings as `transformers` wants them. The text of a call becomes
            the first parameter, read as JSON unless that is a `str`; a tool that needs several takes a JSON object.
        eos_token_ids (`Sequence[int]`, *optional*, defaults to `()`):
            Further tokens that end a message (the model's generation config may name several).
        max_result_tokens (`int`, *optional*):
            Most tokens of one result, tags not counted. Longer ones are cut in the middle. `None` for no limit.
        chat_template (`str`, *optional*):
            Chat template to use in place of the tokenizer's own.
        chat_template_kwargs (`Mapping[str, Any]`, *optional*):
            Further arguments of the chat template.

    Raises:
        ValueError: If the tokenizer has no end token, or a tool's name or docstring can't be used.
    """

    name = "tags"

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
        self._tokenizer = tokenizer
        self._tools = read_signatures(tools)
        reserved = set(self._tools) & set(STRUCTURE)
        if reserved:
            raise ValueError(
                f"A tool can't be called {reserved.pop()!r}: the dialect uses that tag itself. Rename it."
            )
        self._eos = tuple(dict.fromkeys((tokenizer.eos_token_id, *eos_token_ids)))
        self._results = ResultTokenizer(tokenizer, max_result_tokens)
        self._template = chat_template or tokenizer.chat_template
        self._template_kwargs = dict(chat_template_kwargs or {})
        names = "|".join(map(re.escape, (*STRUCTURE, *self._tools)))
        self._reopening, self._opening = self._turn_openings()
        self._own_tags = re.compile(rf"<(?=\s*/?\s*(?:{names})\s*>)", re.IGNORECASE)

    @property
    def stop(self) -> tuple[str, ...]:
        """The closing tags of all tools."""
        return tuple(f"</{name}>" for name in self._tools)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokens with which the model ends a message."""
        return self._eos

    @property
    def system_prompt(self) -> str:
        """What a prompt without a system message is given as one: the tools and the format."""
        return _INSTRUCTIONS.format(tools="\n".join(map(describe, self._tools.values())))

    def encode_prompt(self, prompt: str | list[dict[str, Any]]) -> list[int]:
        """
        Tokens of a prompt.

        Args:
            prompt (`str` or `list[dict]`):
                A text is one user message if there is a chat template, and tokenised as it is otherwise. Messages
                without a system message get one with the tools and the format; one of their own is left alone.

        Returns:
            `list[int]`:
                The tokens, up to where the model's message begins.
        """
        if isinstance(prompt, str):
            if self._template is None:
                return list(self._tokenizer(prompt)["input_ids"])
            prompt = [{"role": "user", "content": prompt}]
        if not prompt:
            raise ValueError("The prompt holds no messages. Give it at least a user message.")
        if prompt[0]["role"] != "system":
            prompt = [{"role": "system", "content": self.system_prompt}, *prompt]
        if self._template is None:
            text = "\n\n".join(f"{message['role'].capitalize()}: {message['content']}" for message in prompt)
            return list(self._tokenizer(f"{text}\n\nAssistant:")["input_ids"])
        try:
            return self._encode_messages(prompt)
        except TemplateError:  # some templates (Gemma) know no system role
            if len(prompt) < 2:
                raise
            merged = f"{prompt[0]['content']}\n\n{prompt[1]['content']}"
            return self._encode_messages([{**prompt[1], "content": merged}, *prompt[2:]])

    def _encode_messages(self, messages: list[dict[str, Any]]) -> list[int]:
        return list(self._apply_template(messages, tokenize=True, return_dict=False))

    def _apply_template(self, messages: list[dict[str, Any]], **options: Any) -> Any:
        return self._tokenizer.apply_chat_template(
            messages, chat_template=self._template, add_generation_prompt=True, **options, **self._template_kwargs
        )

    def _turn_openings(self) -> tuple[list[int], str]:
        """What opens another message of the model, and the thought that the template opens in each, if it does."""
        if self._template is None:
            return [], ""
        exchange = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]
        _, end, opening = self._apply_template(exchange, tokenize=False).rpartition(self._tokenizer.eos_token)
        thought = _opened_thought(opening)
        # A result is no part of a thought.
        return self._encode_frame(opening.removesuffix(thought)) if end else [], thought

    def parse(self, token_ids: Sequence[int], before: Sequence[int] | None = None) -> Turn:
        """
        Read one turn.

        The one rule about text behind a call: a call counts only as the last thing of its turn, apart from white
        space and what the token that completed its closing tag brought along. If the model ended its message after
        more text and without an answer, the call is broken. The tokens are kept in any case.

        Args:
            token_ids (`Sequence[int]`):
                All tokens that were sampled since the prompt or the last result.
            before (`Sequence[int]`, *optional*):
                What stands in front of them, by default a prompt of the chat template. If it ends with `<think>`, the
                turn begins inside that thought, and its message with that tag.

        Returns:
            [`Turn`]:
                With one call at most. No call and an end token mean a final message; no call and no end token mean
                that the turn is not finished (a closing tag inside its thinking stopped it, or the budget).
        """
        opening = self._opening if before is None else _opened_thought(self._decode(before[-_OPENING_TOKENS:]))
        body_ids, ended = self._without_end(token_ids)
        written = self._decode(body_ids)
        # A thought that the model opens once more is the same one.
        text = written if written.lstrip().startswith("<think>") else opening + written
        before_last = len(text) - len(written) + len(self._decode(body_ids[:-1]))
        call = self._find_call(text, before_last, ended)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if call is not None:
            function = {"name": call.name, "arguments": dict(call.arguments)}
            message["tool_calls"] = [{"type": "function", "function": function}]
        return Turn(message=message, calls=() if call is None else (call,))

    def _find_call(self, text: str, before_last: int, ended: bool) -> ToolCall | None:
        reading = read_turn(text, self._tools)
        tag = reading.last
        if tag is not None:
            if tag.closed and (not text[tag.end :].strip() or before_last < tag.end):
                if tag.problem is not None:
                    return ToolCall(tag.name, problem=tag.problem)
                return read_call(self._tools[tag.name], tag.body.strip())
            if not ended:
                return None
            problem = tag.problem or f"Text follows the call of {tag.name}: stop right after </{tag.name}>."
            return ToolCall(tag.name, problem=problem)
        if reading.foreign is not None and ended and not reading.answered:
            known = ", ".join(f"<{name}>" for name in self._tools)
            return ToolCall(reading.foreign, problem=f"<{reading.foreign}> is no tool. The tools are: {known}.")
        return None

    def render(self, turn_ids: Sequence[int], results: Sequence[ToolResult], room: int | None = None) -> Segment:
        """
        The results of one turn, in the order given, each in a block of its own.

        Args:
            turn_ids (`Sequence[int]`):
                The turn that is answered.
            results (`Sequence[ToolResult]`):
                All its results, in the order of the calls.
            room (`int`, *optional*):
                Most tokens that may follow; `None` for no limit.

        Returns:
            [`~trl_agentic.types.Segment`]:
                The blocks. Tags of this dialect and control tokens inside a result are plain text in them. If the turn
                ended with an end token (after a broken call), a new message is opened before them.
        """
        opening, closing = self._encode_frame("<result>\n"), self._encode_frame("\n</result>\n")
        ended = bool(turn_ids) and turn_ids[-1] in self._eos
        first = [*(self._reopening if ended else ()), *opening]
        frames = [first, *[closing + opening] * (len(results) - 1), closing]
        texts = [self._own_tags.sub("&lt;", result.content).strip() for result in results]
        return self._results.segment(frames, texts, results, room)

    def _encode_frame(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def messages(self, segments: Sequence[Segment], prompt_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """A completion as chat messages, see [`read_messages`]."""
        return read_messages(segments, self.parse, prompt_ids)

    def _without_end(self, token_ids: Sequence[int]) -> tuple[list[int], bool]:
        end = len(token_ids)
        ended = False
        while end and (token_ids[end - 1] in self._eos or token_ids[end - 1] == self._tokenizer.pad_token_id):
            end -= 1
            ended = ended or token_ids[end] in self._eos
        return list(token_ids[:end]), ended

    def _decode(self, token_ids: Sequence[int]) -> str:
        # Special tokens stay: some vocabularies hold the tags as such.
        decoded = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert isinstance(decoded, str)
        return decoded


def _opened_thought(text: str) -> str:
    """The `<think>` that a text ends with, if it does."""
    found = _OPENED_THOUGHT.search(text)
    return found[0] if found else ""
