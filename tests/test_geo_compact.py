"""Geo's compact rendering: words, tools and tokenizer."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import get_json_schema

from trl_agentic.tasks import geo_compact
from trl_agentic.tasks.geo import geo_documents, geo_tools, load_geo
from trl_agentic.tasks.geo_compact import compute, expression, find, number, readable_result, tools, vocabulary
from trl_agentic.tasks.geo_questions import OPERATIONS, SPLIT_SHARES
from trl_agentic.tools.python import PythonSandbox


@pytest.fixture(scope="module")
def tokenizer():
    return geo_compact.tokenizer()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(110860, "11e4"), (12, "12e0"), (10, "10e0"), (9.6, "10e0"), (3, "3"), (0, "0"), (-12, "- 12e0"), (99.6, "10e1")],
)
def test_numbers_have_two_significant_digits(value, expected):
    assert number(value) == expected


@settings(deadline=None)
@given(st.integers(min_value=10, max_value=99_000_000_000))
def test_a_number_is_a_word_within_five_percent_of_its_value(value):
    assert number(value) in geo_compact.word_kinds()["number"]
    assert math.isclose(float(number(value)), value, rel_tol=0.05)
    assert number(float(number(value))) == number(value)


@pytest.mark.parametrize("split", list(SPLIT_SHARES))
def test_walking_every_path_with_the_tools_ends_at_an_accepted_answer(split):
    evaluate = {"__builtins__": {}, "max": max, "min": min, "abs": abs}
    search, python = tools(lambda code: str(eval(code, evaluate)))
    for row in load_geo(split, "compact"):
        for line in row["path"]:
            left, right = line.split(" = ")
            if " of " in left:
                assert search(left).split(" . ")[0] == f"{left} {right}"
            else:
                assert python(left) == right
        assert set(row["path"][-1].split(" = ")[1].split()) == set(row["answer"])


def test_every_word_of_questions_facts_and_answers_is_known():
    known = set(vocabulary())
    for split in SPLIT_SHARES:
        for row in load_geo(split, "compact"):
            assert set(row["prompt"][0]["content"].split()) | set(row["answer"]) <= known
    for document in geo_documents("compact"):
        assert set(document["text"].split()) <= known
    for operation in OPERATIONS:
        assert set(expression(operation, "11e4", "55e4").split()) <= known


def test_a_search_returns_the_fact_and_one_that_distracts():
    first, second = find("area of Cuba").split(" . ")
    assert first == "area of Cuba 11e4"
    assert " of Cuba " in second and second != first


def test_a_list_of_neighbours_is_found_before_those_who_mention_the_country():
    assert find("neighbours of Haiti").startswith("neighbours of Haiti Dominican_Republic . ")


@pytest.mark.parametrize("query", ["", "of", "<unk> nobody knows this", "max( )"])
def test_a_query_without_a_known_word_finds_nothing(query):
    assert find(query) == "nothing"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("440000.0\n", "44e4"),
        ("7", "7"),
        ("-5e4", "- 50e3"),
        ("NameError: Cuba", "error"),
        ("", "error"),
        ("inf", "error"),
        ("nan", "error"),
    ],
)
def test_output_of_the_sandbox_becomes_a_word(output, expected):
    assert readable_result(output) == expected


def test_the_real_sandbox_agrees_with_the_arithmetic_of_the_demonstrations():
    with PythonSandbox() as sandbox:
        _, python = tools(sandbox.run)
        for operation in OPERATIONS:
            for left, right in [("11e4", "55e4"), ("99e8", "10e8"), ("3", "12e0"), ("83e6", "83e6")]:
                assert python(expression(operation, left, right)) == compute(operation, left, right)
        assert python("area of Cuba") == "error"
        assert python(expression("total", "c:Havana", "11e4")) == compute("total", "c:Havana", "11e4") == "error"


def test_the_sandbox_is_asked_once_for_the_same_code():
    asked = []
    _, python = tools(lambda code: asked.append(code) or "5")
    assert [python("2 + 3"), python("2 + 3"), python("1 + 4")] == ["5", "5", "5"]
    assert asked == ["2 + 3", "1 + 4"]


@pytest.mark.parametrize("rendering", ["natural", "compact"])
def test_transformers_reads_the_schemas_of_the_tools(rendering):
    schemas = [get_json_schema(tool)["function"] for tool in geo_tools(rendering)]
    assert [schema["name"] for schema in schemas] == ["search", "python"]
    assert [list(schema["parameters"]["properties"]) for schema in schemas] == [["query"], ["code"]]


def test_every_word_is_one_token_and_survives_decoding(tokenizer):
    text = "<think> need area </think> <search> area of Cuba </search>"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    ids = tokenizer(" ".join(vocabulary()))["input_ids"]
    assert ids == list(range(len(vocabulary())))
    assert tokenizer.decode(ids) == " ".join(vocabulary())


def test_white_space_in_a_result_does_not_matter(tokenizer):
    spread, dense = "<result>\narea of Cuba 11e4\n</result>\n", " <result> area of Cuba  11e4 </result>"
    assert tokenizer(spread)["input_ids"] == tokenizer(dense)["input_ids"]


def test_unknown_words_become_one_token_that_is_no_tag(tokenizer):
    assert tokenizer.decode(tokenizer("Cuba Atlantis <|im_end|>")["input_ids"]) == "Cuba <unk> <unk>"


def test_padding_and_end_are_different_tokens(tokenizer):
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer.decode([tokenizer.eos_token_id], skip_special_tokens=True) == ""


def test_the_chat_template_leaves_system_messages_and_tools_out(tokenizer):
    messages = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "what is the area of Cuba ?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert prompt == "<|user|> what is the area of Cuba ? <|assistant|>"
    assert "tool" not in tokenizer.chat_template
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == tokenizer(prompt)["input_ids"]


def test_the_architecture_is_qwen3_of_at_most_two_and_a_half_million_parameters():
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM(geo_compact.config())
    assert sum(parameter.numel() for parameter in model.parameters()) <= 2_500_000
    assert model.config.tie_word_embeddings and model.config.max_position_embeddings == 1024
    assert model.config.head_dim in (32, 64)
