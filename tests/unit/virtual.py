"""The real engine with virtual time, scripted workers and the memory store: one thread, no waiting, every step in order."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any

from supervisor.config.settings import Settings
from supervisor.engine.coordinator import Coordinator
from supervisor.engine.limits import DEFAULT_LIMITS, Limits
from supervisor.engine.store_writer import UNTIL_DONE, Abandoned, CallFailed, Purpose
from supervisor.errors import StoreError
from supervisor.events import Bus, JobsSettled
from supervisor.handlers import HandlerInfo
from supervisor.jobs import JobState, Policy
from supervisor.plugins.reports import SourceReport
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.protocol import Store
from supervisor.stores.records import ClaimRequest, EnqueueRow, Presence
from supervisor.workers.pool import Pool
from supervisor.workers.worker_group import OTHERS
from tests.unit.fakes import FakeBackend, FakeTimer, FakeWorker


class Answer:
    """A future that is done or not; callbacks run at once."""

    def __init__(self) -> None:
        self.finished = False
        self.value: Any = None
        self.error: BaseException | None = None
        self._callbacks: list[Callable[[Any], None]] = []

    def done(self) -> bool:
        return self.finished

    def cancelled(self) -> bool:
        return False

    def exception(self) -> BaseException | None:
        return self.error

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self.finished:
            callback(self)
        else:
            self._callbacks.append(callback)

    def finish(self, call: Callable[[Store], Any], store: Store, purpose: Purpose) -> None:
        try:
            with store.transaction():
                self.value = call(store)
        except StoreError as error:
            self.error = error if purpose in UNTIL_DONE else CallFailed(str(error))
        except Exception as error:
            self.error = error
        self.finished = True
        for callback in self._callbacks:
            callback(self)

    def __await__(self) -> Any:
        yield self
        return self.result()


class SteppedWriter:
    """Takes work as the store writer does, and does it on `step`, or at once while `eager`. While `unavailable` it keeps all."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.waiting: list[tuple[Callable[[Store], Any], Purpose, Answer]] = []
        self.unavailable = False
        self.eager = True
        self.outages = 0
        self.asked_at: float | None = None
        self.answered_at = 0.0
        self.unavailable_because = "it is locked"

    def submit(self, call: Callable[[Store], Any], purpose: Purpose = Purpose.READ, did_work: Any = None) -> Any:
        answer = Answer()
        self.waiting.append((call, purpose, answer))
        if self.eager:
            self.step()
        return answer

    def step(self) -> None:
        while self.waiting and not self.unavailable:
            self.step_one()

    def step_one(self) -> None:
        call, purpose, answer = self.waiting.pop(0)
        answer.finish(call, self.store, purpose)

    def abandon(self) -> None:
        for _, _, answer in self.waiting:
            answer.error, answer.finished = Abandoned("unavailable"), True
        self.waiting.clear()


class VirtualLoop(FakeTimer):
    """Runs a coroutine until it has to wait, and on when what it awaits is done."""

    def create_task(self, work: Coroutine[Any, Any, Any]) -> Any:
        task = Answer()
        self._go_on(work, task)
        return task

    def _go_on(self, work: Coroutine[Any, Any, Any], task: Answer) -> None:
        try:
            awaited = work.send(None)
        except StopIteration as end:
            task.value, task.finished = end.value, True
            return
        except Exception as error:
            task.error, task.finished = error, True
            raise
        awaited.add_done_callback(lambda _: self._go_on(work, task))

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Any:
        return self.call_later(0.0, callback, *args)

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        pass

    def remove_reader(self, fd: int) -> None:
        pass

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        pass

    def remove_writer(self, fd: int) -> None:
        pass

    def run_in_executor(self, executor: None, call: Callable[..., Any], *args: Any) -> Any:
        answer = Answer()
        answer.value, answer.finished = call(*args), True
        return answer

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise context["exception"]


