"""
vLLM's asynchronous scheduling on a CPU, where it is off: the order of events is that of a GPU.

Each step is launched before the tokens of the last one have arrived: two batches are queued, requests hold
placeholders for tokens under way, and outputs come late. vLLM's CPU runner has all of this but for streams and events
of the device, which have nothing to order here.
"""

import contextlib

import pytest
import torch

SCHEDULINGS = ["sync", "async"]  # as vLLM does it on a CPU, and as it does on a GPU


class Stream:
    """A device's queue of work that is always done."""

    def __init__(self, *args, **kwargs): ...
    def wait_stream(self, other): ...
    def synchronize(self): ...


class Event:
    """A mark in a queue that has always been reached."""

    def __init__(self, *args, **kwargs): ...
    def record(self, *args): ...
    def wait(self, *args): ...
    def synchronize(self): ...

    def query(self):
        return True


def play_streams(patch: pytest.MonkeyPatch) -> None:
    """Give the CPU what the runner takes for streams and events of a device."""
    patch.setattr(torch.cuda, "Stream", Stream)
    patch.setattr(torch.cuda, "Event", Event)
    patch.setattr(torch.cuda, "current_stream", lambda *args: Stream())
    patch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())


@contextlib.contextmanager
def asynchronous_platform():
    """Let engines that are built within schedule as on a GPU."""
    from vllm.platforms.cpu import CpuPlatform

    settle = CpuPlatform.check_and_update_config

    def with_async_scheduling(cls, vllm_config):
        settle(vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuPlatform, "check_and_update_config", classmethod(with_async_scheduling))
        yield


@contextlib.contextmanager
def scheduled(how: str):
    """All engines within: `"sync"` or `"async"`."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        if how == "async":
            play_streams(patch)
            stack.enter_context(asynchronous_platform())
        yield
