"""One rule for code, wherever a text of the model is read."""

import re

import pytest
from dialect_tokenizers import encode, search, smollm2

from trl_agentic.rewards import arpo_reward, format_conditions
from trl_agentic.rewards.code_spans import CODE, code_end, without_code
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.rollout.template_dialect import TemplateDialect
from trl_agentic.types import ToolCall

EOS = "<|im_end|>"
CALLS = {
    "tags": "<search>Cuba</search>",
    "template": '<tool_call>{"name": "search", "arguments": {"query": "Cuba"}}</tool_call>',
}
QUOTED = [
    "An example:\n```\n{}\n```\n",
    "An example: ```{}``` ",
    "~~~\n{}\n~~~\n",
    "~~~xml\n```{}\n~~~\n",
    "````\n```\n{}\n````\n",
    "Write `{}` for it. ",
    "Write `` `{} `` for it. ",
    "Use `a` or `{}`. ",
    "Write `{}\n",
]
NEVER_CLOSED = ["An example:\n```xml\n{}\n", "~~~{}", "Write `{}"]
WRITTEN = [
    "Use `a` and ``b``. {}",
    "```a``` ~~~b~~~ {}",
    "It`s a lone one.\n{}",
    "```\ncode\n```\n{}",
    "~~~\ncode\n~~~~\n{}",
    "~~ no code {}",
]


@pytest.fixture(scope="module")
def dialects():
    tags, template = smollm2(), smollm2("qwen3")
    return {
        "tags": (tags, TagDialect(tags, [search])),
        "template": (template, TemplateDialect(template, [search])),
    }


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("a `b` c", "a  c"),
        ("a ``b`c`` d", "a  d"),
        ("a `b\nc` d", "a \nc"),
        ("```a\nb``` c", " c"),
        ("```a~~~``c", ""),
        ("a ~~~b~~~~ c", "a  c"),
        ("````a```b````c", "c"),
        ("a ~b~ ~~c~~", "a ~b~ ~~c~~"),
        ("", ""),
    ],
)
def test_a_fence_lasts_to_its_end_and_inline_code_to_the_end_of_its_line_at_most(text, rest):
    assert without_code(text) == rest


def test_code_that_is_never_closed_ends_with_the_text_or_the_line():
    assert code_end("a `b\nc", re.search(CODE, "a `b\nc")) == 4
    assert code_end("a ```b\nc", re.search(CODE, "a ```b\nc")) == 8


@pytest.mark.parametrize("dialect", ["tags", "template"])
@pytest.mark.parametrize("end", ["", EOS])
def test_a_call_in_code_is_none_in_either_dialect(dialects, dialect, end):
    tokenizer, reader = dialects[dialect]
    for text in (text.format(CALLS[dialect]) for text in (*QUOTED, *NEVER_CLOSED)):
        turn = reader.parse(encode(tokenizer, text + end))
        assert turn.calls == () and "tool_calls" not in turn.message
        assert turn.message["content"].strip() == text.strip()
    for text in (text.format(CALLS[dialect]) for text in WRITTEN):
        assert reader.parse(encode(tokenizer, text + end)).calls == (ToolCall("search", {"query": "Cuba"}),)


@pytest.mark.parametrize(("dialect", "answer"), [("tags", "<answer>\\boxed{3}</answer>"), ("template", "\\boxed{3}")])
def test_format_and_reward_follow_the_same_rule(dialects, dialect, answer):
    tokenizer, reader = dialects[dialect]

    def judged(text, *more):
        messages = [reader.parse(encode(tokenizer, text.replace("{}", CALLS[dialect]) + EOS)).message, *more]
        (reward,) = arpo_reward(["q"], [messages], ["3"], rollout_dialect=[dialect])
        return {name for name, met in format_conditions(messages, dialect=dialect).items() if not met}, reward

    for text in QUOTED:
        assert judged(text + answer) == (set(), 1)
    result, final = {"role": "tool", "name": "search", "content": "r"}, {"role": "assistant", "content": answer}
    for text in WRITTEN:
        assert judged(text, final) == ({"calls_answered"}, -1)
        assert judged(text, result, final) == (set(), 1)


def test_an_answer_in_code_is_none_and_a_thought_in_code_hides_nothing():
    answer = "<answer>\\boxed{3}</answer>"
    for text in (f"`{answer}`", f"~~~\n{answer}", f"```\n{answer}\n```"):
        assert arpo_reward(["q"], [text], ["3"], rollout_dialect=["tags"]) == [-1]
    for text in (f"`<think>` is a tag. {answer}", f"```\n</think>\n``` {answer}", f"~~~ <result> ~~~{answer}"):
        message = {"role": "assistant", "content": text}
        assert arpo_reward(["q"] * 2, [[message]] * 2, ["3"] * 2, rollout_dialect=["tags", "template"]) == [1, 1]
