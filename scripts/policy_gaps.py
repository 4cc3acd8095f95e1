"""How far the engine's policy is from the trainer's, and what the engine's prefix cache gives to branches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from trl_agentic.rollout.policy import BranchPolicy
from trl_agentic.trainers.agentic_trainer import AgenticTrainer
from trl_agentic.types import BranchTree


def gaps(trainer: AgenticTrainer, trees: Sequence[BranchTree]) -> tuple[float, float]:
    """Mean absolute difference of log-probs, and of entropies, between engine and trainer at all sampled tokens."""
    logprobs, entropies = [], []
    for tree in trees:
        for trajectory in tree.trajectories:
            ids = torch.tensor([[*tree.prompt_ids, *trajectory.token_ids]], device=trainer.accelerator.device)
            with torch.no_grad(), trainer.accelerator.autocast():
                own, spread, _ = trainer._get_per_token_logps_and_entropies(
                    trainer.model, ids, torch.ones_like(ids), len(trajectory), compute_entropy=True
                )
            sampled = trajectory.sampled_mask
            logprobs += differences(own[0].tolist(), trajectory.logprobs, sampled)
            entropies += differences(spread[0].tolist(), trajectory.entropies, sampled)
    return sum(logprobs) / len(logprobs), sum(entropies) / len(entropies)


def differences(own: Sequence[float], engines: Sequence[float | None], sampled: Sequence[bool]) -> list[float]:
    """Absolute differences where a token was sampled."""
    return [abs(a - b) for a, b, kept in zip(own, engines, sampled, strict=True) if kept and b is not None]


@contextmanager
def changed_weights(trainer: AgenticTrainer) -> Iterator[None]:
    """Change the trainer's matrices visibly, and put them back."""
    matrices = [parameter for parameter in trainer.model.parameters() if parameter.dim() > 1]
    kept = [matrix.detach().clone() for matrix in matrices]
    with torch.no_grad():
        for matrix in matrices:
            matrix.add_(matrix.std() * torch.randn_like(matrix))
    try:
        yield
    finally:
        with torch.no_grad():
            for matrix, before in zip(matrices, kept, strict=True):
                matrix.copy_(before)
        trainer._last_loaded_step = -1


def served_branches(trainer: AgenticTrainer, prompts: Sequence[Any], policy: BranchPolicy) -> list[tuple[int, int]]:
    """Tokens of the prefix of each branch that begins behind its prompt, and how many of them came from the cache."""
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
    try:
        trees = trainer.rollout(prompts, 8, policy)
    finally:
        trainer.engine.submit, trainer.engine.poll = submit, poll
    lengths = {tree.prompt_id: len(tree.prompt_ids) for tree in trees}
    return [
        (length, served[request_id])
        for request_id, length in prefixes.items()
        if request_id.endswith("/1") and length > lengths[request_id.rsplit("/", 2)[0]]
    ]
