import logging
from pathlib import Path

import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, IterableDataset

from trl_agentic.tasks.datasets import check_answers, load_arpo, repair_latex

ARPO_DATA = Path(__file__).parent.parent / "../shared/data/arpo"
SYSTEM = "Put the final answer in \x08oxed{}, as in \\[ \x08oxed{answer here} \\]."


def arpo_row(question="Capital of Peru?", truth="Lima", ability="qa"):
    return {
        "data_source": "made_up",
        "prompt": [{"content": SYSTEM, "role": "system"}, {"content": question, "role": "user"}],
        "ability": ability,
        "reward_model": {"ground_truth": truth, "style": "rule"},
        "extra_info": {"index": 0, "need_tools_kwargs": True, "question": question, "split": "train"},
        "metadata": None,
    }


@pytest.fixture
def save(tmp_path):
    def write(rows):
        path = tmp_path / "questions.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path

    return write


def test_columns_become_trls(save):
    dataset = load_arpo(save([arpo_row(), arpo_row("2 + 2?", "\n4\n", "math")]))

    assert dataset.column_names == ["prompt", "answer", "data_source", "ability"]
    assert dataset["answer"][:] == [["Lima"], ["4"]]
    assert dataset["ability"][:] == ["qa", "math"]
    assert dataset[1]["prompt"][1] == {"role": "user", "content": "2 + 2?"}


def test_the_backspace_in_the_system_prompt_becomes_a_backslash_and_is_reported_once(save, caplog):
    with caplog.at_level(logging.WARNING):
        dataset = load_arpo(save([arpo_row(f"Question {number}?") for number in range(5)]))

    for prompt in dataset["prompt"]:
        assert prompt[0]["content"] == "Put the final answer in \\boxed{}, as in \\[ \\boxed{answer here} \\]."
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == [
        "repaired LaTeX commands that had lost their backslash in 5 prompts."
    ]


def test_a_form_feed_is_repaired_only_where_it_begins_a_fraction():
    assert (
        repair_latex("write \x0crac{m}{n}, then a page break:\x0c end")
        == "write \\frac{m}{n}, then a page break:\x0c end"
    )


def test_sound_prompts_stay_as_they_are_without_a_word(save, caplog):
    row = arpo_row()
    row["prompt"][0]["content"] = "Use \\boxed{}."
    with caplog.at_level(logging.WARNING):
        dataset = load_arpo(save([row]))

    assert dataset[0]["prompt"][0]["content"] == "Use \\boxed{}."
    assert not caplog.records


def test_a_list_of_truths_gives_several_accepted_answers(save):
    assert load_arpo(save([arpo_row(truth=["NYC", " New York "])]))[0]["answer"] == ["NYC", "New York"]


@pytest.mark.parametrize("truth", ["", " \n", None])
def test_a_row_without_an_answer_is_named(save, truth):
    path = save([arpo_row(), arpo_row("Construct an angle.", truth)])
    with pytest.raises(
        ValueError, match=r"1 of 2 rows .* the first is row 1: 'Construct an angle\.'.*drop_unanswered"
    ):
        load_arpo(path)


def test_rows_without_an_answer_are_dropped_and_counted_on_request(save, caplog):
    path = save([arpo_row("A?", " "), arpo_row("B?", "b"), arpo_row("C?", None)])
    with caplog.at_level(logging.WARNING):
        dataset = load_arpo(path, drop_unanswered=True)

    assert dataset["answer"][:] == [["b"]]
    assert "dropped 2 rows without an answer (rows 0, 2)" in caplog.text


def test_repeated_questions_are_counted_whatever_their_case_and_spacing(save, caplog):
    path = save(
        [arpo_row("Who was it?", "a"), arpo_row("who  was it?\n", "a"), arpo_row("WHO was it?", "b"), arpo_row()]
    )
    with caplog.at_level(logging.WARNING):
        dataset = load_arpo(path)

    assert len(dataset) == 4
    assert "2 rows repeat an earlier question, 1 of them with another answer" in caplog.text
    assert "drop_duplicates=True" in caplog.text


