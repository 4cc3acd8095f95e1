"""
Train the tiny Geo model from scratch on imperfect demonstrations.

    python scripts/cold_start.py --output trl_agentic/tasks/tiny_geo

The number of steps is fixed, not the time, so that the same seed gives the same model. One thread needs about six
minutes.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import Qwen3ForCausalLM, set_seed

from trl_agentic.tasks.geo_compact import ASSISTANT, USER, config, tokenizer, vocabulary
from trl_agentic.tasks.geo_demonstrations import Demonstration, Faults, demonstrate
from trl_agentic.tasks.geo_questions import pool

# Tokens and whether they are to be learnt.
Row = tuple[list[int], list[bool]]

# Batches that are sorted by length together, so that little is padded.
BATCHES_PER_SORT = 16


def encode(demonstration: Demonstration, ids: dict[str, int]) -> Row:
    """A demonstration as token ids, with a mask that is `True` on what the model writes."""
    pieces = [(f"{USER} {demonstration.prompt} {ASSISTANT}", False), *demonstration.turns]
    words = [(word, learnt) for text, learnt in pieces for word in text.split()]
    return [ids[word] for word, _ in words], [learnt for _, learnt in words]


def batches(rng: random.Random, batch_size: int, faults: Faults | None = None) -> Iterator[list[Row]]:
    """Endless batches of demonstrations of about equal length."""
    ids = {word: position for position, word in enumerate(vocabulary())}
    questions = pool("train")
    while True:
        drawn = [demonstrate(rng.choice(questions), rng, faults) for _ in range(batch_size * BATCHES_PER_SORT)]
        rows = sorted((encode(demonstration, ids) for demonstration in drawn), key=lambda row: len(row[0]))
        order = list(range(0, len(rows), batch_size))
        rng.shuffle(order)
        for start in order:
            yield rows[start : start + batch_size]


def loss_of(model: Qwen3ForCausalLM, rows: list[Row]) -> torch.Tensor:
    """Mean cross-entropy over the tokens to be learnt."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows])  # (B, T)
    mask = torch.tensor([mask + [False] * (width - len(mask)) for _, mask in rows])  # (B, T)
    # Padding stands on the right, where causal attention never sees it. Only rows of the mask reach the output layer.
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1][mask[:, 1:]]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden), ids[:, 1:][mask[:, 1:]])


def optimizers_of(
    model: Qwen3ForCausalLM, learning_rate: float, matrix_learning_rate: float
) -> list[torch.optim.Optimizer]:
    """AdamW for embeddings and norms, Muon for the matrices between: copying is learnt in a third of the steps."""
    matrices = {name: weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name}
    others = [weight for name, weight in model.named_parameters() if name not in matrices]
    return [
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01),
        torch.optim.Muon(list(matrices.values()), lr=matrix_learning_rate, weight_decay=0.01),
    ]


def learning_rate_at(step: int, num_steps: int) -> float:
    """Share of the peak: 100 steps up, then level, then straight down over the last two fifths."""
    return min(1.0, (step + 1) / 100, (num_steps - step) / (0.4 * num_steps))


def train(args: argparse.Namespace) -> Qwen3ForCausalLM:
    """Train for `args.steps` steps."""
    set_seed(args.seed)
    model = Qwen3ForCausalLM(config(args.hidden_size, args.layers))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(vocabulary()):,} words", flush=True)
    optimizers = optimizers_of(model, args.learning_rate, args.matrix_learning_rate)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_at(step, args.steps))
        for optimizer in optimizers
    ]
    source = batches(random.Random(args.seed), args.batch_size)
    started, tokens = time.monotonic(), 0
    for step in range(1, args.steps + 1):
        rows = next(source)
        loss = loss_of(model, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepped in (*optimizers, *schedules):
            stepped.step()
        model.zero_grad()
        tokens += sum(len(ids) for ids, _ in rows)
        if step % args.log_every == 0 or step == args.steps:
            elapsed = time.monotonic() - started
            print(f"step {step} loss {loss.item():.3f} {elapsed:.0f} s {tokens / elapsed:,.0f} tokens/s", flush=True)
    return model


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, train and save model, tokenizer and chat template."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--matrix_learning_rate", type=float, default=0.02)
    parser.add_argument("--hidden_size", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log_every", type=int, default=100)
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    model = train(args)
    model.save_pretrained(args.output)
    tokenizer().save_pretrained(args.output)


if __name__ == "__main__":
    main()
