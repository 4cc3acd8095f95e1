"""
Measures APPO's branches under a real colocated vLLM and prints the figures as JSON; `test_appo_vllm.py` runs it.

A process of its own, since TRL's colocated engine takes the process group of the process it lives in.
"""

import json
import sys

import torch
from async_scheduling import scheduled
from tiny_geo import geo_trainer

from trl_agentic import APPOConfig, APPOTrainer


def appo_geo_trainer(output_dir: str, **options) -> APPOTrainer:
    """Generations of six prompts, for three optimizer steps of two prompts each."""
    sizes = {"per_device_train_batch_size": 8, "steps_per_generation": 3}
    return geo_trainer(output_dir, config_class=APPOConfig, trainer_class=APPOTrainer, **(sizes | options))


def policy_logprobs(trainer, tree, branch) -> list[float]:
    """The trainer's own log-probs of the tokens that a branch sampled itself."""
    ids = torch.tensor([[*tree.prompt_ids, *branch.token_ids]])
    with torch.no_grad():
        values, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, torch.ones_like(ids), len(branch)
        )
    return own(branch, values[0].tolist())


def own(branch, values) -> list[float]:
    """Values at the tokens behind the fork that were sampled."""
    places = [place for place, sampled in enumerate(branch.sampled_mask) if sampled and place >= branch.fork]
    return [values[place] for place in places]


class BranchFigures:
    """Compares, after each branch phase, the engine's log-probs of the branches with two policies'."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.phases = []
        self._weights = []
        self._served = []
        self._note_planting()
        self._note_requests()
        grow = trainer.branch_phase._grow

        def measured(trees, points):
            self._served.clear()
            grow(trees, points)
            self.phases.append(self._compare(trees))

        trainer.branch_phase._grow = measured

    def _note_planting(self):
        begin = self.trainer.branch_phase.begin

        def noting(examples, scores):
            self._weights = [parameter.detach().clone() for parameter in self.trainer.model.parameters()]
            begin(examples, scores)

        self.trainer.branch_phase.begin = noting

    def _note_requests(self):
        engine, lengths = self.trainer.engine, {}
        submit, poll = engine.submit, engine.poll

        def noting_submit(request):
            lengths[request.id] = len(request.token_ids)
            submit(request)

        def noting_poll():
            events = poll()
            self._served += [
                (lengths[event.request_id], event.num_cached_tokens)
                for event in events
                if event.finish_reason and event.request_id.endswith("/1")  # the first request of its path
            ]
            return events

        engine.submit, engine.poll = noting_submit, noting_poll

    def _compare(self, trees):
        branches = [(each.tree, branch) for each in trees for branch in each.tree.trajectories[each.first :]]
        engine = [value for _, branch in branches for value in own(branch, branch.logprobs)]
        current = [value for tree, branch in branches for value in policy_logprobs(self.trainer, tree, branch)]
        old = [value for tree, branch in branches for value in self._under_old_weights(tree, branch)]
        return {
            "step": self.trainer.state.global_step,
            "branches": len(branches),
            "in_the_middle": sum(branch.fork > 0 for _, branch in branches),
            "tokens": len(engine),
            "current": largest_difference(engine, current),
            "old": largest_difference(engine, old),
            "served": list(self._served),
        }

    def _under_old_weights(self, tree, branch):
        parameters = list(self.trainer.model.parameters())
        now = [parameter.detach().clone() for parameter in parameters]
        try:
            set_weights(parameters, self._weights)
            return policy_logprobs(self.trainer, tree, branch)
        finally:
            set_weights(parameters, now)


@torch.no_grad()
def set_weights(parameters, values) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def largest_difference(first, second) -> float:
    return max(abs(one - other) for one, other in zip(first, second, strict=True))


def main(output_dir: str) -> None:
    # A learning rate that moves the policy by nats within a few steps: an engine left behind would show.
    trainer = appo_geo_trainer(output_dir, max_steps=5, learning_rate=1e-2, lr_scheduler_type="constant")
    figures = BranchFigures(trainer)
    trainer.train()
    logged = [{name: log[name] for name in log if name.startswith("appo/")} for log in trainer.state.log_history]
    print("FIGURES " + json.dumps({"phases": figures.phases, "logged": logged[:5]}))


if __name__ == "__main__":
    with scheduled(sys.argv[2]):
        main(sys.argv[1])
