"""Random graphs of jobs with random ends, cancels and redrives: every store agrees with a simple model, after each step.

`SUPERVISOR_MODEL_EXAMPLES` is how many histories are tried of each store.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest

from supervisor.stores.extras import Extras
from supervisor.stores.records import EnqueueRow
from tests.stores.factories import dead, release, success, take

WITHOUT_KAFKA = "a partition has no jobs that wait for others"
EXAMPLES = int(os.environ.get("SUPERVISOR_MODEL_EXAMPLES", "30")) // 3
STEPS = 40
BAD, UNFINISHED = ("failed", "cancelled"), ("blocked", "ready")


@dataclass
class Known:
    after: tuple[int, ...]
    on_parent_failed: str
    state: str = "blocked"
    by_parent: bool = False
    """Whether it was cancelled because of a parent."""
    ignored: set[int] = field(default_factory=set)
    """Parents that had ended without success when it was run again by hand."""


class Model:
    """The rules of the guide: the state of a job that waits, or was cancelled because of a parent, follows from those of its parents."""

    def __init__(self) -> None:
        self.jobs: dict[int, Known] = {}

    def add(self, id: int, after: tuple[int, ...], on_parent_failed: str) -> None:
        self.jobs[id] = Known(after, on_parent_failed)

    def end(self, id: int, state: str) -> None:
        self.jobs[id].state, self.jobs[id].by_parent = state, False

    def run_again(self, ids: list[int]) -> None:
        for id in ids:
            self.jobs[id].state, self.jobs[id].by_parent = "ready", False
            self._ignored_no_longer(id)
        self.follow()
        for id in ids:
            job = self.jobs[id]
            job.ignored = {parent for parent in job.after if self.jobs[parent].state in BAD}
            job.state = "blocked"

    def _ignored_no_longer(self, id: int) -> None:
        for child in self.jobs.values():
            child.ignored.discard(id)

    def follow(self) -> None:
        for id in sorted(self.jobs):
            job = self.jobs[id]
            if job.state == "blocked" or job.by_parent:
                states = {self.jobs[parent].state for parent in job.after if parent not in job.ignored}
                bad = not states.isdisjoint(BAD)
                if job.by_parent and not bad:
                    self._ignored_no_longer(id)
                job.by_parent = bad and job.on_parent_failed == "cancel"
                waits = not states.isdisjoint(UNFINISHED) or (bad and job.on_parent_failed == "wait")
                job.state = "cancelled" if job.by_parent else "blocked" if waits else "ready"

    def with_state(self, *states: str) -> list[int]:
        return [id for id, job in self.jobs.items() if job.state in states]


def step(store, model, choice):
    ids, match = list(model.jobs), choice.random()
    if match < 0.35 or not ids:
        after = tuple(sorted(choice.sample(ids, min(len(ids), choice.randint(0, 3)))))
        kind = choice.choice(("cancel", "run", "wait")) if after else "cancel"
        (id,) = store.enqueue([EnqueueRow("mail", "{}", extras=Extras(after=after, on_parent_failed=kind))])
        model.add(id, after, kind)
    elif match < 0.7 and (ready := model.with_state("ready")):
        id, fails = choice.choice(ready), choice.random() < 0.4
        leases = {lease.id: lease for lease in take(store, 1000)}
        assert leases.keys() == set(ready)
        mine = leases.pop(id)
        store.settle([dead(mine) if fails else success(mine), *map(release, leases.values())])
        model.end(id, "failed" if fails else "succeeded")
    elif match < 0.8:
        id = choice.choice(ids)
        if store.cancel([id]).changed:
            model.end(id, "cancelled")
    elif ended := model.with_state("failed", "cancelled", "succeeded"):
        again = choice.sample(ended, choice.randint(1, min(2, len(ended))))
        assert store.retry(again, force=True).changed.keys() == set(again)
        model.run_again(again)
    model.follow()


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_every_store_agrees_with_the_model(factory, store, seed):
    model, choice = Model(), random.Random(seed)
    for _ in range(STEPS):
        step(store, model, choice)
        found = {job["id"]: job["state"] for job in store.list_jobs(limit=1000)}
        assert found == {id: job.state for id, job in model.jobs.items()}
    assert store.repair() == ""
    factory.check()
