"""Which dialect a model speaks: a dialect by name, or the one that fits its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from .dialect import Dialect
from .tag_dialect import TagDialect
from .template_dialect import TemplateDialect, template_supports_tools


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
