"""Without branches, ARPO is TRL's GRPO: the same advantages and the same loss of each micro-batch, bit for bit."""

import pytest
import torch
import trl.trainer.grpo_trainer as grpo
from tiny import config, dataset, length_reward, scripted_engine, tiny_model_path, trainer
from trl import GRPOConfig, GRPOTrainer
from word_tokenizer import word_tokenizer

from trl_agentic.trainers.group_rows import shuffle_groups

OPTIONS = [
    {},
    {"loss_type": "grpo", "scale_rewards": "none"},
    {"loss_type": "dr_grpo", "scale_rewards": "batch"},
    {"loss_type": "bnpo", "beta": 0.1, "use_bias_correction_kl": True},
    {"loss_type": "cispo", "epsilon_high": 5.0},
    {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    {"loss_type": "sapo", "sapo_temperature_neg": 1.5, "sapo_temperature_pos": 0.8},
    {
        "loss_type": "vespo",
        "vespo_k_pos": 1.5,
        "vespo_lambda_pos": 2.5,
        "vespo_k_neg": 2.5,
        "vespo_lambda_neg": 1.5,
    },
    {"num_iterations": 2, "max_steps": 4},
    {"steps_per_generation": 4, "max_steps": 4},
    {"top_entropy_quantile": 0.5},
    {"entropy_coef": 0.01},
    {"off_policy_mask_threshold": 0.5},
    {"multi_objective_aggregation": "normalize_then_sum"},
    {"gradient_checkpointing": True},
    {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 0.5},
    {
        "use_adaptive_entropy": True,
        "entropy_target": 2.0,
        "entropy_coef_min": 0.001,
        "entropy_coef_max": 0.5,
        "entropy_coef_delta": 0.01,
    },
    {"delta": 1.5, "epsilon": 0.1, "epsilon_high": 0.28, "shuffle_dataset": False, "disable_dropout": True},
    {"cast_lm_head_to_fp32": True, "pad_to_multiple_of": 32},
    {"generation_batch_size": 16, "gradient_accumulation_steps": 2, "reward_weights": [0.5]},
]


def recording(cls):
    """A trainer class that notes the loss and the advantages of each micro-batch."""

    class Recording(cls):
        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            self.seen.append((loss.detach().clone(), inputs["advantages"].clone(), inputs["completion_ids"].clone()))
            return loss

    return Recording


def run_arpo(tmp_path, options):
    ours = trainer(tmp_path / "arpo", **options)
    ours.__class__ = recording(type(ours))
    ours.seen = []
    rollouts = []
    generate = ours._generate

    def noting(prompts):
        output = generate(prompts)
        rollouts.append(output)
        return output

    ours._generate = noting
    ours.train()
    return ours, rollouts


def run_grpo(tmp_path, options, rollouts):
    arguments = {
        name: value
        for name, value in vars(config(tmp_path, **options)).items()
        if name in GRPOConfig.__dataclass_fields__ and GRPOConfig.__dataclass_fields__[name].init
    }
    for derived in ("generation_batch_size", "vllm_importance_sampling_cap"):
        arguments[derived] = None
    recorded = iter(rollouts)

    def rollout_func(prompts, _):
        prompt_ids, completion_ids, mask, _, logprobs, _, _, _ = next(recorded)
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs, "env_mask": mask}

    theirs = recording(GRPOTrainer)(
        model=tiny_model_path(),
        reward_funcs=length_reward,
        args=GRPOConfig(**arguments),
        train_dataset=dataset(),
        processing_class=word_tokenizer(),
        rollout_func=rollout_func,
    )
    theirs.seen = []
    theirs.train()
    return theirs


@pytest.mark.parametrize(
    "options",
    OPTIONS,
    ids=lambda options: "-".join(options) or "defaults",
)
def test_advantages_and_losses_equal_trl_bit_for_bit(tmp_path, monkeypatch, options):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    ours, rollouts = run_arpo(tmp_path, options)
    monkeypatch.setattr(grpo, "shuffle_sequence_dict", lambda batch: shuffle_groups(batch, 4))
    theirs = run_grpo(tmp_path / "grpo", options, rollouts)
    assert len(ours.seen) == len(theirs.seen) >= 4
    for (loss, advantages, ids), (their_loss, their_advantages, their_ids) in zip(ours.seen, theirs.seen, strict=True):
        assert torch.equal(ids, their_ids)
        assert torch.equal(advantages, their_advantages)
        assert torch.equal(loss, their_loss)
    assert any(advantages.abs().max() > 0 for _, advantages, _ in ours.seen)
    for mine, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_masked_truncated_row_leaves_the_loss_in_both_masks(tmp_path):
    ours = trainer(tmp_path, engine=scripted_engine(3), mask_truncated_completions=True, max_completion_length=22)
    batch = ours._generate_and_score_completions([dict(row) for row in dataset(1) for _ in range(8)])
    cut = torch.tensor(ours._batch.is_truncated)
    assert 0 < cut.sum() < 8
    assert batch["completion_mask"][cut].sum() == 0 and batch["tool_mask"][cut].sum() == 0
    assert batch["num_items_in_batch"] == (batch["completion_mask"] * batch["tool_mask"]).sum()
