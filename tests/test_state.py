"""The state of a trajectory: bound to its own environment, and forked, copied or replayed for a branch."""

import logging
import threading
from dataclasses import replace

import pytest
from counting_environments import ALL, WAYS, Copied, Forked, Moody, Replayed

from trl_agentic.tools.runtime import ToolRuntime
from trl_agentic.tools.state import Origin, ToolState, is_stateful, method_names
from trl_agentic.tools.state_fork import fork_state, state_metrics
from trl_agentic.types import CallStatus, ToolCall, ToolResult


def perform(call: ToolCall, state: ToolState) -> ToolResult:
    """One call as the runtime makes it, here and now."""
    with ToolRuntime([Copied().add], num_workers=0) as runtime:
        runtime.submit("call", [call], state)
        ((_, (result,)),) = runtime.poll()
    return result


def root_of(factory, **row) -> ToolState:
    root = ToolState(Origin(factory, row, method_names(factory)))
    root.reset()
    return root


def add(state: ToolState, amount: int = 1) -> ToolResult:
    """A call as the loop makes it: run, then noted."""
    result = perform(ToolCall("add", {"amount": amount}), state)
    state.record([result])
    return result


def branch(parent: ToolState, num_calls: int | None = None) -> ToolState:
    """A child behind the first `num_calls` calls, all of them by default."""
    child = parent.child(parent.history[:num_calls])
    fork_state(parent, child, perform)
    return child


# --- what is a state


def test_the_public_methods_of_an_environment_are_tools_but_those_that_begin_score_fork_and_end_it():
    class Closing(Forked):
        def close(self) -> None: ...

        def _hidden(self) -> None: ...

    assert method_names(Closing) == ("add",)


class Session:
    def __init__(self, values=()):
        self.values = list(values)
        self.closed = False

    def run(self, code: str) -> str:
        self.values.append(code)
        return " ".join(self.values)

    def show(self) -> str:
        return " ".join(self.values)

    def fork(self) -> "Session":
        return Session(self.values)

    def close(self) -> None:
        self.closed = True


def test_a_bound_method_of_an_object_that_forks_is_stateful_and_other_tools_are_not():
    assert is_stateful(Session().run)
    assert not is_stateful(Copied().add)  # has no fork
    assert not is_stateful(Session)
    assert not is_stateful(lambda: "x")


def test_stateful_tools_of_one_object_share_one_state_and_leave_the_users_object_alone():
    session = Session(["a"])
    root = ToolState(Origin(tools=(session.run, session.show)))
    root.reset()
    root.function("run")(code="b")
    assert root.function("show")() == "a b" and session.values == ["a"]
    child = ToolState.child(root, [])
    fork_state(root, child, perform)
    root.function("run")(code="c")
    child.function("run")(code="d")
    assert child.function("show")() == "a b d" and root.function("show")() == "a b c"
    assert child.made_by == "fork"


def test_a_tool_of_another_environment_does_not_exist_here_and_a_stateless_one_is_nobodys():
    state = ToolState(Origin(Copied, {}, ("add",), foreign=frozenset({"open"})))
    assert state.function("search") is None
    with pytest.raises(LookupError, match="There is no tool named 'open'"):
        state.function("open")()


def test_a_function_may_be_handed_out_before_the_state_is_there():
    state = ToolState(Origin(Copied, {"start": 3}, ("add",)))
    add_later = state.function("add")
    state.reset()
    assert add_later(amount=2) == "now 5"


def test_reset_may_change_what_it_is_given():
    class Greedy(Copied):
        def reset(self, board, **row):
            board.append("mine")
            self.board = board

    row = {"board": ["x"]}
    root_of(Greedy, **row)
    assert row == {"board": ["x"]}


def test_only_calls_that_ran_on_the_state_are_history():
    state = root_of(Copied)
    ran = ToolResult(ToolCall("add"), "now 1")
    refused = ToolResult(ToolCall("add", {"amount": "x"}), "wrong", CallStatus.INVALID_ARGUMENTS)
    elsewhere = ToolResult(ToolCall("search", {"query": "a"}), "b")
    state.record([refused, ran, elsewhere])
    assert state.history == [ran]
    assert state.child([elsewhere, ran]).history == [ran]


def test_closing_reaches_environment_and_tools_where_they_can_be_closed():
    closed = []

    class Closing(Copied):
        def close(self):
            closed.append("environment")

    state = ToolState(Origin(Closing, {}, ("add",), (Session().run,)))
    state.reset()
    (session,) = state.objects.values()
    state.close()
    assert closed == ["environment"] and session.closed and state.environment is None
    root_of(Copied).close()  # has nothing to close


# --- how a branch gets its own


@pytest.mark.parametrize("factory", ALL)
def test_a_branch_goes_on_from_the_count_of_its_branch_point_and_siblings_never_meet(factory):
    parent = root_of(factory, start=10)
    add(parent), add(parent, 2)
    first, second = branch(parent), branch(parent)
    assert add(parent).content == "now 14"
    assert add(first, 5).content == "now 18" and add(first, 5).content == "now 23"
    assert add(second).content == "now 14"
    assert add(parent).content == "now 15"
    assert first.made_by == second.made_by == WAYS[factory]
    assert type(first.environment) is factory and first.broken is None


