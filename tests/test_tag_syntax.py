"""The tag dialect: what is a call, what is a broken one, and what only looks like one."""

import json

import pytest
from dialect_tokenizers import TOOLS, encode, search, smollm2, word_tokenizer

from trl_agentic.rewards import arpo_reward
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.types import ToolCall, ToolResult

EOS = "<|im_end|>"


@pytest.fixture(scope="module")
def tokenizer():
    return smollm2()


@pytest.fixture(scope="module")
def dialect(tokenizer):
    return TagDialect(tokenizer, TOOLS)


@pytest.fixture(scope="module")
def read(dialect, tokenizer):
    """Parses a text."""
    return lambda text: dialect.parse(encode(tokenizer, text))


def test_a_call_hands_its_stripped_text_to_the_first_parameter(read):
    turn = read("<think>Who?</think>\n<search>\n capital of Cuba </search>")
    assert turn.calls == (ToolCall("search", {"query": "capital of Cuba"}),)
    function = {"name": "search", "arguments": {"query": "capital of Cuba"}}
    assert turn.message == {
        "role": "assistant",
        "content": "<think>Who?</think>\n<search>\n capital of Cuba </search>",
        "tool_calls": [{"type": "function", "function": function}],
    }


def test_code_keeps_its_lines_and_its_comparisons(read):
    code = "for i in range(3):\n    if i<2 and i>0:\n        print(f'<b>{i}</b>')"
    assert read(f"<python>\n{code}\n</python>").calls == (ToolCall("python", {"code": code}),)


@pytest.mark.parametrize(
    "text",
    [
        "<think>I could write <search>Cuba</search>",
        "<think>I could write <search>Cuba</search> but no</think>It is known.",
        "The prompt opened my thinking: <search>Cuba</search> or not</think>It is known.",
        "An example:\n```\n<search>Cuba</search>\n```\nand that is all.",
        "An example: ```<search>Cuba</search>",
        "<answer>\\boxed{<search>Cuba</search>}</answer>",
        "<answer>It is <search>Cuba</search>",
        "<result>\n<search>Cuba</search>\n</result>",
    ],
)
@pytest.mark.parametrize("end", ["", EOS])
def test_tags_in_thoughts_fences_answers_and_results_are_no_calls(read, text, end):
    turn = read(text + end)
    assert turn.calls == ()
    assert "tool_calls" not in turn.message


def test_a_call_behind_thinking_and_fences_is_one(read):
    text = "Thoughts <search>no</search></think> ```<python>no</python>``` so <search>yes</search>"
    assert read(text).calls == (ToolCall("search", {"query": "yes"}),)


@pytest.fixture(scope="module")
def thinking(tokenizer):
    """A dialect whose template opens a thought in the prompt."""
    opening = "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"
    return TagDialect(tokenizer, TOOLS, chat_template=tokenizer.chat_template + opening)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("Perhaps <python>1+1</python>", ()),
        ("Perhaps <python>1+1</python>, but I know it.</think>", ()),
        ("Perhaps ```<python>1+1</python></think><python>2</python>", ("2",)),
        ("Perhaps <python>.</think><python>2</python>", ("2",)),
        ("<think>Perhaps <python>1</python></think><python>2</python>", ("2",)),
        ("</think><python>print('</think>')</python>", ("print('</think>')",)),
    ],
)
@pytest.mark.parametrize("end", ["", EOS])
def test_a_turn_begins_inside_the_thought_that_the_template_has_opened(thinking, tokenizer, text, calls, end):
    turn_ids = encode(tokenizer, text + end)
    prompt = thinking.encode_prompt("1+1?")
    assert tokenizer.decode(prompt).endswith("<think>\n")
    for turn in (thinking.parse(turn_ids), thinking.parse(turn_ids, prompt)):
        assert turn.calls == tuple(ToolCall("python", {"code": code}) for code in calls)
        assert turn.message["content"] == (text if text.startswith("<think>") else f"<think>\n{text}")


