"""What an APPO configuration means, and what it refuses."""

import json
import math
import warnings

import pytest
import torch
from tiny import appo_config
from transformers import HfArgumentParser
from trl import TrlParser

from trl_agentic.trainers import APPOConfig
from trl_agentic.trainers.agentic_config import AgenticConfig

ONE_STEP = {"steps_per_generation": 2, "gradient_accumulation_steps": 2}


def own_values(config: APPOConfig) -> dict:
    """What APPO's and the shared configuration add to TRL's."""
    names = AgenticConfig.__annotations__.keys() | APPOConfig.__annotations__.keys()
    return {name: value for name, value in vars(config).items() if name in names}


def test_the_defaults_are_those_of_the_paper(tmp_path):
    config = APPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    assert (config.num_generations, config.branches_per_rollout, config.num_branch_rounds) == (4, 3, 1)
    assert (config.branch_schedule, config.branch_score, config.score_clip) == ("mini_batch", "product", 0.2)
    assert (config.branch_credit, config.future_weight, config.future_clip) == ("dual_group", 0.5, [1.0, 1.2])
    assert config.future_half_life == 32 and config.released_safeguards is False
    assert config.num_trajectories == 16


def test_two_configurations_do_not_share_their_bounds(tmp_path):
    appo_config(tmp_path).future_clip.append(7.0)
    assert appo_config(tmp_path).future_clip == [1.0, 1.2]


@pytest.mark.parametrize(
    ("options", "micro_batches", "rows"),
    [
        ({"gradient_accumulation_steps": 1}, 8, 32),
        ({"gradient_accumulation_steps": 3}, 24, 96),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 4}, 4, 16),
        ({"gradient_accumulation_steps": 2, "generation_batch_size": 24}, 6, 24),
    ],
)
def test_a_generation_lasts_for_eight_optimizer_steps_unless_its_size_is_given(tmp_path, options, micro_batches, rows):
    config = appo_config(tmp_path, **({"steps_per_generation": None} | options))
    assert (config.steps_per_generation, config.generation_batch_size) == (micro_batches, rows)


@pytest.mark.parametrize(
    ("branches", "rounds", "expected"), [(3, 1, 16), (0, 1, 4), (1, 1, 8), (1, 2, 16), (2, 3, 108), (0, 5, 4)]
)
def test_each_round_gives_every_rollout_that_there_is_its_branches(tmp_path, branches, rounds, expected):
    config = appo_config(tmp_path, branches_per_rollout=branches, num_branch_rounds=rounds)
    assert config.num_trajectories == expected  # 4 * (P + 1) ** L


