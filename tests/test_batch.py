"""From trees to rows and numbers, where only some trajectories of a tree are wanted."""

import pytest
from dialect_tokenizers import encode, smollm2
from word_tokenizer import ids, word_tokenizer

from trl_agentic.rewards import arpo_reward, arpo_reward_released, exact_match_reward, format_share_reward
from trl_agentic.rollout.batch import RolloutBatch, rollout_metrics
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.rollout.template_dialect import TemplateDialect
from trl_agentic.types import (
    BranchPoint,
    BranchTree,
    CallStatus,
    Kind,
    Segment,
    Status,
    ToolCall,
    ToolResult,
    Trajectory,
    cut,
)


def sampled(text: str) -> Segment:
    return Segment(ids(text), True, (-1.0,) * len(text.split()), (0.5,) * len(text.split()))


def searched(query: str, status=CallStatus.OK) -> Segment:
    return Segment(
        ids("<result> b </result>"), False, results=(ToolResult(ToolCall("search", {"query": query}), "b", status),)
    )


FIRST = Trajectory((sampled("need a"), searched("a"), sampled("got b")), Status.FINISHED)
SECOND = Trajectory((sampled("need b"),), Status.TRUNCATED)


def branch(parent: Trajectory, place: int, fork: int, *segments, status=Status.FINISHED) -> Trajectory:
    return Trajectory((*cut(parent.segments, fork), *segments), status, Kind.BRANCH, place, fork)


def tree(*branches: Trajectory, name="p", points=()) -> BranchTree:
    return BranchTree(name, ids("what is a"), (FIRST, SECOND, *branches), points)


OWN_CALL = branch(FIRST, 0, 1, sampled("c"), searched("c", CallStatus.ERROR), sampled("got 1 2"))
INHERITED_CALL = branch(FIRST, 0, 5, sampled("found"), status=Status.TRUNCATED)


# --- rollout_metrics


def test_trajectories_that_are_left_out_are_in_no_number():
    metrics = rollout_metrics([tree(OWN_CALL, INHERITED_CALL)], [2])
    assert metrics["branch/rate"] == 1.0 and metrics["rollout/status/truncated"] == 0.5
    assert metrics["rollout/sampled_tokens"] == (1 + 3) + 1
    assert metrics["rollout/executed_calls"] == 0.5  # c; the other one inherits a
    assert metrics["rollout/tool_calls"] == metrics["tools/call_frequency"] == 1.0  # one on each path
    assert metrics["tools/failure_frequency"] == 0.5 and metrics["tools/search/calls"] == 1.0
    whole = rollout_metrics([tree(OWN_CALL, INHERITED_CALL)])
    assert whole["branch/rate"] == 0.5 and whole["rollout/sampled_tokens"] == 4 + 2 + 5
    assert whole == rollout_metrics([tree(OWN_CALL, INHERITED_CALL)], [0])


def test_each_tree_has_its_own_beginning():
    trees = [tree(OWN_CALL, INHERITED_CALL), tree(name="q")]
    assert rollout_metrics(trees, [3, 2])["rollout/sampled_tokens"] == 1.0
    assert rollout_metrics(trees, [4, 1])["rollout/sampled_tokens"] == 2.0
    with pytest.raises(ValueError, match="zip"):
        rollout_metrics(trees, [2])


def test_nothing_left_is_zeros():
    metrics = rollout_metrics([tree()], [2])
    assert set(metrics.values()) == {0.0}
    assert metrics == rollout_metrics([])


def test_points_of_what_is_left_out_are_left_out():
    points = (BranchPoint(0, 5, 1.0, 2.0, 0.1, 0.6, 1, 1), BranchPoint(2, 5, 1.0, 4.0, 0.1, 0.6, 0, 0))
    assert rollout_metrics([tree(OWN_CALL, points=points)])["branch/entropy"] == 3.0
    behind = rollout_metrics([tree(OWN_CALL, points=points)], [2])
    assert (behind["branch/points"], behind["branch/entropy"], behind["branch/passed"]) == (1.0, 4.0, 0.0)


def test_a_text_is_repeated_if_one_before_it_in_the_tree_has_it_too():
    same_as_parent = branch(FIRST, 0, 6, sampled("b"))
    assert same_as_parent.token_ids == FIRST.token_ids
    other = branch(FIRST, 0, 6, sampled("c"))
    grown = tree(same_as_parent, other, other)
    assert rollout_metrics([grown])["rollout/equal_texts"] == 2 / 5
    assert rollout_metrics([grown], [2])["rollout/equal_texts"] == 2 / 3
    assert rollout_metrics([grown], [3])["rollout/equal_texts"] == 1 / 2
    assert rollout_metrics([grown], [4])["rollout/equal_texts"] == 1.0
    assert rollout_metrics([grown, tree(other, name="q")], [4, 2])["rollout/equal_texts"] == 1 / 2  # within a prompt


