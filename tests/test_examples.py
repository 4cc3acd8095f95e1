"""Every recipe runs two optimizer steps through the example, with the tiny model in place of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from loopback_hub import LoopbackHub

REPOSITORY = Path(__file__).resolve().parent.parent
RECIPES = sorted((REPOSITORY / "configs").glob("*.yaml"))
LIKE_ANOTHER = {  # differ in sizes alone from one that is run fast, or share all their options with two that are
    "appo_qwen2.5_3b_geo_lora_1x24gb",
    "appo_qwen2.5_3b_reasoning_1xh100",
    "appo_qwen2.5_7b_reasoning_8xh100",
    "appo_qwen3_8b_deepsearch_8xh100",
    "appo_qwen3_14b_deepsearch_8xh100",
    "appo_smollm2_cpu",
    "arpo_qwen2.5_3b_reasoning_1xh100",
    "arpo_qwen3_8b_deepsearch_8xh100",
}
TINY = {
    "model_name_or_path": "trl_agentic/tasks/tiny_geo",
    "dataset": "geo",
    "geo_rendering": "compact",
    "num_train_questions": 64,
    "num_eval_questions": 8,
    "num_eval_samples": 2,
    "max_steps": 2,
    "max_completion_length": 96,
    "vllm_max_model_length": 512,
    "vllm_engine_kwargs": json.dumps({"dtype": "float32", "enforce_eager": True, "block_size": 32}),
    "use_cpu": "true",
    "vllm_enable_sleep_mode": "false",  # vLLM has it on GPUs alone
    "bf16": "false",
    "report_to": "none",
    "logging_steps": 1,
    "save_strategy": "no",
    "push_to_hub": "false",
}


def code(name: str) -> str:
    """An example without its docstring."""
    return (REPOSITORY / "examples" / name).read_text(encoding="utf-8").split('"""', 2)[2]


def test_the_examples_differ_in_the_trainer_and_in_what_is_drawn_alone():
    of_appo = code("train_appo.py").replace("APPO_PANELS, ", "").replace(", APPO_PANELS", "")
    assert of_appo.replace("APPO", "ARPO") == code("train_arpo.py")


def method(path: Path) -> str:
    """`arpo` or `appo`."""
    return path.stem.split("_")[0]


def batch(path: Path) -> dict[str, int]:
    """Two prompts an optimizer step on one process, and two steps a generation where the recipe has several."""
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    size = recipe["num_generations"]
    accumulation = recipe.get("gradient_accumulation_steps", 1)
    several = recipe.get("steps_per_generation", accumulation) > accumulation
    return {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4 if several else 2,
    }


def launch(path: Path, output_dir: Path, environment=None, **options) -> subprocess.CompletedProcess:
    flags = TINY | batch(path) | {"output_dir": str(output_dir)} | options
    arguments = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    command = "accelerate.commands.launch --cpu --num_processes 1 --num_machines 1 --mixed_precision no"
    command += f" --dynamo_backend no --num_cpu_threads_per_process 2 examples/train_{method(path)}.py --config"
    return subprocess.run(
        [sys.executable, "-m", *command.split(), str(path), *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "2", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=500,
    )


def check_trajectories(folder: Path, ended: subprocess.CompletedProcess, path: Path) -> None:
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    size = recipe["num_generations"]
    rows = pq.read_table(folder / "trajectories.parquet").to_pylist()
    if method(path) == "arpo":
        assert len(rows) % size == 0 and len(rows) >= 2 * size
        return
    initial = [row for row in rows if row["kind"] == "initial"]
    branches = [row for row in rows if row["kind"] == "branch"]
    # One generation of two optimizer steps, each with two prompts, all of whose rollouts branch
    assert len(initial) == 4 * size and len(initial) + len(branches) == len(rows)
    assert len(branches) == 4 * size * recipe["branches_per_rollout"]
    assert {row["model_version"] for row in branches} == {1, 2}, "each step branches with its own weights"
    said = f"{size} * ({recipe['branches_per_rollout']} + 1) = {size * (recipe['branches_per_rollout'] + 1)} trajector"
    assert (ended.stdout + ended.stderr).count(said) == 1


def check_output(folder: Path, ended: subprocess.CompletedProcess, path: Path) -> None:
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    check_trajectories(folder, ended, path)
    weights = "adapter_model" if "lora" in path.stem else "model"
    assert (folder / f"{weights}.safetensors").is_file() and (folder / "curves.png").stat().st_size > 10_000
    history = json.loads((folder / "log_history.json").read_text())
    assert [entry["step"] for entry in history if "loss" in entry] == [1, 2]
    table = (folder / "before_after.md").read_text()
    assert "pass@1, sampled" in table and "pass@1, greedy" in table
    card = (folder / "README.md").read_text()
    assert table in card and method(path).upper() in card


def recipe_tests() -> list:
    """Every recipe but the one that is pushed."""
    return [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in LIKE_ANOTHER else [])
        for path in RECIPES
        if path.stem != "arpo_tiny_geo_cpu"
    ]


@pytest.mark.parametrize("path", recipe_tests())
def test_a_recipe_runs_two_steps_with_the_tiny_model(path, tmp_path):
    check_output(tmp_path, launch(path, tmp_path), path)


def test_the_tiny_recipe_runs_and_pushes_model_card_and_rollouts_to_a_hub(tmp_path):
    path = REPOSITORY / "configs" / "arpo_tiny_geo_cpu.yaml"
    with LoopbackHub(token="hf_of_this_test") as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token, "HF_HUB_OFFLINE": "0"}
        ended = launch(path, tmp_path, environment, push_to_hub="true", hub_model_id="me/geo-agent")
        check_output(tmp_path, ended, path)
        model, dataset = hub.repos["model", "me/geo-agent"], hub.repos["dataset", "me/geo-agent-rollouts"]
    assert {"model.safetensors", "tokenizer.json", "README.md"} <= set(model)
    assert "ARPO" in model["README.md"].decode() and "pass@1, sampled" in model["README.md"].decode()
    assert {"trajectories.parquet", "README.md"} <= set(dataset)
    assert hub.token not in model["README.md"].decode()
