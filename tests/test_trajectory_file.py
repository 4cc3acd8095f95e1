"""Rollouts on disk: rows, parts, and the merged file."""

import json
import math
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from small_trees import small_rows, small_tree

from trl_agentic.hub import COLUMNS
from trl_agentic.rollout.trajectory_file import TrajectoryWriter, copy_trajectories, read_trajectories
from trl_agentic.rollout.trajectory_rows import trajectory_rows, trajectory_schema
from trl_agentic.types import BranchTree, Segment, Status, ToolCall, ToolResult, Trajectory


def test_a_row_holds_what_its_trajectory_is():
    parent, child = trajectory_rows(
        [small_tree()],
        step=7,
        model_version=3,
        messages=[[{"role": "assistant", "content": "a"}], [{"role": "assistant", "content": "b"}]],
        rewards=[1.5, float("nan")],
        reward_functions={"right": [1.0, None], "short": [0.5, float("nan")]},
        advantages=[[0.1, 0.2, 0.3, 0.4, 0.5, 9.0], None],
    )

    assert (parent["step"], parent["prompt_id"], parent["trajectory"], parent["model_version"]) == (7, "p0", 0, 3)
    assert (parent["parent"], parent["fork"], parent["kind"], parent["status"]) == (None, 0, "initial", "finished")
    assert (child["parent"], child["fork"], child["kind"], child["status"]) == (0, 3, "branch", "truncated")
    assert parent["prompt_ids"] == child["prompt_ids"] == [1, 2]
    assert child["completion_ids"] == [10, 11, 12, 15]
    assert child["sampled_mask"] == [1, 1, 0, 1]
    assert child["logprobs"] == [-0.5, -1.0, None, -4.0]
    assert child["entropies"] == [0.25, 0.5, None, None]
    assert parent["advantages"] == [0.1, 0.2, None, 0.4, 0.5]  # null on the tool token, padding cut off
    assert child["advantages"] is None
    assert (parent["reward"], child["reward"]) == (1.5, None)
    assert parent["rewards"] == {"right": 1.0, "short": 0.5}
    assert child["rewards"] == {"right": None, "short": None}
    assert child["tool_calls"] == parent["tool_calls"]  # inherited calls belong to the path


def test_rows_follow_the_trees_in_order():
    rows = small_rows(trees=[small_tree("a"), small_tree("b")])

    assert [(row["prompt_id"], row["trajectory"]) for row in rows] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_trajectories_at_the_beginning_of_each_tree_may_be_left_out_and_positions_stay():
    lists = {"messages": [[], []], "rewards": [1.0, 2.0], "advantages": [None, [0.5] * 5]}
    trees = [small_tree("a"), small_tree("b"), small_tree("c")]
    rows = trajectory_rows(
        trees, step=0, model_version=0, reward_functions={"f": [3.0, 4.0]}, firsts=[1, 2, 1], **lists
    )
    assert [(row["prompt_id"], row["trajectory"], row["parent"]) for row in rows] == [("a", 1, 0), ("c", 1, 0)]
    assert [(row["reward"], row["rewards"]["f"]) for row in rows] == [(1.0, 3.0), (2.0, 4.0)]
    assert [row["advantages"] for row in rows] == [None, [0.5, 0.5, None, 0.5]]


def test_what_is_left_out_has_no_entry_in_any_list():
    lists = {"messages": [[], []], "rewards": [0.0, 0.0], "advantages": [None, None], "reward_functions": {}}
    with pytest.raises(ValueError, match="Expected messages for each of 1 trajectories, got 2"):
        trajectory_rows([small_tree()], step=0, model_version=0, firsts=[1], **lists)


@pytest.mark.parametrize("name", ["messages", "rewards", "advantages", "f"])
def test_a_list_that_does_not_match_the_trajectories_is_named(name):
    lists = {"messages": [[], []], "rewards": [0.0, 0.0], "advantages": [None, None], "f": [0.0, 0.0]}
    lists[name] = lists[name][:1]
    function = lists.pop("f")
    with pytest.raises(ValueError, match=f"Expected {name} for each of 2 trajectories, got 1"):
        trajectory_rows([small_tree()], step=0, model_version=0, reward_functions={"f": function}, **lists)


def test_advantages_shorter_than_the_completion_are_refused():
    with pytest.raises(ValueError, match="completion of 5 tokens needs as many advantages, got 2"):
        trajectory_rows(
            [small_tree()],
            step=0,
            model_version=0,
            messages=[[], []],
            rewards=[0.0, 0.0],
            reward_functions={},
            advantages=[[1.0, 1.0], None],
        )