@pytest.mark.parametrize("factory", ALL)
def test_a_branch_from_the_past_is_replayed_whatever_the_environment_offers(factory):
    parent = root_of(factory)
    for _ in range(4):
        add(parent)
    child = branch(parent, num_calls=2)
    assert child.made_by == "replay" and add(child).content == "now 3"
    assert add(parent).content == "now 5"


@pytest.mark.parametrize("factory", ALL)
def test_a_branch_at_the_beginning_is_a_fork_of_what_was_reset(factory):
    child = branch(root_of(factory, start=7))
    assert add(child).content == "now 8" and child.observation == " from 7"


def test_a_call_that_failed_is_replayed_too_and_has_to_fail_alike():
    parent = root_of(Replayed)
    add(parent)
    assert add(parent, -1).status is CallStatus.ERROR
    child = branch(parent)
    assert child.broken is None and add(child).content == "now 2"


def test_a_replay_that_differs_is_reported_counted_and_loses_the_state(caplog):
    parent = root_of(Moody)
    add(parent, 3), add(parent, 4)
    with caplog.at_level(logging.WARNING):
        child = branch(parent)
    assert child.num_mismatches == 1 and child.made_by == "replay"
    assert child.broken == "it could not be restored, since an earlier call gave another result when it was repeated."
    assert caplog.text.count("could not be replayed") == 1
    assert "add({'amount': 3}) gave 'now 3, call " in caplog.text and "fork()" in caplog.text
    metrics = state_metrics([parent, child])
    assert metrics["rollout/replay_mismatches"] == 1.0 and metrics["rollout/state/broken"] == 0.5


def test_a_long_result_is_cut_in_the_report(caplog):
    class Wordy(Moody):
        def add(self, amount: int = 1) -> str:
            """
            Add.

            Args:
                amount: How much.
            """
            return super().add(amount) + "x" * 10_000

    parent = root_of(Wordy)
    add(parent)
    with caplog.at_level(logging.WARNING):
        branch(parent)
    assert "x…" in caplog.text and len(caplog.text) < 1500


def test_an_environment_that_can_only_be_reset_must_say_the_same_for_one_row():
    class Restless(Replayed):
        episodes = 0

        def reset(self, **row):
            Restless.episodes += 1
            super().reset()
            return f" episode {Restless.episodes}"

    child = branch(root_of(Restless))
    assert child.broken == "it could not be set up a second time."
    assert "`Restless.reset` returned ' episode 1' and then ' episode 2' for the same row" in child.conflict
    assert "fork()" in child.conflict


def test_an_environment_that_could_be_copied_until_it_opened_something_is_replayed():
    class Lazy(Copied):
        def add(self, amount: int = 1) -> str:
            """
            Add.

            Args:
                amount: How much.
            """
            self.lock = threading.Lock()
            return super().add(amount)

    parent = root_of(Lazy)
    assert branch(parent).made_by == "copy"
    add(parent)
    child = branch(parent)
    assert child.made_by == "replay" and add(child).content == "now 2"


def test_an_object_that_answers_a_copy_with_itself_is_not_shared():
    class Single(Copied):
        def __deepcopy__(self, memo):
            return self

    parent = root_of(Single)
    add(parent)
    child = branch(parent)
    add(child)
    assert child.made_by == "replay" and add(parent).content == "now 2"


@pytest.mark.parametrize(("fork", "got"), [(lambda self: self, "itself"), (lambda self: None, "a NoneType")])
def test_a_fork_that_is_no_new_object_is_an_error_that_says_so(fork, got):
    class Wrong(Copied):
        pass

    Wrong.fork = fork
    with pytest.raises(TypeError, match=f"must return a new, independent Wrong, but it returned {got}"):
        branch(root_of(Wrong))


def test_a_fork_that_fails_is_no_reason_to_replay_in_silence():
    class Failing(Copied):
        def fork(self):
            raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        branch(root_of(Failing))


def test_what_a_lost_state_begets_is_lost():
    parent = root_of(Copied)
    parent.broken = "a call hung."
    assert branch(parent).broken == parent.broken


def test_a_child_inherits_results_as_they_were_recorded_though_the_model_saw_them_cut():
    parent = root_of(Replayed)
    whole = add(parent)
    child = parent.child([replace(whole, content="no", truncated=True)])
    assert child.history == [whole]


def test_a_child_cannot_begin_with_calls_that_its_parent_never_made():
    with pytest.raises(AssertionError, match="never made"):
        root_of(Copied).child([ToolResult(ToolCall("add"), "now 1")])


def test_metrics_count_the_ways_and_are_absent_without_states():
    states = [branch(root_of(factory)) for factory in (Forked, Forked, Copied, Replayed)]
    metrics = state_metrics(states)
    assert [metrics[f"rollout/state/{way}"] for way in ("fork", "copy", "replay")] == [2.0, 1.0, 1.0]
    assert metrics["rollout/state/fork_s"] > 0 and metrics["rollout/state/broken"] == 0.0
    assert state_metrics([]) == {}
