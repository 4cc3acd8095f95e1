"""
Geo, the embedded benchmark: questions on countries and cities that take one to four look-ups, often with arithmetic.

```python
dataset = load_geo("train")  # prompt, answer, hops, kind, path, question_id
search, python = geo_tools()
```

The same questions come in two renderings: `"natural"` is English, with one document per entity and exact numbers, for
real models; `"compact"` is the small language of [`~trl_agentic.tasks.geo_compact`], for the tiny model in `TINY_GEO`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

from datasets import Dataset

from ..tools.python import PythonSandbox, make_python_tool
from ..tools.search import BM25Search, Document, make_search_tool
from . import geo_compact
from .geo_facts import Value, cities, countries, facts, spellings
from .geo_questions import Compute, Lookup, Question, pool, solve

Rendering = Literal["natural", "compact"]

# Folder of the committed cold start: a tiny model that knows the compact rendering.
TINY_GEO = Path(__file__).parent / "tiny_geo"

_PHRASES = {
    "capital": "the capital of {}",
    "area": "the area in square kilometres of {}",
    "population": "the population of {}",
    "people": "the population of the city of {}",
    "currency": "the currency of {}",
    "language": "the most spoken language of {}",
    "continent": "the continent of {}",
    "country": "the country in which the city of {} lies",
    "neighbours": "the only country that borders {}",
}

_SENTENCES = {
    "capital": "The capital of {} is {}.",
    "area": "{} has an area of {} square kilometres.",
    "population": "The population of {} is {}.",
    "people": "The city of {} has a population of {}.",
    "currency": "The currency of {} is the {}.",
    "language": "The most spoken language of {} is {}.",
    "continent": "{} lies on the continent of {}.",
    "country": "The city of {} lies in {}.",
    "neighbours": "{} borders {}.",
}

_EXPRESSIONS = {"larger": "max({}, {})", "smaller": "min({}, {})", "difference": "abs({} - {})", "total": "{} + {}"}


def _name(value: Value) -> str:
    return str(value).removeprefix("c:").removeprefix("$")


def _natural_text(question: Question) -> str:
    """The question in English."""

    def phrase(position: int) -> str:
        step = question.plan[position]
        if isinstance(step, Compute):
            left, right = phrase(step.left), phrase(step.right)
            if step.operation == "difference":
                return f"the difference between {left} and {right}"
            if step.operation == "total":
                return f"the sum of {left} and {right}"
            return f"the {step.operation} of these two numbers: {left}, and {right}"
        inner = _name(step.subject) if isinstance(step.subject, str) else phrase(step.subject)
        # The capital of a country is a city already: "the city of the capital" would not be English.
        template = "the population of {}" if step.relation == "people" and isinstance(step.subject, int) else None
        return (template or _PHRASES[step.relation]).format(inner)

    if question.kind == "border":
        subject = question.plan[0].subject if isinstance(question.plan[0], Lookup) else ""
        return f"Name a country that borders {_name(subject)}."
    return f"What is {phrase(len(question.plan) - 1)}?"


def _natural_answers(question: Question) -> tuple[list[str], list[str]]:
    """Accepted answers with all their spellings, and the solution path."""
    found, path = solve(question), []
    assert found is not None, "questions of the pool are solvable"
    subject, relation = "", ""
    for step, values in zip(question.plan, found, strict=True):
        if isinstance(step, Compute):
            left, right = found[step.left][0], found[step.right][0]
            path.append(f"{_EXPRESSIONS[step.operation].format(left, right)} = {values[0]}")
        else:
            subject = step.subject if isinstance(step.subject, str) else str(found[step.subject][0])
            relation = step.relation
            path.append(f"{relation} of {_name(subject)} = {', '.join(map(_name, values))}")
    accepted = [text for value in found[-1] for text in spellings(subject, relation, value)]
    return list(dict.fromkeys(accepted)), path


def _identifier(question: Question) -> str:
    """Unique and the same in both renderings, for example `country_of_city/c:Havana.country.area`."""
    parts = []
    for step in question.plan:
        if isinstance(step, Compute):
            parts.append(step.operation)
        else:
            parts.append(f"{step.subject}.{step.relation}" if isinstance(step.subject, str) else step.relation)
    return f"{question.kind}/{'.'.join(parts)}"


def _row(question: Question, rendering: Rendering) -> dict:
    if rendering == "compact":
        text, (answer, path) = geo_compact.question_text(question), geo_compact.answers(question)
    else:
        text, (answer, path) = _natural_text(question), _natural_answers(question)
    return {
        "prompt": [{"role": "user", "content": text}],
        "answer": answer,
        "hops": question.hops,
        "kind": question.kind,
        "path": path,
        "question_id": _identifier(question),
    }


def _checked(rendering: str) -> None:
    if rendering not in ("natural", "compact"):
        raise ValueError(f"Unknown rendering {rendering!r}; Geo has 'natural' and 'compact'.")


def load_geo(split: str, rendering: Rendering = "natural", num_questions: int | None = None, seed: int = 0) -> Dataset:
    """
    Load the questions of a split.

    Args:
        split (`str`):
            `"train"`, `"validation"` or `"test"`. No country or city on the path of a question of one split occurs on
            the path of a question of another.
        rendering (`"natural"` or `"compact"`, *optional*, defaults to `"natural"`):
            English or the tiny model's language.
        num_questions (`int`, *optional*):
            Number of questions, drawn without replacement; all of the split by default.
        seed (`int`, *optional*, defaults to `0`):
            Order and choice of the questions. The same seed gives the same questions in both renderings.

    Returns:
        [`~datasets.Dataset`]:
            With the columns `prompt` (messages), `answer` (all accepted answers), `hops` (look-ups needed, 1 to 4),
            `kind`, `path` (the solution, one line per step) and `question_id`.

    Raises:
        ValueError: If the split or the rendering is unknown, or the split has fewer questions than asked for.
    """
    _checked(rendering)
    questions = list(pool(split))
    if num_questions is not None and not 0 < num_questions <= len(questions):
        raise ValueError(f"num_questions is {num_questions}; the split {split!r} has 1 to {len(questions)} to give.")
    random.Random(seed).shuffle(questions)
    return Dataset.from_list([_row(question, rendering) for question in questions[:num_questions]])


def geo_documents(rendering: Rendering = "natural") -> list[dict[str, str]]:
    """
    The search corpus: one document per entity.

    Args:
        rendering (`"natural"` or `"compact"`, *optional*, defaults to `"natural"`):
            As in [`load_geo`].

    Returns:
        `list[dict[str, str]]`:
            `title` and `text` of each document.
    """
    _checked(rendering)
    if rendering == "compact":
        return geo_compact.documents()
    found = []
    for entity in (*countries(), *cities()):
        known = [relation for relation in _SENTENCES if (entity, relation) in facts()]
        text = " ".join(
            _SENTENCES[relation].format(_name(entity), ", ".join(map(_name, facts()[entity, relation])))
            for relation in known
        )
        found.append({"title": _name(entity), "text": text})
    return found


@cache
def _natural_search() -> BM25Search:
    return BM25Search([Document(**document) for document in geo_documents()])


def geo_tools(rendering: Rendering = "natural", sandbox: PythonSandbox | None = None) -> list[Callable[..., str]]:
    """
    The two tools of the benchmark.

    Args:
        rendering (`"natural"` or `"compact"`, *optional*, defaults to `"natural"`):
            As in [`load_geo`].
        sandbox ([`~trl_agentic.tools.python.PythonSandbox`], *optional*):
            Runs the code; a new one by default.

    Returns:
        `list[Callable[..., str]]`:
            `search(query)` over [`geo_documents`] and `python(code)`, as `tools=` takes them.
    """
    _checked(rendering)
    sandbox = sandbox or PythonSandbox()
    if rendering == "compact":
        return geo_compact.tools(sandbox.run)
    return [make_search_tool(_natural_search(), top_k=2), make_python_tool(sandbox)]
