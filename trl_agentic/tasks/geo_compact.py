"""
The compact rendering of Geo: the same questions in a language of some 2,000 words, for a model that trains on a CPU.

Every word stands between spaces and is one token: an entity (`Cuba`, `c:New_York_City`), a relation, a tag, or a
number of two significant digits that is also a Python literal (`11e4` for 110,860), so that the sandbox runs what the
model writes.

    what is the difference of the area of Cuba and the area of the country of c:Paris ?
    <search> area of Cuba </search>      ->  area of Cuba 11e4 . capital of Cuba c:Havana
    <python> abs( 11e4 - 55e4 ) </python>  ->  44e4
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config

from ..tools.search_backends.bm25_library import import_bm25s
from .geo_facts import CITY_RELATIONS, COUNTRY_RELATIONS, Value, cities, countries, facts
from .geo_questions import OPERATIONS, Compute, Question, solve

# Passages that a search returns.
TOP_K = 2
NOTHING = "nothing"
ERROR = "error"

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
USER, ASSISTANT = "<|user|>", "<|assistant|>"
TAGS = [f"<{slash}{name}>" for name in ("think", "search", "python", "result", "answer") for slash in ("", "/")]
SYMBOLS = ["\\boxed{", "}", "max(", "min(", "abs(", ")", ",", "+", "-", "*", "/", ".", "?"]
WORDS = ["what", "is", "the", "of", "and", "need", "got", "done", "unknown", NOTHING, ERROR]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}" + USER + " {{ message['content'] }} "
    "{% elif message['role'] == 'assistant' %}" + ASSISTANT + " {{ message['content'] }} " + EOS + " {% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)


def number(value: float) -> str:
    """
    A number as a word: two significant digits, as a Python literal.

    Args:
        value (`float`):
            Any finite number. Below 10 it is rounded to an integer; a negative one becomes two words.

    Returns:
        `str`:
            `110860` becomes `"11e4"`, `12` `"12e0"`, `3` `"3"`, `-12` `"- 12e0"`.
    """
    if value < 0:
        return f"- {number(-value)}"
    whole = round(value)
    if whole < 10:
        return str(whole)
    mantissa, exponent = f"{whole:.1e}".split("e")
    return f"{mantissa.replace('.', '')}e{int(exponent) - 1}"


def word(value: Value) -> str:
    """A value as one word: a number as [`number`] writes it, a name with underscores for spaces."""
    return number(value) if isinstance(value, int) else "_".join(value.split())


def question_text(question: Question) -> str:
    """The question in words, for example `"what is the area of the country of c:Havana ?"`."""

    def phrase(position: int) -> str:
        step = question.plan[position]
        if isinstance(step, Compute):
            return f"the {step.operation} of {phrase(step.left)} and {phrase(step.right)}"
        subject = word(step.subject) if isinstance(step.subject, str) else phrase(step.subject)
        return f"the {step.relation} of {subject}"

    return f"what is {phrase(len(question.plan) - 1)} ?"


def expression(operation: str, left: str, right: str) -> str:
    """A computation with two numbers as Python code in words: `"abs( 55e4 - 11e4 )"`."""
    return {
        "larger": f"max( {left} , {right} )",
        "smaller": f"min( {left} , {right} )",
        "difference": f"abs( {left} - {right} )",
        "total": f"{left} + {right}",
    }[operation]


def compute(operation: str, left: str, right: str) -> str:
    """What the sandbox says to [`expression`], in words; `"error"` where the operands are not both numbers."""
    try:
        # Python computes with floats here, because that is what a literal such as 11e4 is.
        return number(OPERATIONS[operation](float(left), float(right)))
    except ValueError:
        return ERROR


def answers(question: Question) -> tuple[list[str], list[str]]:
    """
    The accepted answers and the solution path, computed with rounded numbers as the model has to.

    Returns:
        `tuple[list[str], list[str]]`:
            Accepted words, and one line `"area of Cuba = 11e4"` or `"max( 11e4 , 55e4 ) = 55e4"` per step.
    """
    found, path = solve(question), []
    assert found is not None, "questions of the pool are solvable"
    words = [[word(value) for value in values] for values in found]
    for position, step in enumerate(question.plan):
        if isinstance(step, Compute):
            left, right = words[step.left][0], words[step.right][0]
            words[position] = [compute(step.operation, left, right)]
            path.append(f"{expression(step.operation, left, right)} = {words[position][0]}")
        else:
            subject = word(step.subject) if isinstance(step.subject, str) else words[step.subject][0]
            path.append(f"{step.relation} of {subject} = {' '.join(words[position])}")
    return words[-1], path


def documents() -> list[dict[str, str]]:
    """
    One document per entity: its facts, as `title` and `text`.

    Returns:
        `list[dict[str, str]]`:
            The text holds passages `"area of Cuba 11e4"`, joined by `" . "`, in an order of the entity's own, so that
            what comes second in a result is not always the same relation.
    """
    found = []
    for entity in (*countries(), *cities()):
        relations = list(CITY_RELATIONS if entity.startswith("c:") else COUNTRY_RELATIONS)
        random.Random(f"geo facts {entity}").shuffle(relations)
        lines = [
            f"{relation} of {word(entity)} {' '.join(map(word, facts()[entity, relation]))}"
            for relation in relations
            if (entity, relation) in facts()
        ]
        found.append({"title": word(entity), "text": " . ".join(lines)})
    return found


@cache
def _index() -> tuple[Any, list[str], np.ndarray, frozenset[str]]:
    """The BM25 index over all passages, the passages, their lengths in words, and the words it knows."""
    pairs = [(line, document["title"]) for document in documents() for line in document["text"].split(" . ")]
    passages = [line for line, _ in pairs]
    # No length normalisation: a list of neighbours is no worse an answer for being long. The title counts beside the
    # text, so that a fact about an entity comes before one that mentions it.
    index = import_bm25s().BM25(b=0.0)
    index.index([[*line.split(), title] for line, title in pairs], show_progress=False)
    lengths = np.array([len(line.split()) for line in passages])
    return index, passages, lengths, frozenset(token for line in passages for token in line.split())


@lru_cache(maxsize=100_000)
def find(query: str) -> str:
    """The best passages for a query, joined by `" . "`; `"nothing"` if no word of it is known."""
    index, passages, lengths, known = _index()
    tokens = [token for token in query.split() if token in known and token != "of"]
    if not tokens:
        return NOTHING
    scores = index.get_scores(tokens)
    # Ties go to the shorter passage, then to the earlier one, so that they do not depend on how a top-k is computed.
    best = np.lexsort((lengths, -scores))[:TOP_K]
    return " . ".join(passages[position] for position in best)


def readable_result(output: str) -> str:
    """The output of the Python sandbox in words: a number as [`number`] writes it, anything else `"error"`."""
    try:
        return number(float(output.strip()))
    except (ValueError, OverflowError):
        return ERROR


def tools(run: Callable[[str], str]) -> list[Callable[..., str]]:
    """
    The two tools of the compact rendering.

    Args:
        run (`Callable[[str], str]`):
            Runs Python code and returns its output, as `PythonSandbox.run` does.

    Returns:
        `list[Callable[..., str]]`:
            `search` and `python`.
    """
    _index()  # built once, before many threads ask for it at the same time

    # The sandbox keeps no state between calls, and the rollouts of a group often ask for the same.
    @lru_cache(maxsize=10_000)
    def result(code: str) -> str:
        return readable_result(run(code))

    def search(query: str) -> str:
        """Search the facts about countries and cities.

        Args:
            query: Words to look for, for example: area of Cuba

        Returns:
            The two best matching facts.
        """
        return find(query)

    def python(code: str) -> str:
        """Run a Python expression over numbers.

        Args:
            code: The expression, for example: max( 11e4 , 55e4 )

        Returns:
            The value, rounded to two significant digits.
        """
        return result(code)

    return [search, python]


@cache
def word_kinds() -> dict[str, list[str]]:
    """All words by kind: `country`, `city`, `currency`, `language`, `continent`, `number`."""
    values = {
        kind: sorted({word(value) for (_, relation), found in facts().items() if relation == kind for value in found})
        for kind in ("currency", "language", "continent")
    }
    capitals = {word(found[0]) for (_, relation), found in facts().items() if relation == "capital"}
    numbers = [str(digit) for digit in range(10)]
    numbers += [f"{mantissa}e{exponent}" for exponent in range(10) for mantissa in range(10, 100)]
    return {
        "country": [word(country) for country in countries()],
        "city": sorted(capitals | {word(city) for city in cities()}),
        **values,
        "number": numbers,
    }


def vocabulary() -> list[str]:
    """Every word, by token id."""
    structure = [PAD, EOS, UNKNOWN, USER, ASSISTANT, *TAGS, *SYMBOLS, *WORDS, *OPERATIONS]
    structure += [*COUNTRY_RELATIONS, *CITY_RELATIONS]
    return list(dict.fromkeys([*structure, *(name for names in word_kinds().values() for name in names)]))


def tokenizer() -> PreTrainedTokenizerFast:
    """
    The tokenizer: one token per word between white space, `<unk>` for a word it does not know.

    Tags are ordinary words, not special tokens, so that decoding without special tokens keeps them.
    """
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(vocabulary())}, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
        padding_side="left",
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def config(hidden_size: int = 128, num_layers: int = 3) -> Qwen3Config:
    """
    The model's architecture: Qwen3 with tied embeddings and heads of 32.

    Args:
        hidden_size (`int`, *optional*, defaults to `128`):
            Width, a multiple of 32.
        num_layers (`int`, *optional*, defaults to `3`):
            Depth.
    """
    return Qwen3Config(
        vocab_size=len(vocabulary()),
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 32,
        num_key_value_heads=hidden_size // 32,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=vocabulary().index(EOS),
        pad_token_id=vocabulary().index(PAD),
        dtype="float32",
    )
