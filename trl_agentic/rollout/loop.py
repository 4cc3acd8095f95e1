"""
The rollout loop: events in, trees out.

Tokens and tool results arrive when they arrive. A trajectory that reaches a tool call gives its engine slot back, the
call runs in the tool runtime, and its result re-enters as a new request whose prefix is in the engine's cache. A
branch starts while its parent goes on decoding.

```text
engine.poll() ──▶ tokens ──▶ branch test (k-th token after a result) ──▶ children
                    └──────▶ end of segment ──▶ tool calls ──▶ runtime.poll() ──▶ results ──▶ next segment
```
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ..tools import ToolRuntime
from ..tools.state import ToolState
from ..tools.state_fork import start_fork
from ..types import BranchPoint, BranchTree, Kind, Status, ToolCall, ToolResult
from .dialect import Dialect
from .engine import Engine, Event, Request, SamplingSettings
from .growth import Growth
from .limits import Limits, refusal
from .path import Fork, Path, Prompt
from .policy import BranchPolicy

logger = logging.getLogger(__name__)

Tested = list[tuple[Path, BranchPoint]]
Ended = list[tuple[Path, Event, tuple[ToolCall, ...]]]


class RolloutLoop:
    """
    Grows one tree per prompt.

    Args:
        engine ([`Engine`]):
            Samples tokens.
        runtime ([`~trl_agentic.tools.ToolRuntime`]):
            Runs tool calls.
        dialect ([`Dialect`]):
            Reads calls and renders results.
        policy ([`BranchPolicy`]):
            Decides where to branch.
        sampling ([`SamplingSettings`]):
            How to sample; the dialect's stops are added.
        limits ([`Limits`]):
            Budgets.
        clock (`Callable[[], float]`, *optional*, defaults to `time.monotonic`): Seconds.

    Attributes:
        states (`list[list[ToolState | None]]`):
            What the last run left, even one that raised: for each tree the state of each trajectory, in its order.
    """

    def __init__(
        self,
        engine: Engine,
        runtime: ToolRuntime,
        dialect: Dialect,
        policy: BranchPolicy,
        sampling: SamplingSettings,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.engine = engine
        self.runtime = runtime
        self.dialect = dialect
        self.policy = policy
        self.sampling = replace(
            sampling,
            stop=(*dialect.stop, *sampling.stop),
            stop_token_ids=(*dialect.stop_token_ids, *sampling.stop_token_ids),
        )
        self.limits = limits
        self.clock = clock
        self.states: list[list[ToolState | None]] = []
        self._paths: dict[str, Path] = {}  # by the id of the request or of the tool turn that they wait for

    def run(self, prompts: Sequence[Prompt]) -> list[BranchTree]:
        """
        Roll out every prompt.

        Args:
            prompts (`Sequence[Prompt]`): The prompts.

        Returns:
            `list[BranchTree]`: One tree per prompt, in order, with exactly `num_generations` trajectories each.
        """
        growths = [Growth(prompt) for prompt in prompts]
        return self._grow(growths, partial(self._plant, growths))

    def extend(
        self,
        trees: Sequence[BranchTree],
        forks: Sequence[Sequence[Fork]],
        states: Sequence[Sequence[ToolState | None]],
    ) -> list[BranchTree]:
        """
        Add branches to finished trees, each from any token of its parent on and with the tool state of that position.

        A branch has what its prefix has left of every budget. The policy decides nothing here.

        Args:
            trees (`Sequence[BranchTree]`), states (`Sequence[Sequence[ToolState | None]]`):
                The trees, and the state of each of their trajectories, which may be closed.
            forks (`Sequence[Sequence[Fork]]`): Where branches start in each tree.

        Returns:
            `list[BranchTree]`: The trees, the new trajectories behind those that were there, in the order of `forks`.

        Raises:
            ValueError: If a parent does not exist, or its token at a fork was not sampled. Nothing has begun then.
        """
        growths = [Growth.from_tree(*each) for each in zip(trees, forks, states, strict=True)]
        return self._grow(growths, partial(self._fork, growths, forks))

    def _grow(self, growths: list[Growth], begin: Callable[[], None]) -> list[BranchTree]:
        """Begin, and go on until every path has ended."""
        start = self.clock()
        try:
            begin()
            while self._fill(growths) or self._paths:
                if self.limits.timeout_s is not None and self.clock() - start > self.limits.timeout_s:
                    self._give_up(growths)
                    break
                self._advance()
        finally:
            self.states = [[path.state for path in growth.paths] for growth in growths]
            self._abandon()
        return [growth.tree() for growth in growths]

    def _plant(self, growths: list[Growth]) -> None:
        """Sample the first paths of every tree whose state is there."""
        for growth in growths:
            if growth.prompt.state is not None and growth.prompt.state.broken is not None:
                growth.end(Status.ERROR)
            for _ in range(min(self.policy.num_initial(growth.prompt.num_generations), growth.num_missing)):
                self._start(growth.plant(Kind.INITIAL))

    def _fork(self, growths: list[Growth], forks: Sequence[Sequence[Fork]]) -> None:
        """Sample a branch from each of the given points."""
        for growth, places in zip(growths, forks, strict=True):
            for parent, position in places:
                self._start(growth.branch(growth.paths[parent], position))

    def _fill(self, growths: list[Growth]) -> bool:
        """Sample the rest of every tree whose paths have all ended, in one batch; whether there was any."""
        unfilled = [growth for growth in growths if growth.num_missing and growth.has_ended]
        for growth in unfilled:
            for _ in range(growth.num_missing):
                self._start(growth.plant(Kind.FILL))
        return bool(unfilled)

    def _start(self, path: Path) -> None:
        """Begin a path: with a state of its own, which may still be forking while the engine samples."""
        if path.origin is not None and path.state is not None:
            start_fork(self.runtime, path.origin, path.state)
        self._sample(path)

    def _advance(self) -> None:
        """Handle what the engine and the tools have to say."""
        tested: Tested = []
        ended: Ended = []
        for event in self.engine.poll():
            if (path := self._paths.get(event.request_id)) is not None:
                self._receive(path, event, tested, ended)
        self._branch(tested)  # a child gets its parent's state as it is before the parent's next call
        for path, event, calls in ended:
            self._end_segment(path, event, calls)
        wait_s = 0.0 if self.engine.num_unfinished else 0.05
        for key, results in self.runtime.poll(wait_s):
            if (path := self._paths.pop(key, None)) is not None:
                self._resume(path, [*results, *map(refusal, path.refused)], tested)
        self._branch(tested)

    def _receive(self, path: Path, event: Event, tested: Tested, ended: Ended) -> None:
        """Take the new tokens of one request."""
        path.extend(event.token_ids, event.logprobs, event.entropies)
        if event.finish_reason is None:
            return self._probe(path, False, tested)
        del self._paths[event.request_id]
        calls: tuple[ToolCall, ...] = ()
        goes_on = False
        if event.finish_reason == "stop" and (turn_ids := path.turn_ids):
            calls = self.dialect.parse(turn_ids, path.before_turn).calls
            # A stop text that is no call (in a thought, in code) ends the request but not the segment.
            goes_on = not calls and turn_ids[-1] not in self.sampling.stop_token_ids and self._room(path) > 0
        self._probe(path, not goes_on, tested)
        return self._sample(path) if goes_on else ended.append((path, event, calls))

    def _probe(self, path: Path, finished: bool, tested: Tested) -> None:
        """Measure the beginning of a segment once its window is full or the segment has ended."""
        entropies = path.segment_entropies
        if not self.policy.window or self.policy.signal != "after_result":
            return
        if entropies is None or not (finished or len(entropies) >= self.policy.window):
            return  # greedy sampling has no entropies, and a window that is not full is not measured
        if path.initial_entropy is None:
            path.initial_entropy = self.policy.measure(entropies)
        elif path.untested is not None:
            position, path.untested = path.untested, None
            point = self.policy.test(path.index, position, path.initial_entropy, self.policy.measure(entropies))
            tested.append((path, point))

    def _branch(self, tested: Tested) -> None:
        """Grant children to the points of one poll, the highest score first, as far as each tree's budget goes."""
        for path, point in sorted(tested, key=lambda item: (-item[1].score, item[1].trajectory)):
            granted = min(point.wanted, path.growth.num_missing)
            path.growth.note(replace(point, granted=granted))
            for _ in range(granted):
                self._start(path.growth.branch(path, point.position))
        tested.clear()

    def _end_segment(self, path: Path, event: Event, calls: tuple[ToolCall, ...]) -> None:
        """Decide what follows a segment: tool calls, or the end."""
        if event.finish_reason == "error":
            return path.end(Status.ERROR)
        if calls:
            return self._call(path, calls)
        last = path.turn_ids[-1:]
        is_finished = event.finish_reason == "stop" and last and last[0] in self.sampling.stop_token_ids
        return path.end(Status.FINISHED if is_finished else Status.TRUNCATED)

    def _call(self, path: Path, calls: tuple[ToolCall, ...]) -> None:
        """Run the calls of one turn, unless the budget is used up."""
        if path.was_refused:
            return path.end(Status.TOOL_BUDGET)
        left = len(calls) if self.limits.max_calls is None else max(self.limits.max_calls - len(path.results), 0)
        if path.num_tool_turns >= self.limits.max_tool_turns or not left:
            return self._resume(path, [*map(refusal, calls)], None)
        path.calls, path.refused = calls[:left], calls[left:]
        self._paths[path.calls_id] = path
        return self.runtime.submit(path.calls_id, path.calls, path.state)

    def _resume(self, path: Path, results: list[ToolResult], tested: Tested | None) -> None:
        """Append the results of one turn and go on sampling; a turn without results to think about is not tested."""
        if path.state is not None:
            path.state.record(results)  # whole, as a replay will get them; what the model sees may be cut
        turn_ids = path.turn_ids
        entropies = path.segment_entropies
        room = self._room(path)
        shown = self.dialect.render(turn_ids, results, room)
        path.append(shown)
        if len(shown) >= room:
            return path.end(Status.TRUNCATED)
        if path.num_invalid_turns > self.limits.max_invalid_turns:
            return path.end(Status.INVALID_CALLS)
        if self.policy.window and tested is not None:
            if self.policy.signal == "after_result":
                path.untested = len(path)
            elif entropies is not None:
                current = self.policy.measure(entropies)
                if path.initial_entropy is None:
                    path.initial_entropy = current  # the first segment of a path is its own baseline
                tested.append((path, self.policy.test(path.index, len(path), path.initial_entropy, current)))
        self._sample(path)

    def _room(self, path: Path) -> int:
        """Tokens that still fit the trajectory's budget and the model's context."""
        context = self.engine.max_model_length - len(path.growth.prompt.token_ids)
        return min(self.limits.max_completion_length, context) - len(path)

    def _sample(self, path: Path) -> None:
        """Ask the engine to go on with a path."""
        room = self._room(path)
        if room < 1:
            return path.end(Status.TRUNCATED)
        request = Request(
            id=path.next_request_id(),
            token_ids=(*path.growth.prompt.token_ids, *path.token_ids),
            max_tokens=room,
            sampling=self.sampling,
            num_turn_tokens=len(path.turn_ids),
        )
        self._paths[request.id] = path
        return self.engine.submit(request)

    def _give_up(self, growths: list[Growth]) -> None:
        """End everything that is unfinished; trajectories that were never started end empty."""
        logger.warning(
            f"The rollout phase ran into its deadline of {self.limits.timeout_s:.3g} s; {len(self._paths)} unfinished "
            "trajectories end with status 'deadline'. Raise `rollout_timeout_s` or lower `tool_timeout_s`."
        )
        for growth in growths:
            growth.end(Status.DEADLINE)

    def _abandon(self) -> None:
        """Leave nothing behind in engine and runtime, whatever ended the loop."""
        for key in self._paths:
            self.engine.abort(key)
            self.runtime.abandon(key)
        self._paths.clear()
