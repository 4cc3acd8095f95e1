"""
Exact token entropies from inside vLLM: a logits processor that changes nothing and measures.

vLLM loads it through the entry point `trl_agentic_entropy` of the group `vllm.logits_processors`, in every engine of
the environment, so importing this module has to stay cheap and the processor idle for requests without our key.
Processor and [`VLLMEngine`] meet in one place only, [`STORE`], which lives in their common process.

Where vLLM's sampler calls it decides what is measured. It declares that it may change the argmax, because processors
that do not are skipped when all requests of a batch are greedy, and run behind min-p, on logits that are cut already.
So it sees the logits *before* temperature, min-p, top-p and top-k, and divides by the request's temperature itself.
(Repetition penalties come later in vLLM's first model runner and earlier in its second; forbidden tokens, such as eos
under `min_tokens`, come earlier in both.)

How values find their tokens: each is filed under the number of output tokens that the request had when its logits
were computed. A prefill that is cut by the token budget of a step is sampled and the sample thrown away; a preempted
request computes positions again. Either way the later value of a position replaces the earlier one: nothing shifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.sample.logits_processor import LogitsProcessor as RunnerOneProcessor
from vllm.v1.sample.logits_processor import process_dict_updates
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as RunnerTwoProcessor

from ..algorithms.entropy import token_entropies

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig
    from vllm.v1.sample.logits_processor import BatchUpdate
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext, LogitsProcRequestState

EXTRA_ARG = "trl_agentic_entropy"
"""Key in `SamplingParams.extra_args`; its value is the key under which the entropies are filed."""

PROCESSOR = "trl_agentic.rollout.vllm_entropy:EntropyProcessor"
"""What `LLM(logits_processors=[...])` takes where the entry point is not installed."""


class Measurement:
    """
    The entropies of one step, on their way from the device.

    They are copied in the background and waited for when the first is read, which is after the step's tokens have
    arrived. So measuring never holds up the steps that vLLM launches meanwhile.
    """

    def __init__(self, entropies: torch.Tensor):
        self._ready: torch.Event | None = None
        self._host = entropies
        if entropies.device.type != "cpu":
            self._host = torch.empty(entropies.shape, dtype=entropies.dtype, device="cpu", pin_memory=True)
            self._host.copy_(entropies, non_blocking=True)
            self._ready = torch.Event(entropies.device)
            self._ready.record()

    @cached_property
    def values(self) -> list[float]:
        """The entropies in nats, one per measured row."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._host.tolist()


class EntropyStore:
    """
    Entropies by request and position, between the step that measured them and the poll that hands them out.

    Only open requests are filed, and handing out removes, so it never holds more than the tokens in flight.
    """

    def __init__(self):
        self._requests: dict[str, dict[int, tuple[Measurement, int]]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def open(self, key: str) -> None:
        """Begin to file what is measured for `key`."""
        self._requests[key] = {}

    def close(self, key: str) -> None:
        """Forget `key`, and ignore what is still measured for it by steps under way. Unknown keys are ignored."""
        self._requests.pop(key, None)

    def file(self, key: str, position: int, measurement: Measurement, row: int) -> None:
        """File one value; a second one for the same position replaces the first."""
        if (positions := self._requests.get(key)) is not None:
            positions[position] = (measurement, row)

    def take(self, key: str, start: int, count: int) -> tuple[float, ...]:
        """
        Hand out the entropies of `count` output tokens from position `start` on.

        Raises:
            RuntimeError: If one is missing, which means that the processor does not run in this process.
        """
        positions = self._requests[key]
        if missing := [index for index in range(start, start + count) if index not in positions]:
            raise RuntimeError(
                f"vLLM measured no entropy for output tokens {missing} of request {key!r}. The engine has to run in "
                f"this process (VLLM_ENABLE_V1_MULTIPROCESSING=0) and to be built with "
                f"`LLM(..., **entropy_engine_kwargs())`."
            )
        taken = [positions.pop(index) for index in range(start, start + count)]
        for index in [index for index in positions if index < start]:  # computed again, after a preemption
            del positions[index]
        return tuple([measurement.values[row] for measurement, row in taken])


STORE = EntropyStore()
"""The one store of this process: vLLM builds the processor itself, so nothing can be passed to it."""


@dataclass(frozen=True)
class _Tracked:
    """A request of ours in the batch; `output_ids` is vLLM's live list, whose length is the position to be sampled."""

    key: str
    temperature: float
    output_ids: Sequence[int]


def _tracked(params: SamplingParams, _prompt_ids: list[int] | None, output_ids: Sequence[int]) -> _Tracked | None:
    key = (params.extra_args or {}).get(EXTRA_ARG)
    return None if key is None else _Tracked(key, params.temperature, output_ids)


class EntropyProcessor(RunnerTwoProcessor, RunnerOneProcessor):
    """
    Measures the entropy of every token that is sampled for requests which carry [`EXTRA_ARG`].

    vLLM has two model runners with an interface each and picks one by platform and model, while an entry point can
    name one class only; so this class is both. The first runner calls `update_state` and `apply(logits)`, with rows in
    batch order, the second `add_request` and `apply(logits, context)`, with slots that the context maps to rows.

    Args:
        vllm_config (`VllmConfig`):
            Not used.
        place (`torch.device` or `LogitsProcRequestState`):
            The device (first runner), or the request state of the second runner.
        pin_memory (`bool`, *optional*):
            Given by the first runner; not used.
    """

    def __init__(
        self, vllm_config: VllmConfig, place: torch.device | LogitsProcRequestState, pin_memory: bool = False
    ):
        self._place: Any = place
        self._requests: dict[int, _Tracked] = {}  # by row (first runner) or slot (second runner)

    def is_argmax_invariant(self) -> bool:
        """`False`, although it is: see the top of this module."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """First runner: follow the batch."""
        process_dict_updates(self._requests, batch_update, _tracked)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Second runner: a request enters slot `req_idx`. Returns whether it is one of ours."""
        self._requests.pop(req_idx, None)
        if (request := _tracked(sampling_params, None, ())) is not None:
            self._requests[req_idx] = request
        return request is not None

    def apply(self, logits: torch.Tensor, ctx: LogitsContext | None = None) -> torch.Tensor:
        """Measure the rows of our requests and return `logits` as they came."""
        rows: dict[int, tuple[_Tracked, int]] = {}  # row -> request and position
        if ctx is None:
            rows = {row: (request, len(request.output_ids)) for row, request in self._requests.items()}
        elif self._requests:
            for row, slot in enumerate(ctx.idx_mapping_np.tolist()):
                position = int(ctx.seq_lens_upper_bound_np[row]) - int(self._place.prompt_len.np[slot])
                if slot in self._requests and position >= 0:
                    rows[row] = (self._requests[slot], position)
        if rows:
            self._measure(logits, rows)
        return logits

    def _measure(self, logits: torch.Tensor, rows: dict[int, tuple[_Tracked, int]]) -> None:
        temperatures = [request.temperature for request, _ in rows.values()]
        if list(rows) != list(range(logits.shape[0])):
            logits = logits[async_tensor_h2d(list(rows), device=logits.device, dtype=torch.int64)]
        temperature = async_tensor_h2d(temperatures, device=logits.device, dtype=torch.float32)  # (R,)
        measurement = Measurement(token_entropies(logits / temperature.unsqueeze(-1)))
        for row, (request, position) in enumerate(rows.values()):
            STORE.file(request.key, position, measurement, row)
