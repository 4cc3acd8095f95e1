"""[`APPOTrainer`]: branches at decision points, sampled by the policy of the moment, and credit from them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
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
from .branch_metrics import advantage_metrics, future_metrics
from .branch_phase import BranchPhase
from .branch_points import PolicyView, blank_tokens
from .checks import warn_about_dropout, warn_without_spread
from .generation_log import log_merged
from .group_rows import joined_rows
from .scores import Scores

RELEASED_MAX_RATIO = 3.0


class APPOTrainer(AgenticTrainer):
    r"""
    Trainer for Agentic Procedural Policy Optimization (APPO), introduced in the paper [Agentic Procedural Policy
    Optimization](https://huggingface.co/papers/2606.12384).

    It stands where [`~trl.GRPOTrainer`] stands and takes the same arguments in the same order. At the beginning of
    each optimizer step the policy of the moment reads the rollouts that the step will train on. Where it is uncertain
    *and* has moved towards what followed, a branch starts: it is sampled from there on by that policy, through the
    same tool loop, and rewarded. Branches are not trained. Their rewards are the second group that a rollout is
    compared with.

    Args:
        args ([`APPOConfig`], *optional*):
            Configuration of the trainer.
        model, reward_funcs, train_dataset, eval_dataset, processing_class, reward_processing_classes, callbacks, \
        optimizers, quantization_config, peft_config, tools, rollout_func, environment_factory, engine:
            As in [`ARPOTrainer`]. Reward functions score branches too, in calls of their own.

    Raises:
        ValueError: If there is nothing to call, if a reward function needs a column that the dataset lacks, or if an
            option cannot work with a branching rollout.

    Example:
        ```python
        from trl_agentic import APPOConfig, APPOTrainer
        from trl_agentic.rewards import arpo_reward
        from trl_agentic.tasks import geo_tools, load_geo

        trainer = APPOTrainer(
            model="Qwen/Qwen2.5-0.5B-Instruct",
            reward_funcs=arpo_reward,
            args=APPOConfig("runs/appo"),
            train_dataset=load_geo("train"),
            tools=geo_tools(),
        )
        trainer.train()
        ```
    """

    config_class = APPOConfig
    args: APPOConfig
    phases = ("rollout", "score", "sync", "branch", "branch_rewards")
    branches_in_rollout = False
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

    def _set_up_rollouts(self, environments, engine) -> None:
        super()._set_up_rollouts(environments, engine)
        vocab_size = self.model.config.get_text_config().vocab_size
        self.blank_tokens = blank_tokens(self._tokenizer, vocab_size).to(self.accelerator.device)  # (V,)
        self.branch_phase = BranchPhase(self)
        self._assigned: list[dict[str, torch.Tensor]] = []  # the micro-batches of the current optimizer step
        if self.args.needs_policy:
            warn_about_dropout(self.model)
        if self.accelerator.is_main_process:
            print(self.args.describe_trajectories())

    def train(self, *args, **kwargs):
        """As in [`~transformers.Trainer`]; what an earlier call has left unfinished is forgotten."""
        self.branch_phase.forget()
        return super().train(*args, **kwargs)

    def finish_generation(self, examples: list[dict], scores: Scores, output: dict[str, torch.Tensor]) -> None:
        """Take up a generation: its advantages are assigned, and its rollouts written, when they are trained."""
        self.branch_phase.begin(examples, scores)
        output["rollout_row"] = torch.arange(len(output["advantages"]), device=self.accelerator.device)  # (B,)

    def finish_training(self) -> None:
        """Write the rollouts that were not trained any more."""
        self.branch_phase.write_rest()

    @property
    def step_inputs(self) -> list[dict[str, torch.Tensor]] | None:
        """What the loss has got of the current optimizer step."""
        return self._assigned

    def _prepare_inputs(self, generation_batch):
        """As in the base class; at the beginning of each optimizer step its rows get their advantages."""
        inputs = super()._prepare_inputs(generation_batch)
        if not self.model.training:
            return inputs
        assert self._buffered_inputs is not None, "the base class has filled it"
        size, place = self.args.gradient_accumulation_steps, self._step % len(self._buffered_inputs)
        if place % size == 0:
            self._assigned = self._with_advantages(self._buffered_inputs[place : place + size])
        return self._assigned[place % size]

    def _with_advantages(self, micro_batches: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
        """Branch from the rows of an optimizer step, and give each of its tokens an advantage."""
        args, phase = self.args, self.branch_phase
        rows = joined_rows(micro_batches)
        if not args.needs_policy:
            phase.write(rows["rollout_row"].tolist(), rows["advantages"], torch.ones_like(rows["rollout_row"]).bool())
            return micro_batches
        view = self.view(rows)
        if args.branches_per_rollout and args.branch_schedule == "mini_batch":
            phase.run(view)
        elif args.branches_per_rollout and not phase.has_run:
            assert self._buffered_inputs is not None, "the base class has filled it"
            phase.run(self.view(joined_rows(self._buffered_inputs)))
        advantages, in_loss = self.assign(view, rows["advantages"])
        log_merged(self, advantage_metrics(advantages, view.sampled_mask, args.num_generations))
        warn_without_spread(self._metrics["train"], "appo/flat_prompts")
        phase.write(view.rows, advantages, in_loss)
        assigned = {"advantages": advantages, "tool_mask": rows["tool_mask"] * in_loss.unsqueeze(1)}
        parts = {name: values.split(args.per_device_train_batch_size) for name, values in assigned.items()}
        return [
            micro_batch | {name: of_name[number] for name, of_name in parts.items()}
            for number, micro_batch in enumerate(micro_batches)
        ]

    def view(self, rows: dict[str, torch.Tensor]) -> PolicyView:
        """
        Let the policy of the moment read rows of the generation.

        Args:
            rows (`dict[str, torch.Tensor]`):
                `B` rows, as TRL's loss gets them.

        Returns:
            [`~trl_agentic.trainers.branch_points.PolicyView`]: What it thinks of them.
        """
        args, completion_ids = self.args, rows["completion_ids"]  # (B, T)
        sampled = (rows["completion_mask"] * rows["tool_mask"]).bool()
        with self.times.measured("score"):
            logps, entropies = self._read(rows)
            old = rows.get("old_per_token_logps")
            is_fresh = self.state.global_step == self.branch_phase.planted_step
            log_ratios = torch.zeros_like(logps)
            if old is not None and not is_fresh:
                log_ratios = (logps - old).masked_fill(~sampled, 0.0)
            gamma = 2.0 ** (-1.0 / args.future_half_life)
            view = PolicyView(
                rows=rows["rollout_row"].tolist(),
                sampled_mask=sampled,
                blank_mask=self.blank_tokens[completion_ids],
                log_ratios=log_ratios,
                entropies=entropies,
                future_values=future_values(
                    log_ratios, sampled, gamma, RELEASED_MAX_RATIO if args.released_safeguards else None
                ),
            )
            noise = self._rounding_noise(rows, logps, sampled) if is_fresh and old is not None else {}
        log_merged(self, future_metrics(view, args.score_clip, args.future_clip, is_fresh) | noise)
        return view

    def _rounding_noise(self, rows: dict, logps: torch.Tensor, sampled: torch.Tensor) -> dict[str, float]:
        """How far `log ρ` spreads by rounding alone: a micro-batch read again, where equal numbers round otherwise."""
        if not getattr(self.model.config.get_text_config(), "rope_parameters", None):
            return {}  # absolute positions: a shift would be another input
        size = self.args.per_device_train_batch_size
        again, _ = self._read({name: values[:size] for name, values in rows.items()}, shift=1)
        noise = (again - logps[:size])[sampled[:size]]
        return {"appo/ratio_noise_floor": float(noise.std(correction=0))} if len(noise) else {}

    def _read(self, rows: dict[str, torch.Tensor], shift: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Log-probs of the completions and entropies at their positions, each of shape `(B, T)`. A shift puts more
        padding before the rows, which changes the numbers on the way, but what comes out by its rounding alone.
        """
        kwargs = self.args.gradient_checkpointing_kwargs
        ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
        attended = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
        with torch.no_grad(), disable_gradient_checkpointing(self.model, kwargs):
            logps, entropies, _ = self._get_per_token_logps_and_entropies(
                self.model,
                F.pad(ids, (shift, 0), value=self._tokenizer.pad_token_id),
                F.pad(attended, (shift, 0)),
                rows["completion_ids"].size(1),
                self.args.per_device_train_batch_size,
                compute_entropy=True,
            )
        return logps, entropies

    def assign(self, view: PolicyView, advantages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Advantages of the rows of an optimizer step.

        Args:
            view ([`~trl_agentic.trainers.branch_points.PolicyView`]):
                The rows.
            advantages (`torch.Tensor`):
                TRL's advantages, of shape `(B,)`: used where there are no branches.

        Returns:
            `tuple[torch.Tensor, torch.Tensor]`:
                Advantages of shape `(B,)`, or `(B, T)` where tokens of a row differ; and which rows stay in the loss,
                booleans of shape `(B,)`.
        """
        args = self.args
        base = self._base(view) if args.branches_per_rollout else advantages
        values, in_loss = view.future_values, torch.ones(len(base), dtype=torch.bool, device=base.device)
        if args.released_safeguards:
            values, in_loss = released_safeguards(base, view.log_ratios, values, view.sampled_mask)
        if args.future_weight:
            base = future_advantages(base, values, args.future_weight, (args.future_clip[0], args.future_clip[1]))
        return base, in_loss

    def _base(self, view: PolicyView) -> torch.Tensor:
        """Advantages before the future is considered: `(B,)` or, for `"prefix"`, `(B, T)`."""
        credit, size = self.args.branch_credit, self.args.num_generations
        parts = []
        for tree in self.branch_phase.trees_of(view.rows):
            rewards = tree.scores.weighted
            initial, branches = rewards[:size], rewards[tree.first :]
            if credit == "dual_group":
                parts.append(dual_group_advantages(initial, branches))
            elif credit == "single_group":
                together = torch.cat([initial, branches])
                parts.append(group_advantages(together, len(together))[:size])
            else:
                roots = [tree.root(place) for place in range(tree.first, len(rewards))]
                parents, splits = torch.tensor(roots, dtype=torch.long, device=rewards.device).view(-1, 2).T
                width = view.sampled_mask.size(1)
                parts.append(prefix_branch_credit(initial, branches, parents, splits, width))
        return torch.cat(parts)