def test_what_is_written_comes_back(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    rows = small_rows(step=4)
    writer.write(4, rows)

    assert writer.compact() == 2
    for stored, row in zip(read_trajectories(tmp_path).to_pylist(), rows, strict=True):
        assert stored == row  # every number here is exact in 32 bits


def test_columns_have_fixed_types_even_when_all_values_are_null(tmp_path):
    tree = BranchTree("p", (1,), (Trajectory((Segment((5,), True, (-1.0,)),), Status.ERROR),))
    rows = trajectory_rows(
        [tree],
        step=0,
        model_version=0,
        messages=[[]],
        rewards=[None],
        reward_functions={"f": [None]},
        advantages=[None],
    )
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, rows)
    writer.compact()
    schema = read_trajectories(tmp_path).schema

    assert schema.equals(trajectory_schema(["f"]))
    assert set(schema.names) == set(COLUMNS)
    assert schema.field("step").type == schema.field("parent").type == pa.int64()
    assert schema.field("entropies").type == schema.field("advantages").type == pa.list_(pa.float32())
    assert schema.field("reward").type == pa.float64()


def test_the_file_loads_as_a_dataset(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, small_rows())
    writer.compact()
    dataset = Dataset(read_trajectories(tmp_path))

    assert json.loads(dataset[0]["tool_calls"][0]["arguments"]) == {"query": "Perú", "limits": [1, {"deep": None}]}
    assert dataset[1]["rewards"] == {"f": 1.0}


def test_messages_keep_calls_reasoning_and_unknown_keys(tmp_path):
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": "Lima"}}}
    messages = [
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call], "weight": 2},
        {"role": "tool", "name": "search", "content": ["a", {"b": 1}]},
    ]
    tree = BranchTree("p", (1,), (Trajectory((Segment((5,), True, (-1.0,)),), Status.FINISHED),))
    rows = trajectory_rows(
        [tree],
        step=0,
        model_version=0,
        messages=[messages],
        rewards=[0.0],
        reward_functions={},
        advantages=[[0.0]],
    )
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, rows)
    writer.compact()
    assistant, tool = read_trajectories(tmp_path).to_pylist()[0]["messages"]

    assert (assistant["content"], assistant["reasoning_content"]) == ("", "hm")
    assert assistant["tool_calls"] == [
        {"type": "function", "function": {"name": "search", "arguments": '{"query": "Lima"}'}}
    ]
    assert json.loads(assistant["other"]) == {"weight": 2}
    assert (tool["role"], tool["name"], tool["tool_calls"], tool["other"]) == ("tool", "search", None, None)
    assert json.loads(tool["content"]) == ["a", {"b": 1}]


def test_half_a_character_and_odd_arguments_do_not_stop_a_run(tmp_path):
    call = ToolCall("se\ud800arch", {"query": "\udfff", "number": math.inf, "bytes": b"x"})
    segments = (Segment((5,), True, (-1.0,)), Segment((6,), False, results=(ToolResult(call, "a\ud800b"),)))
    tree = BranchTree("p", (1,), (Trajectory(segments, Status.TRUNCATED),))
    rows = trajectory_rows(
        [tree],
        step=0,
        model_version=0,
        messages=[[{"role": "assistant", "content": "\ud83d"}]],
        rewards=[0.0],
        reward_functions={"f": [0.0]},
        advantages=[None],
    )
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, rows)
    writer.compact()
    row = read_trajectories(tmp_path).to_pylist()[0]

    assert (row["tool_calls"][0]["name"], row["tool_calls"][0]["result"]) == ("se?arch", "a?b")
    assert json.loads(row["tool_calls"][0]["arguments"]) == {"query": "?", "number": "inf", "bytes": "b'x'"}


def test_steps_stand_in_order_with_every_rank_and_every_write(tmp_path):
    ranks = [TrajectoryWriter(tmp_path, rank=rank) for rank in (0, 1)]
    ranks[1].write(0, small_rows(0, [small_tree("0b")]))
    ranks[0].write(10, small_rows(10, [small_tree("10a")]))
    ranks[0].write(10, small_rows(10, [small_tree("10b")]))
    ranks[0].write(0, small_rows(0, [small_tree("0a")]))
    ranks[0].write(2, small_rows(2, [small_tree("2")]))

    assert ranks[0].compact() == 10
    assert read_trajectories(tmp_path)["prompt_id"].to_pylist()[::2] == ["0a", "0b", "2", "10a", "10b"]


