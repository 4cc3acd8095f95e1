"""Every option of `GRPOConfig` with APPO's branches on: it trains or raises, as `docs/options.md` says."""

import math
import random

import pyarrow.parquet as pq
import pytest
import torch
from appo_records import record
from peft import LoraConfig
from test_appo_trainer import assert_as_by_hand
from test_options import EFFECT, RAISES, ROWS, SAMPLING
from tiny import ANSWERS, CALL, appo_config, appo_trainer, dataset, length_reward, search, tiny_model_path
from tiny import trainer as arpo_trainer
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForSequenceClassification
from transformers.utils import is_liger_kernel_available
from word_tokenizer import WORDS, word_tokenizer, words

from trl_agentic.rollout.engine import Request, Script, ScriptedEngine
from trl_agentic.trainers import APPOTrainer

# Generations of two prompts with N=4 rollouts and P=1 branch of each, for two optimizer steps of one prompt each.
BRIEF = {"branches_per_rollout": 1, "gradient_accumulation_steps": 1, "steps_per_generation": 2, "max_steps": 3}

TRAINED = [  # options that `test_equals_grpo.py` compares with TRL's, several at a time
    {
        "loss_type": "grpo",
        "beta": 0.1,
        "use_bias_correction_kl": True,
        "sync_ref_model": True,
        "ref_model_sync_steps": 1,
        "ref_model_mixup_alpha": 0.5,
    },
    {"loss_type": "dr_grpo", "entropy_coef": 0.01, "top_entropy_quantile": 0.5},
    {
        "loss_type": "bnpo",
        "delta": 1.5,
        "epsilon": 0.1,
        "epsilon_high": 0.28,
        "shuffle_dataset": False,
        "disable_dropout": True,
    },
    {"loss_type": "cispo", "epsilon_high": 5.0, "cast_lm_head_to_fp32": True, "pad_to_multiple_of": 32},
    {"loss_type": "luspo", "importance_sampling_level": "sequence", "num_iterations": 2},
    {"loss_type": "sapo", "sapo_temperature_neg": 1.5, "sapo_temperature_pos": 0.8},
    {
        "loss_type": "vespo",
        "vespo_k_pos": 1.5,
        "vespo_lambda_pos": 2.5,
        "vespo_k_neg": 2.5,
        "vespo_lambda_neg": 1.5,
    },
    {
        "use_adaptive_entropy": True,
        "entropy_target": 2.0,
        "entropy_coef_min": 0.001,
        "entropy_coef_max": 0.5,
        "entropy_coef_delta": 0.01,
        "off_policy_mask_threshold": 0.5,
        "gradient_checkpointing": True,
    },
    {"generation_batch_size": 16, "steps_per_generation": None, "gradient_accumulation_steps": 2},
]
CORRECTED = [  # of the engine's log-probs
    {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 1.01},
    {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_min": 0.9},
    {"vllm_importance_sampling_mode": "sequence_truncate"},
    {"vllm_importance_sampling_mode": "sequence_mask"},
    {"vllm_importance_sampling_mode": "token_truncate", "loss_type": "vespo"},
    {"vllm_importance_sampling_correction": False},
]
RAISE_WITH_BRANCHES = [
    {"scale_rewards": "batch"},
    {"scale_rewards": "none"},
    {"scale_rewards": False},
    {"multi_objective_aggregation": "normalize_then_sum"},
]
OF_THE_ENGINE = {  # how TRL builds the engine, whichever trainer it is for; the cap is an old name of the clip
    "use_vllm",
    "vllm_enable_sleep_mode",
    "vllm_gpu_memory_utilization",
    "vllm_importance_sampling_cap",
    "vllm_max_model_length",
    "vllm_model_impl",
}
ELSEWHERE = {"reward_weights", "router_aux_loss_coef", *OF_THE_ENGINE}  # in tests of their own, or of the engine


def names(options):
    return "-".join(map(str, options.values()))


def scripted_engine() -> ScriptedEngine:
    """Searches or answers by chance; its log-probs are about those of a model that knows nothing."""
    rng = random.Random(0)

    def answer(request: Request) -> Script:
        script = CALL if rng.random() < 0.5 and len(request.token_ids) < 24 else rng.choice(ANSWERS)
        return Script(script, "stop", None, tuple(-math.log(len(WORDS)) + rng.gauss(0, 0.05) for _ in script))

    return ScriptedEngine(answer)


def brief_trainer(folder, **options):
    return appo_trainer(folder, **{"engine": scripted_engine(), **BRIEF, **options})


def table(folder):
    return pq.read_table(folder / "trajectories.parquet").to_pylist()


def assert_trains(ours):
    """
    Losses are finite and move the weights, each rollout has its branch, and the loss gets the advantages that follow
    by hand from the rewards that were kept.
    """
    steps = record(ours)
    before = [parameter.detach().clone() for parameter in ours.model.parameters()]
    ours.train()
    logs = [log for log in ours.state.log_history if "loss" in log]
    assert len(logs) == len(steps) == ours.args.max_steps
    assert all(math.isfinite(float(log["loss"])) and float(log["grad_norm"]) > 0 for log in logs)
    assert [log["appo/branches"] for log in logs] == [4.0] * len(logs)
    assert any(not torch.equal(old, new) for old, new in zip(before, ours.model.parameters(), strict=True))

    kept = {(row["prompt_id"], row["trajectory"]): row for row in table(ours.trajectory_writer.path.parent)}
    for step in steps:
        rows = {
            id(each): kept[tree.prompt_id, place]
            for tree in step.trees
            for place, each in enumerate(tree.trajectories)
        }
        for tree in step.trees:
            for each in tree.trajectories:
                has_advantages = rows[id(each)]["advantages"] is not None
                assert has_advantages == (each.parent is None)
        assert_as_by_hand(ours.args, step, lambda each, rows=rows: rows[id(each)]["reward"])
    return steps


def test_no_row_of_the_table_is_left_out():
    tried = {name for options in [*TRAINED, *CORRECTED, *RAISE_WITH_BRANCHES] for name in options}
    assert tried - {"gradient_accumulation_steps", "gradient_checkpointing"} | ELSEWHERE | RAISES.keys() | (
        SAMPLING.keys() | EFFECT
    ) == set(ROWS)


@pytest.mark.parametrize("options", TRAINED, ids=names)
def test_what_works_for_arpo_trains_with_branches(tmp_path, options):
    ours = brief_trainer(tmp_path, **options)
    assert_trains(ours)
    assert all(vars(ours.args)[name] == value for name, value in options.items() if value is not None)


@pytest.mark.parametrize("options", RAISE_WITH_BRANCHES, ids=names)
def test_what_rewards_of_branches_have_no_meaning_for_raises_and_says_so(tmp_path, options):
    (name,) = options
    with pytest.raises(ValueError, match=rf"`{name}=.*branches.*branches_per_rollout=0"):
        appo_config(tmp_path, **options)
    appo_config(tmp_path, branches_per_rollout=0, **options)


def test_a_router_loss_on_a_model_without_experts_raises_as_in_trl(tmp_path):
    with pytest.raises(ValueError, match="not a Mixture-of-Experts model"):
        brief_trainer(tmp_path, router_aux_loss_coef=0.1)


class CountingWeights:
    """What stands between the trainer and an engine: it is given the weights."""

    num_syncs = 0

    def push(self):
        self.num_syncs += 1


@pytest.mark.parametrize("options", CORRECTED, ids=names)
def test_the_correction_of_the_engines_log_probs_applies_to_the_rows_that_are_trained(tmp_path, options):
    ours = brief_trainer(tmp_path, **options)
    ours.use_vllm, ours.weight_sync = True, CountingWeights()  # as if TRL had built the engine
    steps = assert_trains(ours)
    assert ours.weight_sync.num_syncs == 3  # once in each optimizer step
    for batch in (batch for step in steps for batch in step.micro_batches):
        if options.get("vllm_importance_sampling_correction") is False:
            assert "importance_sampling_ratio" not in batch
            continue
        difference = batch["old_per_token_logps"] - batch["sampling_per_token_logps"]
        difference = difference * batch["completion_mask"] * batch["tool_mask"]
        whole = options["vllm_importance_sampling_mode"].startswith("sequence")
        ratio = (difference.sum(dim=1, keepdim=True) if whole else difference).exp()
        assert ratio.std() > 0.01
        clip = options.get("vllm_importance_sampling_clip_max", 3.0)
        least = options.get("vllm_importance_sampling_clip_min") or 0.0
        if options["vllm_importance_sampling_mode"].endswith("mask"):
            ratio = ratio.masked_fill((ratio > clip) | (ratio < least), 0.0)
        torch.testing.assert_close(batch["importance_sampling_ratio"], ratio.clamp(max=clip))


@pytest.mark.parametrize("name", sorted(SAMPLING))
def test_branches_are_sampled_as_the_rollouts_are(tmp_path, name):
    engine = scripted_engine()
    brief_trainer(tmp_path, engine=engine, max_steps=1, **{name: SAMPLING[name]}).train()
    attribute = "extra" if name == "generation_kwargs" else name
    assert {repr(getattr(request.sampling, attribute)) for request in engine.requests} == {repr(SAMPLING[name])}
    assert {int(request.id.split("/")[1]) for request in engine.requests} == set(range(8))  # 4 to 7 are branches


# --- options whose effect is looked at


def test_what_is_logged_and_evaluated_are_the_rollouts_alone(tmp_path, capsys):
    ours = brief_trainer(
        tmp_path,
        log_completions=True,
        num_completions_to_print=1,
        log_unique_prompts=True,
        log_multimodal=False,
        num_generations_eval=2,
        per_device_eval_batch_size=4,
        model_init_kwargs={"attn_implementation": "eager"},
        trust_remote_code=True,
    )
    ours.eval_dataset = dataset(4)
    assert_trains(ours)
    assert ours.model.config._attn_implementation == "eager"
    logged = pq.read_table(tmp_path / "completions" / "completions_00001.parquet").to_pydict()
    assert len(logged["completion"]) == 8 and "length_reward" in logged
    assert "Completion" in capsys.readouterr().out
    num_rows = len(table(tmp_path))
    figures = ours.evaluate()
    assert 0 <= figures["eval_frac_reward_zero_std"] <= 1 and figures["eval_reward"] > 0
    assert len(table(tmp_path)) == num_rows


def test_lengths_and_tool_turns_are_limits_of_branches_too(tmp_path):
    options = {"num_generations": 2, "branches_per_rollout": 3, "max_completion_length": 20}
    engine = ScriptedEngine(lambda request: Script(CALL))
    ours = brief_trainer(tmp_path, engine=engine, max_tool_calling_iterations=1, **options)
    ours.train()
    rows = table(tmp_path)
    assert {row["kind"] for row in rows} == {"initial", "branch"}
    assert max(len(row["completion_ids"]) for row in rows) == 20
    for kind in ("initial", "branch"):
        statuses = [[call["status"] for call in row["tool_calls"]] for row in rows if row["kind"] == kind]
        assert max(of_row.count("ok") for of_row in statuses) == 1


def test_truncated_rollouts_are_masked_and_all_others_trained(tmp_path):
    ours = brief_trainer(tmp_path, mask_truncated_completions=True, max_completion_length=20)
    ours.train()
    assert all(math.isfinite(float(log["loss"])) for log in ours.state.log_history if "loss" in log)
    trained_prompts = {row["prompt_id"] for row in table(tmp_path) if row["advantages"] is not None}
    rollouts = [row for row in table(tmp_path) if row["kind"] == "initial" and row["prompt_id"] in trained_prompts]
    was_cut = [row["status"] == "truncated" for row in rollouts]
    assert 0 < sum(was_cut) < len(was_cut)
    assert [row["advantages"] is None for row in rollouts] == was_cut


def test_chat_template_kwargs_stand_in_the_prompts_of_branches(tmp_path):
    tokenizer = word_tokenizer()
    tokenizer.chat_template = "{% if shout %}h {% endif %}a"
    ours = APPOTrainer(
        tiny_model_path(),
        length_reward,
        appo_config(tmp_path, chat_template_kwargs={"shout": True}, **BRIEF),
        dataset(),
        processing_class=tokenizer,
        tools=[search],
        engine=scripted_engine(),
    )
    assert_trains(ours)
    assert {words(row["prompt_ids"]) for row in table(tmp_path)} == {"h a"}


@pytest.mark.filterwarnings("ignore:`use_liger_kernel=True` is deprecated:FutureWarning")
def test_a_fused_loss_of_liger_raises_as_it_does_for_arpo(tmp_path):
    messages = []
    for name, build in (("arpo", arpo_trainer), ("appo", appo_trainer)):
        options = {"liger_kernel_config": {"fused_linear_cross_entropy": True}}
        with pytest.raises(ValueError, match="fused LM head") as raised:
            build(tmp_path / name, use_liger_kernel=True, **options)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


@pytest.mark.skipif(is_liger_kernel_available(), reason="liger-kernel is installed, so nothing misses it")
@pytest.mark.filterwarnings("ignore:`use_liger_kernel=True` is deprecated:FutureWarning")
@pytest.mark.parametrize("build", [arpo_trainer, appo_trainer], ids=["arpo", "appo"])
def test_liger_kernels_that_are_not_installed_are_missed_before_anything_is_trained(tmp_path, build):
    ours = build(tmp_path, use_liger_kernel=True)
    with pytest.raises(ImportError, match="liger-kernel"):
        ours.train()
    assert ours.state.global_step == 0


# --- what is not an option: data, rewards, adapters


def test_prompts_that_are_texts_and_a_reward_model(tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    judge = Qwen3ForSequenceClassification(
        Qwen3Config(
            vocab_size=len(WORDS),
            num_attention_heads=2,
            num_key_value_heads=2,
            num_labels=1,
            pad_token_id=0,
            initializer_range=0.5,
            name_or_path="tiny-judge",
            **sizes,
        )
    ).eval()
    questions = dataset().map(lambda row: {"prompt": row["prompt"][0]["content"] + " "})
    ours = APPOTrainer(
        tiny_model_path(),
        judge,
        appo_config(tmp_path, **BRIEF),
        questions,
        processing_class=word_tokenizer(),
        reward_processing_classes=word_tokenizer(),
        tools=[search],
        engine=scripted_engine(),
    )
    assert_trains(ours)
    for row in table(tmp_path):
        kept = [token for token in (*row["prompt_ids"], *row["completion_ids"]) if token > 1]  # but for pad and eos
        with torch.no_grad():
            expected = judge(input_ids=torch.tensor([kept])).logits.item()
        assert row["reward"] == pytest.approx(expected, abs=1e-4)
    assert len({round(row["reward"], 4) for row in table(tmp_path)}) > 8


def test_a_dataset_that_is_streamed(tmp_path):
    assert_trains(brief_trainer(tmp_path, train_dataset=dataset().to_iterable_dataset()))
    assert len({row["prompt_id"] for row in table(tmp_path)}) == 4


def test_several_reward_functions_with_weights_some_of_which_score_only_some_rows(tmp_path):
    def says_b(completion_ids, **kwargs):
        return [float(WORDS.index("b") in ids[-4:]) if len(ids) > 8 else None for ids in completion_ids]

    async def shortness(completion_ids, **kwargs):
        return [1 / len(ids) for ids in completion_ids]

    functions = [length_reward, says_b, shortness]
    assert_trains(brief_trainer(tmp_path, reward_funcs=functions, reward_weights=[1.0, 0.5, -2.0]))
    rows = table(tmp_path)
    assert 0 < sum(row["rewards"]["says_b"] is None for row in rows) < len(rows)
    for row in rows:
        scores = row["rewards"]
        expected = scores["length_reward"] + 0.5 * (scores["says_b"] or 0.0) - 2 * scores["shortness"]
        assert row["reward"] == pytest.approx(expected)


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_adapters_with_and_without_a_reference(tmp_path, beta):
    ours = APPOTrainer(
        tiny_model_path(),
        length_reward,
        appo_config(tmp_path, beta=beta, **BRIEF),
        dataset(),
        processing_class=word_tokenizer(),
        tools=[search],
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False),
        engine=scripted_engine(),
    )
    assert_trains(ours)
    untouched = AutoModelForCausalLM.from_pretrained(tiny_model_path()).state_dict()
    key = "model.layers.0.self_attn.q_proj.{}weight"
    assert torch.equal(ours.model.base_model.model.state_dict()[key.format("base_layer.")], untouched[key.format("")])
