"""Calls in a chat template: read as TRL reads them, and the broken ones that TRL takes for final answers."""

import json

import pytest
from dialect_tokenizers import TOOLS, encode, smollm2
from trl.chat_template_utils import add_response_schema, parse_response

from trl_agentic.rollout.template_dialect import TemplateDialect
from trl_agentic.types import ToolCall

EOS = "<|im_end|>"


@pytest.fixture(scope="module")
def tokenizer():
    return smollm2("qwen3")


@pytest.fixture(scope="module")
def dialect(tokenizer):
    return TemplateDialect(tokenizer, TOOLS)


@pytest.fixture(scope="module")
def read(dialect, tokenizer):
    """Parses a text that the model ended."""
    return lambda text: dialect.parse(encode(tokenizer, text + EOS))


def written(name="search", **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_a_call_is_read_as_trl_reads_it(tokenizer, dialect, read):
    text = f"<think>\nWho?\n</think>\n\nLet me see.\n{written(query='Cuba')}"
    turn = read(text)
    assert turn.calls == (ToolCall("search", {"query": "Cuba"}),)
    parser = add_response_schema(smollm2("qwen3"))
    prompt = dialect.encode_prompt("x")
    assert turn.message == parse_response(parser, encode(tokenizer, text + EOS), prefix=prompt, tools=TOOLS)
    assert turn.message["reasoning_content"] == "Who?"


def test_parallel_calls_keep_their_order(read):
    turn = read("\n".join([written(query="a"), written("python", code="1"), written(query="a")]))
    assert turn.calls == (
        ToolCall("search", {"query": "a"}),
        ToolCall("python", {"code": "1"}),
        ToolCall("search", {"query": "a"}),
    )
    assert len(turn.message["tool_calls"]) == 3


def test_one_broken_call_does_not_take_its_neighbours_along(read):
    first, second, third = read(written(query="a") + "<tool_call>{python</tool_call>" + written(query="b")).calls
    assert (first, third) == (ToolCall("search", {"query": "a"}), ToolCall("search", {"query": "b"}))
    assert second.name == "python" and second.problem.startswith("The tool call could not be parsed.")


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "search", "arguments": {"query": ',
        '{"name": "search", "arguments": {"query": "Cuba"}',
        "search(Cuba)",
        '["search"]',
        '"search"',
        "",
        '{"arguments": {"query": "Cuba"}}',
        '{"name": 5, "arguments": {}}',
        '{"name": "search it <|im_start|>", "arguments": {}}',
        "[" * 5000,
        "9" * 5000,
    ],
)
def test_what_trl_takes_for_a_final_answer_is_a_broken_call(read, body):
    turn = read(f"<tool_call>\n{body}\n</tool_call>")
    (call,) = turn.calls
    assert call.problem.startswith("The tool call could not be parsed.")
    assert turn.message["tool_calls"] == [{"type": "function", "function": {"name": call.name, "arguments": {}}}]


def test_a_call_that_was_not_closed_or_not_opened_is_broken(read):
    assert read('<tool_call>{"name": "search", "arguments": {"query": "Cuba"}}').calls[0].problem is not None
    assert read('{"name": "search", "arguments": {"query": "Cuba"}}</tool_call>').calls[0].problem is not None


