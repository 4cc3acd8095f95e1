"""Two ranks that grow APPO's branches, one of them perhaps with nowhere to branch, for `test_appo_processes.py`."""

import json
import random
import sys
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from appo_records import advantages_by_hand, record, share_of_even_ids
from tiny import ANSWERS, CALL, appo_trainer, tiny_model_path
from word_tokenizer import ids

from trl_agentic.rollout.engine import Request, Script, ScriptedEngine

BLANK = (ids("} <eos>"), ids("} } <eos>"), ids("} } } <eos>"))
# Where nothing is learnt, a prompt's branch points do not depend on the step that it is trained in.
STILL = {"learning_rate": 0.0, "branch_score": "entropy", "max_steps": 4}
# One optimizer step takes a whole generation, so that it holds the same rows on one process as on two. The second
# iteration finds a policy that has moved. SGD without a clip, since a gradient of the wrong scale must show.
MOVING = {
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 2,
    "num_iterations": 2,
    "branches_per_rollout": 2,
    "max_steps": 4,
    "optim": "sgd",
    "max_grad_norm": 0.0,
    "learning_rate": 0.02,
    "lr_scheduler_type": "constant",
}
RUNS = {"barren": {}, "fertile": {}, "still": STILL}


def engine(is_barren: bool) -> ScriptedEngine:
    """Answers that depend on the prefix and the place in the tree alone; the barren ones hold no word to branch at."""

    def answer(request: Request) -> Script:
        rng = random.Random(f"{request.token_ids} {request.id.split('/', 1)[1]}")
        if is_barren:
            return Script(rng.choice(BLANK))
        return Script(CALL if rng.random() < 0.5 and len(request.token_ids) < 24 else rng.choice(ANSWERS))

    return ScriptedEngine(answer)


def main(output_dir: str) -> None:
    tiny_model_path()  # each rank writes its own, which it would not once it knows that there are several
    for name, options in RUNS.items():
        folder = Path(output_dir) / name
        everyone = gather_object([figures(folder, barren_rank=1 if name == "barren" else None, **options)])
        if everyone[0]["rank"] == PartialState().process_index:
            (folder / "figures.json").write_text(json.dumps(everyone))
    everyone = gather_object([moving(Path(output_dir) / "moving", per_device_train_batch_size=4)])
    if PartialState().is_main_process:
        torch.save(everyone, Path(output_dir) / "moving" / "figures.pt")


def moving(folder: Path, per_device_train_batch_size: int) -> dict:
    """Two generations of two iterations each: the weights, and what each optimizer step made of its prompts."""
    trainer = appo_trainer(
        folder, engine(is_barren=False), per_device_train_batch_size=per_device_train_batch_size, **MOVING
    )
    with torch.no_grad():  # entropies of a new model are so alike that rounding could rank them
        trainer.model.get_input_embeddings().weight.mul_(5)
    steps = record(trainer)
    trainer.train()
    return {
        "weights": {name: value.clone() for name, value in trainer.model.state_dict().items()},
        "steps": [prompts_of(step) for step in steps],
    }


def prompts_of(step) -> dict:
    """Branch points, branches and advantages of a step, by the tokens of the prompt."""
    advantages, log_ratios = step.joined("advantages"), torch.cat(step.log_ratios)
    prompts = {}
    for number, (tree, first) in enumerate(zip(step.trees, step.firsts, strict=True)):
        rows = range(number * 4, number * 4 + 4)
        masks = [trajectory.sampled_mask for trajectory in tree.trajectories[:4]]
        branches = tree.trajectories[first:]
        prompts[tree.prompt_ids] = {
            "points": [(branch.parent, branch.fork) for branch in branches],
            "branches": [branch.token_ids for branch in branches],
            "rewards": [share_of_even_ids(branch) for branch in branches],
            "advantages": [sampled(advantages[row], mask) for row, mask in zip(rows, masks, strict=True)],
            "log_ratios": [sampled(log_ratios[row], mask) for row, mask in zip(rows, masks, strict=True)],
        }
    return prompts


def sampled(values: torch.Tensor, mask) -> torch.Tensor:
    """Those of a row's sampled tokens."""
    return values[: len(mask)][torch.tensor(mask, dtype=torch.bool)]


def figures(folder: Path, barren_rank: int | None, **options) -> dict:
    """What a rank has to say about a run of six steps, with one prompt per rank and step."""
    options = {"gradient_accumulation_steps": 1, "steps_per_generation": 4, "max_steps": 6} | options
    trainer = appo_trainer(folder, **options)
    rank = trainer.accelerator.process_index
    trainer.engine = engine(is_barren=rank == barren_rank)
    steps = record(trainer)
    trainer.train()
    return {
        "rank": rank,
        "weights": [float(parameter.double().sum()) for parameter in trainer.model.parameters()],
        "branches": [sum(len(tree.trajectories) - 4 for tree in step.trees) for step in steps],
        "differences": [difference(trainer.args, step) for step in steps],
        "missing": [log["appo/missing_branches"] for log in trainer.state.log_history if "loss" in log],
    }


def difference(args, step) -> float:
    """The largest between the advantages of the loss and those that follow from this rank's own trees and rewards."""
    expected, _ = advantages_by_hand(step, args, is_fresh=step.number % 4 == 0)
    trained = step.joined("advantages").tolist()
    return max(
        abs(row[at] - value) for row, of_row in zip(trained, expected, strict=True) for at, value in of_row.items()
    )


if __name__ == "__main__":
    main(sys.argv[1])
