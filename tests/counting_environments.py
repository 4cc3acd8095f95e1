"""Environments that count, one for each way in which a branch can get its state."""

from __future__ import annotations

import itertools
import threading


class Copied:
    """Counts in a list, which a deep copy takes along. Says where it starts."""

    def reset(self, start: int = 0, **row: object) -> str:
        self.counts = [start]
        return f" from {start}"

    def add(self, amount: int = 1) -> str:
        """
        Add to the counter.

        Args:
            amount: How much.
        """
        if amount < 0:
            raise ValueError(f"{self.counts[-1]} cannot shrink by {-amount}")
        self.counts.append(self.counts[-1] + amount)
        return f"now {self.counts[-1]}"

    def get_reward(self) -> float:
        return float(self.counts[-1])


class Forked(Copied):
    """Forks itself, and cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def fork(self) -> Forked:
        other = Forked()
        other.counts = list(self.counts)
        return other


class Replayed(Copied):
    """Holds a lock, so that it can neither be copied nor forked."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Moody(Replayed):
    """Answers differently whenever it is called, over all instances: no replay can succeed."""

    calls = itertools.count()

    def add(self, amount: int = 1) -> str:
        """
        Add to the counter.

        Args:
            amount: How much.
        """
        return f"{super().add(amount)}, call {next(Moody.calls)}"


ALL = (Forked, Copied, Replayed)
WAYS = {Forked: "fork", Copied: "copy", Replayed: "replay"}