@pytest.mark.parametrize(
    "code",
    [
        "print('</tool_call>')",
        "a </tool_call>\n<tool_call> b",
        '"</tool_call>" \\" <tool_call>{"name": "now"}</tool_call>',
        "x = '</think>' < '```'",
        "é </tool_call",
    ],
)
def test_a_tag_inside_a_string_is_text(read, code):
    call = ToolCall("python", {"code": code})
    assert read(written("python", code=code)).calls == (call,)
    around = [written(query="a"), written("python", code=code), written(query="b")]
    first, second, third = read(f"Let me see. {''.join(around)}").calls
    assert (first, second, third) == (ToolCall("search", {"query": "a"}), call, ToolCall("search", {"query": "b"}))
    spaced = written("python", code=code).replace("{", "\n\t {", 1).replace("}}", "} }\n ", 1)
    turn = read(f"{spaced} \n {written(query='b')} And then.")
    assert turn.calls == (call, third)
    assert turn.message["content"] == "And then."


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "python", "arguments": {"code": "a</tool_call>',
        '<tool_call>{"name": "python", "arguments": {"code": "a</tool_call>"}',
        '<tool_call>{"name": "python", "arguments": {"code": "a"}} and more</tool_call>',
        '<tool_call>{"name": "python", "arguments": {"code": "a"}} {"name": "python"}</tool_call>',
        '<tool_call>{"name": "python", "arguments": {"code": "a',
    ],
)
def test_a_call_that_was_cut_off_or_holds_more_is_one_broken_call_and_the_next_is_read(read, text):
    (call,) = read(text).calls
    assert call.name == "python" and call.problem.startswith("The tool call could not be parsed.")
    assert read(text).message["content"] == text
    assert read(f"{text}\n{written(query='b')}").calls == (call, ToolCall("search", {"query": "b"}))


@pytest.mark.parametrize("arguments", [{"page": 7}, '{"page": 7}', None])
def test_the_common_alias_of_arguments_is_read(read, arguments):
    (call,) = read(f"<tool_call>{json.dumps({'name': 'fetch', 'parameters': arguments})}</tool_call>").calls
    assert call == ToolCall("fetch", {} if arguments is None else {"page": 7})


@pytest.mark.parametrize(
    ("rest", "surplus"),
    [
        ({"args": {"query": "Cuba"}}, '"args"'),
        ({"input": "Cuba"}, '"input"'),
        ({"query": "Cuba"}, '"query"'),
        ({"query": "Cuba", "k": 3}, '"query", "k"'),
        ({"arguments": {}, "query": "Cuba"}, '"query"'),
        ({"arguments": {"query": "Cuba"}, "parameters": {"k": 3}}, '"parameters"'),
        ({"Arguments": {"query": "Cuba"}}, '"Arguments"'),
    ],
)
def test_arguments_anywhere_else_are_a_problem_that_names_the_key(read, rest, surplus):
    (call,) = read(f"<tool_call>{json.dumps({'name': 'search', **rest})}</tool_call>").calls
    problem = f'The call of search holds {surplus}. Write all its arguments as "arguments": {{"query": "..."}}.'
    assert call == ToolCall("search", problem=problem)


@pytest.mark.parametrize(
    ("template", "call", "arguments"),
    [
        ("qwen3_5_nothink", "<function=python>\n<parameter=code>\n1\n</parameter>\n</function>\n", {"code": "1"}),
        ("qwen3_5_nothink", "<function=python>\n</function>\n", {}),
        ("qwen3_5_nothink", "<function=python>\n<param=code>\n1\n</param>\n</function>\n", None),
        ("qwen3_5_nothink", '<function=python>\n{"code": 1}\n</function>\n', None),
        ("glm4moe", "python\n<arg_key>code</arg_key>\n<arg_value>1</arg_value>\n", {"code": "1"}),
        ("glm4moe", "python\n<key>code</key>\n<value>1</value>\n", None),
    ],
)
def test_what_belongs_to_no_argument_of_a_call_in_xml_makes_it_a_broken_one(template, call, arguments):
    tokenizer = smollm2(template)
    dialect = TemplateDialect(tokenizer, TOOLS)
    (read,) = dialect.parse(encode(tokenizer, f"<tool_call>{call}</tool_call>")).calls
    assert (read.name, read.arguments) == ("python", arguments or {})
    assert (read.problem is None) == (arguments is not None)
    (unclosed,) = dialect.parse(encode(tokenizer, f"<tool_call>{call}")).calls
    assert unclosed.problem is not None


def test_an_id_or_a_type_beside_the_arguments_changes_nothing(read):
    call = {"id": "call_1", "type": "function", "name": "search", "arguments": {"query": "Cuba"}}
    assert read(f"<tool_call>{json.dumps(call)}</tool_call>").calls == (ToolCall("search", {"query": "Cuba"}),)


