"""[`AgenticConfig`]: what the configurations of ARPO and APPO have in common."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from trl import GRPOConfig

from ..tools.cache import Mode
from ..tools.options import is_duration

CHOICES = {
    "tool_dialect": ("auto", "tags", "template"),
    "tool_cache_mode": get_args(Mode),
}

LEAST = {
    "max_completion_length": 1,
    "max_invalid_tool_calls": 0,
    "max_reward_failures": 0,
    "max_tool_result_tokens": 32,  # the mark of a cut takes about half of that
    "num_tool_workers": 0,
}
OWN_SAMPLING = frozenset(
    {"n", "seed", "logprobs", "prompt_logprobs", "detokenize", "output_kind", "skip_special_tokens", "stream_interval"}
    | {"stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output", "max_tokens", "max_new_tokens"}
    | {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "extra_args"}
)
NO_SERVER = "branches join the engine while it decodes, which needs the colocated one"
UNSUPPORTED = {
    "vllm_mode": NO_SERVER,
    "vllm_server_base_url": NO_SERVER,
    "vllm_server_host": NO_SERVER,
    "vllm_server_port": NO_SERVER,
    "vllm_server_timeout": NO_SERVER,
    "vllm_group_port": NO_SERVER,
    "vllm_tensor_parallel_size": "each process drives an engine of its own",
    "vllm_structured_outputs_regex": "a regular expression cannot describe a rollout of several turns",
    "use_transformers_continuous_batching": "it cannot be joined while it decodes; use vLLM for throughput",
    "transformers_continuous_batching_config": "continuous batching is not used",
    "cache_implementation": "the rollout manages its own cache",
    "ds3_gather_for_generation": "the policy itself does not generate under DeepSpeed; vLLM does",
}
_NO_DRAFTS = "drafted tokens are sampled without our logits processor, so their entropies would be wrong"
_ONE_ENGINE = "each process drives an engine of its own, in its own process"
UNSUPPORTED_ENGINE_KWARGS = {
    "speculative_config": _NO_DRAFTS,
    "spec_method": _NO_DRAFTS,
    "spec_model": _NO_DRAFTS,
    "spec_tokens": _NO_DRAFTS,
    "tensor_parallel_size": _ONE_ENGINE,
    "pipeline_parallel_size": _ONE_ENGINE,
    "data_parallel_size": _ONE_ENGINE,
    "distributed_executor_backend": _ONE_ENGINE,
    "logprobs_mode": "ratios need the log-probs of the distribution that was sampled from",
    "model": "the engine has to serve the policy; pass `model` to the trainer",
    "seed": "it would be the same on each process; set `seed`, from which each engine's is derived",
    "enable_sleep_mode": "the trainer would not wake the engine; set `vllm_enable_sleep_mode`",
}


@dataclass
class AgenticConfig(GRPOConfig):
    r"""
    Configuration of rollouts with tools, shared by [`ARPOConfig`] and [`APPOConfig`].

    For a full list of training arguments, see [`~trl.GRPOConfig`]; the table in `docs/options.md` says which of its
    options work here and which raise. Note that default values in this class may differ from those in
    [`~trl.GRPOConfig`]: `max_completion_length` is 4096 and `max_tool_calling_iterations` 5, as in the papers, and
    `use_vllm` is `True`.

    Parameters:
        > Parameters that control tools and rollouts

        tool_dialect (`str`, *optional*, defaults to `"auto"`):
            How calls are written: `"tags"` (`<search>…</search>`, the paper's format), `"template"` (the model's own
            chat template), or `"auto"`: the template if it supports tools, else tags.
        max_tool_calling_iterations (`int`, *optional*, defaults to `5`):
            Turns with tool calls per trajectory.
        max_tool_calls (`int`, *optional*, defaults to `32`):
            Tool calls per trajectory, where a turn may hold several; those beyond are answered with a note. `None`
            for no limit.
        max_invalid_tool_calls (`int`, *optional*, defaults to `3`):
            Turns in a row that may consist of broken calls only.
        max_tool_result_tokens (`int`, *optional*, defaults to `1024`):
            Tokens of one tool result; longer ones keep head and tail.
        num_tool_workers (`int`, *optional*, defaults to `32`):
            Tool calls that run at the same time. 0 runs them inline and in order, so that a run repeats exactly; a
            sync tool then has no deadline.
        tool_timeout_s (`float`, *optional*, defaults to `30.0`):
            Seconds for one tool call.
        tool_cache_dir (`str`, *optional*):
            Folder where results of tools with `cached=True` are kept, for this run and others; see
            [`~trl_agentic.tools.ResultCache`]. `None` for no cache.
        tool_cache_mode (`str`, *optional*, defaults to `"read_write"`):
            `"read_write"`; `"refresh"`, which asks the tools and stores what they say; or `"replay"`, which answers
            from the cache alone and ends the run at a call that it does not know.
        rollout_timeout_s (`float`, *optional*):
            Seconds for one rollout phase. Defaults to three quarters of `ddp_timeout`, since fast ranks wait for slow
            ones.
        max_reward_failures (`int`, *optional*, defaults to `10`):
            Calls of reward functions that may raise (each leaves its rows unscored) before the error is raised.
        vllm_engine_kwargs (`dict[str, Any]`, *optional*):
            Further arguments for the colocated `vllm.LLM`, such as `dtype`, `enforce_eager` or `block_size`.
        save_trajectories (`bool`, *optional*, defaults to `True`):
            Whether to write every trajectory to `trajectories.parquet` in the output directory.
    """

    _VALID_DICT_FIELDS = GRPOConfig._VALID_DICT_FIELDS + ["vllm_engine_kwargs"]

    max_completion_length: int | None = field(
        default=4096, metadata={"help": "Tokens of a completion, tool results included."}
    )
    use_vllm: bool = field(default=True, metadata={"help": "Whether to sample with a colocated vLLM engine."})
    tool_dialect: str = field(
        default="auto", metadata={"help": "How calls are written.", "choices": CHOICES["tool_dialect"]}
    )
    max_tool_calling_iterations: int | None = field(
        default=5, metadata={"help": "Turns with tool calls per trajectory."}
    )
    max_tool_calls: int | None = field(default=32, metadata={"help": "Tool calls per trajectory."})
    max_invalid_tool_calls: int = field(
        default=3, metadata={"help": "Turns in a row that may consist of broken calls only."}
    )
    max_tool_result_tokens: int = field(default=1024, metadata={"help": "Tokens of one tool result."})
    num_tool_workers: int = field(
        default=32, metadata={"help": "Tool calls at the same time; 0 runs them inline and in order."}
    )
    tool_timeout_s: float = field(default=30.0, metadata={"help": "Seconds for one tool call."})
    tool_cache_dir: str | None = field(default=None, metadata={"help": "Folder for results of cached tools."})
    tool_cache_mode: Mode = field(
        default="read_write",
        metadata={"help": "How the tool cache is used.", "choices": CHOICES["tool_cache_mode"]},
    )
    rollout_timeout_s: float | None = field(default=None, metadata={"help": "Seconds for one rollout phase."})
    max_reward_failures: int = field(
        default=10, metadata={"help": "Calls of reward functions that may raise before the run stops."}
    )
    vllm_engine_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Further arguments for the colocated vLLM engine."}
    )
    save_trajectories: bool = field(default=True, metadata={"help": "Whether to write trajectories.parquet."})

    def __post_init__(self):
        super().__post_init__()
        self._check_choices(CHOICES)
        self._check_least(LEAST)
        if not self.temperature > 0:
            raise ValueError(f"`temperature` must be above 0 to train on what was sampled, got {self.temperature}.")
        if self.max_tool_calling_iterations is not None and self.max_tool_calling_iterations < 0:
            raise ValueError(
                f"`max_tool_calling_iterations` must be at least 0, got {self.max_tool_calling_iterations}."
            )
        if self.max_tool_calls is not None and self.max_tool_calls < 1:
            raise ValueError(f"`max_tool_calls` must be at least 1, or None for no limit; got {self.max_tool_calls}.")
        self._check_deadlines()
        self._check_generation_kwargs()
        self._check_groups()
        self._check_unsupported()
        self._check_engine_kwargs()
        if self.use_vllm and (self.top_p < 1 or self.top_k > 0 or self.min_p):
            warnings.warn(
                "With `top_p`, `top_k` or `min_p` the engine's log-probs are renormalised over the tokens that are "
                "left, so importance ratios built on them are biased. Train with top_p=1, top_k=0 and min_p=None.",
                stacklevel=4,
            )

    def _check_choices(self, choices: Mapping[str, Sequence[str]]) -> None:
        for name, allowed in choices.items():
            if (value := vars(self)[name]) not in allowed:
                raise ValueError(f"Unknown `{name}` {value!r}; expected one of {', '.join(map(repr, allowed))}.")

    def _check_least(self, least: Mapping[str, float]) -> None:
        for name, bound in least.items():
            value = vars(self)[name]
            if isinstance(bound, int) and not isinstance(value, int | None):
                raise ValueError(f"`{name}` must be a whole number of at least {bound}, got {value!r}.")
            if value is None or not value >= bound:
                raise ValueError(f"`{name}` must be at least {bound}, got {value}.")
            if value == math.inf:
                raise ValueError(f"`{name}` must be finite, got {value}.")

    def _check_deadlines(self) -> None:
        """A slow rank must give up before the others stop waiting for it."""
        if self.rollout_timeout_s is None:
            self.rollout_timeout_s = 0.75 * self.ddp_timeout
        if not 0 < self.rollout_timeout_s < self.ddp_timeout:
            raise ValueError(
                f"`rollout_timeout_s` must be above 0 and below `ddp_timeout` ({self.ddp_timeout} s), since fast "
                f"processes wait for slow ones; got {self.rollout_timeout_s}. Lower it or raise `ddp_timeout`."
            )
        if not is_duration(self.tool_timeout_s):
            raise ValueError(f"`tool_timeout_s` must be above 0 and finite, got {self.tool_timeout_s}.")
        if self.tool_cache_mode != "read_write" and self.tool_cache_dir is None:
            raise ValueError(
                f"`tool_cache_mode={self.tool_cache_mode!r}` needs a cache: set `tool_cache_dir` to its folder."
            )

    def _check_generation_kwargs(self) -> None:
        """Options that the loop sets for each request, or that have a name of their own here."""
        taken = sorted(OWN_SAMPLING & set(self.generation_kwargs or {}))
        if taken:
            raise ValueError(
                f"`generation_kwargs` may not hold {', '.join(map(repr, taken))}: the rollout sets these for each "
                "request, or the configuration has an option of that name. Use that option, or leave it out."
            )

    def _check_groups(self) -> None:
        """A prompt's trajectories must live on one rank."""
        rows = self.per_device_train_batch_size * self.steps_per_generation
        if rows % self.num_generations:
            raise ValueError(
                f"Each process generates per_device_train_batch_size * steps_per_generation = "
                f"{self.per_device_train_batch_size} * {self.steps_per_generation} = {rows} trajectories, which must "
                f"be a multiple of num_generations ({self.num_generations}): the trajectories of a prompt branch "
                "from each other and must stay on one process. Change `per_device_train_batch_size`, "
                "`steps_per_generation` (or `gradient_accumulation_steps`) or `num_generations`."
            )

    def _check_unsupported(self) -> None:
        """Options of TRL's that could only be ignored here."""
        for name, remedy in UNSUPPORTED.items():
            default = GRPOConfig.__dataclass_fields__[name].default
            if (value := vars(self)[name]) != default:
                raise ValueError(f"`{name}={value!r}` is not supported: {remedy}. Leave it at {default!r}.")

    def _check_engine_kwargs(self) -> None:
        """Arguments of the engine with which rollouts would go wrong."""
        assert not isinstance(self.vllm_engine_kwargs, str), "the base class parses JSON"
        for name, reason in UNSUPPORTED_ENGINE_KWARGS.items():
            if name in (self.vllm_engine_kwargs or {}):
                raise ValueError(f"`vllm_engine_kwargs` may not hold {name!r}: {reason}. Leave it out.")
