"""One supervisor in the simulation: the real engine, started and ended as by `supervisor run`, or killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from supervisor.config.settings import Settings
from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.dead_letters.sink_runner import SinkRunner
from supervisor.engine.coordinator import Coordinator
from supervisor.engine.store_writer import Work, Writer
from supervisor.events import Bus
from supervisor.handlers import HandlerInfo
from supervisor.jobs import Lease
from supervisor.plugins.reports import SourceReport
from supervisor.workers.pool import Pool
from supervisor.workers.worker_group import OTHERS
from tests.simulation.clock import TurnedLoop
from tests.simulation.promises import holds
from tests.simulation.store import NOTIFICATION_FD, FaultyStore
from tests.simulation.workers import SimulatedBackend, SimulatedWorker

if TYPE_CHECKING:
    from tests.simulation.world import World


class Owner:
    """`number` is never used again, as the id of an owner. While it is frozen its callbacks wait; its workers may go on."""

    def __init__(self, world: World, number: int, inner: Any, settings: Settings) -> None:
        self.world = world
        self.number = number
        self.settings = settings
        self.loop = TurnedLoop(world.clock)
        self.store = FaultyStore(inner, self)
        self.alive = True
        self.started = False
        self.ending = False
        self.frozen = False
        self.tree_frozen = False
        self.stood = 0.0
        self.gaps = 0
        self._frozen_at = 0.0
        self.excused_until = 0.0
        self.backend: list[SimulatedWorker] = []
        self.listened: set[SimulatedWorker] = set()
        self._late: list[Callable[[], None]] = []
        self._late_in_workers: list[Callable[[], None]] = []
        self.sinks = world.next_sinks()
        inner.join(f"owner-{number}", "here", number, frozenset(self.sinks))
        self.loop.call_soon(self._begin)

    def __repr__(self) -> str:
        return f"owner-{self.number}"

    @property
    def well(self) -> bool:
        """Nothing keeps it from working."""
        unavailable = self.world.clock.now < self.store.unavailable_until + 5.0
        return (
            self.alive and self.started and not (self.frozen or self.ending or unavailable or self.writer.unavailable)
        )

    # time

    def soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        if self.alive:
            self.loop.call_soon(call, *arguments)

    def after(self, seconds: float, call: Callable[..., Any], *arguments: Any) -> None:
        """Call on its loop: once it is no longer frozen, and never once it is killed."""

        def run() -> None:
            if self.frozen:
                self._late.append(run)
            elif self.alive:
                self.loop.call_soon(call, *arguments)

        self.world.after(seconds, run)

    def in_worker(self, seconds: float, call: Callable[..., Any], *arguments: Any) -> None:
        """Call in a worker: also while its supervisor is frozen, unless the worker is frozen too."""

        def run() -> None:
            if self.tree_frozen:
                self._late_in_workers.append(run)
            else:
                call(*arguments)

        self.world.after(seconds, run)

    def freeze(self, tree: bool) -> None:
        self.frozen, self.tree_frozen, self._frozen_at = True, tree, self.world.clock.now

    def thaw(self) -> None:
        if not self.frozen:
            return
        self.frozen = self.tree_frozen = False
        self.stood += self.world.clock.now - self._frozen_at
        self.gaps += 1
        self.excuse()
        late, self._late = self._late + self._late_in_workers, []
        self._late_in_workers = []
        for run in late:
            run()

    def excuse(self) -> None:
        """It may lose its leases, from now on for two and a half times their time to live."""
        self.excused_until = max(self.excused_until, self.world.clock.now + 2.5 * self.settings.lease.ttl)

    # life

    def _begin(self) -> None:
        self.stop, self.forced = asyncio.Event(), asyncio.Event()
        self._living = self.loop.create_task(self._run())
        self._living.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.loop.faults.append(task.exception())  # type: ignore[arg-type]

    async def _run(self) -> None:
        world = self.world
        self.bus = Bus()
        workers = self.settings.workers
        self.pool = Pool(workers.sizes[OTHERS].min, self.bus, self.loop, max_jobs=workers.max_jobs)
        self.pool.configure(workers.sizes)
        self.writer = Writer(self.store, self.loop, self.bus, lambda writer: Executor(writer, self))  # type: ignore[arg-type]
        runners = [SinkRunner(name, Sink(self, name), lambda _: Caller(self)) for name in self.sinks]
        self.dead_letters = DeadLetterPublisher(self.writer, runners, self.bus, self.loop, world.publisher_limits)
        self.engine = Coordinator(
            self.store, self.pool, self.settings, self._reports(), self.bus, self.loop, self.writer,  # type: ignore[arg-type]
            random=world.random.random, on_dead_letter=self.dead_letters.look, wall=world.clock.wall,
            suspended=lambda: 0.0, limits=world.limits,
        )  # fmt: skip
        reclaimed = self.engine.jobs_reclaimed

        def jobs_reclaimed(leases: list[Lease]) -> None:
            world.checks.turns.reclaimed(self, leases)
            reclaimed(leases)

        self.engine.jobs_reclaimed = jobs_reclaimed  # type: ignore[method-assign]
        self.dead_letters.on_quiet = self.engine.changes.set
        await self.engine.recover()
        self.engine.serve(SimulatedBackend(self))
        self.dead_letters.look()
        self.started = True
        maintaining, heartbeats = (
            self.loop.create_task(self._every_period()),
            self.loop.create_task(self._send_heartbeats()),
        )
        await self.stop.wait()
        await self._end()
        maintaining.cancel()
        heartbeats.cancel()
        await self.engine.close(5.0)
        self.world.left(self)

    def _reports(self) -> list[SourceReport]:
        return [SourceReport("work.py", tuple(HandlerInfo(name, {}, "work.py", 1) for name in self.world.handlers))]

    async def _every_period(self) -> None:
        while True:
            await asyncio.sleep(self.world.next_period())
            self.engine.maintain("draining" if self.ending else "running")

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self.settings.workers.heartbeat)
            for process in self.backend:
                if process.alive and process.up and not process.silent and process in self.listened:
                    process.send_heartbeat()
            self.backend = [process for process in self.backend if process in self.listened or process.run]

    async def _end(self) -> None:
        self.ending = True
        await self.engine.drain(self.settings.shutdown.grace, self.forced)
        flushed = await _wait_for(self.engine.settle_all(), 5.0)
        if flushed and not self.forced.is_set():
            await _wait_for(self.dead_letters.settle_down(), 2.0)
        await _wait_for(self.dead_letters.stop(), 5.0)
        await _wait_for(self.dead_letters.close(), 5.0)

    def ask_to_end(self) -> None:
        self.soon((self.forced if self.ending else self.stop).set)

    def notified(self) -> None:
        callback = self.loop.readers.get(NOTIFICATION_FD)
        if callback is not None:
            callback()

    def reload(self, settings: Settings) -> None:
        if self.started and not self.ending:
            self.engine.renew(settings, SimulatedBackend(self), self._reports())

    def resize(self, workers: int) -> None:
        if self.started and not self.ending:
            self.engine.pool.resize(workers)

    def vanish(self) -> None:
        """Kill it with SIGKILL: nothing of it goes on, and its workers exit."""
        self.alive = self.frozen = False
        for process in self.backend:
            process.vanish()
        self.loop.forget()

    def check(self) -> None:
        if self.loop.faults:
            raise self.loop.faults[0]

    def check_dispatch(self) -> None:
        """After each run of its loop no fresh job is buffered while a worker could start it."""
        if not self.well or not len(self.engine.buffers):
            return
        engine = self.engine
        if not engine.leases.checked_since_gap or engine.committer.overfull or engine.watchdog.late():
            return
        for name, buffers in engine.buffers.groups.items():
            idle = [worker.number for worker in self.pool.groups[name].slots_with_room() if not worker.sent]
            fresh = any(buffer.fresh for buffer in buffers.by_queue.values())
            holds(not idle or not fresh, "jobs are buffered beside idle workers:", self, idle)

    def check_leases(self) -> None:
        """Each lease is of a job in a queue buffer, of a job at a worker, or of an outcome that is not settled yet."""
        held = self.engine.buffers.jobs()
        holds(len(held) == len(self.engine.buffers), "the buffers count", len(self.engine.buffers), "hold", len(held))
        sent = [lease for worker in self.pool.workers.values() for lease in worker.sent]
        keys = [(lease.id, lease.token) for lease in [*held, *sent]]
        holds(len(keys) == len(set(keys)), "a lease is in two places:", keys)
        if self.engine.committer.idle:
            suspects = self.engine.fetcher._intake.suspects
            ours = {id for id, _ in [*keys, *self.engine.committer._refused]}
            ours |= {lease.id for lease, _ in suspects._started if suspects.marking}
            ours |= {lease.id for lease, _ in suspects._waiting}
            lost = [id for id in self.engine.leases._held if id not in ours]
            holds(not lost, "a lease is nowhere:", self, lost)

    def at_rest(self) -> None:
        engine = self.engine
        holds(len(engine.leases) == 0 and len(engine.buffers) == 0, "leases are left:", self)
        holds(engine.committer.idle, "outcomes are left:", self)
        holds(not any(worker.sent for worker in self.pool.workers.values()), "jobs are left at workers:", self)
        holds(len(engine.recovery._seen) == 0, "seen leases are left:", self)
        holds(len(engine.tasks) < 10, "tasks are left:", self, len(engine.tasks))


class Executor:
    """The thread of the store writer: it takes time, and stops with its owner."""

    def __init__(self, writer: Writer, owner: Owner) -> None:
        self._writer = writer
        self._owner = owner
        self._alive = True
        self._busy = False
        owner.executor = self  # type: ignore[attr-defined]

    def is_alive(self) -> bool:
        return self._alive

    def look(self) -> None:
        """Take work, if there is any, after the loop of the owner has run."""
        if not self._busy and self._alive and self._writer.has_next:
            self._busy = True
            self._owner.after(self._owner.world.latency(), self._take)

    def _take(self) -> None:
        works = self._writer.next()
        if works is None:
            self._alive = False
        else:
            self._go_on(works, self._writer.commit(works))

    def _go_on(self, works: list[Work[Any]], steps: Iterator[float]) -> None:
        for seconds in steps:
            self._owner.after(seconds, self._go_on, works, steps)
            return
        self._owner.after(self._owner.world.latency(), self._deliver, works)

    def _deliver(self, works: list[Work[Any]]) -> None:
        self._writer.deliver(works)
        self._busy = False


class Sink:
    """A sink that accepts, refuses, accepts some, or accepts and fails."""

    def __init__(self, owner: Owner, name: str) -> None:
        self._owner = owner
        self._name = name

    def publish(self, dead_letters: Any) -> set[int]:
        world = self._owner.world
        ids = [dead_letter["id"] for dead_letter in dead_letters]
        for id in ids:
            holds(world.checks.records[id].state == "failed", "published although it has not failed:", id)
        lot = world.random.random() if world.stormy else 1.0
        if lot < 0.1:
            raise RuntimeError("simulated: refused")
        if lot < 0.2:
            ids = ids[::2]
        world.taken[self._name].update(ids)
        if lot > 0.9 and world.stormy:
            raise RuntimeError("simulated: the answer was lost")
        return set(ids)

    def close(self) -> None:
        pass


class Caller:
    """The thread of a sink: at times slow, and at times it hangs for longer than the publisher waits."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._free_at = 0.0

    def call(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        world = self._owner.world
        answer = self._owner.loop.create_future()
        hangs = world.stormy and world.random.random() < 0.03
        begins = max(self._free_at, world.clock.now)
        self._free_at = begins + (world.random.uniform(20.0, 90.0) if hangs else 0.01)
        self._owner.after(self._free_at - world.clock.now, self._run, work, answer)
        return answer

    def end(self) -> None:
        pass

    def _run(self, work: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        try:
            result = work()
        except RuntimeError as error:
            if not answer.cancelled():
                answer.set_exception(error)
                answer.exception()
            return
        if not answer.cancelled():
            answer.set_result(result)


async def _wait_for(work: Any, seconds: float) -> bool:
    task = asyncio.ensure_future(work)
    await asyncio.wait((task,), timeout=seconds)
    if task.done():
        task.result()
        return True
    task.cancel()
    await asyncio.wait((task,))
    return False
