"""A world of several supervisors on one store, made by one seed: the same seed is the same history, to the step.

Time is virtual and goes from one event to the next: a timer of an owner's loop, the end of a script, a fault, a client. In a
*dense* history the engine has its usual intervals (maintenance every second, a poll every five); in a *sparse* one they are half
a minute to two minutes, as on a machine that is slow to answer, and days pass quickly. Hours are counted on this clock.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from supervisor.config.settings import Settings
from supervisor.dead_letters.publisher import PublisherLimits
from supervisor.engine.limits import DEFAULT_LIMITS, Limits
from supervisor.jobs import Lease
from supervisor.stores.records import EnqueueRow
from tests.simulation.checks import LIMIT_OF_A, LIMIT_OF_SLOW, TERMINAL, Checks, Record
from tests.simulation.clock import Clock
from tests.simulation.owner import Owner
from tests.simulation.promises import Broken
from tests.simulation.workers import HANG

HANDLERS = ("fast", "slow", "flaky", "crash", "hang", "spin", "hopeless", "picky")
STRANGE = "nobody"
QUEUES = ("a", "b")
SPARSE_POLL = 120.0  # seconds, for jobs and for dead letters
SPARSE_WATCH = 60.0  # seconds
SPARSE_SCALING = 5.0  # seconds
CALM = 12 * 3600.0
REMEMBERED = 80


@dataclass
class Odds:
    """Probabilities. Of a transaction, cumulative: to be refused, to fail half way, to lose its answer. Of a worker: to fail to
    start, and to exit just before it starts its job."""

    refused: float = 0.01
    half_way: float = 0.02
    lost: float = 0.05
    fails_to_start: float = 0.02
    exits_idle: float = 0.003


SLOW_LIMIT = {"slow": {"limit": {"running": LIMIT_OF_SLOW, "rate": "30/1m"}}}


class World:
    may_limit = True
    """Whether half of the histories have limits of a queue and of a handler."""

    def __init__(
        self, seed: int, hours: float, factory: Callable[[Callable[[], float]], Any], limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.clock = Clock()
        self.end = self.clock.now + hours * 3600.0
        self.dense = hours <= 1.0
        self.longest_period = 1.0 if self.dense else 100.0
        self.limits = (
            limits if self.dense else limits._replace(poll=SPARSE_POLL, watch=SPARSE_WATCH, scaling=SPARSE_SCALING)
        )
        self.publisher_limits = PublisherLimits() if self.dense else PublisherLimits(look=SPARSE_POLL)
        self.odds = Odds()
        self.stormy = True
        self.keeps_time = False  # no clock is set
        self.noticed_after = 1.0  # seconds until a ready job is noticed, if notifications come
        self.handlers = HANDLERS
        self.taken: dict[str, set[int]] = {
            name: set() for name in ("first", "second", "third")[: self.random.randint(1, 3)]
        }
        self.cursed: set[int] = set()
        self.paused: set[str] = set()
        self.checks = Checks(self)
        self.factory = factory(self.clock.wall)
        self.client = self.factory.open()
        self.owners: list[Owner] = []
        self.ended: set[int] = set()
        self.steps: deque[str] = deque(maxlen=REMEMBERED)
        self.faults: Counter[str] = Counter()
        self.faults_to_come = FAULTS
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._pid = 10_000
        self._number = 0
        self._calm = False
        self._over = False
        self._clock_ahead = 0.0
        self.limited = self.may_limit and seed % 4 in (1, 2)
        self.settings = self._settings()

    def _settings(self) -> Settings:
        pick = self.random.choice
        sinks = [{"type": "simulated", "name": name, "key": f"dlq.sinks.{name}", "options": {}} for name in self.taken]
        count = {"min": 1, "max": 3, "idle_after": "1m"}
        return Settings(
            workers={
                "groups": {"own": {"queues": [QUEUES[1]], "count": count}} if self.seed % 3 == 1 else {},
                "count": self.random.randint(1, 3), "max_jobs": pick([None, None, 3]), "timeout": "5m",
                "heartbeat": "1s" if self.dense else "30s", "heartbeat_timeout": "30s" if self.dense else "3m",
            },
            lease={"ttl": "30s" if self.dense else pick(["2m", "5m"])},
            retry={
                "max_retries": self.random.randint(0, 4), "burst": pick([1, 4, 16]), "fetch_ratio": pick([0.2, 0.5, 1.0]),
                "max_in_flight": pick(["half", "none", 1]),
                "backoff": {"base": pick(["500ms", "10s"]), "max": pick(["30s", "1m" if self.dense else "10m"]), "jitter": pick(["full", "none"])},
            },
            queues={"a": {"limit": {"running": LIMIT_OF_A}}} if self.limited else {},
            handlers={"hang": {"timeout": "90s"}, "spin": {"timeout": "45s"}, **(SLOW_LIMIT if self.limited else {})},
            dlq={"sinks": sinks},
            retention={"succeeded": "2h", "cancelled": "2h", "failed": "2h"},
            unknown_handler={"grace": "1m" if self.dense else "15m"},
        )  # fmt: skip

    # for the parts

    def next_pid(self) -> int:
        self._pid += 1
        return self._pid

    def next_period(self) -> float:
        return 1.0 if self.dense else self.random.uniform(20.0, self.longest_period)

    def next_sinks(self) -> tuple[str, ...]:
        """The sinks of the next owner, as in a deploy that adds one or removes one."""
        some = self.random.choice(list(self.taken))
        return tuple(name for name in self.taken if name == some or self.random.random() < 0.6)

    def latency(self) -> float:
        """Of the writer's thread, one way."""
        lot = self.random.random()
        if self.stormy and lot < 0.01:
            return self.random.uniform(0.1, 2.0)
        return 0.0005 + lot * 0.002

    def hesitation(self) -> float:
        """Seconds that a child takes before it starts its next job."""
        return self.random.uniform(0.0, 0.4) if self.stormy and self.random.random() < 0.1 else 0.0002

    def script(self, lease: Lease) -> tuple[str, float]:
        """Return how the job ends this time, and after how many seconds."""
        lot, short = self.random.random(), self.random.uniform(0.0005, 0.05)
        if lease.handler == "slow":
            return "ok", self.random.uniform(0.5, 60.0)
        if lease.handler == "flaky":
            return ("failed" if lot < 0.5 else "ok"), short
        if lease.handler == "crash":
            return (("crash" if lot < 0.2 else "exit") if lot < 0.4 else "ok"), short
        if lease.handler in ("hang", "spin") and lot < 0.4:
            return lease.handler, HANG
        if lease.handler == "hopeless":
            return "failed", short
        if lease.handler == "picky":
            return ("rejected" if lot < 0.3 else "retry" if lot < 0.5 else "snoozed" if lot < 0.8 else "ok"), short
        return "ok", short

    def may_lose_leases(self, number: int) -> bool:
        for owner in self.owners:
            if owner.number == number:
                return owner.frozen or owner.ending or self.clock.now < owner.excused_until
        return True

    def left(self, owner: Owner) -> None:
        """Note that it has ended by itself."""
        self.ended.add(owner.number)
        if not owner.forced.is_set() and self.clock.now > owner.excused_until:
            self.checks.left_orderly(owner)
        self.after(0.0, owner.vanish)

    def notify(self, but: Owner | None = None) -> None:
        """Notify the owners; some notifications are lost."""
        for owner in self.owners:
            if owner is not but and self.random.random() < (0.9 if self.stormy else 1.0):
                owner.after(0.0005, owner.notified)

    # the agenda

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (self.clock.now + seconds, self._count, call))

    def note(self, step: str) -> None:
        self.faults[step.split(" ")[0]] += 1
        self.steps.append(f"{self.clock.now:.3f} {step}")

    def run(self) -> None:
        """The history, from its first supervisor to its last; raises Broken, with the seed and the last steps."""
        try:
            for _ in range(self.random.randint(1, 3)):
                self.start_owner()
            self.after(0.1, self._enqueue_again)
            self.after(self.pause_between_faults(), self._fault_again)
            self.after(5.0, self._look_again)
            while self.clock.now < self.end:
                self._step()
            self._calm_down()
        except Exception as error:
            error.add_note(f"seed {self.seed}, at {self.clock.now:.3f}, after {self._count} events; the last steps:")
            error.add_note("\n".join(self.steps))
            raise
        finally:
            self._close()

    def _close(self) -> None:
        for owner in self.owners:
            owner.vanish()
            owner.loop.close()
        self.factory.close()

    def _step(self) -> None:
        """One turn of a loop that has something to do, whichever; or time goes on to what comes next."""
        now, agenda = self.clock.now, self._agenda
        if agenda and agenda[0][0] <= now:
            heapq.heappop(agenda)[2]()
            return
        ready, soonest = [], None
        for owner in self.owners:
            if owner.frozen or not owner.alive:
                continue
            due = owner.loop.next_due()
            if due is None:
                continue
            if due <= now:
                ready.append(owner)
            elif soonest is None or due < soonest:
                soonest = due
        if ready:
            owner = ready[0] if len(ready) == 1 else self.random.choice(ready)
            owner.loop.turn()
            if owner.loop.faults:
                owner.check()
            owner.check_dispatch()
            if owner.alive and hasattr(owner, "executor"):
                owner.executor.look()
        else:
            when = agenda[0][0] if agenda else None
            if soonest is not None and (when is None or soonest < when):
                when = soonest
            if when is None:
                raise Broken("nothing will ever happen again")
            self.clock.now = max(now, when)

    # clients

    def _enqueue_again(self) -> None:
        if self._calm:
            return
        self.enqueue()
        quiet = self.random.random() < 0.02
        self.after(
            self.random.uniform(60, 1200) if quiet else self.random.expovariate(1 / self.gap()), self._enqueue_again
        )

    def gap(self) -> float:
        return 1.5 if self.dense else 240.0

    def enqueue(self) -> None:
        names = self.random.choices(HANDLERS, (12, 4, 4, 2, 1, 1, 1, 2), k=self.random.choice([1, 1, 2, 8]))
        queue = self.random.choice(QUEUES)
        if self.random.random() < 0.02:
            names, queue = [STRANGE], "strange"
        delay = self.random.choice([None, None, None, 2.0, 60.0 if self.dense else 300.0])
        most = self.random.choice([None, None, 1])
        priority = self.random.choice([0, 0, 0, 5, 100])
        self.add([EnqueueRow(name, "null", queue, priority, delay, max_retries=most) for name in names])

    def add(self, rows: list[EnqueueRow]) -> None:
        for id, row in zip(self.client.enqueue(rows), rows, strict=True):
            most = self.settings.retry.max_retries if row.max_retries is None else row.max_retries
            self.checks.accepted_job(Record(id, row.handler, row.queue, most, self.clock.now, row.delay or 0.0))
            if self.stormy and self.random.random() < 0.005:
                self.cursed.add(id)
        self.notify()

    # faults

    def pause_between_faults(self) -> float:
        return self.random.expovariate(1 / 12.0) if self.dense else self.random.expovariate(1 / 600.0)

    def _fault_again(self) -> None:
        if self._calm:
            return
        fault = self.random.choices(list(self.faults_to_come), list(self.faults_to_come.values()))[0]
        self.note(fault.__name__.strip("_"))
        fault(self)
        self.after(self.pause_between_faults(), self._fault_again)

    def _look_again(self) -> None:
        self.checks.no_job_runs_too_long()
        self.checks.no_worker_idles()
        for owner in self.owners:
            if owner.well:
                owner.check_leases()
        if self.random.random() < 0.1:
            self.checks.store_agrees(self.client)
        self.after(7.0 if self.dense else 150.0, self._look_again)

    def start_owner(self) -> None:
        if self._over:
            return
        self._number += 1
        self.owners.append(Owner(self, self._number, self.factory.open(), self.settings_of_next_owner()))

    def settings_of_next_owner(self) -> Settings:
        return self.settings

    def _any_owner(self) -> Owner | None:
        return self.random.choice(self.owners) if self.owners else None

    def kill_owner(self) -> None:
        owner = self._any_owner()
        if owner is not None:
            self.kill(owner)

    def kill(self, owner: Owner) -> None:
        self.note(f"killed {owner}")
        owner.vanish()
        owner.loop.close()
        self.factory.dies(owner.store._inner, provably=self.random.random() < 0.5)
        self._replace(owner)

    def _replace(self, owner: Owner) -> None:
        self.owners.remove(owner)
        late = self.random.random() < 0.2
        self.after(self.random.uniform(0.0, 2000.0 if late else 2.0), self.start_owner)

    def end_owner(self) -> None:
        owner = self._any_owner()
        if owner is not None and owner.started and not owner.frozen:
            owner.ask_to_end()
            if self.random.random() < 0.3:
                owner.after(self.random.uniform(0.0, 5.0), owner.ask_to_end)
            self.after(120.0, lambda: self._replace_ended(owner))

    def _replace_ended(self, owner: Owner) -> None:
        if owner not in self.owners:
            return
        if owner.number not in self.ended:  # frozen meanwhile, or waiting for an unavailable store
            self.after(120.0, lambda: self._replace_ended(owner))
            return
        owner.loop.close()
        self._replace(owner)

    def freeze_owner(self) -> None:
        owner = self._any_owner()
        if owner is not None and not owner.frozen:
            tree = self.random.random() < 0.5
            ttl = self.settings.lease.ttl
            seconds = self.random.choice([0.2, 1.5, ttl / 2, ttl * 1.2, ttl * 4])
            self.note(f"frozen {owner} {'with its tree' if tree else 'alone'} for {seconds:g}s")
            owner.freeze(tree)
            self.after(seconds, owner.thaw)

    def lose_store(self) -> None:
        seconds = self.random.choice([0.05, 2.0, 20.0, 2 * self.settings.lease.ttl])
        everybody = self.random.random() < 0.5
        for owner in list(self.owners) if everybody else [self._any_owner()] if self.owners else []:
            assert owner is not None
            owner.store.unavailable_until = self.clock.now + seconds
            self.after(seconds, owner.excuse)
            owner.excuse()

    def step_clock(self) -> None:
        step = self.random.choice([-3600.0, -40.0, -5.0, 5.0, 40.0, 3600.0])
        if abs(self._clock_ahead + step) <= 7200.0:
            self._clock_ahead += step
            self.clock.ahead += step
            for owner in self.owners:
                owner.excuse()

    def kill_child(self) -> None:
        owner = self._any_owner()
        backend = [process for process in owner.backend if process.alive] if owner else []
        if backend:
            self.random.choice(backend).perish("signal", "SIGKILL")

    def resize(self) -> None:
        owner = self._any_owner()
        if owner is not None:
            owner.soon(owner.resize, self.random.randint(1, 4))

    def reload(self) -> None:
        owner = self._any_owner()
        if owner is not None:
            owner.soon(owner.reload, owner.settings)

    def operate(self) -> None:
        command = self.random.choice(["cancel", "retry", "redrive", "delete"])
        known = list(self.checks.records)
        ids = self.random.sample(known, min(3, len(known)))
        changed, _ = getattr(self.client, command)(ids)
        self.checks.operated(command, changed)
        self.notify()

    def pause(self) -> None:
        queue = self.random.choice(QUEUES)
        paused = self.random.random() < 0.4
        self.client.pause(queue, paused)
        (self.paused.add if paused else self.paused.discard)(queue)
        self.notify()

    def drop_sinks(self) -> None:
        """Drop those that no supervisor has."""
        for name in self.taken:
            if not any(name in owner.sinks for owner in self.owners):
                self.client.drop_sink(name)
                self.checks.dropped(name)

    def change_weather(self) -> None:
        self.stormy = not self.stormy

    # the end

    def _calm_down(self) -> None:
        """The faults rest: every job ends, though fresh ones keep coming; and nothing is left."""
        self._calm, self.stormy = True, False
        for owner in self.owners:
            owner.thaw()
            owner.store.unavailable_until = 0.0
        for queue in self.paused:
            self.client.pause(queue, False)
        self.paused.clear()
        last = max(self.checks.records, default=0)
        give_up = self.clock.now + CALM
        while any(record.state not in (*TERMINAL, "gone") for id, record in self.checks.records.items() if id <= last):
            if self.clock.now > give_up:
                break
            self._keep_fresh_ones_coming()
            self._go_on_for(20.0)
        self._go_on_for(600.0)
        self.drop_sinks()
        left = self.client.remaining(None, None)
        if any(kind.startswith("dead_letters") for kind in left):
            raise Broken(f"dead letters are pending: {left}, {self.client.stats()['sinks']}")
        self.checks.all_ended()
        self.checks.store_agrees(self.client)
        self._at_rest()
        self.checks.nothing_was_lost()

    def _keep_fresh_ones_coming(self) -> None:
        self.add([EnqueueRow("fast", "null", queue, 0) for queue in QUEUES for _ in range(3)])

    def _go_on_for(self, seconds: float) -> None:
        until = self.clock.now + seconds
        self.after(seconds, lambda: None)
        while self.clock.now < until:
            self._step()

    def _at_rest(self) -> None:
        self._over = True
        for owner in self.owners:
            if owner.alive and not owner.ending:
                owner.at_rest()
                owner.ask_to_end()
        self._go_on_for(300.0)
        for owner in self.owners:
            if owner.alive:
                raise Broken(f"{owner} did not end")


FAULTS: dict[Callable[[World], None], int] = {
    World.kill_owner: 3, World.end_owner: 2, World.freeze_owner: 4, World.lose_store: 3, World.step_clock: 2,
    World.kill_child: 6, World.resize: 2, World.reload: 1, World.operate: 4, World.pause: 2, World.change_weather: 3,
    World.drop_sinks: 1,
}  # fmt: skip