class Wall:
    """A wall clock, which goes with the clock of the loop and can be set."""

    def __init__(self, loop: FakeTimer) -> None:
        self._loop = loop
        self._ahead = 0.0

    def __call__(self) -> float:
        return self._loop.time() + self._ahead

    def step(self, seconds: float) -> None:
        self._ahead += seconds


class Virtual:
    """A supervisor whose plugins serve `handlers`, without the processes. The clock of the store is `wall`. `limits` are those of
    handlers."""

    def __init__(
        self, workers: Any = 1, store: Store | None = None, handlers: tuple[str, ...] = ("work",),
        engine_limits: Limits = DEFAULT_LIMITS, served: tuple[str, ...] | None = None,
        groups: Mapping[str, Any] = MappingProxyType({}), limits: Mapping[str, Any] = MappingProxyType({}), **settings: Any,
    ) -> None:  # fmt: skip
        self.loop = VirtualLoop()
        self._lost = count()
        self.suspended = 0.0
        self.wall = Wall(self.loop)
        self.store = store if store is not None else MemoryStore(clock=self.wall)
        self.store.join("us", "here", 1)
        self.bus = Bus()
        self.events: list[Any] = []
        self.bus.subscribe(self.events.append)
        self.backend = FakeBackend()
        shared = {"count": workers, "queues": served and [*served], "groups": groups}
        own = {name: {"limit": limit} for name, limit in limits.items()}
        self.settings = Settings(**{"workers": shared, "handlers": own, **settings})
        sizes = self.settings.workers.sizes
        self.pool = Pool(sizes[OTHERS].min, self.bus, self.loop)
        self.pool.configure(sizes)
        infos = tuple(HandlerInfo(name, {}, "work.py", 1) for name in handlers)
        self.writer = SteppedWriter(self.store)
        self.engine = Coordinator(
            self.store,
            self.pool,
            self.settings,
            [SourceReport("work.py", infos)],
            self.bus,
            self.loop,  # type: ignore[arg-type]
            self.writer,  # type: ignore[arg-type]
            random=lambda: 1.0,
            wall=self.wall,
            suspended=lambda: self.suspended,
            limits=engine_limits,
        )

    def serve(self) -> None:
        self.engine.serve(self.backend)
        for process in self.backend.forked:
            process.come_up()

    def enqueue(self, *names: str, queue: str = "default", priority: int = 0, **row: Any) -> list[int]:
        return self.store.enqueue([EnqueueRow(name, "null", queue, priority, **row) for name in names])

    def notify(self) -> None:
        self.engine.fetcher.notify()

    def neighbour_idles(self, owner: str = "them") -> None:
        """Announce another supervisor on the same store that has an idle worker."""
        other = MemoryStore(state=self.store.state)  # type: ignore[attr-defined]
        other.join(owner, "there", 2)
        other.announce(Presence("running", [{"pid": 1, "state": "idle", "current_job": None}], 1))

    def lose(self, *ids: int, times: int = 1, queue: str = "default") -> None:
        """Another supervisor claims and starts these jobs, and is lost: once or several times in a row."""
        for _ in range(times):
            other = MemoryStore(state=self.store.state)  # type: ignore[attr-defined]
            other.join(f"lost-{next(self._lost)}", "there", 2)
            leases = other.claim([ClaimRequest(queue, 100, 100, 100, 100)], 30.0, lambda handler, queue: Policy())
            assert {lease.id for lease in leases} == set(ids)
            other.extend(leases, 30.0, leases)
            other.leave()
            self.loop.create_task(self.engine.recover())

    @property
    def process(self) -> FakeWorker:
        return next(iter(self.pool.workers.values())).process  # type: ignore[return-value]

    def state(self, id: int) -> str:
        job = self.store.get(id)
        assert job is not None
        return str(job["state"])

    def settled(self, state: JobState | None = None) -> list[int]:
        settled = [outcome for event in self.events if isinstance(event, JobsSettled) for outcome in event.outcomes]
        return [outcome.lease.id for outcome in settled if state is None or outcome.state is state]