def test_any_prompt_may_open_a_thought_and_a_result_closes_none(dialect, thinking, tokenizer):
    turn_ids, (call,) = encode(tokenizer, "<python>1</python>"), (ToolCall("python", {"code": "1"}),)
    assert dialect.parse(turn_ids, encode(tokenizer, "1+1? <think>")).calls == ()
    assert dialect.parse(turn_ids, encode(tokenizer, "1+1? <think>so</think>")).calls == (call,)
    assert thinking.parse(turn_ids, encode(tokenizer, "<think>\nso</think>")).calls == (call,)
    for said in ("</think><python>1</python>", f"</think><python>{EOS}"):
        result = thinking.render(encode(tokenizer, said), [ToolResult(call, "2")])
        before = [*thinking.encode_prompt("1+1?"), *encode(tokenizer, said), *result.token_ids]
        assert thinking.parse(turn_ids, before).calls == (call,)
        assert tokenizer.decode(result.token_ids).count("<think>") == 0


def test_a_thought_that_never_ends_is_bad_format_whoever_opened_it(thinking, tokenizer):
    text = f"I know it. <answer>\\boxed{{3}}</answer>{EOS}"
    for said, reward in ((text, -1), (f"</think>{text}", 1)):
        turn = thinking.parse(encode(tokenizer, said))
        assert turn.calls == ()
        assert arpo_reward(["q"], [[turn.message]], ["3"], rollout_dialect=["tags"]) == [reward]


def test_a_tag_inside_code_of_a_call_does_not_end_a_thought(read):
    code = "print('</think>', '<answer>', '```')"
    assert read(f"Hm. <python>{code}</python>").calls == (ToolCall("python", {"code": code}),)


def test_only_the_last_call_of_a_turn_is_run(read):
    assert read("<search>first</search> <python>second</python>").calls == (ToolCall("python", {"code": "second"}),)


@pytest.mark.parametrize("tail", ["", " ", "\n\n", EOS, "\n" + EOS])
def test_white_space_and_an_end_token_may_follow_a_call(read, tail):
    assert read("<search>Cuba</search>" + tail).calls == (ToolCall("search", {"query": "Cuba"}),)


def test_what_the_last_token_brings_along_behind_the_tag_changes_nothing(dialect, tokenizer):
    joined = [token for text, token in tokenizer.get_vocab().items() if text in (">.", ">`", ">,", "></", ">)")]
    assert joined  # such tokens are real
    for token in joined:
        turn_ids = [*encode(tokenizer, "<search>Cuba</search"), token]
        assert dialect.parse(turn_ids).calls == (ToolCall("search", {"query": "Cuba"}),)


def test_a_call_before_more_text_is_broken_if_the_message_ended_there(read):
    (call,) = read(f"<search>Cuba</search> and now I wait.{EOS}").calls
    assert call.problem == "Text follows the call of search: stop right after </search>."


def test_a_call_before_more_text_is_open_while_the_message_goes_on(read):
    assert read("<search>Cuba</search> and now I").calls == ()


def test_an_answer_makes_a_turn_final_whatever_stood_before_it(read):
    answer = f"<answer>\\boxed{{1}}</answer>{EOS}"
    assert read(f"<search>Cuba</search> <browser>x</browser> {answer}").calls == ()
    assert read(f"No need for <search> here: {answer}").calls == ()


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        ("Cuba</search>", "search", "</search> closes a call that was never opened with <search>."),
        (f"<search>Cuba{EOS}", "search", "<search> was never closed: end the call with </search>."),
        ("<search>a <python>b</python>", "search", "<python> stands inside <search>: close one call with </search>"),
        ("<search>a <search>b</search>", "search", "<search> stands inside <search>: close one call with </search>"),
        ("<search>a</python>", "search", "<search> was closed with </python>: end the call with </search>."),
        (f"<browser>x</browser>{EOS}", "browser", "<browser> is no tool. The tools are: <search>, <python>, <add>,"),
        (f'<tool_call>{{"name": "search"}}{EOS}', "tool_call", "<tool_call> is no tool."),
        (f"<Search>a</Search>{EOS}", "Search", "<Search> is no tool."),
        ("<search> \n </search>", "search", "The call of search is empty: write its input (query) between the tags."),
    ],
)
def test_a_broken_call_tells_the_model_what_to_change(read, text, name, problem):
    (call,) = read(text).calls
    assert call.name == name
    assert call.arguments == {}
    assert call.problem.startswith(problem)


