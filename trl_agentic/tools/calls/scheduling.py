"""
Which job runs next: the order of submission, bent by the limits of tools and by the lanes of states.

A data structure without threads and without a clock, so that it can be tested against a naive one. Adding, taking and
ending a job cost the same however many are waiting.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable

from ..options import ToolOptions
from .jobs import CallState, Job


class ToolQueue:
    """
    Jobs of one tool that wait for a worker, and what its limits allow.

    Args:
        options ([`ToolOptions`]):
            The limits.
    """

    def __init__(self, options: ToolOptions):
        self.jobs: deque[Job] = deque()
        self.num_running = 0
        self._most = math.inf if options.max_concurrency is None else options.max_concurrency
        self._gap_s = 0.0 if options.rate_per_s is None else 1.0 / options.rate_per_s
        self._next_start = -math.inf

    def start_time(self) -> float:
        """When its next job may start, as far as its limits go: in the past for at once, `inf` for not yet known."""
        if not self.jobs or self.num_running >= self._most:
            return math.inf
        return self._next_start

    def reserve(self, now: float) -> float:
        """Take the next start that the rate allows; returns its time, at least `now`."""
        start = max(now, self._next_start)
        self._next_start = start + self._gap_s
        return start


class Scheduler:
    """Holds the jobs that wait. The caller takes care that one thread at a time uses it."""

    def __init__(self) -> None:
        self._queues: dict[str, ToolQueue] = {}
        self._lanes: dict[int, deque[Job]] = {}  # by the id of a state; the job at the head may run
        self._numbers = itertools.count()

    @property
    def num_waiting(self) -> int:
        """Jobs that wait for a worker or for a limit of their tool, but not for their lanes."""
        return sum(len(queue.jobs) for queue in self._queues.values())

    def add(self, job: Job) -> None:
        """Let a job wait, behind all earlier ones that share a lane with it."""
        for state in job.lanes:
            lane = self._lanes.setdefault(id(state), deque())
            job.num_before += bool(lane)
            lane.append(job)
        if not job.num_before:
            self._enqueue(job)

    def take(self, now: float) -> Job | None:
        """
        The job to start now: of those that the limits allow, the one that has been ready for longest.

        Args:
            now (`float`):
                The time, in the seconds of `time.monotonic`.

        Returns:
            [`Job`] or `None`:
                It counts as running until [`~Scheduler.end`] is called.
        """
        best: ToolQueue | None = None
        for queue in self._queues.values():
            self._drop_unwanted(queue)
            if queue.start_time() <= now and (best is None or queue.jobs[0].number < best.jobs[0].number):
                best = queue
        if best is None:
            return None
        best.num_running += 1
        best.reserve(now)
        return best.jobs.popleft()

    def next_start(self) -> float:
        """The earliest time at which a job may start, as far as is known: `inf` while all wait for another to end."""
        return min((queue.start_time() for queue in self._queues.values()), default=math.inf)

    def end(self, job: Job) -> None:
        """Give back what a job that was taken holds, so that others may follow."""
        self.queue(job).num_running -= 1
        self._leave_lanes(job)

    def discard(self, job: Job) -> None:
        """
        Let a job that nobody waits for any more hold up nobody: it leaves its lane now, or when it comes to its head.

        Args:
            job ([`Job`]):
                A job of one lane at most, as all calls are. One that runs is left alone.
        """
        if job.num_before == 0 and not job.started:
            self._leave_lanes(job)

    def queue(self, job: Job) -> ToolQueue:
        """The limits of a job's tool."""
        if job.name not in self._queues:
            self._queues[job.name] = ToolQueue(job.options)
        return self._queues[job.name]

    def is_idle(self, states: Iterable[CallState]) -> bool:
        """Whether no job on any of these states waits or runs."""
        return not any(id(state) in self._lanes for state in states)

    def clear(self) -> None:
        """Forget every job that waits."""
        for queue in self._queues.values():
            queue.jobs.clear()
        self._lanes.clear()

    def _enqueue(self, job: Job) -> None:
        job.number = next(self._numbers)
        self.queue(job).jobs.append(job)

    def _drop_unwanted(self, queue: ToolQueue) -> None:
        while queue.jobs and not queue.jobs[0].is_wanted:
            self._leave_lanes(queue.jobs.popleft())

    def _leave_lanes(self, job: Job) -> None:
        """Let the next job of each lane come to the head; those that nobody waits for any more leave at once."""
        leaving = [job]
        while leaving:
            states, leaving[-1].lanes = leaving[-1].lanes, ()  # a job leaves once
            left = leaving.pop()
            for lane_id in map(id, states):
                lane = self._lanes.get(lane_id)
                if lane is None:  # cleared meanwhile
                    continue
                assert lane[0] is left, "a job left its lane before its turn"
                lane.popleft()
                if not lane:
                    del self._lanes[lane_id]
                    continue
                lane[0].num_before -= 1
                if lane[0].num_before == 0:
                    (self._enqueue if lane[0].is_wanted else leaving.append)(lane[0])