# --- RolloutBatch.from_rows


def search(query: str) -> str:
    """
    Look something up.

    Args:
        query: What to look for.
    """
    return query


def test_rows_may_be_any_trajectories_of_any_trees_in_any_order():
    dialect = TagDialect(word_tokenizer(), [search])
    first, second = tree(OWN_CALL, INHERITED_CALL), tree(OWN_CALL, name="q")
    rows = [(second, OWN_CALL), (first, INHERITED_CALL), (first, INHERITED_CALL)]  # one of them twice
    batch = RolloutBatch.from_rows(rows, dialect, eos_token_id=1)
    assert batch.completion_ids == [OWN_CALL.token_ids, INHERITED_CALL.token_ids, INHERITED_CALL.token_ids]
    assert batch.prompt_ids == [list(ids("what is a"))] * 3
    assert batch.extra_fields["rollout_fork"] == [1, 5, 5] and batch.extra_fields["rollout_parent"] == [0, 0, 0]
    assert batch.extra_fields["rollout_status"] == ["finished", "truncated", "truncated"]
    assert [[call["arguments"] for call in calls] for calls in batch.extra_fields["rollout_calls"]] == [
        [{"query": "c"}],
        [{"query": "a"}],
        [{"query": "a"}],
    ]
    assert batch.is_truncated == [False, True, True]
    assert [[message["role"] for message in completion] for completion in batch.completions] == [
        ["assistant", "tool", "assistant"]
    ] * 3


@pytest.mark.parametrize(("make", "template"), [(TagDialect, None), (TemplateDialect, "qwen3")])
@pytest.mark.parametrize(
    ("found", "said", "room", "rewards"),
    [
        ("\\boxed{17}", "<answer>I give up.</answer>", None, (0, -1)),
        ("\\boxed{17}", "<answer>\\boxed{3}</answer>", None, (0, 0)),
        ("\\boxed{3}", "<answer>\\boxed{17}</answer>", None, (1, 1)),
        ("\\boxed{17} is all that was found.", None, 30, (0, -1)),  # cut off in the result
    ],
)
def test_a_prompt_of_plain_text_is_rewarded_for_what_the_model_wrote(make, template, found, said, room, rewards):
    tokenizer = smollm2(template)
    dialect = make(tokenizer, [search])

    def says(text):
        token_ids = tuple(encode(tokenizer, text))
        return Segment(token_ids, True, (-1.0,) * len(token_ids))

    call = ToolCall("search", {"query": "a"})
    written = '<tool_call>{"name": "search", "arguments": {"query": "a"}}</tool_call><|im_end|>'
    asked = says(written if dialect.name == "template" else "<search>a</search>")
    result = dialect.render(asked.token_ids, [ToolResult(call, found)], room)
    segments = (asked, result) if said is None else (asked, result, says(f"{said}<|im_end|>"))
    trajectory = Trajectory(segments, Status.FINISHED if said else Status.TRUNCATED)
    batch = RolloutBatch.from_trees([BranchTree("p", (3,), (trajectory,), ())], dialect, 2)
    text = tokenizer.decode(batch.completion_ids[0], skip_special_tokens=True)
    row = {"prompts": ["q"], "completions": [text], "answer": ["17"]} | batch.extra_fields
    assert "\\boxed{" in text
    assert (exact_match_reward(**row)[0], arpo_reward(**row)[0]) == rewards
    assert (format_share_reward(**row)[0] == 1) == (rewards[1] >= 0)
    assert arpo_reward_released(**row) == arpo_reward_released(**row | {"completions": batch.completions})


def test_whole_trees_are_their_rows_one_after_the_other():
    dialect = TagDialect(word_tokenizer(), [search])
    trees = [tree(OWN_CALL), tree(INHERITED_CALL, name="q")]
    rows = [(each, trajectory) for each in trees for trajectory in each.trajectories]
    assert RolloutBatch.from_trees(trees, dialect, 1) == RolloutBatch.from_rows(rows, dialect, 1)
    assert RolloutBatch.from_rows([], dialect, 1).completion_ids == []


def test_a_branch_without_a_token_gets_one_that_is_masked():
    nothing = Trajectory((), Status.ERROR, Kind.BRANCH, 0, 0)
    batch = RolloutBatch.from_rows([(tree(nothing), nothing)], TagDialect(word_tokenizer(), [search]), eos_token_id=1)
    assert (batch.completion_ids, batch.sampled_mask, batch.logprobs) == ([[1]], [[0]], [[0.0]])
