"""Two ranks with engines of their own and unequal numbers of turns; `test_two_processes.py` launches it."""

import json
import sys
from pathlib import Path

from accelerate.utils import gather_object
from tiny_geo import geo_trainer


def main(output_dir: str) -> None:
    trainer = geo_trainer(
        output_dir,
        use_vllm=True,
        num_generations=4,
        initial_rollouts=2,
        per_device_train_batch_size=8,
        max_steps=2,
        advantage_attribution="hard",
    )
    rank = trainer.accelerator.process_index
    # Rank 0 may not call a tool at all, rank 1 often: their loops take different numbers of turns.
    trainer.max_tool_calling_iterations = 0 if rank == 0 else 5
    turns = []
    generate = trainer._generate

    def noting(prompts):
        output = generate(prompts)
        turns.append(sum(len(calls) for calls in output[5]["rollout_calls"]))
        return output

    trainer._generate = noting
    trainer.train()
    weights = float(sum(parameter.double().sum() for parameter in trainer.model.parameters()))
    everyone = gather_object([{"rank": rank, "turns": turns, "weights": weights}])
    if rank == 0:
        (Path(output_dir) / "figures.json").write_text(json.dumps(everyone))


if __name__ == "__main__":
    main(sys.argv[1])
