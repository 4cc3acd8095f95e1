"""
Does a completion have the form that was asked for? Judged condition by condition, on the model's own text.

The tag dialect writes `<think>`, `<search>`, `<python>` and `<answer>` into the text; the template dialect writes
calls as the model's chat template does, so that they stand in `tool_calls`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from .answers import extract_boxed
from .code_spans import without_code
from .completion import Completion, Step, message_text, read_steps
from .elements import STRUCTURE, Element, outside_thinking, read_elements

DialectName = Literal["auto", "tags", "template"]
Calls = Sequence[Mapping[str, Any]]

_TOOLS = ("search", "python")
_DIALECT_TAG = re.compile(rf"</?(?:answer|{'|'.join(_TOOLS)})>")
_RAW_RESULT = re.compile(r"</?tool_(?:response|result|output)s?>|<\|tool_response|<tool_response\|>")
_RAW_CALL = re.compile(r"</?tool_calls?>|<function[=_]|<\|(?:tool_call|python_tag)|\[TOOL_CALLS\]")


def format_conditions(
    completion: Completion,
    status: str | None = None,
    calls: Calls | None = None,
    dialect: DialectName = "auto",
    prompt: Completion | None = None,
) -> dict[str, bool]:
    """
    Which conditions of its format a completion meets. The format is good when it meets all.

    Args:
        completion (`str` or `list[dict]`):
            Chat messages, or a text whose tool results stand between `<result>` and `</result>`.
        status (`str`, *optional*):
            The trajectory's [`~trl_agentic.types.Status`]; `None` counts as finished.
        calls (`list[dict]`, *optional*):
            The trajectory's tool calls, of which `status` is read.
        dialect (`"auto"`, `"tags"` or `"template"`, *optional*, defaults to `"auto"`):
            How calls are written. `"auto"` takes calls under `tool_calls` that stand in no tag as a sign of the
            template, and any tag in the prompt or the model's own text as a sign of the tags.
        prompt (`str` or `list[dict]`, *optional*):
            The prompt, for `"auto"`.

    Returns:
        `dict[str, bool]`:
            Name of each condition and whether it is met.
    """
    steps = read_steps(completion)
    finished = {"finished": status is None or status == "finished"}
    boxed = {"box_written": any(extract_boxed(step.text) is not None for step in steps)}
    if resolve_dialect(completion, dialect, prompt) == "tags":
        return finished | _tag_conditions(steps) | boxed
    return finished | _template_conditions(steps, calls or ()) | boxed


def resolve_dialect(
    completion: Completion, dialect: DialectName = "auto", prompt: Completion | None = None
) -> Literal["tags", "template"]:
    """
    The dialect in which a completion is to be judged.

    Args:
        completion (`str` or `list[dict]`):
            The completion.
        dialect (`"auto"`, `"tags"` or `"template"`, *optional*, defaults to `"auto"`):
            `"auto"` decides by the text, see [`format_conditions`].
        prompt (`str` or `list[dict]`, *optional*):
            The prompt, for `"auto"`.

    Returns:
        `str`:
            `"tags"` or `"template"`.

    Raises:
        ValueError: If `dialect` is none of the three.
    """
    if dialect not in ("auto", "tags", "template"):
        raise ValueError(f"`dialect` must be 'auto', 'tags' or 'template'; got {dialect!r}.")
    if dialect != "auto":
        return "tags" if dialect == "tags" else "template"
    steps = read_steps(completion)
    for step in steps:
        for name in step.calls:
            return "tags" if f"<{name}>" in step.text or f"</{name}>" in step.text else "template"
    texts = [without_code(step.text) for step in steps]
    if prompt is not None:
        texts += [prompt] if isinstance(prompt, str) else [message_text(message) for message in prompt]
    return "tags" if any(_DIALECT_TAG.search(text) for text in texts) else "template"


def answer_part(completion: Completion, dialect: Literal["tags", "template"]) -> str:
    """
    The part of a completion in which the answer stands.

    Args:
        completion (`str` or `list[dict]`):
            The completion.
        dialect (`"tags"` or `"template"`):
            How it is written.

    Returns:
        `str`:
            Inside the last `<answer>`, or the last message without its thinking; empty if there is no such part.
    """
    steps = read_steps(completion)
    if dialect == "template":
        return outside_thinking(steps[-1].text)
    answers = [e.body for step in steps for e in _elements(step, _tool_names(steps)) if e.name == "answer"]
    return answers[-1] if answers else ""


def _tag_conditions(steps: list[Step]) -> dict[str, bool]:
    names = _tool_names(steps)
    turns = [_elements(step, names) for step in steps]
    everything = [element for turn in turns for element in turn]
    answers = [element for element in everything if element.name == "answer"]
    begun = [element for element in answers if element.opened]
    thinking = [element for element in everything if element.name == "think"]
    return {
        "thinking_closed": all(e.opened and e.closed and "<think>" not in e.body for e in thinking),
        "calls_answered": not any(e.name == "result" for e in everything)
        and all(_is_answered(turn, step, names) for turn, step in zip(turns, steps, strict=True)),
        "one_answer": len(answers) == 1 and answers[0].opened and answers[0].closed,
        "answer_last": bool(turns[-1]) and turns[-1][-1].name == "answer" and not steps[-1].results,
        "answer_boxed": bool(begun) and extract_boxed(begun[-1].body) is not None,
    }


def _is_answered(turn: list[Element], step: Step, names: tuple[str, ...]) -> bool:
    calls = [element for element in turn if element.name in names]
    return len(calls) == len(step.results) and all(call.opened and call.closed for call in calls)


def _tool_names(steps: list[Step]) -> tuple[str, ...]:
    called = {name for step in steps for name in (*step.calls, *(result.name for result in step.results))}
    return tuple(sorted((called | set(_TOOLS)) - {"", *STRUCTURE}))


def _elements(step: Step, tools: Sequence[str]) -> list[Element]:
    return read_elements(step.text, (*STRUCTURE, *tools))


def _template_conditions(steps: list[Step], calls: Calls) -> dict[str, bool]:
    last = steps[-1]
    final = not last.calls and not last.results
    broken = any(call["status"] == "malformed" for call in calls)
    said = [without_code(outside_thinking(step.text)) for step in steps]
    raw_calls = [_RAW_CALL.search(text) for step, text in zip(steps, said, strict=True) if not step.calls]
    return {
        "calls_answered": not any(_RAW_RESULT.search(text) for text in said)
        and all(len(step.calls) == len(step.results) for step in steps),
        "calls_well_formed": not broken and not any(raw_calls),
        "final_message": final and bool(outside_thinking(last.text).strip()),
        "answer_boxed": final and extract_boxed(outside_thinking(last.text)) is not None,
    }


def make_format_share_reward(dialect: DialectName = "auto") -> Callable[..., list[float | None]]:
    """
    [`format_share_reward`] for a given dialect.

    Args:
        dialect (`"auto"`, `"tags"` or `"template"`, *optional*, defaults to `"auto"`):
            How calls are written.

    Returns:
        `Callable`:
            A reward function named `format_share_reward`.
    """

    def format_share_reward(
        prompts: Sequence[Completion],
        completions: Sequence[Completion],
        rollout_status: Sequence[str | None] | None = None,
        rollout_calls: Sequence[Calls | None] | None = None,
        rollout_dialect: Sequence[DialectName] | None = None,
        rollout_messages: Sequence[Completion] | None = None,
        **kwargs: Any,
    ) -> list[float | None]:
        missing = [None] * len(completions)
        dialects = rollout_dialect if rollout_dialect and dialect == "auto" else [dialect] * len(completions)
        facts = (rollout_status or missing, rollout_calls or missing, dialects)
        rows = zip(prompts, rollout_messages or completions, *facts, strict=True)
        met = [format_conditions(text, status, calls, form, prompt) for prompt, text, status, calls, form in rows]
        return [sum(conditions.values()) / len(conditions) for conditions in met]

    return format_share_reward


def format_share_reward(
    prompts: Sequence[Completion],
    completions: Sequence[Completion],
    rollout_status: Sequence[str | None] | None = None,
    rollout_calls: Sequence[Calls | None] | None = None,
    rollout_dialect: Sequence[DialectName] | None = None,
    rollout_messages: Sequence[Completion] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """
    Reward function: the share of the format conditions that a completion meets, see [`format_conditions`].

    For models that do not know the format yet: all their groups would get -1 from [`arpo_reward`] and teach nothing.

    Args:
        prompts (`list`):
            The prompts.
        completions (`list`):
            The completions, as chat messages or texts.
        rollout_status (`list[str]`, *optional*):
            Status of each trajectory; all are taken as finished without it.
        rollout_calls (`list[list[dict]]`, *optional*):
            Tool calls of each trajectory.
        rollout_dialect (`list[str]`, *optional*):
            How calls were written, `"tags"` or `"template"`; read off the texts without it.
        rollout_messages (`list[list[dict]]`, *optional*):
            The completions as chat messages, which are judged in their place.
        **kwargs:
            Other columns, ignored.

    Returns:
        `list[float | None]`:
            Shares in [0, 1]; 1 if and only if the format is good.
    """
    facts = (rollout_status, rollout_calls, rollout_dialect, rollout_messages)
    return make_format_share_reward()(prompts, completions, *facts)
