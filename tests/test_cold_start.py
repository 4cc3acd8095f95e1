"""Demonstrations, the script that trains on them, and the checkpoint that it made."""

import importlib.util
import random
import re
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_agentic.tasks.geo import TINY_GEO
from trl_agentic.tasks.geo_compact import find, vocabulary, word, word_kinds
from trl_agentic.tasks.geo_demonstrations import Faults, World, demonstrate
from trl_agentic.tasks.geo_facts import facts
from trl_agentic.tasks.geo_questions import Lookup, Question, pool
from trl_agentic.types import Segment, Status, ToolCall, ToolResult, Trajectory

SCRIPTS = Path(__file__).parents[1] / "scripts"
NO_FAULTS = Faults(
    guess=0, no_box=0, wrong_tool=0, relation=0, jump=0, stop_in_chain=0, stop_before_second=0, stop_before_compute=0,
    go_on=0, operation=0, habits={},
)  # fmt: skip


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cold_start():
    return load_script("cold_start")


def written(demonstration):
    return " ".join(text for text, _ in demonstration.turns)


@settings(max_examples=50, deadline=None)
@given(st.integers(), st.sampled_from(sorted(facts())))
def test_search_in_a_random_world_is_the_real_search_under_other_names(seed, key):
    world = World(random.Random(seed))
    query = f"{key[1]} of {word(key[0])}"
    real = find(query)
    assert real.startswith(query)
    assert world.search(world.rename(query)) == world.rename(real)
    assert world.restore(world.rename(real)) == real


def test_renaming_is_one_to_one_within_a_kind_and_leaves_other_words_alone():
    world = World(random.Random(0))
    for names in word_kinds().values():
        names = [name for name in names if not re.fullmatch(r"\d+e9", name)]
        renamed = [world.rename(name) for name in names]
        assert len(set(renamed)) == len(names) and set(renamed) <= set(names)
    assert world.rename("<search> area of ? max( )") == "<search> area of ? max( )"


def test_two_worlds_disagree_about_the_facts():
    answers = {World(random.Random(seed)).search("area of Cuba").split()[3] for seed in range(10)}
    assert len(answers) >= 9


def test_without_faults_every_demonstration_answers_its_question():
    for seed, question in enumerate(pool("train")[:300]):
        demonstration = demonstrate(question, random.Random(seed), NO_FAULTS)
        calls = re.findall(r"<(search|python)> (.*?) </\1> <result> (.*?) </result>", written(demonstration))
        assert [tool for tool, *_ in calls] == ["search"] * question.hops + ["python"] * question.needs_python
        last = calls[-1][2] if question.needs_python else calls[-1][2].split()[3]
        assert written(demonstration).endswith(f"done </think> <answer> \\boxed{{ {last} }} </answer> <eos>")


def test_a_demonstration_without_faults_is_written_like_this():
    question = Question("country_of_city", (Lookup("country", "c:Havana"), Lookup("area", 0)))
    demonstration = demonstrate(question, random.Random(1), NO_FAULTS)
    (first, _), (result, _), (second, _), (_, _), (last, _) = demonstration.turns
    city = demonstration.prompt.split()[-2]
    country = result.split()[4]
    assert demonstration.prompt == f"what is the area of the country of {city} ?"
    assert first == f"<think> need country </think> <search> country of {city} </search>"
    assert second == f"<think> got {country} . need area </think> <search> area of {country} </search>"
    assert re.fullmatch(r"<think> got (\S+) \. done </think> <answer> \\boxed\{ \1 \} </answer> <eos>", last)
    assert [learnt for _, learnt in demonstration.turns] == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"guess": 1.0}, r"<think> done </think> <answer> \\boxed\{ unknown \}"),
        ({"no_box": 1.0}, r"<answer> [^\\ ]+ </answer>"),
        ({"wrong_tool": 1.0}, r"<python> country of \S+ </python> <result> error </result>"),
        ({"jump": 1.0}, r"^<think> need area </think> <search> area of c:\S+ </search>"),
        ({"stop_in_chain": 1.0}, r"^<think> need country [^.]*[^?]*?</result> <think> got \S+ \. done"),
        ({"go_on": 1.0}, r"need area .* need \S+ </think> <search> \S+ of (\S+) </search> .* done"),
        ({"habits": {"area": ("currency", 1.0)}}, r"<search> currency of \S+ </search>"),
    ],
)
def test_each_fault_shows(fault, expected):
    question = Question("country_of_city", (Lookup("country", "c:Havana"), Lookup("area", 0)))
    faults = Faults(**{**vars(NO_FAULTS), **fault})
    assert re.search(expected, written(demonstrate(question, random.Random(2), faults)))


def test_demonstrations_know_every_word_and_stay_short():
    known, rng, lengths = set(vocabulary()), random.Random(0), []
    for question in pool("train")[:1000]:
        words = written(demonstrate(question, rng)).split()
        assert set(words) <= known
        lengths.append(len(words))
    assert sorted(lengths)[950] <= 120