def test_the_first_of_repeated_questions_is_kept_on_request(save):
    path = save([arpo_row("Who?", "a"), arpo_row("Where?", "x"), arpo_row("who?", "b")])

    assert load_arpo(path, drop_duplicates=True)["answer"][:] == [["a"], ["x"]]


def test_a_missing_file_says_where_it_was_looked_for_and_what_to_give(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no file .*Give the path of a downloaded parquet file"):
        load_arpo(tmp_path / "none.parquet")


def test_a_file_that_is_not_parquet_says_so(tmp_path):
    path = tmp_path / "broken.parquet"
    path.write_text("<html>not found</html>")
    with pytest.raises(ValueError, match="cannot be read as parquet .*Download it again"):
        load_arpo(path)


def test_another_schema_names_what_is_missing_and_what_is_there(save):
    with pytest.raises(ValueError, match=r"lacks the columns \['data_source', 'ability', 'reward_model'\].*'answer'"):
        load_arpo(save([{"prompt": "Who?", "answer": "me"}]))


def test_a_row_without_a_prompt_is_named(save):
    broken = arpo_row() | {"prompt": []}
    with pytest.raises(ValueError, match=r"Row 1 .* has the prompt \[\]; expected chat messages"):
        load_arpo(save([arpo_row(), broken]))


def test_without_a_network_the_error_says_to_give_a_file(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match="cannot be reached .*give its path instead"):
        load_arpo("dongguanting/ARPO-RL-Reasoning-10K")


def test_a_folder_that_does_not_exist_is_no_network_problem():
    with pytest.raises(FileNotFoundError, match="neither a folder here nor a dataset on the Hub"):
        load_arpo("./nowhere/at_all")


def test_texts_and_lists_of_texts_are_answers():
    check_answers(Dataset.from_dict({"prompt": ["a", "b"], "answer": ["x", "y"]}))
    check_answers(Dataset.from_dict({"prompt": ["a", "b"], "answer": [["x", "y"], ["z"]]}))


def test_a_dataset_without_answers_names_its_columns():
    with pytest.raises(ValueError, match=r"no column 'answer'; its columns are \['prompt', 'solution'\]"):
        check_answers(Dataset.from_dict({"solution": ["x"], "prompt": ["a"]}))


def test_a_stream_without_answers_names_its_columns():
    stream = IterableDataset.from_generator(lambda: iter([{"prompt": "a", "truth": "x"}]))
    with pytest.raises(ValueError, match=r"its columns are \['prompt', 'truth'\]"):
        check_answers(stream)


@pytest.mark.parametrize("answers", [["x", ""], ["x", None], [["x"], []], [["x"], [" "]], [1, 2]])
def test_an_empty_or_unreadable_answer_names_its_row(answers):
    row = 0 if answers == [1, 2] else 1
    with pytest.raises(ValueError, match=f"Row {row} of the dataset has the answer"):
        check_answers(Dataset.from_dict({"prompt": ["a", "b"], "answer": answers}))


@pytest.mark.parametrize(
    ("name", "num_rows", "unanswered", "repeated"),
    [("train_10k", 10_000, 1, 38), ("valid", 180, 0, 0), ("hard_search_1k", 1_071, 0, 0)],
)
def test_the_published_files_load_repaired(name, num_rows, unanswered, repeated):
    path = ARPO_DATA / f"{name}.parquet"
    if not path.is_file():
        pytest.skip(f"the published data ({name}.parquet below ../shared/data/arpo) are not here")
    dataset = load_arpo(path, drop_unanswered=True)

    assert len(dataset) == num_rows - unanswered
    assert len(load_arpo(path, drop_unanswered=True, drop_duplicates=True)) == num_rows - unanswered - repeated
    systems = {prompt[0]["content"] for prompt in dataset["prompt"]}
    assert len(systems) == 1 and systems.pop().count("\\boxed{") == 2
    check_answers(dataset)
