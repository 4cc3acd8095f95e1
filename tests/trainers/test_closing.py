"""What a trainer leaves when it goes: no thread, no open file, no environment."""

import gc
import os
import sys
import threading
from pathlib import Path

import pytest
from tiny import dataset, trainer

from trl_agentic.tools import tool_options


@tool_options(cached=True)
def search(query: str) -> str:
    """
    Look something up.

    Args:
        query: What to look for.
    """
    return f"{query} is b"


def tool_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("trl-agentic-tool")}


def open_files(folder: Path) -> list[str]:
    """Files of this process below a folder."""
    descriptors = Path("/proc/self/fd")
    paths = [os.readlink(each) for each in descriptors.iterdir() if each.is_symlink() and each.exists()]
    return [path for path in paths if path.startswith(str(folder.resolve()))]


def rolled_out(output_dir):
    """A trainer whose tools have threads and whose cache is open."""
    ours = trainer(output_dir, tools=[search], num_tool_workers=2, tool_cache_dir=str(output_dir / "cache"))
    ours.rollout([row["prompt"] for row in dataset(2)], 2)
    return ours


@pytest.mark.skipif(sys.platform != "linux", reason="open files are listed in /proc/self/fd")
def test_trainers_that_are_dropped_leave_no_thread_and_no_open_file(tmp_path):
    gc.collect()
    before = tool_threads()
    for number in range(3):
        ours = rolled_out(tmp_path / str(number))
        assert tool_threads() - before and open_files(tmp_path)
        del ours
        gc.collect()
        assert not tool_threads() - before
        assert open_files(tmp_path) == []


def test_a_trainer_that_was_closed_says_so_at_its_next_rollout_and_may_be_closed_again(tmp_path):
    before = tool_threads()
    ours = rolled_out(tmp_path)
    ours.close()
    ours.close()
    assert not tool_threads() - before
    with pytest.raises(RuntimeError, match="This ToolRuntime is closed"):
        ours.rollout([row["prompt"] for row in dataset(1)], 1)
