"""
Questions over the facts: a question is a plan, a list of steps that look facts up or compute with what was found.

    Question("country_of_city", (Lookup("country", "c:Havana"), Lookup("area", 0)))

asks for the area of the country in which Havana lies. [`solve`] walks a plan through the facts. Every country belongs
to one split, its cities with it, and a question belongs to a split only if every entity on its path does.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from .geo_facts import CITY_RELATIONS, COUNTRY_RELATIONS, Value, cities, countries, facts, home

SPLIT_SHARES = {"train": 0.6, "validation": 0.1, "test": 0.3}
SPLIT_SIZES = {"train": 4000, "validation": 400, "test": 1200}

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "larger": max,
    "smaller": min,
    "difference": lambda left, right: abs(left - right),
    "total": lambda left, right: left + right,
}


@dataclass(frozen=True)
class Lookup:
    """
    Look a fact up.

    Args:
        relation (`str`):
            The relation.
        subject (`str` or `int`):
            An entity, or the position of the earlier step whose value is the entity.
    """

    relation: str
    subject: str | int


@dataclass(frozen=True)
class Compute:
    """
    Compute with two numbers found before.

    Args:
        operation (`str`):
            One of `OPERATIONS`.
        left (`int`):
            Position of the step that found the first number.
        right (`int`):
            Position of the step that found the second number.
    """

    operation: str
    left: int
    right: int


Step = Lookup | Compute


@dataclass(frozen=True)
class Question:
    """
    A question as the plan that answers it; the last step's value is the answer.

    Args:
        kind (`str`):
            One of `KINDS`.
        plan (`tuple[Lookup | Compute, ...]`):
            The steps, at most one [`Compute`], last.
    """

    kind: str
    plan: tuple[Step, ...]

    @property
    def hops(self) -> int:
        """Facts to look up; a computation is no hop."""
        return sum(isinstance(step, Lookup) for step in self.plan)

    @property
    def needs_python(self) -> bool:
        """Whether numbers have to be compared or combined."""
        return isinstance(self.plan[-1], Compute)


def solve(question: Question) -> list[tuple[Value, ...]] | None:
    """
    Walk the plan through the facts.

    Returns:
        `list[tuple[str | int, ...]]`, *optional*:
            The values of each step; `None` if a fact is missing, or a step goes on from a fact with several values.
    """
    found: list[tuple[Value, ...]] = []
    for step in question.plan:
        if isinstance(step, Compute):
            operands = found[step.left][0], found[step.right][0]
            assert isinstance(operands[0], int) and isinstance(operands[1], int), "plans compute with numbers only"
            found.append((OPERATIONS[step.operation](*operands),))
            continue
        if isinstance(step.subject, int) and len(found[step.subject]) > 1:
            return None
        subject = step.subject if isinstance(step.subject, str) else str(found[step.subject][0])
        if (subject, step.relation) not in facts():
            return None
        found.append(facts()[subject, step.relation])
    return found


def entities(question: Question) -> set[str]:
    """Every country and city on the path of a solvable question, its answer included."""
    named = {step.subject for step in question.plan if isinstance(step, Lookup) and isinstance(step.subject, str)}
    return named | {str(value) for values in solve(question) or [] for value in values if is_entity(value)}


def is_entity(value: Value) -> bool:
    """Whether a value is a country or a city."""
    return isinstance(value, str) and (value.startswith("c:") or value in countries())


@cache
def splits() -> dict[str, str]:
    """
    The split of every country.

    A country and those of its neighbours that have no split yet go together, since a question about borders needs all
    of them in one split. The assignment is fixed: were it drawn by a seed, one seed could train on another's test.
    """
    rng = random.Random("geo splits")
    order = list(countries())
    rng.shuffle(order)
    target = {split: share * len(order) for split, share in SPLIT_SHARES.items()}
    assigned: dict[str, str] = {}
    for country in order:
        if country in assigned:
            continue
        neighbours = [str(name) for name in facts().get((country, "neighbours"), ())]
        cluster = [country, *(name for name in neighbours if name not in assigned)]
        split = max(target, key=lambda name: target[name])
        target[split] -= len(cluster)
        assigned.update(dict.fromkeys(cluster, split))
    return assigned


def _chain(subject: str, *relations: str) -> tuple[Lookup, ...]:
    """The first relation of the subject, then each further one of what was found."""
    subjects = (subject, *range(len(relations) - 1))
    return tuple(Lookup(relation, source) for relation, source in zip(relations, subjects, strict=True))


def _compare(left: tuple[Lookup, ...], right: tuple[Lookup, ...], operation: str) -> tuple[Step, ...]:
    """Both chains, one behind the other, and a computation with their last values."""
    shift = len(left)
    moved = [Lookup(s.relation, s.subject + shift if isinstance(s.subject, int) else s.subject) for s in right]
    return (*left, *moved, Compute(operation, shift - 1, shift + len(right) - 1))


def _pairs(rng: random.Random, lefts: list[str], rights: list[str]) -> Iterator[tuple[str, str, str, str]]:
    """Endless (left, right, numeric relation of a country, operation); the same country never stands on both sides."""
    while True:
        left, right = rng.choice(lefts), rng.choice(rights)
        if home(left) != home(right):
            yield left, right, rng.choice(["area", "population"]), rng.choice(list(OPERATIONS))


def _plans(kind: str, rng: random.Random, land: list[str], town: list[str]) -> Iterator[tuple[Step, ...]]:
    """Plans of a kind over the given countries and cities: all of them, or an endless stream for pairs."""
    onward = [relation for relation in COUNTRY_RELATIONS if relation != "neighbours"]
    if kind == "country_fact":
        yield from (_chain(c, r) for c in land for r in onward)
    elif kind == "city_fact":
        yield from (_chain(c, r) for c in town for r in CITY_RELATIONS)
    elif kind == "border":
        yield from (_chain(c, "neighbours") for c in land)
    elif kind == "country_of_city":
        yield from (_chain(c, "country", r) for c in town for r in onward if (home(c), r) in facts())
    elif kind == "capital_people":
        yield from (_chain(c, "capital", "people") for c in land)
    elif kind == "only_neighbour":
        yield from (_chain(c, "neighbours", r) for c in land for r in onward)
    elif kind == "city_capital_people":
        yield from (_chain(c, "country", "capital", "people") for c in town)
    elif kind == "compare_countries":
        yield from (_compare(_chain(a, r), _chain(b, r), o) for a, b, r, o in _pairs(rng, land, land))
    elif kind == "compare_city_and_country":
        for a, b, r, o in _pairs(rng, town, land):
            yield _compare(_chain(a, "country", r), _chain(b, r), o)
    elif kind == "compare_countries_of_cities":
        for a, b, r, o in _pairs(rng, town, town):
            yield _compare(_chain(a, "country", r), _chain(b, "country", r), o)
    else:
        for a, b, _, o in _pairs(rng, land, land):
            yield _compare(_chain(a, "capital", "people"), _chain(b, "capital", "people"), o)


# Shares of the questions of a split: 0.36 have one hop, 0.38 two, 0.16 three and 0.10 four; 0.34 need Python.
KINDS = {
    "country_fact": 0.21,
    "city_fact": 0.12,
    "border": 0.03,
    "country_of_city": 0.14,
    "capital_people": 0.06,
    "only_neighbour": 0.04,
    "compare_countries": 0.14,
    "city_capital_people": 0.06,
    "compare_city_and_country": 0.10,
    "compare_countries_of_cities": 0.06,
    "compare_capitals": 0.04,
}


@cache
def pool(split: str) -> tuple[Question, ...]:
    """
    All questions of a split, in a fixed order.

    Args:
        split (`str`):
            `"train"`, `"validation"` or `"test"`.

    Returns:
        `tuple[Question, ...]`:
            About `SPLIT_SIZES[split]` different questions, mixed as `KINDS` says; all of a kind that has few.
    """
    if split not in SPLIT_SHARES:
        raise ValueError(f"Unknown split {split!r}; Geo has {', '.join(map(repr, SPLIT_SHARES))}.")
    rng = random.Random(f"geo questions {split}")
    land = [country for country in countries() if splits()[country] == split]
    town = [city for city in cities() if splits()[home(city)] == split]
    chosen: list[Question] = []
    for kind, share in KINDS.items():
        wanted = round(share * SPLIT_SIZES[split])
        # Ten times as many as wanted: finite kinds are seen whole, so that the draw below is uniform over them.
        plans = itertools.islice(_plans(kind, rng, land, town), 10 * wanted + 1000)
        candidates = list(dict.fromkeys(Question(kind, plan) for plan in plans))
        rng.shuffle(candidates)
        usable = (question for question in candidates if _belongs(question, split))
        chosen += itertools.islice(usable, wanted)
    rng.shuffle(chosen)
    return tuple(chosen)


def _belongs(question: Question, split: str) -> bool:
    """Whether the plan can be walked without leaving the split."""
    if solve(question) is None:
        return False
    owners = [home(entity) if entity in cities() or entity in countries() else None for entity in entities(question)]
    return all(owner is None or splits()[owner] == split for owner in owners)
