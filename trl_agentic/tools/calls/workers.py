"""Threads that run jobs, each with a deadline at which its thread is abandoned and replaced."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable

from .jobs import Job, Outcome
from .scheduling import Scheduler

logger = logging.getLogger(__name__)

_RESTART_S = 1.0  # after which a thread that the system refused is asked for again


class WorkerPool:
    """
    Runs jobs in daemon threads, at most `num_workers` at a time.

    Each job runs until its deadline. Then its thread is abandoned (it ends when the job does, and its outcome is
    ignored) and another takes its place. One more thread watches the deadlines and the rate limits.

    Args:
        num_workers (`int`):
            Jobs that run at the same time.
        run (`Callable[[Job], Outcome]`):
            Runs a job in a worker. Must not raise.
        give_up (`Callable[[Job], Outcome]`):
            The outcome of a job that outlived its deadline. Called with `lock` held: must neither wait nor raise.
        finish (`Callable[[Job, Outcome], None]`):
            Takes the outcome of a job, exactly once per job. Called with `lock` held.

    Attributes:
        lock (`threading.RLock`):
            Guards the pool, the scheduler, and what the caller keeps together with them.
        closing (`threading.Event`):
            Set when the pool is closed.
    """

    def __init__(
        self,
        num_workers: int,
        run: Callable[[Job], Outcome],
        give_up: Callable[[Job], Outcome],
        finish: Callable[[Job, Outcome], None],
    ):
        self.lock = threading.RLock()
        self.closing = threading.Event()
        self.scheduler = Scheduler()
        self._num_workers = num_workers
        self._run, self._give_up, self._finish = run, give_up, finish
        self._work_came = threading.Condition(self.lock)
        self._alarm_moved = threading.Condition(self.lock)
        self._alarm = math.inf  # when the watcher looks up next
        self._running: set[Job] = set()
        self._threads: dict[threading.Thread, Job | None] = {}  # with the job each is at; the abandoned are not here
        self._watcher: threading.Thread | None = None
        self._abandoned: list[threading.Thread] = []

    @property
    def num_abandoned(self) -> int:
        """Threads that are still in a call that was given up."""
        with self.lock:
            self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
            return len(self._abandoned)

    def check_open(self) -> None:
        """Raises `RuntimeError` if the pool is closed."""
        if self.closing.is_set():
            raise RuntimeError("This ToolRuntime is closed; make a new one.")

    def add(self, jobs: Iterable[Job]) -> None:
        """Let jobs wait for a worker. Raises `RuntimeError` if the pool is closed."""
        with self.lock:
            self.check_open()
            num_added = 0
            for job in jobs:
                self.scheduler.add(job)
                num_added += 1
            if num_added:
                self._start_threads()
                self._work_came.notify(num_added)

    def discard(self, jobs: Iterable[Job]) -> None:
        """Let jobs that nobody waits for any more hold up nobody; those that run are left alone."""
        with self.lock:
            for job in jobs:
                self.scheduler.discard(job)
            if self.scheduler.num_waiting:  # the way may be free for others
                self._start_threads()
                self._work_came.notify()

    def reserve_start(self, job: Job, now: float) -> float:
        """Take the next start that the rate limit of a job's tool allows; returns its time, at least `now`."""
        with self.lock:
            return self.scheduler.queue(job).reserve(now)

    def close(self) -> None:
        """Drop what is waiting and stop. Idle threads are waited for; one that is at a job ends with it."""
        with self.lock:
            self.closing.set()
            self.scheduler.clear()
            idle = [thread for thread, job in self._threads.items() if job is None]
            idle += [self._watcher] if self._watcher is not None else []
            self._work_came.notify_all()
            self._alarm_moved.notify_all()
        for thread in idle:
            thread.join()

    def _start_threads(self) -> None:
        """Start the watcher, and as many workers as there is work for; the lock is held."""
        if self._watcher is None:
            self._watcher = self._start_thread("watch", self._watch)
        wanted = min(self._num_workers, len(self._running) + self.scheduler.num_waiting)
        try:
            while len(self._threads) < wanted and not self.closing.is_set():
                self._threads[self._start_thread("work", self._work)] = None
        except RuntimeError as error:  # the system has no thread to give; those that hang may end
            logger.warning(f"{error}: {len(self._threads)} of {wanted} tool workers run, the rest is tried again.")
            self._set_alarm(time.monotonic() + _RESTART_S)

    def _start_thread(self, name: str, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"trl-agentic-tool-{name}", daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        """Body of a worker: run one job after another, until closed or replaced."""
        thread = threading.current_thread()
        while (job := self._next_job(thread)) is not None:
            outcome = self._run(job)
            with self.lock:
                if job.expired:
                    return  # this thread was replaced, and the job is answered
                self._threads[thread] = None
                self._end(job, outcome)

    def _next_job(self, thread: threading.Thread) -> Job | None:
        """Wait for a job and start it; `None` when closed."""
        with self.lock:
            while not self.closing.is_set():
                now = time.monotonic()
                job = self.scheduler.take(now)
                if job is not None:
                    self._start(job, thread, now)
                start = self.scheduler.next_start()
                if start > now:
                    self._set_alarm(start)
                elif job is not None:
                    self._work_came.notify()  # there is more to do
                if job is not None:
                    return job
                self._work_came.wait()
            del self._threads[thread]
            return None

    def _start(self, job: Job, thread: threading.Thread, now: float) -> None:
        job.started = now
        job.deadline = now + job.timeout_s
        self._running.add(job)
        self._threads[thread] = job
        self._set_alarm(job.deadline)

    def _end(self, job: Job, outcome: Outcome) -> None:
        self._running.remove(job)
        self._finish(job, outcome)
        self.scheduler.end(job)
        if self.scheduler.num_waiting:
            self._start_threads()
            self._work_came.notify()

    def _set_alarm(self, moment: float) -> None:
        if moment < self._alarm:
            self._alarm = moment
            self._alarm_moved.notify()

    def _watch(self) -> None:
        """Body of the watcher: give up the jobs that outlive their deadline, and wake workers for rate limits."""
        while True:
            with self.lock:
                for job in self._expire(time.monotonic()):
                    self._end(job, self._give_up(job))
                if self.closing.is_set():
                    return
                self._wait_for_alarm()

    def _wait_for_alarm(self) -> None:
        now = time.monotonic()
        self._alarm = min((job.deadline for job in self._running), default=math.inf)
        self._start_threads()
        start = self.scheduler.next_start()
        if start <= now:
            self._work_came.notify()
        else:
            self._alarm = min(self._alarm, start)
        wait_s = min(max(self._alarm - now, 0.0), threading.TIMEOUT_MAX)  # with no alarm: for as long as can be
        self._alarm_moved.wait(wait_s)

    def _expire(self, now: float) -> list[Job]:
        """Abandon the threads of the jobs whose deadline has passed; returns these jobs."""
        late = [job for job in self._running if job.deadline <= now]
        for job in late:
            job.expired = True
            if job.future is not None:
                job.future.cancel()
            (thread,) = (thread for thread, at in self._threads.items() if at is job)
            del self._threads[thread]
            self._abandoned = [thread, *(other for other in self._abandoned if other.is_alive())]
        return late
