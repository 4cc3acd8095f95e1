"""Arguments as models write them: what is read as JSON, what stays a text, and what is refused in which words."""

from typing import Literal

import pytest
from word_tokenizer import ids, word_tokenizer

from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.tools.calls.signatures import Tool, describe_tools
from trl_agentic.tools.runtime import ToolRuntime
from trl_agentic.types import CallStatus, ToolCall


def described(hint: object) -> Tool:
    """A tool called `search` with one parameter, `value`, of a type."""

    def search(value):
        """
        Look something up.

        Args:
            value: What to look for.
        """
        return repr(value)

    search.__annotations__ = {"value": hint, "return": str}
    (tool,) = describe_tools([search]).values()
    assert tool.schema is not None
    return tool


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int, "1987", 1987),
        (int, " -3 ", -3),
        (float, "2.5", 2.5),
        (float, "2", 2),
        (bool, "true", True),
        (list[int], "[1, 2]", [1, 2]),
        (dict, '{"a": 1}', {"a": 1}),
        (int | None, "4", 4),
        (int | None, "null", None),
        (list[str] | None, '["a"]', ["a"]),
        (int | float, "0.5", 0.5),
        (Literal[1, 2], "2", 2),
        # where a text may stand, it stays what it is
        (str, "1987", "1987"),
        (str | None, "null", "null"),
        (int | str, "1987", "1987"),
    ],
)
def test_a_text_is_read_as_json_where_the_parameter_is_no_text(hint, text, value):
    arguments, problem = described(hint).check({"value": text})
    assert problem is None
    assert arguments == {"value": value} and type(arguments["value"]) is type(value)


@pytest.mark.parametrize(
    ("hint", "text", "problem"),
    [
        (int, "in 1987", 'value must be integer, got a text that does not read as one: "in 1987"'),
        (int, '"1987"', 'value must be integer, got a text that does not read as one: "1987"'),
        (int, "2.5", "value must be integer, got number"),
        (int, "true", "value must be integer, got boolean"),
        (int, "null", "value must be integer, got null"),
        (bool, "True", 'value must be boolean, got a text that does not read as one: "True"'),
        (bool, "1", "value must be boolean, got integer"),
        (list[int], "1, 2", 'value must be array, got a text that does not read as one: "1, 2"'),
        (list[int], "[" * 100_000, "value must be array, got a text that does not read as one"),
        (int, "9" * 10_000, "value must be integer, got a text that does not read as one"),
        (Literal[1, 2], "3", "value must be one of [1, 2], got 3"),
    ],
)
def test_a_text_that_does_not_read_as_the_parameters_type_is_refused_and_says_so(hint, text, problem):
    arguments, complaint = described(hint).check({"value": text})
    assert arguments == {} and complaint is not None
    assert complaint.startswith(f"Wrong arguments for search: {problem}") and len(complaint) < 300


def test_arguments_that_nest_too_deeply_are_an_answer_and_no_error():
    assert described(int).check("[" * 100_000)[1].startswith("Wrong arguments for search: the arguments are a text")


def test_the_call_keeps_what_the_model_wrote():
    written = {"value": "2"}
    assert described(int).check(written)[0] == {"value": 2}
    assert written == {"value": "2"}


def test_a_tag_calls_a_tool_whose_only_parameter_is_a_number():
    tool = described(int).function
    (call,) = TagDialect(word_tokenizer(), [tool]).parse(ids("need <search> 12 </search>")).calls
    with ToolRuntime([tool], num_workers=0) as runtime:
        tagged, quoted = (runtime.perform(each) for each in (call, ToolCall("search", {"value": "12"})))
    assert (tagged.content, tagged.status) == ("12", CallStatus.OK) == (quoted.content, quoted.status)
    assert call.arguments == {"value": "12"}
