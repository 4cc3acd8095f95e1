"""[`APPOTrainer`]: branches at decision points, sampled by the policy of the moment, and credit from them."""

from __future__ import annotations

import torch
from trl.models.utils import disable_gradient_checkpointing

from ..algorithms import (
    dual_group_advantages,
    future_advantages,
    future_values,
    group_advantages,
    prefix_branch_credit,
    released_safeguards,
)
from .agentic_trainer import AgenticTrainer
from .appo_config import APPOConfig
from .branch_phase import BranchPhase, StepRows, blank_tokens, merged


class APPOTrainer(AgenticTrainer):
    r"""
    Trainer for Agentic Procedural Policy Optimization (APPO), introduced in the paper [Agentic Procedural Policy
    Optimization](https://huggingface.co/papers/2606.12384).

    It stands where [`~trl.GRPOTrainer`] stands and takes the same arguments in the same order. At the beginning of each
    optimizer step the policy of the moment reads the rollouts that the step will train on. Where it is uncertain *and*
    has moved towards what followed, a branch starts: it is sampled from there on by that policy, through the same tool
    loop, and rewarded. Branches are not trained. Their rewards are the second group that a rollout is compared with.

    Args:
        args ([`APPOConfig`], *optional*):
            Configuration of the trainer.
        model, reward_funcs, train_dataset, eval_dataset, processing_class, reward_processing_classes, callbacks, \
        optimizers, quantization_config, peft_config, tools, rollout_func, environment_factory, engine:
            As in [`ARPOTrainer`].

    Raises:
        ValueError: If there is nothing to call, if a reward function needs a column that the dataset lacks, or if an
            option cannot work with a branching rollout.
    """

    _tag_names = ["trl", "appo"]
    _name = "APPO"
    _paper = {
        "title": "Agentic Procedural Policy Optimization",
        "id": "2606.12384",
        # docstyle-ignore
        "citation": """\
@article{appo2026,
    title  = {{Agentic Procedural Policy Optimization}},
    year   = 2026,
    eprint = {arXiv:2606.12384},
}""",
    }
    config_class = APPOConfig
    args: APPOConfig

    def _set_up_rollouts(self, environments, engine) -> None:
        super()._set_up_rollouts(environments, engine)
        vocab_size = self.model.config.get_text_config().vocab_size
        self.blank_tokens = blank_tokens(self._tokenizer, vocab_size).to(self.accelerator.device)  # (V,)
        self.branch_phase = BranchPhase(self)

    def attribute(self, rewards: torch.Tensor, advantages: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """Keep the rewards: advantages are assigned when the rows are trained."""
        self.branch_phase.begin(rewards)
        return advantages

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            output["rollout_row"] = torch.arange(len(inputs), device=self.accelerator.device)  # (B,)
        return output

    def _prepare_inputs(self, generation_batch):
        """As in the base class; at the beginning of each optimizer step its rows get their advantages."""
        inputs = super()._prepare_inputs(generation_batch)
        if not self.model.training:
            return inputs
        size, place = self.args.gradient_accumulation_steps, self._step % self.args.steps_per_generation
        if place % size == 0:
            micro_batches = self._buffered_inputs[place : place + size]
            self._buffered_inputs[place : place + size] = self._with_advantages(micro_batches)
        return self._buffered_inputs[place]

    def _with_advantages(self, micro_batches: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
        """Branch from the rows of an optimizer step, and give each of its tokens an advantage."""
        if not self.args.branches_per_rollout and not self.args.future_weight:
            return micro_batches
        batch = merged(micro_batches)
        step = self.read(batch)
        phase = self.branch_phase
        if self.args.branches_per_rollout and self.args.branch_schedule == "mini_batch":
            phase.run(step)
        elif self.args.branches_per_rollout and not phase.has_run:
            phase.run(self.read(merged(self._buffered_inputs)))
        advantages = self.assign(step, batch["advantages"])
        phase.keep(step, advantages)
        sizes = [len(each["advantages"]) for each in micro_batches]
        return [
            each | {"advantages": part} for each, part in zip(micro_batches, advantages.split(sizes), strict=True)
        ]

    def read(self, batch: dict[str, torch.Tensor]) -> StepRows:
        """
        Let the policy of the moment read rows of the generation.

        Args:
            batch (`dict[str, torch.Tensor]`):
                `B` rows, as TRL's loss gets them.

        Returns:
            [`~trl_agentic.trainers.branch_phase.StepRows`]: What it thinks of them.
        """
        args, completion_ids = self.args, batch["completion_ids"]  # (B, T)
        with (
            self.branch_phase.timed("score"),
            torch.no_grad(),
            disable_gradient_checkpointing(self.model, args.gradient_checkpointing_kwargs),
        ):
            logps, entropies, _ = self._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([batch["prompt_ids"], completion_ids], dim=1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
                completion_ids.size(1),
                args.per_device_train_batch_size,
                compute_entropy=True,
            )  # (B, T) each
        sampled = (batch["completion_mask"] * batch["tool_mask"]).bool()
        old = batch.get("old_per_token_logps")
        difference = torch.zeros_like(logps) if old is None else (logps - old).masked_fill(~sampled, 0.0)
        is_fresh = self.state.global_step == self.branch_phase.planted_at
        self.branch_phase.note_ratios(difference[sampled], is_fresh)
        log_ratios = torch.zeros_like(difference) if is_fresh else difference
        gamma = 2.0 ** (-1.0 / args.future_half_life)
        max_ratio = 3.0 if args.released_safeguards else None
        return StepRows(
            rows=batch["rollout_row"].tolist(),
            sampled_mask=sampled,
            blank_mask=self.blank_tokens[completion_ids],
            log_ratios=log_ratios,
            entropies=entropies,
            future_values=future_values(log_ratios, sampled, gamma, max_ratio),
        )

    def assign(self, step: StepRows, advantages: torch.Tensor) -> torch.Tensor:
        """
        Advantages of the rows of an optimizer step.

        Args:
            step ([`~trl_agentic.trainers.branch_phase.StepRows`]):
                The rows.
            advantages (`torch.Tensor`):
                TRL's advantages, of shape `(B,)`: used where there are no branches.

        Returns:
            `torch.Tensor`: Of shape `(B,)`, or `(B, T)` where tokens of a row differ.
        """
        args, size = self.args, self.args.num_generations
        groups = [step.rows[start : start + size] for start in range(0, len(step.rows), size)]
        base = advantages if not args.branches_per_rollout else torch.cat([self._base(group, step) for group in groups])
        values = step.future_values
        if args.released_safeguards:
            values, kept = released_safeguards(base, step.log_ratios, values, step.sampled_mask)
            base = base * kept.view(-1, *[1] * (base.dim() - 1))
        if not args.future_weight:
            return base
        return future_advantages(base, values, args.future_weight, (args.future_clip[0], args.future_clip[1]))

    def _base(self, rows: list[int], step: StepRows) -> torch.Tensor:
        """Advantages of one prompt's rows before the future is considered: `(N,)` or, for `"prefix"`, `(N, T)`."""
        initial, branches = self.branch_phase.rewards_of(rows)
        if self.args.branch_credit == "dual_group":
            return dual_group_advantages(initial, branches.rewards)
        if self.args.branch_credit == "single_group":
            together = torch.cat([initial, branches.rewards])
            return group_advantages(together, len(together))[: len(initial)]
        order = {row % len(rows): place for place, row in enumerate(rows)}
        parents = torch.tensor([order[parent] for parent in branches.parents], device=initial.device)
        splits = torch.tensor(branches.splits, device=initial.device)
        return prefix_branch_credit(initial, branches.rewards, parents, splits, step.sampled_mask.size(1))
