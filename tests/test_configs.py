"""Every file in `configs/` is what the trainer understands, and its group arithmetic fits the launch command in it."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import NormalDist

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from published_models import published_config
from transformers import Trainer
from trl import ModelConfig, TrlParser, get_peft_config

from trl_agentic import APPOConfig, ARPOConfig
from trl_agentic.tasks import TaskArguments, model_init_kwargs
from trl_agentic.trainers.agentic_config import AgenticConfig
from trl_agentic.trainers.gpu_memory import ENGINE_WORKSPACE, MemoryEstimate, estimate_memory

REPOSITORY = Path(__file__).resolve().parent.parent
RECIPES = sorted((REPOSITORY / "configs").glob("*.yaml"))
ACCELERATE = sorted((REPOSITORY / "configs" / "accelerate").glob("*.yaml"))
FOR_8_GPUS = [path for path in RECIPES if "8xh100" in path.stem]
OF_APPO = [path for path in RECIPES if path.stem.startswith("appo")]
FOR_GPUS = [path for path in RECIPES if not path.stem.endswith("cpu")]
EACH_GPU_RECIPE = pytest.mark.parametrize("path", FOR_GPUS, ids=lambda path: path.stem)
EACH_RECIPE = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)


def config_class(path: Path) -> type[AgenticConfig]:
    """What the recipe of a method configures."""
    return {"arpo": ARPOConfig, "appo": APPOConfig}[path.stem.split("_")[0]]


def parse(path: Path, output_dir: Path):
    """The recipe as its example reads it; without GPUs, whose absence alone would be an error."""
    parser = TrlParser((TaskArguments, config_class(path), ModelConfig))
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


def device_gb(path: Path) -> int:
    """Memory of the GPU that a recipe is for."""
    return 24 if path.stem.endswith("24gb") else 80


def memory(path: Path, output_dir: Path) -> MemoryEstimate:
    """What the recipe needs on each GPU, with the model loaded as its example loads it."""
    _, training_args, model_args = parse(path, output_dir)
    training_args.model_init_kwargs = model_init_kwargs(model_args, training_args)
    return estimate_memory(
        published_config(model_args.model_name_or_path),
        training_args,
        world_size(path),
        device_gb(path) * 1e9,
        get_peft_config(model_args),
    )


def memory_table(output_dir: Path) -> str:
    """The table in `docs/gpu.md`, in GB."""
    heads = ["Recipe", "States", "Gathered", "Activations", "Training", "Engine", "Rollout", "Cache, tokens", "GPU"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for path in FOR_GPUS:
        m = memory(path, output_dir)
        parts = (
            m.parameters + m.optimizer + m.gradients + m.whole_gradients,
            m.layers + m.head,
            m.checkpoints + m.activations + m.logits,
            m.training_peak,
            m.engine_weights + m.kv_cache + ENGINE_WORKSPACE,
            m.rollout_peak,
        )
        cells = [f"`{path.stem}`", *(f"{part / 1e9:.1f}" for part in parts)]
        lines.append("| " + " | ".join([*cells, f"{m.kv_cache_tokens:,}", str(device_gb(path))]) + " |")
    return "\n".join(lines)


def test_all_recipes_are_found():
    assert {path.stem for path in RECIPES} == {
        "arpo_tiny_geo_cpu",
        "arpo_smollm2_cpu",
        "arpo_qwen2.5_7b_reasoning_8xh100",
        "arpo_qwen3_8b_deepsearch_8xh100",
        "appo_tiny_geo_cpu",
        "appo_smollm2_cpu",
        "appo_qwen2.5_7b_reasoning_8xh100",
        "appo_qwen3_8b_deepsearch_8xh100",
        "appo_qwen3_14b_deepsearch_8xh100",
        "arpo_qwen2.5_3b_reasoning_1xh100",
        "appo_qwen2.5_3b_reasoning_1xh100",
        "arpo_qwen2.5_3b_geo_lora_1x24gb",
        "appo_qwen2.5_3b_geo_lora_1x24gb",
    }


@EACH_RECIPE
def test_a_recipe_parses_and_no_key_is_unknown(path: Path, tmp_path: Path):
    task_args, training_args, model_args = parse(path, tmp_path)
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert model_args.model_name_or_path == values["model_name_or_path"]
    assert task_args.rewards == values["rewards"]
    assert training_args.learning_rate == values["learning_rate"]
    assert training_args.vllm_engine_kwargs == values["vllm_engine_kwargs"]


@EACH_RECIPE
def test_every_reward_of_a_recipe_exists(path: Path):
    from trl_agentic import rewards

    for name in yaml.safe_load(path.read_text(encoding="utf-8"))["rewards"]:
        assert callable(vars(rewards)[name])


@EACH_RECIPE
def test_a_misspelt_key_in_a_recipe_would_be_an_error(path: Path, tmp_path: Path):
    misspelt = tmp_path / path.name
    misspelt.write_text(path.read_text(encoding="utf-8").replace("num_generations:", "num_generation:"))
    with pytest.raises(ValueError, match="num_generation"):
        parse(misspelt, tmp_path)


@EACH_RECIPE
def test_a_recipe_names_itself_and_its_example_in_its_launch_command(path: Path):
    method = path.stem.split("_")[0]
    assert f"examples/train_{method}.py --config configs/{path.name}" in launch_command(path)


@EACH_RECIPE
def test_whole_groups_stay_on_one_process_and_in_one_optimizer_step(path: Path, tmp_path: Path):
    args = parse(path, tmp_path)[1]
    rows_per_process = args.per_device_train_batch_size * args.steps_per_generation
    rows_per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * world_size(path)
    assert rows_per_process % args.num_generations == 0
    assert rows_per_step % args.num_generations == 0
    assert args.steps_per_generation % args.gradient_accumulation_steps == 0


@pytest.mark.parametrize("path", FOR_8_GPUS, ids=lambda path: path.stem)
def test_published_batch_is_128_prompts_in_mini_batches_of_16(path: Path, tmp_path: Path):
    args = parse(path, tmp_path)[1]
    assert world_size(path) == 8
    rows, size = args.per_device_train_batch_size * 8, args.num_generations
    assert rows * args.steps_per_generation == 128 * size
    assert rows * args.gradient_accumulation_steps == 16 * size
    assert args.steps_per_generation // args.gradient_accumulation_steps == 8  # optimizer steps a generation
    assert (args.learning_rate, args.beta, args.epsilon) == (1e-6, 0.0, 0.2)
    assert (args.max_completion_length, args.num_train_epochs) == (
        (4096, 2) if "reasoning" in path.stem else (8192, 5)
    )


@pytest.mark.parametrize("path", FOR_8_GPUS, ids=lambda path: path.stem)
def test_published_trees_have_16_trajectories_of_a_prompt(path: Path, tmp_path: Path):
    args = parse(path, tmp_path)[1]
    if isinstance(args, APPOConfig):
        assert (args.num_generations, args.branches_per_rollout, args.num_trajectories) == (4, 3, 16)
    else:
        assert (args.num_generations, args.initial_rollouts) == (16, 8)


def test_the_released_sizes_that_the_14b_recipe_names_are_what_it_says_they_are(tmp_path: Path):
    path = REPOSITORY / "configs" / "appo_qwen3_14b_deepsearch_8xh100.yaml"
    released = path.read_text(encoding="utf-8").split("# Released:")[1].split("\n\n")[0]
    sizes = {name: int(value) for name, value in re.findall(r"`(\w+): (\d+)`", released)}
    assert len(sizes) == 5 and "64 prompts" in released and "M = 12 with N = 6" in re.sub(r"\n# +", " ", released)
    changed = tmp_path / path.name
    changed.write_text(yaml.safe_dump(yaml.safe_load(path.read_text(encoding="utf-8")) | sizes))
    args = parse(changed, tmp_path)[1]
    rows, size = args.per_device_train_batch_size * 8, args.num_generations
    assert (size, args.num_trajectories, args.max_completion_length) == (6, 12, 6192)
    assert rows * args.steps_per_generation == 64 * size
    assert rows * args.gradient_accumulation_steps == 8 * size
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps % size == 0


@pytest.mark.parametrize("path", [path for path in FOR_GPUS if path not in FOR_8_GPUS], ids=lambda path: path.stem)
def test_one_gpu_has_four_prompts_in_a_step_and_the_trees_of_the_paper_or_half_of_them(path: Path, tmp_path: Path):
    args = parse(path, tmp_path)[1]
    assert world_size(path) == 1
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 4 * args.num_generations
    if isinstance(args, APPOConfig):
        assert (args.num_generations, args.num_trajectories) == (4, 16)
    else:
        assert args.num_generations == 2 * args.initial_rollouts == (8 if "lora" in path.stem else 16)


@EACH_GPU_RECIPE
def test_both_phases_fit_the_gpu_and_the_head_of_the_file_says_how_closely(path: Path, tmp_path: Path):
    needed, size = memory(path, tmp_path), device_gb(path)
    training, rollout = needed.training_peak / 1e9, needed.rollout_peak / 1e9
    assert max(training, rollout) < size
    said = f"# Memory:   {training:.0f} of {size} GB while it trains and {rollout:.0f} in the rollout, by"
    assert said in path.read_text(encoding="utf-8")


def test_the_table_of_the_guide_is_what_the_formula_says(tmp_path: Path):
    assert memory_table(tmp_path) in (REPOSITORY / "docs" / "gpu.md").read_text(encoding="utf-8")


def test_the_guide_says_what_training_would_need_without_synced_batches_and_14b_with_a_larger_engine(tmp_path: Path):
    guide = (REPOSITORY / "docs" / "gpu.md").read_text(encoding="utf-8")
    for path, model in zip(sorted(FOR_8_GPUS)[:3], ("Qwen2.5-7B", "Qwen3-14B", "Qwen3-8B"), strict=True):
        needed = memory(path, tmp_path)
        whole = 2 * needed.engine_weights  # float32, where the engine has bfloat16
        assert f"{(needed.training_peak + whole) / 1e9:.0f} GB with {model}" in guide
        if model == "Qwen3-14B":
            assert f"a rollout would need {needed.rollout_peak / 1e9 + 0.05 * 80:.1f} GB" in guide


@EACH_GPU_RECIPE
def test_the_keys_and_values_of_a_whole_tree_fit_the_engine(path: Path, tmp_path: Path):
    args = parse(path, tmp_path)[1]
    assert memory(path, tmp_path).kv_cache_tokens > 8 * args.vllm_max_model_length


@pytest.mark.parametrize("path", FOR_8_GPUS, ids=lambda path: path.stem)
def test_gradients_of_the_recipes_for_8_gpus_are_sharded_after_each_micro_batch(path: Path, tmp_path: Path):
    args = parse(path, tmp_path)[1]
    args.gradient_checkpointing = False  # a single layer has none
    accelerator = Trainer(torch.nn.Linear(1, 1), args).accelerator
    assert accelerator.gradient_state.plugin_kwargs["sync_each_batch"] is True
    assert memory(path, tmp_path).whole_gradients == 0


def test_without_the_option_of_a_recipe_the_accelerator_does_not_sync_each_batch(tmp_path: Path):
    args = APPOConfig(str(tmp_path), use_cpu=True, bf16=False, gradient_checkpointing=False)
    accelerator = Trainer(torch.nn.Linear(1, 1), args).accelerator
    assert not accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False)


@EACH_GPU_RECIPE
def test_a_recipe_for_gpus_corrects_each_token_keeps_few_checkpoints_and_says_so(path: Path, tmp_path: Path):
    args = parse(path, tmp_path)[1]
    assert args.vllm_importance_sampling_correction
    assert args.vllm_importance_sampling_mode == "token_truncate"
    assert args.save_total_limit == 2
    assert "`token_truncate`" in path.read_text(encoding="utf-8").split("# Differs:")[1].split("\n\n")[0]


def test_a_correction_of_whole_rows_would_drop_6_of_100_rows_of_3000_tokens_and_one_of_tokens_none():
    def dropped(num_tokens: int, noise: float = 0.02, most: float = 3.0) -> float:
        # a sum of normal differences; under what was sampled, ratios average 1: the mean is minus half the variance
        spread = noise * num_tokens**0.5
        return 1 - NormalDist(-(spread**2) / 2, spread).cdf(torch.tensor(most).log().item())

    assert dropped(3000) == pytest.approx(0.06, abs=0.001)
    assert dropped(1) < 1e-12
    assert APPOConfig("unused", use_cpu=True, bf16=False).vllm_importance_sampling_clip_max == 3.0


@pytest.mark.parametrize("path", OF_APPO, ids=lambda path: path.stem)
def test_an_optimizer_step_of_appo_holds_whole_prompts_on_each_process(path: Path, tmp_path: Path):
    args = parse(path, tmp_path)[1]
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps % args.num_generations == 0


@pytest.mark.parametrize("path", OF_APPO, ids=lambda path: path.stem)
def test_no_recipe_of_appo_is_inert(path: Path, tmp_path: Path):
    args = parse(path, tmp_path)[1]
    assert args.steps_per_generation >= 2 * args.gradient_accumulation_steps


@pytest.mark.parametrize("path", [path for path in OF_APPO if path in FOR_GPUS], ids=lambda path: path.stem)
def test_what_the_recipes_for_gpus_write_out_are_the_defaults_of_appo(path: Path):
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    defaults = vars(APPOConfig("unused", use_cpu=True, bf16=False))
    names = set(APPOConfig.__annotations__) - {"steps_per_generation"}  # 8 optimizer steps, in micro-batches
    assert names - set(written) == {"released_safeguards", "released", "disable_dropout"}
    assert {name: written[name] for name in names & set(written)} == {
        name: defaults[name] for name in names & set(written)
    }


@EACH_RECIPE
def test_prompt_and_completion_fit_the_context(path: Path, tmp_path: Path):
    args = parse(path, tmp_path)[1]
    assert args.vllm_max_model_length > args.max_completion_length


@pytest.mark.parametrize("path", ACCELERATE, ids=lambda path: path.stem)
def test_an_accelerate_file_is_read_without_unknown_keys(path: Path):
    config = load_config_from_file(str(path))
    assert config.num_processes == 8
    assert config.fsdp_config["fsdp_version"] == 2