def test_arguments_in_json_text_are_unwrapped(read):
    once = json.dumps({"query": "Cuba"})
    for arguments in (once, json.dumps(once)):
        call = json.dumps({"name": "search", "arguments": arguments})
        assert read(f"<tool_call>{call}</tool_call>").calls == (ToolCall("search", {"query": "Cuba"}),)


@pytest.mark.parametrize("arguments", ["Cuba", ["Cuba"], 5, True, '["Cuba"]', "[" * 5000])
def test_arguments_that_are_no_object_are_a_problem(read, arguments):
    call = json.dumps({"name": "search", "arguments": arguments})
    (broken,) = read(f"<tool_call>{call}</tool_call>").calls
    assert broken == ToolCall(
        "search", problem='The arguments of search have to be a JSON object such as {"query": "..."}.'
    )


@pytest.mark.parametrize(
    "call", ['{"name": "now"}', '{"name": "now", "arguments": {}}', '{"name": "now", "arguments": null}']
)
def test_a_call_may_have_no_arguments(read, call):
    assert read(f"<tool_call>{call}</tool_call>").calls == (ToolCall("now"),)


def test_a_call_of_an_unknown_tool_is_well_formed(read):
    assert read(written("browser", url="a.org")).calls == (ToolCall("browser", {"url": "a.org"}),)


def test_calls_inside_thinking_are_none(read):
    assert read(f"<think>maybe {written(query='Cuba')}</think>It is known.").calls == ()
    assert read("<think>maybe <tool_call>{broken</tool_call></think>It is known.").calls == ()
    assert read("<think>maybe <tool_call>{broken</tool_call>").calls == ()


def test_a_thought_without_its_opening_is_one(read):
    assert read(f"maybe {written(query='Cuba')}</think>It is known.").calls == ()
    assert read(f"maybe {written(query='a')}</think>{written(query='b')}").calls == (
        ToolCall("search", {"query": "b"}),
    )


@pytest.mark.parametrize("text", ["<tool_response>{}</tool_response>It is known.", "<tool_response>\n{}"])
def test_a_call_inside_a_made_up_result_is_none(read, text):
    turn = read(text.format(written(query="Cuba")))
    assert turn.calls == () and turn.message["content"] == text.format(written(query="Cuba"))


@pytest.mark.parametrize("template", ["qwen3_5_think", "nemotron_3_nano"])
def test_thinking_that_the_template_opened_is_thinking(template):
    tokenizer = smollm2(template)
    dialect = TemplateDialect(tokenizer, TOOLS)
    call = "<tool_call>\n<function=search>\n<parameter=query>\nCuba\n</parameter>\n</function>\n</tool_call>"
    broken = '<tool_call>{"name": "search"}</tool_call>'

    def read(text):
        return dialect.parse(encode(tokenizer, text + EOS))

    assert read(f"maybe {call}").calls == ()
    assert read(f"maybe {broken}").calls == ()
    assert read("maybe \\boxed{3}").message == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "maybe \\boxed{3}",
    }
    assert read(f"maybe {call}</think>no").calls == ()
    assert read(f"maybe</think>{call}").calls == (ToolCall("search", {"query": "Cuba"}),)
    assert read(f"maybe</think>{broken}").calls[0].problem is not None


def test_a_message_without_calls_is_final(read):
    assert read("The capital is \\boxed{Havana}.").message == {
        "role": "assistant",
        "content": "The capital is \\boxed{Havana}.",
    }
    assert read("").calls == ()


def test_an_empty_turn_is_an_empty_message(dialect):
    assert dialect.parse([]).message == {"role": "assistant", "content": ""}


def test_padding_behind_a_turn_changes_nothing(tokenizer, dialect):
    turn_ids = encode(tokenizer, written(query="Cuba") + EOS)
    assert dialect.parse([*turn_ids, tokenizer.pad_token_id, tokenizer.pad_token_id]) == dialect.parse(turn_ids)
    assert dialect.parse([*turn_ids, tokenizer.eos_token_id]) == dialect.parse(turn_ids)


def test_generation_stops_at_end_tokens_alone(tokenizer):
    dialect = TemplateDialect(tokenizer, TOOLS, eos_token_ids=[0, 2])
    assert (dialect.stop, dialect.stop_token_ids) == ((), (2, 0))
