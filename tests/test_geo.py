"""Geo: facts, questions, splits and the natural rendering."""

import itertools
from collections import Counter

import pytest

from trl_agentic.tasks.geo import geo_documents, geo_tools, load_geo
from trl_agentic.tasks.geo_facts import cities, countries, facts, home, spellings
from trl_agentic.tasks.geo_questions import (
    KINDS,
    SPLIT_SHARES,
    Compute,
    Lookup,
    Question,
    entities,
    pool,
    solve,
    splits,
)

SPLITS = list(SPLIT_SHARES)


def test_facts_known_by_heart_are_in():
    assert facts()["Cuba", "capital"] == ("c:Havana",)
    assert facts()["Cuba", "area"] == (110860,)
    assert facts()["Cuba", "language"] == ("Spanish",)
    assert facts()["Cuba", "currency"] == ("$Peso",)
    assert facts()["c:Shanghai", "country"] == ("China",)
    assert facts()["Portugal", "neighbours"] == ("Spain",)
    assert ("Iceland", "neighbours") not in facts()


def test_a_capital_is_found_under_other_spellings():
    assert facts()["Brazil", "capital"] == ("c:Brasília",)  # the country's row says Brasilia
    assert facts()["Kazakhstan", "capital"] == ("c:Astana",)  # and Nur-Sultan


def test_a_capital_with_a_document_lies_in_its_country():
    for country in countries():
        for capital in facts().get((country, "capital"), ()):
            if capital in cities():
                assert home(capital) == country


def test_neighbours_are_mutual():
    for country in countries():
        for neighbour in facts().get((country, "neighbours"), ()):
            assert country in facts()[str(neighbour), "neighbours"], (country, neighbour)


def test_there_are_five_thousand_different_questions():
    identifiers = [identifier for split in SPLITS for identifier in load_geo(split)["question_id"]]
    assert len(identifiers) >= 5000
    assert len(set(identifiers)) == len(identifiers)


def test_no_entity_on_a_path_occurs_in_two_splits():
    on_paths = {split: set().union(*map(entities, pool(split))) for split in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not on_paths[one] & on_paths[other]
        homes = [{home(entity) for entity in on_paths[split] if entity in cities()} for split in (one, other)]
        assert not homes[0] & homes[1]


def test_entities_include_what_a_step_finds_and_the_answer():
    question = Question("country_of_city", (Lookup("country", "c:Havana"), Lookup("neighbours", 0)))
    assert entities(question) == {"c:Havana", "Cuba", "United States"}


def test_every_country_has_one_split_and_its_neighbours_are_kept_close():
    assert set(splits()) == set(countries())
    shares = Counter(splits().values())
    assert all(abs(shares[split] / len(countries()) - share) < 0.05 for split, share in SPLIT_SHARES.items())
    assert {question.kind for question in pool("test")} == set(KINDS)


def test_test_questions_have_enough_hops_and_enough_arithmetic():
    questions = pool("test")
    assert {question.hops for question in questions} == {1, 2, 3, 4}
    assert sum(question.hops >= 2 for question in questions) >= 0.4 * len(questions)
    assert sum(question.needs_python for question in questions) >= 0.25 * len(questions)
    several = [question for question in questions if question.hops >= 2]
    assert sum(question.needs_python for question in several) >= 0.25 * len(several)


def test_solve_walks_a_plan_of_four_look_ups_and_a_difference():
    plan = (
        Lookup("country", "c:Havana"), Lookup("area", 0), Lookup("country", "c:Paris"), Lookup("area", 2),
        Compute("difference", 1, 3),
    )  # fmt: skip
    found = solve(Question("compare_countries_of_cities", plan))
    assert found == [("Cuba",), (110860,), ("France",), (547030,), (436170,)]


def test_a_plan_that_goes_on_from_several_neighbours_has_no_solution():
    assert solve(Question("only_neighbour", (Lookup("neighbours", "China"), Lookup("area", 0)))) is None
    assert solve(Question("only_neighbour", (Lookup("neighbours", "Iceland"), Lookup("area", 0)))) is None


@pytest.mark.parametrize("split", SPLITS)
def test_walking_every_path_with_the_facts_ends_at_an_accepted_answer(split):
    shown = {}
    for (entity, relation), values in facts().items():
        text = ", ".join(str(value).removeprefix("c:").removeprefix("$") for value in values)
        shown.setdefault(f"{relation} of {entity.removeprefix('c:')}", set()).add(text)
    for row in load_geo(split):
        for line in row["path"]:
            left, right = line.rsplit(" = ", 1)
            assert right in shown[left] if " of " in left else str(eval(left)) == right
        assert set(row["path"][-1].rsplit(" = ", 1)[1].split(", ")) & set(row["answer"])
        assert sum(" of " in line for line in row["path"]) == row["hops"]


def test_the_same_seed_gives_the_same_questions_in_both_renderings():
    natural, compact = load_geo("test", "natural", 50, seed=3), load_geo("test", "compact", 50, seed=3)
    assert natural["question_id"] == compact["question_id"]
    assert natural["hops"] == compact["hops"]
    assert load_geo("test", "natural", 50, seed=3)["prompt"] == natural["prompt"]
    assert load_geo("test", "natural", 50, seed=4)["question_id"] != natural["question_id"]


def test_a_prompt_is_one_user_message():
    row = load_geo("train", num_questions=1)[0]
    assert [message["role"] for message in row["prompt"]] == ["user"]
    assert row["prompt"][0]["content"][-1] in "?."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "dev"}, "Unknown split 'dev'"),
        ({"split": "test", "rendering": "short"}, "Unknown rendering 'short'"),
        ({"split": "test", "num_questions": 10_000}, "num_questions is 10000; the split 'test' has 1 to"),
        ({"split": "test", "num_questions": 0}, "num_questions is 0"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_geo(**arguments)


def test_spellings_of_names_and_numbers():
    assert spellings("Cuba", "area", 110860) == ["110860", "110,860"]
    assert spellings("Cuba", "currency", "$Peso") == ["Peso", "CUP"]
    assert spellings("c:Havana", "country", "Cuba") == ["Cuba"]
    assert {"Brasília", "Brasilia"} <= set(spellings("Brazil", "capital", "c:Brasília"))
    assert {"Beijing", "Peking"} <= set(spellings("China", "capital", "c:Beijing"))
    assert "PEK" not in spellings("China", "capital", "c:Beijing")


def test_every_fact_stands_in_the_document_of_its_entity():
    texts = {}
    for document in geo_documents():
        texts.setdefault(document["title"], []).append(document["text"])
    assert sum(map(len, texts.values())) == len(countries()) + len(cities())
    for (entity, _), values in facts().items():
        for value in values:
            name = str(value).removeprefix("c:").removeprefix("$")
            assert any(name in text for text in texts[entity.removeprefix("c:")])


def test_the_natural_search_finds_the_documents_on_a_path():
    search, _ = geo_tools("natural")
    assert "110860" in search("area of Cuba")
    assert "Havana" in search("What is the capital of Cuba?")
