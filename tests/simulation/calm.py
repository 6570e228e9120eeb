"""Supervisors that start and end in order, on a store that never fails, and that look only when they are notified: a worker that
idles beside a ready job has not been notified of it."""

from __future__ import annotations

from supervisor.config.settings import Settings
from supervisor.engine.limits import DEFAULT_LIMITS
from supervisor.jobs import Lease
from supervisor.stores.records import EnqueueRow
from tests.simulation.stores import InMemory
from tests.simulation.world import QUEUES, World

HOURS = 0.05
NO_POLL = DEFAULT_LIMITS._replace(poll=1e6)
LOOK_EVERY = 0.2  # seconds


class CalmWorld(World):
    """Supervisors with one worker each, and bursts of jobs with silence between them. One of them serves all queues, and of
    the others each serves all or one."""

    may_limit = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed, HOURS, InMemory, NO_POLL)
        self.stormy = False
        self.keeps_time = True
        self.noticed_after = 0.1
        self.faults_to_come = {World.end_owner: 1, World.reload: 1, World.operate: 1, World.pause: 1}

    def run(self) -> None:
        self.after(0.0, self.start_owner)
        self.after(1.0, self._look_for_idle_workers)
        super().run()

    def settings_of_next_owner(self) -> Settings:
        serves_all = any(owner.settings.workers.queues is None for owner in self.owners)
        served = self.random.choice([None, *map(frozenset, QUEUES)]) if serves_all else None
        return self.settings.replace(workers=self.settings.workers.replace(queues=served, count=1))

    def pause_between_faults(self) -> float:
        return 120.0

    def gap(self) -> float:
        return 5.0

    def enqueue(self) -> None:
        """Enqueue quick jobs, or a job that may fail and one that keeps its worker busy: both are claimed at once then."""
        names, queue = self.random.choice([["fast"] * 60, ["fast"] * 60, ["flaky", "slow"]]), self.random.choice(QUEUES)
        self.add([EnqueueRow(name, "null", queue) for name in names])

    def script(self, lease: Lease) -> tuple[str, float]:
        return ("ok", self.random.uniform(1.0, 10.0)) if lease.handler == "slow" else super().script(lease)

    def _look_for_idle_workers(self) -> None:
        self.checks.no_worker_idles()
        self.after(LOOK_EVERY, self._look_for_idle_workers)
