"""What is said of datasets and reward functions before anything is loaded."""

import functools

import pytest
from datasets import Dataset
from tiny import config, dataset, trainer

from trl_agentic import rewards
from trl_agentic.trainers.dataset_checks import check_datasets


@pytest.mark.parametrize(
    "answer", [{"aliases": ["b"], "normalized": "b"}, [{"text": "b"}], b"b"], ids=["dictionary", "list", "bytes"]
)
@pytest.mark.parametrize("which", ["train_dataset", "eval_dataset"])
@pytest.mark.parametrize("reward", [rewards.arpo_reward, functools.partial(rewards.exact_match_reward)])
def test_an_answer_that_ours_cannot_read_is_refused_with_its_row_and_the_remedy(tmp_path, answer, which, reward):
    good = Dataset.from_list([{"prompt": "what is a", "answer": "b"}] * 8)
    bad = Dataset.from_list([{"prompt": "what is a", "answer": answer}] * 8)
    datasets = {"train_dataset": good, "eval_dataset": {"held out": good}}
    datasets[which] = bad if which == "train_dataset" else {"good": good, "held out": bad}
    name = "training dataset" if which == "train_dataset" else "evaluation dataset 'held out'"
    with pytest.raises(ValueError, match=rf"Row 0 of the {name} cannot be scored by `\w+_reward`.*dataset\.map"):
        check_datasets(config(tmp_path), [reward], datasets["train_dataset"], datasets["eval_dataset"])


def test_what_the_users_own_function_makes_of_a_dictionary_is_its_own_business(tmp_path):
    questions = Dataset.from_list([{"prompt": "what is a", "answer": {"aliases": ["b"]}}] * 8)
    check_datasets(config(tmp_path), [lambda completions, answer, **kwargs: [0.0]], questions, None)


@pytest.mark.parametrize("dataset_class", ["map", "stream"])
def test_a_dataset_without_prompts_is_refused_by_name_of_its_columns(tmp_path, dataset_class):
    questions = Dataset.from_list([{"question": "what is a", "answer": "b"}] * 8)
    questions = questions if dataset_class == "map" else questions.to_iterable_dataset()
    with pytest.raises(ValueError, match=r"training dataset has no column `prompt`, but \['question', 'answer'\]"):
        trainer(tmp_path, train_dataset=questions)
    with pytest.raises(ValueError, match="evaluation dataset has no column `prompt`"):
        check_datasets(config(tmp_path), [], dataset(), questions)


class Judge:
    """Rewards as an object, or as its method."""

    def __call__(self, completions, gold, **kwargs):
        return [0.0] * len(completions)

    def score(self, completions, gold, **kwargs):
        return [0.0] * len(completions)

    def only_gold(self, completions, gold):
        return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("reward", "name"),
    [
        (Judge(), "Judge"),
        (Judge().score, "score"),
        (functools.partial(Judge().score), "score"),
        (functools.partial(lambda scale, completions, gold, **kwargs: [scale], 1.0), "<lambda>"),
    ],
    ids=["instance", "method", "partial", "partial of a position"],
)
def test_the_columns_that_any_callable_asks_for_are_looked_for(tmp_path, reward, name):
    with pytest.raises(ValueError, match=rf"`{name}` needs a column `gold`.*\['prompt', 'answer'\]"):
        trainer(tmp_path, reward_funcs=reward)
    with_column = dataset().rename_column("answer", "gold")
    check_datasets(config(tmp_path), [reward], with_column, None)
    check_datasets(config(tmp_path), [functools.partial(Judge().score, gold="b")], dataset(), None)


@pytest.mark.parametrize(
    "reward", [Judge().only_gold, functools.partial(Judge().only_gold), lambda completions: [], lambda: []]
)
def test_a_reward_function_without_kwargs_is_refused_since_it_gets_every_column(tmp_path, reward):
    with pytest.raises(ValueError, match=r"takes no `\*\*kwargs`, but gets every column.*Add `\*\*kwargs`"):
        trainer(tmp_path, reward_funcs=reward, train_dataset=dataset().rename_column("answer", "gold"))
