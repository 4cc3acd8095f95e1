"""The rollout loop over stateful Python: a branch sees exactly the variables and files of its branch point."""

from __future__ import annotations

import re

import pytest
from byte_tokenizer import byte_tokenizer

from trl_agentic.rollout.engine import SamplingSettings, Script, ScriptedEngine
from trl_agentic.rollout.limits import Limits
from trl_agentic.rollout.loop import Prompt, RolloutLoop
from trl_agentic.rollout.policy import EntropyBranching
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.tools.python_session import PythonEnvironment
from trl_agentic.tools.runtime import ToolRuntime
from trl_agentic.tools.state import Origin, ToolState, is_stateful, method_names
from trl_agentic.types import CallStatus, Kind

TOKENIZER = byte_tokenizer()
CODE = """<python>
seen = [*globals().get("seen", []), "{name}"]
print("{name}", file=open("log", "a"))
print(*seen, *open("log").read().split())
</python>"""


def encode(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER(text, add_special_tokens=False)["input_ids"])


def notes_then_answers(request) -> Script:
    """Three calls that each leave the name of their request in a variable and in a file; then an answer."""
    num_results = TOKENIZER.decode(request.token_ids).count("<result>")
    text = CODE.format(name=request.id.replace("/", "-")) if num_results < 3 else "<answer>\\boxed{b}</answer><eos>"
    script = encode(text) if num_results < 3 else (*encode(text.removesuffix("<eos>")), TOKENIZER.eos_token_id)
    return Script(script, entropies=(0.5 + num_results,) * len(script))


@pytest.mark.timeout(120)
def test_a_branch_sees_the_variables_and_files_of_its_branch_point_and_nothing_its_siblings_do():
    probe = PythonEnvironment()
    policy = EntropyBranching(initial_rollouts=2, beam_size=2, window=4, vocab_size=100)
    with ToolRuntime([probe.python], num_workers=4, timeout_s=30.0) as runtime:
        root = ToolState(Origin(PythonEnvironment, {}, method_names(PythonEnvironment)))
        runtime.prepare(root, root.reset)
        loop = RolloutLoop(
            ScriptedEngine(notes_then_answers),
            runtime,
            TagDialect(TOKENIZER, [probe.python]),
            policy,
            SamplingSettings(),
            Limits(4000),
        )
        (tree,) = loop.run([Prompt("p", encode("count"), 6, root)])
        (states,) = loop.states
        for state in states:
            runtime.prepare(state, state.close)
        assert runtime.settle(states, 30.0)
    kinds = [trajectory.kind for trajectory in tree.trajectories]
    assert kinds.count(Kind.BRANCH) == 4 and all(state.broken is None for state in states)
    assert {state.made_by for state in states} == {"fork"}
    lines = set()
    for trajectory in tree.trajectories:
        names: list[str] = []
        for result in trajectory.results:
            assert result.status is CallStatus.OK
            names += re.findall(r'"([^"]*)"\]', result.call.arguments["code"])
            assert result.content.split() == names + names  # once from the variable, once from the file
        lines.add(tuple(names))
    assert len(lines) == 6  # no two trajectories are the same


def test_python_in_a_session_is_a_stateful_tool_too():
    assert is_stateful(PythonEnvironment().python)
