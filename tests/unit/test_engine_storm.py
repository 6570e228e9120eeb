"""The engine in a storm: whatever happens in whatever order, the books agree and every job ends."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from supervisor.jobs import JobState
from supervisor.processes.places import State
from tests.unit.fakes import FakeChild, FakeChildren
from tests.unit.virtual import Virtual

HANDLERS = ("work", "flaky", "nope")
ERROR = {"type": "Oops", "message": "no"}


class Storm:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.here = Virtual(
            workers=self.random.randint(1, 4),
            handlers=HANDLERS[:2],
            retry={"max_retries": 2, "max_in_flight": self.random.choice(["half", "none", 1]), "burst": 2},
            unknown_handler={"grace": 60.0},
        )
        self.children = [self.here.children]
        self.runs: Counter[int] = Counter()
        self.here.serve()

    def every_child(self) -> list[FakeChild]:
        return [worker.child for worker in self.here.pool.workers.values()]  # type: ignore[misc]

    def any_child(self) -> FakeChild | None:
        children = self.every_child()
        return self.random.choice(children) if children else None

    # what may happen

    def enqueue(self) -> None:
        name, queue = self.random.choice(HANDLERS), self.random.choice("ab")
        delay = self.random.choice([None, None, 1.0])
        self.here.enqueue(*[name] * self.random.randint(1, 6), queue=queue, delay=delay)
        self.here.ring()

    def run(self) -> None:
        child = self.any_child()
        if child is None or child.killed:
            return
        if child.permits and not self.runs_one(child):
            lease = child.start_next()
            self.runs[lease.id] += 1
        elif self.runs_one(child):
            failed = self.random.random() < 0.3
            child.finish("failed" if failed else "ok", self.random.choice([0.0005, 0.01, 5.0]), ERROR)
            if self.random.random() < 0.8:
                child.drain()

    def runs_one(self, child: FakeChild) -> bool:
        """It has taken a permit and not answered yet."""
        frames = Counter(frame for frame, _ in child.jobs)
        return bool(child.jobs) and Counter(child.permits)[child.jobs[0][0]] < frames[child.jobs[0][0]]

    def die(self) -> None:
        child = self.any_child()
        if child is not None:
            child.die(signal="SIGKILL")

    def bury(self) -> None:
        for child in self.every_child():
            if child.killed or (child.retired and not child.jobs):
                child.die(exit_code=0)

    def come_up(self) -> None:
        for worker in list(self.here.pool.workers.values()):
            if worker.state is State.STARTING:
                worker.child.come_up()  # type: ignore[attr-defined]

    def read(self) -> None:
        for child in self.every_child():
            child.drain()

    def wait(self) -> None:
        self.here.loop.advance(self.random.choice([0.01, 0.3, 2.0]))
        for child in self.every_child():
            self.here.pool.beat(child)

    def tick(self) -> None:
        self.here.engine.tick("running")

    def stand_still(self) -> None:
        self.here.loop.stand_still(20.0)

    def store(self) -> None:
        self.here.writer.away = not self.here.writer.away
        self.here.writer.step()

    def slow_store(self) -> None:
        self.here.writer.eager = not self.here.writer.eager
        self.here.writer.step()

    def lose_answer(self) -> None:
        """The commit was made, but the answer says that it was not: the same work is done again."""
        writer = self.here.writer
        if writer.waiting and not writer.away:
            with writer.store.transaction():
                writer.waiting[0][0](writer.store)

    def operate(self) -> None:
        ids = [self.random.randint(1, 40) for _ in range(3)]
        getattr(self.here.store, self.random.choice(["cancel", "retry", "redrive"]))(ids)
        if self.random.random() < 0.7:
            self.here.engine._rung()

    def pause(self) -> None:
        self.here.store.pause(self.random.choice("ab"), self.random.random() < 0.5)

    def reload(self) -> None:
        children = FakeChildren(self.here.pool)
        self.here.engine.renew(self.here.settings, children, self.here.engine._reports)

    # what must hold

    def books_agree(self) -> None:
        engine, pool = self.here.engine, self.here.pool
        held = [lease for lane in engine.fetcher._lanes.values() for lease in lane.everything()]
        assert len(held) == len(engine.fetcher)
        sent = [lease for worker in pool.workers.values() for lease in worker.sent]
        here = Counter(lease.id for lease in [*held, *sent] if engine.leases.holds(lease))
        assert all(n == 1 for n in here.values()), here

    def calm_down(self) -> None:
        here = self.here
        here.writer.away, here.writer.eager = False, True
        here.writer.step()
        for queue in "ab":
            here.store.pause(queue, False)
        for _ in range(600):
            self.come_up()
            self.bury()
            for child in self.every_child():
                while not child.killed and (child.permits or child.jobs):
                    if not self.runs_one(child):
                        if not child.permits:
                            child.jobs.clear()
                            break
                        child.start_next()
                    child.finish(took=0.001)
                child.drain()
            here.loop.advance(0.5)
            self.tick()
            if all(JobState(job["state"]).terminal for job in here.store.list_jobs(limit=10_000)):
                return


WEIGHTS: dict[Any, int] = {
    Storm.enqueue: 6, Storm.run: 40, Storm.die: 1, Storm.bury: 6, Storm.come_up: 6, Storm.read: 6, Storm.wait: 12,
    Storm.tick: 4, Storm.stand_still: 1, Storm.store: 1, Storm.slow_store: 2, Storm.operate: 2, Storm.pause: 1,
    Storm.reload: 1, Storm.lose_answer: 10,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_every_job_ends_and_the_books_agree(seed: int) -> None:
    storm = Storm(seed)
    for step in storm.random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=400):
        step(storm)
        storm.books_agree()
    storm.calm_down()
    storm.books_agree()
    jobs = storm.here.store.list_jobs(limit=10_000)
    assert [job for job in jobs if not JobState(job["state"]).terminal] == []
    assert len(storm.here.engine.leases) == 0
    assert all(job["retries"] <= 2 for job in jobs)
