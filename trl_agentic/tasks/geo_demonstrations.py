"""
Demonstrations for the cold start: training questions answered with tools, by somebody who knows how but chooses badly.

Each demonstration takes place in a world of its own, where all names and numbers are exchanged at random: what the
tools say there can be learnt from nowhere but the tools, and every name gets its turn, also those of the test. The
real search answers (names are exchanged back for it), so results look exactly as they will later.

The faults are faults of choice: a hop skipped or one too many, another relation or operation, the wrong tool, a guess
instead of a look-up, an answer without its box. Carrying values from results to calls and answers is always right.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache

from .geo_compact import EOS, ERROR, NOTHING, compute, expression, find, question_text, word, word_kinds
from .geo_facts import CITY_RELATIONS, COUNTRY_RELATIONS
from .geo_questions import OPERATIONS, Compute, Lookup, Question


@dataclass(frozen=True)
class Faults:
    """
    How often which choice goes wrong, as probabilities.

    Args:
        guess (`float`):
            Answering without any tool.
        no_box (`float`):
            Leaving out the box around the answer.
        wrong_tool (`float`):
            Asking Python for a fact.
        relation (`float`):
            Asking for another relation.
        jump (`float`):
            Asking for the last relation of a chain right at its start.
        stop_in_chain (`float`):
            Answering with what was found halfway along a chain.
        stop_before_second (`float`):
            Answering with the first of two numbers that were to be compared.
        stop_before_compute (`float`):
            Answering with the second of them.
        go_on (`float`):
            Asking for one thing more when the answer is there, and answering with that.
        operation (`float`):
            Computing something else.
        habits (`dict[str, tuple[str, float]]`):
            Particular confusions: for a relation or an operation what stands in for it, and how often.
    """

    guess: float = 0.03
    no_box: float = 0.1
    wrong_tool: float = 0.04
    relation: float = 0.1
    jump: float = 0.25
    stop_in_chain: float = 0.4
    stop_before_second: float = 0.52
    stop_before_compute: float = 0.65
    go_on: float = 0.2
    operation: float = 0.12
    habits: dict[str, tuple[str, float]] = field(
        default_factory=lambda: {
            "language": ("currency", 0.6),
            "smaller": ("larger", 0.65),
            "total": ("difference", 0.65),
        }
    )


class World:
    """
    A renaming of all names and numbers, one to one within each kind, drawn as they come up.

    Args:
        rng (`random.Random`):
            Draws the names.
    """

    def __init__(self, rng: random.Random):
        self._rng = rng
        self._forward: dict[str, str] = {}
        self._backward: dict[str, str] = {}

    def rename(self, text: str) -> str:
        """A text about the real world as a text about this one."""
        return " ".join(self._exchange(name, self._forward, self._backward) for name in text.split())

    def restore(self, text: str) -> str:
        """A text about this world as a text about the real one."""
        return " ".join(self._exchange(name, self._backward, self._forward) for name in text.split())

    def search(self, query: str) -> str:
        """What the search tool says here."""
        return self.rename(find(self.restore(query)))

    def _exchange(self, name: str, there: dict[str, str], back: dict[str, str]) -> str:
        kind = _kinds().get(name)
        if kind is None:
            return name
        while name not in there:
            other = self._rng.choice(_choices()[kind])
            if other not in back:
                there[name], back[other] = other, name
        return there[name]


@cache
def _choices() -> dict[str, list[str]]:
    """The words that a renaming may draw. Numbers are small enough that the sum of two is still a word."""
    return {**word_kinds(), "number": [name for name in word_kinds()["number"] if float(name) < 1e10]}


@cache
def _kinds() -> dict[str, str]:
    return {name: kind for kind, names in word_kinds().items() for name in names}


@dataclass
class Demonstration:
    """
    A question and how it was answered, in words.

    Args:
        prompt (`str`):
            The question.
        turns (`list[tuple[str, bool]]`):
            Text after text, with `True` for what the model is to learn and `False` for tool results.
    """

    prompt: str
    turns: list[tuple[str, bool]]


class _Demonstrator:
    """Writes one demonstration; `got` is what the last call brought, until it is carried on."""

    def __init__(self, question: Question, rng: random.Random, faults: Faults):
        self.question, self.rng, self.faults = question, rng, faults
        self.world = World(rng)
        self.turns: list[tuple[str, bool]] = []
        self.got: str | None = None

    def happens(self, probability: float) -> bool:
        return self.rng.random() < probability

    def choose(self, name: str, alternatives: tuple[str, ...], slip: float) -> str:
        """The right relation or operation, or what takes its place by habit or by a slip."""
        habit, rate = self.faults.habits.get(name, (name, 0.0))
        if self.happens(rate):
            return habit
        return self.rng.choice(alternatives) if self.happens(slip) else name

    def call(self, tool: str, need: str, text: str, result: str) -> None:
        self.turns.append((f"{self.think(f'need {need}')} <{tool}> {text} </{tool}>", True))
        self.turns.append((f"<result> {result} </result>", False))

    def think(self, decision: str) -> str:
        carried = f"got {self.got} . " if self.got is not None else ""
        return f"<think> {carried}{decision} </think>"

    def look_up(self, relation: str, subject: str) -> str:
        query = f"{relation} of {subject}"
        if self.happens(self.faults.wrong_tool):
            self.call("python", relation, query, ERROR)
            self.got = ERROR
            if self.happens(0.5):
                return ERROR
        result = self.world.search(query)
        self.call("search", relation, query, result)
        # The value of the first fact: "area of Cuba 11e4 . ..."
        self.got = NOTHING if result == NOTHING else result.split()[3]
        return self.got

    def calculate(self, operation: str, left: str, right: str) -> str:
        code = expression(operation, left, right)
        result = compute(operation, left, right)
        self.call("python", operation, code, result)
        self.got = result
        return result

    def answer(self) -> None:
        value = "unknown" if self.got in (None, ERROR, NOTHING) else self.got
        written = value if self.happens(self.faults.no_box) else f"\\boxed{{ {value} }}"
        self.turns.append((f"{self.think('done')} <answer> {written} </answer> {EOS}", True))

    def stops_before(self, step: Lookup | Compute, position: int) -> bool:
        if position == 0:
            return self.happens(self.faults.guess)
        if self.got in (ERROR, NOTHING):
            return True
        if isinstance(step, Compute):
            return self.happens(self.faults.stop_before_compute)
        if isinstance(step.subject, str):
            return self.happens(self.faults.stop_before_second)
        return self.happens(self.faults.stop_in_chain)

    def chain_end(self, position: int) -> int:
        """Position of the last look-up of the chain that `position` belongs to."""
        plan = self.question.plan
        while position + 1 < len(plan):
            after = plan[position + 1]
            if isinstance(after, Compute) or after.subject != position:
                break
            position += 1
        return position

    def walk_on(self, subject: str) -> None:
        """One look-up too many, about what was looked up last."""
        if self.got not in (ERROR, NOTHING) and self.happens(self.faults.go_on):
            self.look_up(self.rng.choice(CITY_RELATIONS if subject.startswith("c:") else COUNTRY_RELATIONS), subject)

    def walk(self) -> None:
        """The plan, step by step, until it is done or given up."""
        plan = self.question.plan
        found: list[str] = []
        subject = ""
        while len(found) < len(plan):
            position = len(found)
            step = plan[position]
            if self.stops_before(step, position):
                break
            if isinstance(step, Compute):
                operation = self.choose(step.operation, tuple(OPERATIONS), self.faults.operation)
                found.append(self.calculate(operation, found[step.left], found[step.right]))
                continue
            subject = self.world.rename(word(step.subject)) if isinstance(step.subject, str) else found[step.subject]
            end = self.chain_end(position)
            jumps = end > position and isinstance(step.subject, str) and self.happens(self.faults.jump)
            last = end if jumps else position
            target = plan[last]
            assert isinstance(target, Lookup), "a chain consists of look-ups"
            relation = target.relation
            # On the way along a chain another relation would end in nonsense; only its last look-up slips.
            if last == end:
                relations = CITY_RELATIONS if subject.startswith("c:") else COUNTRY_RELATIONS
                relation = self.choose(relation, relations, self.faults.relation)
            found += [self.look_up(relation, subject)] * (last - position + 1)
        else:
            self.walk_on(subject)


def demonstrate(question: Question, rng: random.Random, faults: Faults | None = None) -> Demonstration:
    """
    Answer a question in a random world.

    Args:
        question ([`~trl_agentic.tasks.geo_questions.Question`]):
            Its plan is followed, its entities are renamed.
        rng (`random.Random`):
            Draws the world and the faults.
        faults ([`Faults`], *optional*):
            How badly to choose; by default as badly as the committed cold start was.

    Returns:
        [`Demonstration`]:
            With the words of the compact rendering.
    """
    demonstrator = _Demonstrator(question, rng, faults or Faults())
    demonstrator.walk()
    demonstrator.answer()
    return Demonstration(demonstrator.world.rename(question_text(question)), demonstrator.turns)