def test_the_trajectories_are_described_with_their_formula(tmp_path):
    assert appo_config(tmp_path).describe_trajectories() == (
        "4 * (3 + 1) = 16 trajectories of a prompt in each optimizer step that it takes part in: "
        "4 that are trained, and up to 12 branches."
    )
    config = appo_config(tmp_path, branches_per_rollout=1, num_branch_rounds=2, branch_schedule="rollout")
    assert config.describe_trajectories() == (
        "4 * (1 + 1)^2 = 16 trajectories of a prompt in each generation: 4 that are trained, and up to 12 branches."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"branch_schedule": "step"}, "Unknown `branch_schedule` 'step'; expected one of 'mini_batch', 'rollout'"),
        ({"branch_score": "ratio"}, "Unknown `branch_score` 'ratio'; expected one of 'product', 'sum', 'entropy'"),
        (
            {"branch_credit": "group"},
            "Unknown `branch_credit` 'group'; expected one of 'dual_group', 'prefix', 'single_group'",
        ),
        ({"branches_per_rollout": -1}, "`branches_per_rollout` must be at least 0, got -1"),
        ({"branches_per_rollout": None}, "`branches_per_rollout` must be at least 0, got None"),
        ({"branches_per_rollout": math.inf}, "must be a whole number of at least 0, got inf"),
        ({"num_branch_rounds": 0}, "`num_branch_rounds` must be at least 1, got 0"),
        ({"score_clip": -0.1}, "`score_clip` must be at least 0.0, got -0.1"),
        ({"score_clip": math.nan}, "`score_clip` must be at least 0.0, got nan"),
        ({"score_clip": math.inf}, "`score_clip` must be finite, got inf"),
        ({"future_weight": -0.5}, "`future_weight` must be at least 0.0, got -0.5"),
        ({"future_weight": math.nan}, "`future_weight` must be at least 0.0, got nan"),
        ({"future_weight": math.inf}, "`future_weight` must be finite, got inf"),
        ({"future_half_life": 0.0}, "`future_half_life` must be a finite number of tokens above 0, got 0.0"),
        ({"future_half_life": -32.0}, "above 0, got -32.0"),
        ({"future_half_life": math.nan}, "above 0, got nan"),
        ({"future_half_life": math.inf}, "above 0, got inf. For no discount.*set it far above"),
        ({"future_clip": [1.2, 1.0]}, r"`future_clip` must be two .*lower one first, such as .*; got \[1.2, 1.0\]"),
        ({"future_clip": [1.0]}, r"two finite bounds.*got \[1.0\]"),
        ({"future_clip": [1.0, 1.1, 1.2]}, r"two finite bounds.*got \[1.0, 1.1, 1.2\]"),
        ({"future_clip": [-0.1, 1.2]}, r"at least 0.*got \[-0.1, 1.2\]"),
        ({"future_clip": [math.nan, 1.2]}, r"got \[nan, 1.2\]"),
        ({"future_clip": [1.0, math.nan]}, r"got \[1.0, nan\]"),
        ({"future_clip": [1.0, math.inf]}, r"two finite bounds.*got \[1.0, inf\]"),
        ({"future_clip": None}, "two finite bounds.*got None"),
        ({"future_clip": 1.2}, "two finite bounds.*got 1.2"),
        ({"temperature": math.nan}, "`temperature` must be above 0.*got nan"),
    ],
)
def test_a_wrong_value_is_an_error_that_says_what_is_expected(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        appo_config(tmp_path, **options)


@pytest.mark.parametrize(
    ("name", "value", "default"),
    [
        ("scale_rewards", "batch", "group"),
        ("scale_rewards", "none", "group"),
        ("scale_rewards", False, "group"),
        ("multi_objective_aggregation", "normalize_then_sum", "sum_then_normalize"),
    ],
)
def test_how_rewards_become_advantages_is_fixed_only_where_there_are_branches(tmp_path, name, value, default):
    remedy = f"`{name}=.*Leave it at '{default}', or set `branches_per_rollout=0`"
    with pytest.raises(ValueError, match=remedy):
        appo_config(tmp_path, **{name: value})
    without = appo_config(tmp_path, branches_per_rollout=0, **{name: value})
    assert vars(without)[name] == (value or "none")  # False is TRL's older word for "none"
    assert vars(appo_config(tmp_path, **{name: default}))[name] == default


def test_true_is_the_scale_by_group_as_in_trl(tmp_path):
    assert appo_config(tmp_path, scale_rewards=True).scale_rewards == "group"


def test_an_optimizer_step_that_would_cut_a_group_is_refused(tmp_path):
    message = (
        r"per_device_train_batch_size \* gradient_accumulation_steps = 3 \* 2 = 6 rows, which must be a multiple of "
        r"num_generations \(4\).*Change one of the three"
    )
    with pytest.raises(ValueError, match=message):
        appo_config(tmp_path, per_device_train_batch_size=3)
    assert appo_config(tmp_path, per_device_train_batch_size=6)  # 12 rows: three prompts
    assert appo_config(tmp_path, per_device_train_batch_size=2)  # 4 rows: one, in two micro-batches


def test_a_group_that_would_straddle_two_processes_is_refused_though_all_rows_together_are_whole_groups(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(APPOConfig, "world_size", property(lambda self: 2))
    options = {"per_device_train_batch_size": 2, "steps_per_generation": 8}
    with pytest.raises(ValueError, match=r"optimizer step of one process .* = 2 \* 1 = 2 rows"):
        appo_config(tmp_path, gradient_accumulation_steps=1, **options)
    config = appo_config(tmp_path, gradient_accumulation_steps=2, **options)
    assert config.generation_batch_size == 32  # 2 rows * 8 micro-batches * 2 processes


@pytest.mark.parametrize("micro_batches", [3, 5, 1, 0, -2])
def test_an_optimizer_step_across_two_generations_is_refused(tmp_path, micro_batches):
    message = rf"`steps_per_generation` \({micro_batches}\) must be a multiple of `gradient_accumulation_steps` \(2\)"
    with pytest.raises(ValueError, match=f"{message}.*Change one of the two"):
        appo_config(tmp_path, steps_per_generation=micro_batches)


# --- the warning that the method is inert


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"steps_per_generation": None, "generation_batch_size": 8},
        {"branch_score": "entropy"},  # the future advantage needs future values
        {"future_weight": 0.0},  # and so does the Branching Score
        {"branches_per_rollout": 0},
    ],
)
def test_one_optimizer_step_per_generation_warns_and_says_what_to_change(tmp_path, options):
    with pytest.warns(UserWarning, match="Raise `steps_per_generation` from 2 to 16: 8 optimizer steps") as caught:
        appo_config(tmp_path, **(ONE_STEP | options))
    assert len(caught) == 1


