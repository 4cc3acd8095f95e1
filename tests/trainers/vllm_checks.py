"""
Measures a trainer with a real colocated vLLM and prints the figures as JSON; `test_vllm_training.py` runs it.

A process of its own, since TRL's colocated engine takes the process group of the process it lives in.
"""

import json
import sys

import torch
from async_scheduling import scheduled
from tiny_geo import geo_trainer

from trl_agentic.rollout.policy import EntropyBranching
from trl_agentic.types import Kind


def trainer_values(trainer, trees):
    """Log-probs and entropies of all sampled tokens, from the engine and from the trainer's own forward."""
    engine_logprobs, engine_entropies, logprobs, entropies = [], [], [], []
    for tree in trees:
        for trajectory in tree.trajectories:
            ids = torch.tensor([[*tree.prompt_ids, *trajectory.token_ids]])
            with torch.no_grad():
                values, spread, _ = trainer._get_per_token_logps_and_entropies(
                    trainer.model, ids, torch.ones_like(ids), len(trajectory), compute_entropy=True
                )
            sampled = torch.tensor(trajectory.sampled_mask, dtype=torch.bool)
            logprobs.append(values[0][sampled])
            entropies.append(spread[0][sampled])
            engine_logprobs += [value for value in trajectory.logprobs if value is not None]
            engine_entropies += [value for value in trajectory.entropies if value is not None]
    return torch.tensor(engine_logprobs), torch.cat(logprobs), torch.tensor(engine_entropies), torch.cat(entropies)


def differences(trainer, trees):
    engine_logprobs, logprobs, engine_entropies, entropies = trainer_values(trainer, trees)
    return {
        "logprobs": (engine_logprobs - logprobs).abs().mean().item(),
        "logprobs_max": (engine_logprobs - logprobs).abs().max().item(),
        "entropies": (engine_entropies - entropies).abs().mean().item(),
        "tokens": logprobs.numel(),
    }


def main(output_dir: str) -> None:
    trainer = geo_trainer(output_dir, use_vllm=True, num_generations=8, initial_rollouts=4)
    prompts = trainer.train_dataset["prompt"][:6]
    figures = {"temperature": trainer.temperature}
    figures["at_start"] = differences(trainer, trainer.rollout(prompts, 2))

    prefixes, served = {}, {}
    submit, poll = trainer.engine.submit, trainer.engine.poll

    def noting_submit(request):
        prefixes[request.id] = len(request.token_ids)
        submit(request)

    def noting_poll():
        events = poll()
        served.update((event.request_id, event.num_cached_tokens) for event in events if event.finish_reason)
        return events

    trainer.engine.submit, trainer.engine.poll = noting_submit, noting_poll
    policy = EntropyBranching(4, 2, 5, trainer.model.config.vocab_size, threshold=-1.0)  # branch wherever allowed
    trees = trainer.rollout(prompts, 8, policy)
    trainer.engine.submit, trainer.engine.poll = submit, poll
    figures["trees"] = [len(tree.trajectories) for tree in trees]
    figures["branches"] = sum(trajectory.kind is Kind.BRANCH for tree in trees for trajectory in tree.trajectories)
    prompt_lengths = {tree.prompt_id: len(tree.prompt_ids) for tree in trees}
    figures["children"] = [
        {"prefix": length, "cached": served[request_id]}
        for request_id, length in prefixes.items()
        if request_id.endswith("/1") and length > prompt_lengths[request_id.rsplit("/", 2)[0]]
    ]

    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(1.0 * parameter.std() * torch.randn_like(parameter)) if parameter.dim() > 1 else None
    figures["changed_not_synced"] = differences(trainer, trainer.rollout(prompts, 2))
    trainer._last_loaded_step = -1  # as after an optimizer step
    figures["changed_and_synced"] = differences(trainer, trainer.rollout(prompts, 2))

    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    changed = [not torch.equal(old, new) for old, new in zip(before, trainer.model.parameters(), strict=True)]
    figures["changed_parameters"] = [sum(changed), len(changed)]
    figures["logged"] = trainer.state.log_history[0]
    print("FIGURES " + json.dumps(figures))


if __name__ == "__main__":
    with scheduled(sys.argv[2]):
        main(sys.argv[1])
