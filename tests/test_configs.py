"""Every file in `configs/` is what the trainer understands, and its group arithmetic fits the launch command in it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from trl import ModelConfig, TrlParser

from trl_agentic import ARPOConfig

REPOSITORY = Path(__file__).resolve().parent.parent
RECIPES = sorted((REPOSITORY / "configs").glob("*.yaml"))
ACCELERATE = sorted((REPOSITORY / "configs" / "accelerate").glob("*.yaml"))
EACH_RECIPE = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)


@pytest.fixture(scope="session")
def example():
    """`examples/train_arpo.py` as a module."""
    spec = importlib.util.spec_from_file_location("train_arpo", REPOSITORY / "examples" / "train_arpo.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def parse(path: Path, example, output_dir: Path):
    """The recipe as the example reads it; without GPUs, whose absence alone would be an error."""
    parser = TrlParser((example.ScriptArguments, ARPOConfig, ModelConfig))
    flags = ["--config", str(path), "--use_cpu", "true", "--output_dir", str(output_dir)]
    return parser.parse_args_and_config(args=flags, fail_with_unknown_args=True)


def launch_command(path: Path) -> str:
    """The command in the comments at the top of a recipe, on one line."""
    header = path.read_text(encoding="utf-8").split("\n\n")[0]
    launch = re.search(r"^# Launch: +((?:.*\\\n)*.*)$", header, flags=re.MULTILINE).group(1)
    return re.sub(r" *\\\n# *", " ", launch)


def world_size(path: Path) -> int:
    """Processes that the launch command starts."""
    command = launch_command(path)
    if named := re.search(r"--config_file (\S+)", command):
        return load_config_from_file(str(REPOSITORY / named.group(1))).num_processes
    return int(re.search(r"--num_processes (\d+)", command).group(1))


def test_all_recipes_are_found():
    assert {path.stem for path in RECIPES} == {
        "arpo_tiny_geo_cpu",
        "arpo_smollm2_cpu",
        "arpo_qwen3_8b_deepsearch_8xh100",
        "arpo_qwen2.5_7b_reasoning_8xh100",
    }


@EACH_RECIPE
def test_a_recipe_parses_and_no_key_is_unknown(path: Path, example, tmp_path: Path):
    script_args, training_args, model_args = parse(path, example, tmp_path)
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert model_args.model_name_or_path == values["model_name_or_path"]
    assert script_args.rewards == values["rewards"]
    assert training_args.learning_rate == values["learning_rate"]
    assert training_args.vllm_engine_kwargs == values["vllm_engine_kwargs"]


@EACH_RECIPE
def test_every_reward_of_a_recipe_exists(path: Path):
    from trl_agentic import rewards

    for name in yaml.safe_load(path.read_text(encoding="utf-8"))["rewards"]:
        assert callable(vars(rewards)[name])


@EACH_RECIPE
def test_a_misspelt_key_in_a_recipe_would_be_an_error(path: Path, example, tmp_path: Path):
    misspelt = tmp_path / "misspelt.yaml"
    misspelt.write_text(path.read_text(encoding="utf-8").replace("num_generations:", "num_generation:"))
    with pytest.raises(ValueError, match="num_generation"):
        parse(misspelt, example, tmp_path)


@EACH_RECIPE
def test_a_recipe_names_itself_in_its_launch_command(path: Path):
    assert f"--config configs/{path.name}" in launch_command(path)


@EACH_RECIPE
def test_whole_groups_stay_on_one_process_and_in_one_optimizer_step(path: Path, example, tmp_path: Path):
    args = parse(path, example, tmp_path)[1]
    rows_per_process = args.per_device_train_batch_size * args.steps_per_generation
    rows_per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * world_size(path)
    assert rows_per_process % args.num_generations == 0
    assert rows_per_step % args.num_generations == 0
    assert args.steps_per_generation % args.gradient_accumulation_steps == 0


@pytest.mark.parametrize("path", [path for path in RECIPES if "8xh100" in path.stem], ids=lambda path: path.stem)
def test_published_batch_is_128_prompts_in_mini_batches_of_16(path: Path, example, tmp_path: Path):
    args = parse(path, example, tmp_path)[1]
    processes = world_size(path)
    assert processes == 8
    rows = args.per_device_train_batch_size * processes
    assert rows * args.steps_per_generation == 128 * 16
    assert rows * args.gradient_accumulation_steps == 16 * 16
    assert (args.num_generations, args.initial_rollouts, args.learning_rate, args.beta) == (16, 8, 1e-6, 0.0)


@EACH_RECIPE
def test_prompt_and_completion_fit_the_context(path: Path, example, tmp_path: Path):
    args = parse(path, example, tmp_path)[1]
    assert args.vllm_max_model_length > args.max_completion_length


@pytest.mark.parametrize("path", ACCELERATE, ids=lambda path: path.stem)
def test_an_accelerate_file_is_read_without_unknown_keys(path: Path):
    config = load_config_from_file(str(path))
    assert config.num_processes == 8
    assert config.fsdp_config["fsdp_version"] == 2