def test_compacting_again_takes_in_what_came_since_and_the_parts_go(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    assert not writer.has_rows and writer.compact() == 0
    assert not (tmp_path / "trajectories.parquet").exists()
    writer.write(0, small_rows(0))
    assert writer.has_rows and writer.compact() == 2
    writer.write(1, [])
    writer.write(2, small_rows(2))
    assert read_trajectories(tmp_path)["step"].to_pylist() == [0, 0, 2, 2]
    assert writer.compact() == writer.compact() == 4
    assert pq.read_table(tmp_path / "trajectories.parquet")["step"].to_pylist() == [0, 0, 2, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["trajectories.parquet"] and writer.has_rows


def write_steps(folder, *steps, functions=("f",)):
    """Two rows for each step, written by a process that begins there."""
    writer = TrajectoryWriter(folder)
    writer.rewind(steps[0])
    for step in steps:
        writer.write(step, small_rows(step, functions=functions))
    return writer


@pytest.mark.parametrize("merges", [0, 1, 2])
def test_a_run_reads_alike_before_and_after_its_parts_are_merged(tmp_path, merges):
    write_steps(tmp_path, 0, 1)
    for _ in range(merges):
        TrajectoryWriter(tmp_path).compact()
    write_steps(tmp_path, 2, functions=("f", "g"))
    table = read_trajectories(tmp_path)
    assert table.schema.equals(trajectory_schema(["f", "g"]))
    assert table["step"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert table["rewards"].to_pylist() == [{"f": 1.0, "g": None}] * 4 + [{"f": 1.0, "g": 1.0}] * 2
    assert table["completion_ids"].to_pylist() == [[10, 11, 12, 13, 14], [10, 11, 12, 15]] * 3


def test_some_columns_of_a_run_can_be_read_alone_in_the_order_asked_for(tmp_path):
    write_steps(tmp_path, 0).compact()
    write_steps(tmp_path, 1, functions=("g",))
    table = read_trajectories(tmp_path, columns=["rewards", "step"])
    assert table.to_pylist()[1:3] == [
        {"rewards": {"f": 1.0, "g": None}, "step": 0},
        {"rewards": {"f": None, "g": 1.0}, "step": 1},
    ]


def test_a_copy_is_one_file_and_leaves_the_run_as_it_is(tmp_path):
    write_steps(tmp_path / "run", 0).compact()
    write_steps(tmp_path / "run", 1, 2)
    before = sorted(tmp_path.rglob("*"))
    assert copy_trajectories(tmp_path / "run", tmp_path / "copy.parquet") == 6
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "copy.parquet", *before]
    assert pq.read_table(tmp_path / "copy.parquet").equals(read_trajectories(tmp_path / "run"))


def test_a_run_that_has_written_nothing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no .*trajectories.parquet, and no part of one"):
        read_trajectories(tmp_path)


def test_a_file_of_another_writer_is_refused_with_a_remedy_and_replaced_by_a_new_run(tmp_path):
    pq.write_table(pa.table({"step": [0]}), tmp_path / "trajectories.parquet")
    writer = TrajectoryWriter(tmp_path)
    for attempt in (lambda: read_trajectories(tmp_path), lambda: writer.rewind(1), writer.compact):
        with pytest.raises(ValueError, match="does not say at which step .* move it away"):
            attempt()
    writer.rewind(0)
    assert not writer.has_rows


@pytest.mark.parametrize(("step", "left"), [(0, []), (1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (9, [0, 1, 2])])
def test_a_run_that_has_ended_can_be_resumed_at_any_of_its_steps(tmp_path, step, left):
    write_steps(tmp_path, 0, 1, 2).compact()
    write_steps(tmp_path, step).compact()
    table = pq.read_table(tmp_path / "trajectories.parquet")
    assert table["step"].to_pylist()[::2] == [*left, step]


def test_what_is_done_again_is_what_was_written_from_there_on_whenever_it_was_planted(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    for written_at in (0, 1, 2):  # a generation of APPO: planted at step 0, trained over three
        writer.write(written_at, small_rows(0, [small_tree(str(written_at))]))
    writer.compact()
    writer.rewind(2)
    assert read_trajectories(tmp_path, ["prompt_id"])["prompt_id"].to_pylist()[::2] == ["0", "1"]


def test_only_the_first_process_rewinds_the_merged_file(tmp_path):
    write_steps(tmp_path, 0, 1).compact()
    TrajectoryWriter(tmp_path, rank=1).rewind(1)
    assert read_trajectories(tmp_path).num_rows == 4
    TrajectoryWriter(tmp_path, rank=0).rewind(1)
    assert read_trajectories(tmp_path).num_rows == 2


@pytest.mark.parametrize("survivors", [(0, 1, 2), (1, 2), (2,)])
def test_a_merge_that_is_killed_before_its_parts_are_gone_doubles_nothing(tmp_path, survivors):
    writer = write_steps(tmp_path, 0, 1, 2)
    parts = {part: part.read_bytes() for part in sorted((tmp_path / "_trajectories").iterdir())}
    writer.compact()
    (tmp_path / "_trajectories").mkdir()
    for number, (part, content) in enumerate(parts.items()):
        if number in survivors:
            part.write_bytes(content)
    assert read_trajectories(tmp_path)["step"].to_pylist() == [0, 0, 1, 1, 2, 2]
    resumed = write_steps(tmp_path, 2)
    assert read_trajectories(tmp_path)["step"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert resumed.compact() == 6 and not (tmp_path / "_trajectories").exists()


def test_a_merge_that_is_killed_before_its_file_is_complete_loses_nothing(tmp_path):
    writer = write_steps(tmp_path, 0, 1)
    unfinished = tmp_path / ".trajectories.parquet.123"
    unfinished.write_bytes(b"PAR1")
    assert read_trajectories(tmp_path).num_rows == 4
    writer.rewind(2)
    assert not unfinished.exists() and writer.compact() == 4


def test_a_merge_holds_one_write_at_a_time(tmp_path):
    write_steps(tmp_path, *range(5)).compact()
    write_steps(tmp_path, 3, 4).compact()
    with pq.ParquetFile(tmp_path / "trajectories.parquet") as file:
        assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [2] * 5


def test_a_step_that_is_redone_after_a_resume_replaces_the_old_one(tmp_path):
    first = TrajectoryWriter(tmp_path)
    first.write(0, small_rows(0))
    first.write(1, small_rows(1, reward=0.0))
    first.write(1, small_rows(1, reward=0.0))
    resumed = TrajectoryWriter(tmp_path)
    resumed.write(1, small_rows(1, reward=2.0))

    assert resumed.compact() == 4
    assert read_trajectories(tmp_path)["reward"].to_pylist() == [1.0, 1.0, 2.0, 2.0]


def test_rewinding_forgets_the_steps_that_will_be_redone_on_every_rank(tmp_path):
    for rank in (0, 1):
        for step in (0, 1, 2):
            TrajectoryWriter(tmp_path, rank=rank).write(step, small_rows(step))
    writer = TrajectoryWriter(tmp_path)
    writer.rewind(1)

    assert writer.compact() == 4
    assert set(read_trajectories(tmp_path)["step"].to_pylist()) == {0}
    writer.rewind(0)
    TrajectoryWriter(tmp_path / "new").rewind(0)  # a run that has written nothing


def test_reward_functions_that_join_later_leave_nulls_before(tmp_path):
    TrajectoryWriter(tmp_path).write(0, small_rows(0, functions=("f",)))
    writer = TrajectoryWriter(tmp_path)
    writer.write(1, small_rows(1, functions=("f", "g")))
    writer.compact()

    assert read_trajectories(tmp_path)["rewards"].to_pylist()[1:3] == [{"f": 1.0, "g": None}, {"f": 1.0, "g": 1.0}]


def test_a_run_without_reward_functions_can_be_written(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, small_rows(functions=()))

    assert writer.compact() == 2
    assert read_trajectories(tmp_path)["reward"].to_pylist() == [1.0, 1.0]


def test_a_write_that_fails_leaves_no_part_and_no_remains(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, small_rows(0))
    broken = small_rows(1)
    broken[1]["step"] = "one"
    with pytest.raises(pa.ArrowInvalid):
        writer.write(1, broken)

    assert [path.name for path in (tmp_path / "_trajectories").iterdir()] == ["part-000000-0000-0000.parquet"]


KILLED = """
import pickle, sys
from trl_agentic.rollout.trajectory_file import TrajectoryWriter
writer = TrajectoryWriter(sys.argv[1])
with open(sys.argv[2], "rb") as file:
    rows = pickle.load(file)
for step in range(10_000):
    writer.write(step, [row | {"step": step} for row in rows])
    print(step, flush=True)
"""


def test_a_killed_writer_loses_no_step_that_it_had_written(tmp_path):
    rows = small_rows(trees=[small_tree(str(number)) for number in range(200)])
    (tmp_path / "rows").write_bytes(pickle.dumps(rows))
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(tmp_path / "rows")]
    root = str(Path(__file__).parent.parent)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        for _ in range(3):
            process.stdout.readline()
        time.sleep(0.01)  # into the middle of a step
        process.kill()
        written = 3 + len(process.stdout.read().split())
    writer = TrajectoryWriter(tmp_path)

    # The step in progress may have been completed without having been reported.
    assert writer.compact() in (400 * written, 400 * (written + 1))
    assert read_trajectories(tmp_path)["step"].to_pylist()[::400][:written] == list(range(written))


def test_what_a_killed_write_left_behind_is_no_part(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, small_rows(0))
    part = tmp_path / "_trajectories" / "part-000000-0000-0000.parquet"
    (part.parent / ".part-000001-0000-0000.parquet.123").write_bytes(part.read_bytes()[:100])

    assert read_trajectories(tmp_path).num_rows == 2
    writer.rewind(1)
    assert [path.name for path in part.parent.iterdir()] == [part.name]