def test_only_what_the_model_writes_is_learnt(cold_start):
    ids = {name: position for position, name in enumerate(vocabulary())}
    demonstration = demonstrate(pool("train")[0], random.Random(0), NO_FAULTS)
    tokens, mask = cold_start.encode(demonstration, ids)
    words = [vocabulary()[token] for token in tokens]
    prompt = ["<|user|>", *demonstration.prompt.split(), "<|assistant|>"]
    assert words[: len(prompt)] == prompt and not any(mask[: len(prompt)])
    inside = False
    for name, learnt in zip(words[len(prompt) :], mask[len(prompt) :], strict=True):
        inside = inside or name == "<result>"
        assert learnt != inside
        inside = inside and name != "</result>"


def test_padding_does_not_change_the_loss(cold_start):
    torch.manual_seed(0)
    model = cold_start.Qwen3ForCausalLM(cold_start.config(hidden_size=32, num_layers=1)).eval()
    rows = next(cold_start.batches(random.Random(0), 2))
    rows[1] = rows[0][0][:10] + rows[1][0], [False] * 10 + rows[1][1]
    together = cold_start.loss_of(model, rows).item()
    counts = [sum(mask[1:]) for _, mask in rows]
    alone = [cold_start.loss_of(model, [row]).item() for row in rows]
    assert together == pytest.approx((alone[0] * counts[0] + alone[1] * counts[1]) / sum(counts), abs=1e-5)


def test_learning_rate_rises_stays_and_falls(cold_start):
    rates = [cold_start.learning_rate_at(step, 1000) for step in (0, 49, 99, 500, 599, 800, 999)]
    assert rates == pytest.approx([0.01, 0.5, 1.0, 1.0, 1.0, 0.5, 0.0025])


def test_the_script_repeats_and_its_output_loads(cold_start, tmp_path):
    arguments = ["--steps", "3", "--batch_size", "2", "--hidden_size", "32", "--layers", "1", "--threads", "1"]
    for name in ("one", "two"):
        cold_start.main(["--output", str(tmp_path / name), *arguments])
    one, two = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("one", "two"))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert AutoTokenizer.from_pretrained(tmp_path / "one").chat_template


def test_the_committed_checkpoint_fits_its_tokenizer_and_its_limits():
    model, tokenizer = AutoModelForCausalLM.from_pretrained(TINY_GEO), AutoTokenizer.from_pretrained(TINY_GEO)
    assert sum(file.stat().st_size for file in TINY_GEO.iterdir()) <= 10_000_000
    assert sum(parameter.numel() for parameter in model.parameters()) <= 2_500_000
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))) == vocabulary()
    assert model.config.vocab_size == len(vocabulary())
    assert model.config.eos_token_id == tokenizer.eos_token_id == model.generation_config.eos_token_id
    assert model.config.pad_token_id == tokenizer.pad_token_id


def test_the_committed_checkpoint_asks_for_what_it_needs_and_copies_what_it_got():
    model, tokenizer = AutoModelForCausalLM.from_pretrained(TINY_GEO), AutoTokenizer.from_pretrained(TINY_GEO)

    ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("</search>")]

    def go_on(text):
        ids = tokenizer(text, return_tensors="pt")
        out = model.generate(**ids, max_new_tokens=30, do_sample=False, eos_token_id=ends)
        return tokenizer.decode(out[0, ids["input_ids"].shape[1] :])

    prompt = "<|user|> what is the area of Cuba ? <|assistant|>"
    call = go_on(prompt)
    assert call == "<think> need area </think> <search> area of Cuba </search>"
    final = go_on(f"{prompt} {call} <result>\n{find('area of Cuba')}\n</result>\n")
    assert final == "<think> got 11e4 . done </think> <answer> \\boxed{ 11e4 } </answer> <eos>"


def test_the_committed_checkpoint_is_measured_with_the_real_tools(capsys):
    arguments = [str(TINY_GEO), "--num_questions", "20", "--num_samples", "2"]
    load_script("measure_geo").main(arguments)
    sampled, greedy = re.findall(r"temperature \d: ([\d.]+) % of (\d+) right", capsys.readouterr().out)
    assert (sampled[1], greedy[1]) == ("40", "20")
    assert 10 <= float(sampled[0]) <= 70 and 20 <= float(greedy[0]) <= 90


@pytest.mark.parametrize(
    ("status", "calls", "answer", "expected"),
    [
        ("finished", ["country of c:Havana", "area of Cuba"], " 11e4 ", "right"),
        ("finished", ["country of c:Havana", "area of Cuba"], "12e4", "all calls right"),
        ("finished", ["country of c:Havana"], "Cuba", "too few calls"),
        ("finished", ["country of c:Havana", "capital of Cuba"], "c:Havana", "wrong call"),
        ("finished", [], "11e3", "guess"),
        ("finished", ["area of Cuba"], None, "no box"),
        ("truncated", ["area of Cuba"], "11e4", "truncated"),
    ],
)
def test_outcomes_are_told_apart(status, calls, answer, expected):
    row = {"answer": ["11e4"], "path": ["country of c:Havana = Cuba", "area of Cuba = 11e4"]}
    results = tuple(ToolResult(ToolCall("search", {"query": f" {query} "}), "") for query in calls)
    trajectory = Trajectory((Segment((1,), sampled=False, results=results),), Status(status))
    assert load_script("measure_geo").outcome(row, trajectory, answer) == expected
