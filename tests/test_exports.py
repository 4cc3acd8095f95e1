"""What `import trl_agentic` offers, and what it costs."""

from __future__ import annotations

import configparser
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import trl_agentic
from trl_agentic import types

SETUP = Path(__file__).resolve().parent.parent / "setup.cfg"


def test_public_names_are_sorted_and_each_exists():
    assert trl_agentic.__all__ == sorted(set(trl_agentic.__all__))
    for name in trl_agentic.__all__:
        assert getattr(trl_agentic, name).__name__ == name


def test_a_name_is_the_same_object_here_and_at_home():
    assert trl_agentic.Segment is types.Segment


def test_dir_lists_names_that_have_not_been_used_yet():
    assert set(trl_agentic.__all__) <= set(dir(trl_agentic))


def test_an_unknown_name_is_an_attribute_error_that_says_which():
    with pytest.raises(AttributeError, match="'trl_agentic' has no attribute 'ArpoTrainer'"):
        trl_agentic.ArpoTrainer  # noqa: B018


@pytest.mark.parametrize("statement", ["import trl_agentic", "import trl_agentic.types; trl_agentic.Segment"])
def test_importing_the_package_loads_neither_torch_nor_vllm(statement: str):
    code = f"import sys; {statement}; print(sorted({{'torch', 'transformers', 'trl', 'vllm'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_version_is_the_one_in_setup_cfg():
    config = configparser.ConfigParser()
    config.read(SETUP)
    assert trl_agentic.__version__ == config["metadata"]["version"]


def test_vllm_finds_the_entropy_processor_by_its_entry_point():
    (entry,) = (entry for entry in entry_points(group="vllm.logits_processors") if entry.name == "trl_agentic_entropy")
    assert entry.load().__module__ == "trl_agentic.rollout.vllm_entropy"
