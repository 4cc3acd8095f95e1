"""Arguments as models write them: what is read as JSON, what stays a text, and what is refused in which words."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, Required, TypedDict

import pytest
from pydantic import Field
from transformers.utils import get_json_schema
from word_tokenizer import ids, word_tokenizer

from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.rollout.tool_schemas import read_signatures
from trl_agentic.tools import ResultCache, tool_options
from trl_agentic.tools.calls.signatures import Tool, describe_tools
from trl_agentic.tools.runtime import ToolRuntime
from trl_agentic.types import CallStatus, ToolCall


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Place:
    """What the model reads of a parameter is what the tool says of it, not this."""

    name: str
    floor: int = 0
    color: Color = Color.RED
    near: "list[Place]" = field(default_factory=list)

    def __post_init__(self):
        if self.floor > 100:
            raise TypeError("no house is that high")


class Row(TypedDict, total=False):
    size: Required[int]
    name: str
    rows: "list[Row]"


class Unknown:
    """No library knows how it is read from JSON."""


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
        (float, "2", 2.0),
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
    (read,) = described(hint).check({"value": text}).values.values()
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("hint", "text", "problem"),
    [
        (int, "in 1987", 'value must be a valid integer, got "in 1987"'),
        (int, '"1987"', r'value must be a valid integer, got "\"1987\""'),
        (int, "2.5", "value must be a valid integer, got 2.5"),
        (int, "true", "value must be a valid integer, got true"),
        (int, "null", "value must be a valid integer, got null"),
        (bool, "True", 'value must be a valid boolean, got "True"'),
        (bool, "1", "value must be a valid boolean, got 1"),
        (list[int], "1, 2", 'value must be a valid array, got "1, 2"'),
        (list[int], "[" * 100_000, 'value must be a valid array, got "[[['),
        (int, "9" * 10_000, 'value must be a valid integer, got "999'),
        (Literal[1, 2], "3", "value must be 1 or 2, got 3"),
    ],
)
def test_a_text_that_does_not_read_as_the_parameters_type_is_refused_and_says_so(hint, text, problem):
    complaint = described(hint).check({"value": text})
    assert complaint.startswith(f"Wrong arguments for search: {problem}") and len(complaint) < 300


@pytest.mark.parametrize(
    ("hint", "written", "value"),
    [
        (list, [1, "a"], [1, "a"]),
        (list, "[1]", [1]),
        (tuple, [1, "a"], (1, "a")),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, str], [1, "a"], (1, "a")),
        (set[int], [1, 1], {1}),
        (Sequence[int], [1], [1]),
        (Iterable[int], [1], [1]),
        (Iterable, [1], [1]),
        (Color, "red", Color.RED),
        (Color | None, None, None),
        (list[Color], ["blue", "red"], [Color.BLUE, Color.RED]),
        (dict[str, Color], {"a": "blue"}, {"a": Color.BLUE}),
        (int, 5.0, 5),
        (list[int], [1.0, "2", "3.0"], [1, 2, 3]),
        (list[int] | int, '["1"]', [1]),
        (int | str, 5.0, 5),
        (int | float, 5.0, 5.0),
        (float, 5, 5.0),
        (float, math.inf, math.inf),
        (Any, 5.0, 5.0),
        (Any, {1}, {1}),
        (Place, {"name": "1", "floor": "2"}, Place("1", 2)),
        (
            Place,
            '{"name": "a", "near": [{"name": "b", "color": "blue"}]}',
            Place("a", near=[Place("b", 0, Color.BLUE)]),
        ),
        (Row, {"size": 1.0, "rows": [{"any": 1}]}, {"size": 1, "rows": [{"any": 1}]}),
        (list[Row] | None, '[{"size": "1"}]', [{"size": 1}]),
        (Unknown, '{"a": 1}', {"a": 1}),
        (list[Unknown] | None, "[3]", [3]),
        (list[Unknown] | None, None, None),
        (date, "2026-12-01", date(2026, 12, 1)),
        (str, "a\ud83d", "a?"),  # half of an emoji
    ],
)
def test_the_tool_receives_what_its_hint_says_at_any_depth(hint, written, value):
    (read,) = described(hint).check({"value": written}).values.values()
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("hint", "written", "problem"),
    [
        (list, "a", 'value must be a valid array, got "a"'),
        (list, {"a": 1}, 'value must be a valid array, got {"a": 1}'),
        (tuple[int, str], [1], "value[1]: Field required"),
        (list[int], ["a"], 'value[0] must be a valid integer, got "a"'),
        (list[int], [1, True], "value[1] must be a valid integer, got true"),
        (list[Literal["a", "b"]], ["a", "c"], "value[1] must be 'a' or 'b', got \"c\""),
        (dict[str, list[int]], {"a": [1, "b"]}, 'value.a[1] must be a valid integer, got "b"'),
        (Color, "green", "value must be 'red' or 'blue', got \"green\""),
        (Color, "RED", "value must be 'red' or 'blue', got \"RED\""),
        (int | list[str], {}, "value must be a valid integer or a valid array, got {}"),
        (int, 5.5, "value must be a valid integer, got 5.5"),
        (int, math.inf, "value must be a valid integer, got Infinity"),
        (str, 5, "value must be a valid string, got 5"),
        (Place, {"floor": 1}, "value.name: Field required"),
        (Place, {"name": "a", "near": [{"name": None}]}, "value.near[0].name must be a valid string, got null"),
        (Place, {"name": "a", "floor": 101}, "value could not be read: TypeError: no house is that high"),
        (Row, {"name": "a"}, "value.size: Field required"),
        (dict[str, Row], {"a": {"size": "a"}}, 'value.a.size must be a valid integer, got "a"'),
        (Unknown, ["a"], 'value must be an object, got ["a"]'),
        (list[Unknown], {"a": 1}, 'value must be a valid array, got {"a": 1}'),
        (Annotated[int, Field(ge=1)], 0, "value must be greater than or equal to 1, got 0"),
        (date, "2026-02-30", "value must be a valid date in the format YYYY-MM-DD"),
        (list[int], {1}, "value could not be read: TypeError: Object of type set is not JSON serializable"),
    ],
)
def test_what_a_hint_does_not_allow_is_refused_at_its_place(hint, written, problem):
    assert described(hint).check({"value": written}).startswith(f"Wrong arguments for search: {problem}")


def test_a_parameter_may_be_null_if_that_is_its_default():
    def search(limit: int = None):
        """
        Search.

        Args:
            limit: How many.
        """

    (tool,) = describe_tools([search]).values()
    assert tool.check({"limit": None}).values == {"limit": None}
    assert tool.check({"limit": "3"}).values == {"limit": 3}


@pytest.mark.parametrize("hint", [str, str | None])
def test_choices_of_a_docstring_are_checked(hint):
    def drink(beverage):
        """
        Drink something.

        Args:
            beverage: What (choices: ["tea", "coffee"])
        """

    drink.__annotations__ = {"beverage": hint}
    (tool,) = describe_tools([drink]).values()
    assert tool.check({"beverage": "tea"}).values == {"beverage": "tea"}
    assert "beverage must be 'tea'" in tool.check({"beverage": "milk"})
    assert isinstance(tool.check({"beverage": None}), str) is (hint is str)


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (Color, {"enum": ["red", "blue"], "type": "string"}),
        (Color | None, {"enum": ["red", "blue"], "type": "string", "nullable": True}),
        (list[Color], {"items": {"enum": ["red", "blue"], "type": "string"}, "type": "array"}),
        (list, {"items": {}, "type": "array"}),
        (tuple, {"items": {}, "type": "array"}),
        (tuple[int, ...], {"items": {"type": "integer"}, "type": "array"}),
        (set[str], {"items": {"type": "string"}, "type": "array", "uniqueItems": True}),
        (
            list[Row] | None,
            {
                "items": {
                    "properties": {
                        "size": {"type": "integer"},
                        "name": {"type": "string"},
                        "rows": {"items": {"type": "object", "additionalProperties": True}, "type": "array"},
                    },
                    "required": ["size"],
                    "type": "object",
                },
                "type": "array",
                "nullable": True,
            },
        ),
        (
            Place,
            {
                "properties": {
                    "name": {"type": "string"},
                    "floor": {"type": "integer", "default": 0},
                    "color": {"enum": ["red", "blue"], "type": "string", "default": "red"},
                    "near": {"items": {"type": "object"}, "type": "array"},
                },
                "required": ["name"],
                "type": "object",
            },
        ),
    ],
)
def test_the_model_is_shown_what_a_hint_allows(hint, schema):
    shown = {"description": "What to look for."} | schema
    assert described(hint).schema["function"]["parameters"]["properties"]["value"] == shown


@pytest.mark.parametrize(
    "hint", [int, str | None, list[int], dict[str, float], Literal["a", 1], int | str, tuple[int, str], Any, dict]
)
def test_what_transformers_can_describe_is_described_as_ever(hint):
    tool = described(hint)
    assert tool.schema == get_json_schema(tool.function)


@pytest.mark.parametrize(
    "line",
    [
        "limit: How many.",
        "limit (int): How many.",
        "limit (`int`, *optional*, defaults to `3`): How many.",
        "limit (tuple[int, int], optional):\n        How many.",
    ],
)
def test_a_parameter_may_be_described_with_or_without_its_type(line):
    def search(query: str, limit: int = 3):
        pass

    search.__doc__ = f"Search.\n\nArgs:\n    query (str): What (see below): a text.\n    {line}\n"
    parameters = read_signatures([search])["search"].parameters
    assert parameters == {"query": "What (see below): a text.", "limit": "How many."}


def test_a_tool_that_cannot_be_described_says_why():
    def search(query: str):
        """
        Search.

        Parameters
        ----------
        query : str
            What.
        """

    def look(place: "Plaze"):  # noqa: F821
        """
        Look.

        Args:
            place: Where.
        """

    def take(token: Enum("Token", {"A": object()})):
        """
        Take.

        Args:
            token: Which.
        """

    for tool, reason in [
        (search, "no description for the argument 'query'"),
        (look, "name 'Plaze' is not defined"),
        (take, "The type hint <enum 'Token'> has values that JSON does not know"),
    ]:
        with pytest.raises(ValueError, match=reason):
            read_signatures([tool])


def test_a_tool_may_be_hinted_to_return_anything():
    def search(query: str) -> Iterable[str]:
        """
        Search.

        Args:
            query: What.
        """

    assert read_signatures([search])["search"].required == ("query",)


def test_the_cache_knows_a_call_by_what_the_model_wrote_and_the_tool_gets_the_member(tmp_path):
    colors = []

    @tool_options(cached=True)
    def paint(color: Color):
        """
        Paint.

        Args:
            color: With what.
        """
        colors.append(color)
        return color.value

    with ResultCache(tmp_path) as cache, ToolRuntime([paint], num_workers=0, cache=cache) as runtime:
        results = [runtime.perform(ToolCall("paint", {"color": "blue"})) for _ in range(2)]
        assert cache.get(cache.key("paint", {"color": "blue"})).content == "blue"
    assert [(result.content, result.cached) for result in results] == [("blue", False), ("blue", True)]
    assert colors == [Color.BLUE]


@pytest.mark.parametrize("hint", [int, list, Any, dict[str, int], int | list[int]])
@pytest.mark.parametrize("depth", [150, 300, 900, 100_000])
def test_an_argument_that_nests_too_deeply_is_an_answer_and_no_error(hint, depth):
    text = "[" * depth + "]" * depth
    written = [text, json.loads(text)] if depth < 500 else [text]
    for value in written:
        answer = described(hint).check({"value": value})
        assert isinstance(answer, str if depth > 200 and hint is not Any else (str, tuple))
    assert isinstance(described(hint).check(text), str)


def test_arguments_that_nest_too_deeply_are_an_answer_and_no_error():
    assert described(int).check("[" * 100_000).startswith("Wrong arguments for search: the arguments are a text")


def test_the_call_keeps_what_the_model_wrote():
    written = {"value": "2"}
    assert described(int).check(written) == ({"value": 2}, {"value": 2})
    assert written == {"value": "2"}


def test_a_tag_calls_a_tool_whose_only_parameter_is_a_number():
    tool = described(int).function
    (call,) = TagDialect(word_tokenizer(), [tool]).parse(ids("need <search> 12 </search>")).calls
    with ToolRuntime([tool], num_workers=0) as runtime:
        tagged, quoted = (runtime.perform(each) for each in (call, ToolCall("search", {"value": "12"})))
    assert (tagged.content, tagged.status) == ("12", CallStatus.OK) == (quoted.content, quoted.status)
    assert call.arguments == {"value": "12"}
