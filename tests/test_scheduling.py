"""Which job runs next, against a scheduler that looks at every job each time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from trl_agentic.tools.calls.jobs import Job
from trl_agentic.tools.calls.scheduling import Scheduler
from trl_agentic.tools.options import ToolOptions

TOOLS = {"free": ToolOptions(), "single": ToolOptions(max_concurrency=1), "slow": ToolOptions(rate_per_s=0.5)}


class State:
    broken = None


@dataclass(eq=False)
class Task(Job):
    wanted: bool = True
    ready_since: float = math.inf  # the step of the test at which it could run for the first time

    @property
    def is_wanted(self) -> bool:
        return self.wanted


@dataclass
class Naive:
    """All jobs in the order of submission; nothing is remembered but what has happened."""

    jobs: list[Task] = field(default_factory=list)
    running: list[Task] = field(default_factory=list)
    ended: list[Task] = field(default_factory=list)
    last_start: dict[str, float] = field(default_factory=dict)

    def is_waiting(self, job: Task) -> bool:
        return job.wanted and job not in self.running and job not in self.ended

    def is_ready(self, job: Task, states: dict[Task, tuple]) -> bool:
        earlier = self.jobs[: self.jobs.index(job)]
        blocking = [other for other in earlier if self.is_waiting(other) or other in self.running]
        return self.is_waiting(job) and not any(set(states[job]) & set(states[other]) for other in blocking)

    def is_allowed(self, job: Task, now: float) -> bool:
        if job.name == "single" and any(other.name == "single" for other in self.running):
            return False
        return job.name != "slow" or now >= self.last_start.get("slow", -math.inf) + 2.0


operations = st.one_of(
    st.tuples(st.just("add"), st.sampled_from(sorted(TOOLS)), st.sets(st.integers(0, 2), max_size=2)),
    st.tuples(st.just("take")),
    st.tuples(st.just("end"), st.integers(0, 5)),
    st.tuples(st.just("discard"), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.floats(0.0, 3.0)),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(operations, max_size=40))
def test_the_job_taken_is_one_that_may_run_and_has_been_ready_for_longest(steps):
    scheduler, naive, now = Scheduler(), Naive(), 0.0
    lanes: dict[Task, tuple] = {}
    states = [State(), State(), State()]
    for step, (kind, *values) in enumerate(steps):
        if kind == "add":
            job = Task(values[0], 1.0, TOOLS[values[0]], lanes=tuple(states[i] for i in sorted(values[1])))
            lanes[job] = job.lanes
            naive.jobs.append(job)
            scheduler.add(job)
        elif kind == "end" and naive.running:
            job = naive.running.pop(values[0] % len(naive.running))
            naive.ended.append(job)
            scheduler.end(job)
        elif kind == "discard" and naive.jobs:
            job = naive.jobs[values[0] % len(naive.jobs)]
            if naive.is_waiting(job) and len(lanes[job]) < 2:  # what has two lanes is a fork, and always wanted
                job.wanted = False
                scheduler.discard(job)
        elif kind == "wait":
            now += values[0]
        ready = [job for job in naive.jobs if naive.is_ready(job, lanes)]
        for job in ready:
            job.ready_since = min(job.ready_since, step)
        if kind == "take":
            allowed = [job for job in ready if naive.is_allowed(job, now)]
            taken = scheduler.take(now)
            assert (taken is None) == (not allowed)
            if taken is not None:
                assert taken in allowed and taken.ready_since == min(job.ready_since for job in allowed)
                taken.started = now + 1.0
                naive.running.append(taken)
                naive.last_start[taken.name] = now
        busy = {state for job in naive.jobs if naive.is_waiting(job) or job in naive.running for state in lanes[job]}
        for state in states:
            assert scheduler.is_idle([state]) == (state not in busy)


def test_the_next_start_is_known_for_rates_and_not_for_what_waits_for_another_job():
    scheduler = Scheduler()
    assert scheduler.next_start() == math.inf
    for name in ("slow", "slow", "single", "single"):
        scheduler.add(Task(name, 1.0, TOOLS[name]))
    assert scheduler.take(10.0).name == "slow" and scheduler.take(10.0).name == "single"
    assert scheduler.take(10.0) is None
    assert scheduler.next_start() == 12.0  # half a start a second


def test_a_retry_takes_its_place_among_the_starts():
    scheduler = Scheduler()
    job = Task("slow", 1.0, TOOLS["slow"])
    scheduler.add(job)
    assert scheduler.take(0.0) is job
    assert scheduler.queue(job).reserve(0.5) == 2.0
    assert scheduler.queue(job).reserve(0.5) == 4.0


def test_a_thousand_discarded_jobs_of_one_lane_leave_it_together():
    scheduler, state = Scheduler(), State()
    jobs = [Task("free", 1.0, lanes=(state,)) for _ in range(1000)]
    for job in jobs:
        scheduler.add(job)
    for job in reversed(jobs):
        job.wanted = False
        scheduler.discard(job)
    assert scheduler.is_idle([state])


def test_20000_waiting_jobs_cost_no_more_each_than_20():
    scheduler = Scheduler()
    start = time.perf_counter()
    for _ in range(20_000):
        scheduler.add(Task("single", 1.0, TOOLS["single"]))
    for _ in range(20_000):
        scheduler.end(scheduler.take(0.0))
    assert time.perf_counter() - start < 20.0  # looking at all of them each time takes minutes
