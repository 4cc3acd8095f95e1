"""Results that hold values and are no list: how they are shown, how far they are read, whose failure a failure is."""

import asyncio
import itertools
import math
from collections import ChainMap, deque, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest

from trl_agentic.tools import ToolRuntime, TransientToolError, result_text, tool_options
from trl_agentic.types import CallStatus, ToolCall, ToolResult

CITY = {"Cuba": "Havana", "Peru": "Lima"}
Pair = namedtuple("Pair", "left right")


@dataclass
class Place:
    name: str
    floors: object


@dataclass
class Shown:
    name: str

    def __str__(self):
        return f"the {self.name}"


def run(tool, **settings) -> ToolResult:
    with ToolRuntime([tool], **({"num_workers": 0, "timeout_s": 10.0} | settings)) as runtime:
        return runtime.perform(ToolCall(tool.__name__))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (map(str, [1, 2]), '["1", "2"]'),
        (zip("ab", [1, 2], strict=True), '[["a", 1], ["b", 2]]'),
        ((letter for letter in "ab"), '["a", "b"]'),
        (enumerate("a"), '[[0, "a"]]'),
        (iter([]), "[]"),
        (reversed([1, 2]), "[2, 1]"),
        (itertools.groupby("aab"), '[["a", ["a", "a"]], ["b", ["b"]]]'),
        ({"rows": map(len, ["a"])}, '{"rows": [1]}'),
        ([(n for n in range(2)), {1}], "[[0, 1], [1]]"),
        (CITY.keys(), '["Cuba", "Peru"]'),
        (CITY.values(), '["Havana", "Lima"]'),
        (CITY.items(), '[["Cuba", "Havana"], ["Peru", "Lima"]]'),
        (ChainMap(CITY), '{"Cuba": "Havana", "Peru": "Lima"}'),
        ({7}, "[7]"),
        (frozenset("é"), '["é"]'),
        (range(3), "[0, 1, 2]"),
        (deque([1]), "[1]"),
        (np.arange(4).reshape(2, 2), "[[0, 1], [2, 3]]"),
        (np.array([0.1, math.nan], dtype=np.float32), "[0.1, NaN]"),
        (np.array(["a"]), '["a"]'),
        (np.array(5), "5"),
        (np.float32(0.1), "0.1"),
        ([np.int64(3), np.bool_(True), np.float16(0.1), np.array(2)], "[3, true, 0.1, 2]"),
        ({np.int64(3): np.int64(1)}, '{"3": 1}'),
        (Pair(1, np.int8(2)), "[1, 2]"),
        (Place("attic", {3}), '{"name": "attic", "floors": [3]}'),
        ([Place("attic", map(int, "45"))], '[{"name": "attic", "floors": [4, 5]}]'),
        (map(lambda key: {key: 1}, [(1, 2)]), "[{(1, 2): 1}]"),  # a key that JSON does not know
        (Shown("attic"), "the attic"),
        (Place, "<class 'test_json_text.Place'>"),
    ],
)
def test_what_holds_values_is_shown_with_them(value, text):
    assert result_text(value) == text


def endless():
    while True:
        yield "x" * 500


async def endless_later():
    for value in endless():
        yield value


@pytest.mark.parametrize(
    "make",
    [
        itertools.count,
        lambda: [itertools.count()],
        lambda: {"numbers": itertools.repeat("")},
        lambda: (itertools.count() for _ in itertools.count()),
        endless,
        endless_later,
        lambda: range(10**15),
        lambda: np.zeros((100_000, 1000), dtype=np.int8),
    ],
)
def test_what_never_ends_is_read_until_it_fills_a_result_and_says_that_there_is_more(make):
    def search():
        return make()

    result = run(search, max_result_chars=1000)
    assert (result.status, result.truncated, len(result.content)) == (CallStatus.OK, True, 1000)
    assert "... and more, which was not read" in result.content


def test_what_ends_just_in_time_is_complete():
    assert result_text(iter(["a" * 20, "b"]), max_chars=100) == f'["{"a" * 20}", "b"]'


def failing(values=("a",)):
    yield from values
    raise ValueError("the disk is gone")


async def failing_later():
    yield "a"
    await asyncio.sleep(0)
    raise ValueError("the disk is gone")


@pytest.mark.parametrize(
    "make",
    [
        failing,
        failing_later,
        lambda: [failing()],
        lambda: {"rows": failing()},
        lambda: Place("attic", failing()),
        lambda: ((row for row in failing()) for _ in "a"),
    ],
)
def test_an_exception_while_a_result_is_read_is_the_tools_failure(make):
    def search():
        return make()

    result = run(search)
    assert (result.status, result.content) == (CallStatus.ERROR, "ValueError: the disk is gone")


def test_a_tool_that_yields_returns_all_of_it():
    def search():
        yield "a"
        yield 1

    async def browse():
        yield "a"
        await asyncio.sleep(0)
        yield 1

    assert [run(tool).content for tool in (search, browse)] == ['["a", 1]'] * 2


def test_an_async_iterator_that_hangs_is_stopped_at_its_deadline():
    async def search():
        yield "a"
        await asyncio.sleep(60)

    assert run(search, timeout_s=0.1).status is CallStatus.TIMEOUT


def test_a_transient_failure_in_the_middle_of_a_result_is_tried_again():
    attempts = []

    @tool_options(num_retries=1)
    def search():
        attempts.append(1)
        yield "a"
        if len(attempts) == 1:
            raise TransientToolError("busy", retry_after_s=0.0)

    result = run(search)
    assert (result.content, result.attempts) == ('["a"]', 2)
