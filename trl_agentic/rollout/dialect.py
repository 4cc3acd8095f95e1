"""How tool calls are written and how tool results are rendered: the protocol. Implementations stand beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..types import Segment, ToolCall, ToolResult

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Turn:
    """
    What the model said in one turn (everything it sampled between two tool results).

    Args:
        message (`dict`):
            The turn as a chat message: `role`, `content`, and `tool_calls` in TRL's format if there are calls.
        calls (`tuple[ToolCall, ...]`):
            The calls in the order in which they were written, broken ones included (their `problem` is set). Empty for
            a final message.
    """

    message: dict[str, Any]
    calls: tuple[ToolCall, ...]


class Dialect(Protocol):
    """How calls are written and results rendered."""

    @property
    def name(self) -> str:
        """`"tags"` or `"template"`."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end a segment."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a segment."""
        ...

    def encode_prompt(self, prompt: str | list[dict[str, Any]]) -> list[int]:
        """Tokens of a prompt, tool descriptions and generation prompt included."""
        ...

    def parse(self, token_ids: Sequence[int]) -> Turn:
        """Read the tokens of one turn."""
        ...

    def render(self, turn_ids: Sequence[int], results: Sequence[ToolResult]) -> list[int]:
        """Tokens that follow the turn `turn_ids`: all its results, and whatever opens the model's next turn."""
        ...

    def messages(self, segments: Sequence[Segment]) -> list[dict[str, Any]]:
        """The completion as chat messages: assistant turns, and one `tool` message per result."""
        ...


def make_dialect(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    tools: Sequence[Callable[..., Any]],
    *,
    eos_token_ids: Sequence[int] = (),
    max_result_tokens: int | None = None,
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Dialect:
    """
    Build a dialect by name.

    Args:
        name (`"auto"`, `"tags"` or `"template"`):
            `"tags"` is the papers' format, `"template"` the tokenizer's own chat template. `"auto"` picks the template
            where TRL finds that it supports tools, and tags elsewhere.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The model's tokenizer.
        tools (`Sequence[Callable]`):
            The tools that can be called.
        eos_token_ids (`Sequence[int]`, *optional*, defaults to `()`):
            Further tokens that end a message (the model's generation config may name several).
        max_result_tokens (`int`, *optional*):
            Most tokens of one tool result; `None` for no limit.
        chat_template (`str`, *optional*):
            Chat template to use in place of the tokenizer's own.
        chat_template_kwargs (`Mapping[str, Any]`, *optional*):
            Further arguments of the chat template.

    Returns:
        [`Dialect`]:
            The dialect.

    Raises:
        ValueError: If there is no dialect of that name, or it can't work with this tokenizer or these tools.
    """
    if name not in ("auto", "tags", "template"):
        raise ValueError(f"Unknown dialect {name!r}. Use 'auto', 'tags' or 'template'.")
    # Imported here because the implementations import this module and, with it, transformers and TRL.
    from .tag_dialect import TagDialect
    from .template_dialect import TemplateDialect, template_supports_tools

    if name == "auto":
        name = "template" if template_supports_tools(tokenizer, chat_template) else "tags"
    dialect = TagDialect if name == "tags" else TemplateDialect
    return dialect(
        tokenizer,
        tools,
        eos_token_ids=eos_token_ids,
        max_result_tokens=max_result_tokens,
        chat_template=chat_template,
        chat_template_kwargs=chat_template_kwargs,
    )