@pytest.mark.parametrize("text", ["<search>Cu", "<search>a <python>b", "<browser>a.org</browser> then", "<sear"])
def test_a_turn_that_was_cut_holds_no_broken_call(read, text):
    assert read(text).calls == ()


def test_markup_that_is_no_call_does_not_end_in_one(read):
    assert read(f"a < b and <b> stays open{EOS}").calls == ()


def test_a_tool_of_several_parameters_takes_a_json_object(read):
    assert read('<add>{"a": 1, "b": 2}</add>').calls == (ToolCall("add", {"a": 1, "b": 2}),)


@pytest.mark.parametrize("text", ["</add>", '\\" </add> <search>x</search>', "</search>", "`</add>```"])
def test_a_tag_inside_a_string_is_text_where_a_tool_takes_json(read, text):
    body = json.dumps({"a": text, "b": 2})
    assert read(f"<add>{body}</add>").calls == (ToolCall("add", {"a": text, "b": 2}),)
    until_the_tag = f"<add>{body}"[: len("<add>") + body.index(text) + len(text)]
    assert read(until_the_tag).calls == ()  # it goes on
    problem = "The JSON in <add> was never closed: close its strings, and end the call with </add>."
    assert read(until_the_tag + EOS).calls == (ToolCall("add", problem=problem),)
    assert read('<add>{"a": "<search>", "b": "<add>"}</add>').calls == (
        ToolCall("add", {"a": "<search>", "b": "<add>"}),
    )


@pytest.mark.parametrize("body", ["1, 2", "[1, 2]", '"a"', "{", "[" * 5000, '{"a": ' * 5000, "9" * 5000])
def test_anything_else_is_a_problem_for_a_tool_of_several_parameters(read, body):
    (call,) = read(f"<add>{body}</add>").calls
    assert call.problem == 'add needs a JSON object with the keys "a", "b" between its tags.'


def test_a_tool_without_parameters_wants_an_empty_call(read):
    assert read("<now></now>").calls == (ToolCall("now"),)
    assert read("<now>please</now>").calls[0].problem == "now takes no input: write <now></now>."


def test_end_and_padding_tokens_are_no_text(tokenizer, dialect):
    turn_ids = encode(tokenizer, f"<answer>\\boxed{{1}}</answer>{EOS}<|endoftext|><|endoftext|>")
    assert dialect.parse(turn_ids).message == {"role": "assistant", "content": "<answer>\\boxed{1}</answer>"}


def test_control_tokens_inside_a_turn_stay_in_its_text(read):
    assert read(f"a<|im_start|>b{EOS}").message["content"] == "a<|im_start|>b"


def test_an_empty_turn_is_an_empty_message(dialect):
    assert dialect.parse([]).message == {"role": "assistant", "content": ""}


def test_generation_stops_at_every_closing_tag_and_end_token(tokenizer):
    dialect = TagDialect(tokenizer, TOOLS, eos_token_ids=[0, 2])
    assert dialect.stop == ("</search>", "</python>", "</add>", "</now>")
    assert dialect.stop_token_ids == (2, 0)
    assert dialect.parse(encode(tokenizer, "<search>Cuba<|endoftext|>")).calls[0].problem is not None


def test_tags_that_are_single_tokens_are_read_as_well():
    tokenizer = word_tokenizer()
    dialect = TagDialect(tokenizer, [search])
    turn = dialect.parse(encode(tokenizer, "<think> <search> no </search> </think> <search> a b </search>"))
    assert turn.calls == (ToolCall("search", {"query": "a b"}),)
