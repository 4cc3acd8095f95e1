import json
import math
import pickle
import subprocess
import sys
import time
from pathlib import Path

import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import HfHubHTTPError
from loopback_hub import LoopbackHub

from trl_agentic.hub import (
    COLUMNS,
    TrajectoryWriter,
    push_trajectories,
    run_model_card,
    trajectory_rows,
    trajectory_schema,
)
from trl_agentic.types import BranchTree, CallStatus, Kind, Segment, Status, ToolCall, ToolResult, Trajectory

CALL = ToolCall("search", {"query": "Perú", "limits": [1, {"deep": None}]})
RESULT = ToolResult(CALL, "Lima", CallStatus.OK, latency_s=0.25, cached=True)


@pytest.fixture
def start_hub(monkeypatch):
    """Starts loopback hubs in a session that is offline otherwise."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return LoopbackHub


def small_tree(prompt_id="p0"):
    """Two sampled tokens and a result of one, then two endings: the parent's of two tokens, the child's of one."""
    trunk = (
        Segment((10, 11), True, logprobs=(-0.5, -1.0), entropies=(0.25, 0.5)),
        Segment((12,), False, results=(RESULT,)),
    )
    parent = Trajectory((*trunk, Segment((13, 14), True, (-2.0, -0.25), (1.0, 0.0))), Status.FINISHED)
    child = Trajectory((*trunk, Segment((15,), True, (-4.0,))), Status.TRUNCATED, Kind.BRANCH, parent=0, fork=3)
    return BranchTree(prompt_id, (1, 2), (parent, child))


def small_rows(step=0, trees=None, reward=1.0, functions=("f",)):
    trees = trees or [small_tree()]
    count = sum(len(tree.trajectories) for tree in trees)
    return trajectory_rows(
        trees,
        step=step,
        model_version=step,
        messages=[[{"role": "assistant", "content": "Lima"}]] * count,
        rewards=[reward] * count,
        reward_functions={name: [reward] * count for name in functions},
        advantages=[[0.5] * 5] * count,
    )


def read(folder):
    return pq.read_table(folder / "trajectories.parquet")


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
    for stored, row in zip(read(tmp_path).to_pylist(), rows, strict=True):
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
    schema = read(tmp_path).schema

    assert schema.equals(trajectory_schema(["f"]))
    assert set(schema.names) == set(COLUMNS)
    assert schema.field("step").type == schema.field("parent").type == pa.int64()
    assert schema.field("entropies").type == schema.field("advantages").type == pa.list_(pa.float32())
    assert schema.field("reward").type == pa.float64()


def test_the_file_loads_as_a_dataset(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, small_rows())
    writer.compact()
    dataset = Dataset(read(tmp_path))

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
    assistant, tool = read(tmp_path).to_pylist()[0]["messages"]

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
    row = read(tmp_path).to_pylist()[0]

    assert (row["tool_calls"][0]["name"], row["tool_calls"][0]["result"]) == ("se?arch", "a?b")
    assert json.loads(row["tool_calls"][0]["arguments"]) == {"query": "?", "number": math.inf, "bytes": "b'x'"}


def test_steps_stand_in_order_with_every_rank_and_every_write(tmp_path):
    ranks = [TrajectoryWriter(tmp_path, rank=rank) for rank in (0, 1)]
    ranks[1].write(0, small_rows(0, [small_tree("0b")]))
    ranks[0].write(10, small_rows(10, [small_tree("10a")]))
    ranks[0].write(10, small_rows(10, [small_tree("10b")]))
    ranks[0].write(0, small_rows(0, [small_tree("0a")]))
    ranks[0].write(2, small_rows(2, [small_tree("2")]))

    assert ranks[0].compact() == 10
    assert read(tmp_path)["prompt_id"].to_pylist()[::2] == ["0a", "0b", "2", "10a", "10b"]


def test_compacting_again_takes_in_what_came_since(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    assert writer.compact() == 0
    assert not (tmp_path / "trajectories.parquet").exists()
    writer.write(0, small_rows(0))
    assert writer.compact() == 2
    writer.write(1, [])
    writer.write(2, small_rows(2))
    assert writer.compact() == 4
    assert read(tmp_path)["step"].to_pylist() == [0, 0, 2, 2]


def test_a_step_that_is_redone_after_a_resume_replaces_the_old_one(tmp_path):
    first = TrajectoryWriter(tmp_path)
    first.write(0, small_rows(0))
    first.write(1, small_rows(1, reward=0.0))
    first.write(1, small_rows(1, reward=0.0))
    resumed = TrajectoryWriter(tmp_path)
    resumed.write(1, small_rows(1, reward=2.0))

    assert resumed.compact() == 4
    assert read(tmp_path)["reward"].to_pylist() == [1.0, 1.0, 2.0, 2.0]


def test_rewinding_forgets_the_steps_that_will_be_redone_on_every_rank(tmp_path):
    for rank in (0, 1):
        for step in (0, 1, 2):
            TrajectoryWriter(tmp_path, rank=rank).write(step, small_rows(step))
    writer = TrajectoryWriter(tmp_path)
    writer.rewind(1)

    assert writer.compact() == 4
    assert set(read(tmp_path)["step"].to_pylist()) == {0}
    writer.rewind(0)
    TrajectoryWriter(tmp_path / "new").rewind(0)  # a run that has written nothing


def test_reward_functions_that_join_later_leave_nulls_before(tmp_path):
    TrajectoryWriter(tmp_path).write(0, small_rows(0, functions=("f",)))
    writer = TrajectoryWriter(tmp_path)
    writer.write(1, small_rows(1, functions=("f", "g")))
    writer.compact()

    assert read(tmp_path)["rewards"].to_pylist()[1:3] == [{"f": 1.0, "g": None}, {"f": 1.0, "g": 1.0}]


def test_a_run_without_reward_functions_can_be_written(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, small_rows(functions=()))

    assert writer.compact() == 2
    assert read(tmp_path)["reward"].to_pylist() == [1.0, 1.0]


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
    assert read(tmp_path)["step"].to_pylist()[::400][:written] == list(range(written))


def test_what_a_killed_write_left_behind_is_no_part(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, small_rows(0))
    part = tmp_path / "_trajectories" / "part-000000-0000-0000.parquet"
    (part.parent / ".part-000001-0000-0000.parquet.123").write_bytes(part.read_bytes()[:100])

    assert writer.compact() == 2
    writer.rewind(1)
    assert [path.name for path in part.parent.iterdir()] == [part.name]


def test_trajectories_arrive_on_the_hub_as_a_dataset_with_a_card(start_hub, tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, small_rows())
    writer.compact()
    with start_hub(token="secret") as hub:
        api = HfApi(endpoint=hub.url, token="secret")
        address = push_trajectories(tmp_path, "me/rollouts", model_id="me/agent", private=True, api=api)
        push_trajectories(tmp_path, "me/rollouts", api=api)  # the repository exists now
        files = hub.repos["dataset", "me/rollouts"]

    assert address.startswith(hub.url)
    assert hub.private == {("dataset", "me/rollouts")}
    assert hub.commits == [("me/rollouts", "Upload trajectories")] * 2
    assert sorted(files) == ["README.md", "trajectories.parquet"]
    assert pq.read_table(pa.BufferReader(files["trajectories.parquet"])).num_rows == 2
    card = files["README.md"].decode()
    assert "data_files: trajectories.parquet" in card and "2 rollouts" in card
    for column in trajectory_schema([]).names:
        assert f"| `{column}` |" in card


def test_the_card_of_the_dataset_links_the_model_only_when_there_is_one(start_hub, tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, small_rows())
    writer.compact()
    with start_hub() as hub:
        api = HfApi(endpoint=hub.url, token=False)
        push_trajectories(tmp_path, "me/a", api=api)
        push_trajectories(tmp_path, "me/b", model_id="me/agent", api=api)

    assert b"[me/agent](https://huggingface.co/me/agent)" not in hub.repos["dataset", "me/a"]["README.md"]
    assert b"[me/agent](https://huggingface.co/me/agent)" in hub.repos["dataset", "me/b"]["README.md"]


def test_pushing_before_compacting_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="compact"):
        push_trajectories(tmp_path, "me/rollouts")


def test_a_wrong_token_is_an_error(start_hub, tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, small_rows())
    writer.compact()
    with start_hub(token="secret") as hub, pytest.raises(HfHubHTTPError, match="401"):
        push_trajectories(tmp_path, "me/rollouts", api=HfApi(endpoint=hub.url, token="wrong"))


def test_the_run_folder_goes_to_the_hub_without_the_parts(start_hub, tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, small_rows())
    writer.compact()
    small_card().save(tmp_path / "README.md")
    with start_hub() as hub:
        api = HfApi(endpoint=hub.url, token=False)
        api.create_repo("me/agent")
        # The patterns are those of `Trainer.push_to_hub`.
        api.upload_folder(repo_id="me/agent", folder_path=tmp_path, ignore_patterns=["_*", "checkpoint-*"])

    assert sorted(hub.repos["model", "me/agent"]) == ["README.md", "trajectories.parquet"]


def small_card(**settings):
    defaults = {
        "trainer_name": "ARPO",
        "paper": {"title": "Agentic Reinforced Policy Optimization", "id": "2507.19849", "citation": "@article{arpo}"},
        "tags": ["trl", "arpo", "trl"],
        "model_name": "agent",
    }
    return run_model_card(**(defaults | settings))


def test_the_model_card_names_method_and_paper_and_tags():
    card = small_card(base_model="org/base", dataset_name="org/questions")

    assert card.data.base_model == "org/base"
    assert card.data.tags == ["generated_from_trainer", "arpo", "trl"]
    assert "trained with ARPO, a method introduced in [Agentic Reinforced Policy Optimization]" in card.text
    assert "https://huggingface.co/papers/2507.19849" in card.text
    assert "@article{arpo}" in card.text
    assert 'model="agent"' in card.text  # the quick start


def test_results_settings_and_rollouts_stand_before_the_versions():
    card = small_card(results="| before | after |\n", settings={"initial_rollouts": 8, "branch_gate": "a|b"})
    positions = [
        card.text.index(text)
        for text in (
            "### Results\n\n| before | after |\n",
            "### Settings\n\n",
            "| `branch_gate` | `a\\|b` |\n| `initial_rollouts` | `8` |\n",
            "### Rollouts",
            "### Framework versions",
        )
    ]

    assert positions == sorted(positions)


def test_a_model_from_a_local_checkpoint_links_nowhere():
    card = small_card()

    assert "fine-tuned version of a local checkpoint" in card.text
    assert "None" not in card.text
    assert "### Results" not in card.text


def test_a_saved_card_can_be_read_again(tmp_path):
    small_card(base_model="org/base").save(tmp_path / "README.md")

    assert ModelCard.load(tmp_path / "README.md").data.base_model == "org/base"