def test_the_warning_points_at_the_line_that_makes_the_configuration():
    with pytest.warns(UserWarning, match="all future values are 1") as caught:
        APPOConfig("unused", use_cpu=True, bf16=False, steps_per_generation=1, save_strategy="no")
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "options",
    [
        {"steps_per_generation": 4},  # two optimizer steps
        {"num_iterations": 2},  # the second pass sees another policy
        {"steps_per_generation": 1, "gradient_accumulation_steps": 1, "num_iterations": 2},
        {"branch_score": "entropy", "future_weight": 0.0},  # nothing looks at future values
        {"branches_per_rollout": 0, "future_weight": 0.0},
        {"steps_per_generation": None},
    ],
)
def test_nothing_is_said_where_the_policy_moves_or_its_movement_is_not_asked_for(tmp_path, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        appo_config(tmp_path, **(ONE_STEP | options))


# --- from files and flags, and back


YAML = """
output_dir: {folder}
use_cpu: true
bf16: false
num_generations: 2
branches_per_rollout: 5
branch_schedule: mini_batch
branch_score: sum
branch_credit: prefix
score_clip: 0.3
future_half_life: 16
future_weight: 0.25
future_clip: [0.9, 1.5]
released_safeguards: true
"""
FROM_YAML = {
    "num_generations": 2,
    "branches_per_rollout": 5,
    "branch_schedule": "mini_batch",
    "branch_score": "sum",
    "branch_credit": "prefix",
    "score_clip": 0.3,
    "future_half_life": 16,
    "future_weight": 0.25,
    "future_clip": [0.9, 1.5],
    "released_safeguards": True,
    "steps_per_generation": 8,
}


@pytest.fixture
def yaml_file(tmp_path):
    file = tmp_path / "appo.yaml"
    file.write_text(YAML.format(folder=tmp_path))
    return file


def test_every_option_can_stand_in_a_yaml_file(yaml_file):
    (config,) = TrlParser(APPOConfig).parse_args_and_config(["--config", str(yaml_file)])
    assert {name: vars(config)[name] for name in FROM_YAML} == FROM_YAML


def test_flags_override_the_file(yaml_file):
    flags = "--branch_score product --future_clip 1.0 1.3 --released_safeguards false --future_half_life 8.5"
    arguments = ["--config", str(yaml_file), *flags.split(), "--gradient_accumulation_steps", "2"]
    (config,) = TrlParser(APPOConfig).parse_args_and_config(arguments)
    overridden = {"branch_score": "product", "future_clip": [1.0, 1.3], "released_safeguards": False}
    overridden |= {"future_half_life": 8.5, "steps_per_generation": 16}
    assert {name: vars(config)[name] for name in FROM_YAML} == FROM_YAML | overridden


def test_flags_alone_are_enough_and_unknown_choices_are_refused(tmp_path, capsys):
    parser = HfArgumentParser(APPOConfig)
    flags = ["--output_dir", str(tmp_path), "--use_cpu", "--bf16", "false", "--future_clip", "0.5", "2"]
    (config,) = parser.parse_args_into_dataclasses([*flags, "--released_safeguards", "--steps_per_generation", "2"])
    assert config.future_clip == [0.5, 2.0] and config.released_safeguards is True
    assert (config.steps_per_generation, config.branch_score) == (2, "product")
    for name, message in (("branch_score", "'entropy'"), ("branch_credit", "'prefix'")):
        with pytest.raises(SystemExit):
            parser.parse_args_into_dataclasses([*flags, f"--{name}", "none"])
        assert message in capsys.readouterr().err  # argparse lists the choices


def test_a_configuration_survives_its_dictionary_and_its_file(tmp_path):
    config = appo_config(tmp_path, future_clip=[0.8, 1.4], branch_credit="prefix", num_branch_rounds=2)
    stored = json.loads(config.to_json_string())
    known = own_values(config)
    assert {name: stored[name] for name in known} == known == {name: config.to_dict()[name] for name in known}
    again = appo_config(tmp_path, **{name: stored[name] for name in known})
    assert own_values(again) == known and again.num_trajectories == config.num_trajectories == 64

    torch.save(config, tmp_path / "training_args.bin")  # as the trainer does at each checkpoint
    loaded = torch.load(tmp_path / "training_args.bin", weights_only=False)
    assert own_values(loaded) == known and isinstance(loaded, APPOConfig)


# --- what the released code does


def test_released_is_its_three_values_at_once(tmp_path):
    config = appo_config(tmp_path, released=True)
    assert (config.branch_schedule, config.branch_credit) == ("rollout", "prefix")
    assert config.released_safeguards is True


def test_released_refuses_another_value_of_the_three(tmp_path):
    with pytest.raises(ValueError, match="means branch_credit='prefix', got 'single_group'. Leave one of the two out"):
        appo_config(tmp_path, released=True, branch_credit="single_group")


@pytest.mark.parametrize("options", [{"branch_score": "sum"}, {"score_clip": 0.3}])
def test_a_rule_of_scores_that_changes_nothing_is_not_silent(tmp_path, options):
    with pytest.warns(UserWarning, match="change nothing with branch_schedule='rollout'"):
        appo_config(tmp_path, branch_schedule="rollout", **options)


def test_dropout_is_off_by_default(tmp_path):
    assert appo_config(tmp_path).disable_dropout is True


@pytest.mark.parametrize("options", [{"branches_per_rollout": 1.5}, {"num_branch_rounds": "2"}])
def test_counts_are_whole_numbers(tmp_path, options):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be a whole number"):
        appo_config(tmp_path, **options)


@pytest.mark.parametrize("bounds", [[True, 2.0], ["1", "2"], [1.0, None]])
def test_bounds_are_numbers(tmp_path, bounds):
    with pytest.raises(ValueError, match="`future_clip` must be two finite bounds"):
        appo_config(tmp_path, future_clip=bounds)


def test_without_branches_nothing_is_multiplied(tmp_path):
    described = appo_config(tmp_path, branches_per_rollout=0).describe_trajectories()
    assert described == "4 rollouts of a prompt, all of them trained, and no branches."
