"""What a training script loads for its flags."""

import json
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import HfArgumentParser
from trl import GRPOConfig, ModelConfig

from trl_agentic.tasks import TaskArguments, load_task, model_init_kwargs
from trl_agentic.tools import BM25Search

CACHE = {"capital of Peru": "Page 1: Lima is the capital of Peru."}


@pytest.fixture
def questions(tmp_path):
    """Three questions in the authors' schema, of which two are the same."""
    rows = [
        {
            "data_source": "made_up",
            "prompt": [{"content": question, "role": "user"}],
            "ability": "qa",
            "reward_model": {"ground_truth": answer, "style": "rule"},
        }
        for question, answer in [("Capital of Peru?", "Lima"), ("Capital of Peru?", "Lima"), ("Capital of Chad?", "N")]
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "questions.parquet")
    return str(tmp_path / "questions.parquet")


def test_by_default_geo_is_trained_on_in_english_and_nothing_is_held_out():
    train, held_out, tools = load_task(TaskArguments())
    assert len(train) > 3000 and held_out is None
    assert train[0]["prompt"][0]["content"].endswith("?")
    assert [tool.__name__ for tool in tools] == ["search", "python"]


def test_geo_gives_as_many_questions_as_asked_for_and_holds_out_others():
    train, held_out, _ = load_task(TaskArguments(geo_rendering="compact", num_train_questions=7, num_eval_questions=5))
    assert (len(train), len(held_out)) == (7, 5)
    assert not set(train["question_id"]) & set(held_out["question_id"])
    assert train[0]["prompt"][0]["content"].startswith("what is ")


def test_a_corpus_beside_geo_is_said_not_to_be_read(caplog):
    with caplog.at_level(logging.WARNING, "trl_agentic"):
        load_task(TaskArguments(num_train_questions=1, search_corpus="nowhere.json"))
    assert "`search_corpus` is not read" in caplog.text


@pytest.mark.parametrize("saved", [False, True], ids=["the authors' JSON", "a saved index"])
def test_other_questions_are_searched_for_in_a_corpus(questions, tmp_path, saved):
    corpus = tmp_path / "corpus.json"
    if saved:
        BM25Search.from_arpo_cache(write(corpus)).save(corpus := tmp_path / "index")
    else:
        write(corpus)
    train, held_out, tools = load_task(TaskArguments(dataset=questions, search_corpus=str(corpus)))
    assert train["answer"] == [["Lima"], ["N"]], "repeated questions are dropped"
    assert held_out is None
    search, python = tools
    assert "Lima is the capital" in search("capital Peru") and python.__name__ == "python"


def write(path):
    path.write_text(json.dumps(CACHE))
    return path


@pytest.mark.parametrize(("asked", "loaded"), [(1, 1), (9, 2)])
def test_the_first_questions_are_used_or_all_if_there_are_fewer(questions, tmp_path, asked, loaded):
    corpus = str(write(tmp_path / "corpus.json"))
    train, _, _ = load_task(TaskArguments(dataset=questions, search_corpus=corpus, num_train_questions=asked))
    assert train["answer"][:1] == [["Lima"]] and len(train) == loaded


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rewards": ["arpo_reward", "arpo_rewards"]}, r"no rewards \['arpo_rewards'\]. Choose from .*'arpo_reward'"),
        ({"num_eval_samples": 0}, "`num_eval_samples` must be at least 1, got 0"),
        ({"geo_rendering": "german"}, "Unknown rendering 'german'"),
        ({"dataset": "x.parquet"}, "`search_corpus` is needed"),
        (
            {"dataset": "x.parquet", "search_corpus": "y.json", "num_eval_questions": 5},
            "set `num_eval_questions` to 0",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_loaded_is_refused_with_a_remedy(options, message):
    with pytest.raises(ValueError, match=message):
        load_task(TaskArguments(**options))


def test_each_option_is_a_flag_with_a_help_text():
    parser = HfArgumentParser(TaskArguments)
    (parsed,) = parser.parse_args_into_dataclasses(["--rewards", "arpo_reward", "format_share_reward"])
    assert parsed == TaskArguments(rewards=["arpo_reward", "format_share_reward"])
    assert all(field.metadata["help"] for field in TaskArguments.__dataclass_fields__.values())


# --- the model


@pytest.mark.parametrize("given", [None, {"dtype": "bfloat16", "use_cache": False}])
def test_a_model_is_loaded_as_flags_say_where_its_own_arguments_say_nothing_else(tmp_path, given):
    model_args = ModelConfig(model_revision="v2", dtype="float16", attn_implementation="sdpa")
    training_args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, model_init_kwargs=given)
    from_flags = {"revision": "v2", "dtype": "float16", "attn_implementation": "sdpa"}
    assert model_init_kwargs(model_args, training_args) == from_flags | (given or {})
    assert training_args.model_init_kwargs == given, "nothing is changed in place"


# --- demonstrations


def test_demonstrations_stand_between_the_system_message_and_the_question(tmp_path):
    shown = [{"role": "user", "content": "What is 1 + 1?"}, {"role": "assistant", "content": "<answer> 2 </answer>"}]
    (tmp_path / "shown.json").write_text(json.dumps(shown))
    plain = load_task(TaskArguments(num_train_questions=2, num_eval_questions=2))
    train, held_out, _ = load_task(
        TaskArguments(num_train_questions=2, num_eval_questions=2, demonstrations=str(tmp_path / "shown.json"))
    )
    for with_them, without in ((train, plain[0]), (held_out, plain[1])):
        for row, before in zip(with_them, without, strict=True):
            system = [message for message in before["prompt"] if message["role"] == "system"]
            assert row["prompt"] == [*system, *shown, *before["prompt"][len(system) :]]
            assert row["answer"] == before["answer"]


@pytest.mark.parametrize("content", ['{"role": "user"}', '["text"]', '[{"role": "user", "content": 3}]'])
def test_demonstrations_that_are_no_messages_are_refused(tmp_path, content):
    (tmp_path / "shown.json").write_text(content)
    with pytest.raises(ValueError, match="`demonstrations` must be a JSON list of messages"):
        load_task(TaskArguments(num_train_questions=1, demonstrations=str(tmp_path / "shown.json")))


def test_the_demonstrations_that_come_with_the_recipes_are_right_themselves():
    shown = json.loads((Path(__file__).parents[1] / "configs" / "demonstrations_tags.json").read_text())
    assert [message["role"] for message in shown] == ["user", "assistant"] * 2
    texts = "".join(message["content"] for message in shown[1::2])
    assert all(texts.count(f"<{tag}>") == texts.count(f"</{tag}>") for tag in ("think", "search", "python", "answer"))
    assert "print(17 * 23 + 4)" in texts and f"{17 * 23 + 4} </result>" in texts
