"""A memory store with dead letters, and sinks that follow a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.dead_letters.sink_runner import SinkRunner
from supervisor.engine.store_writer import CallFailed, Purpose
from supervisor.errors import RowsLocked, StoreError
from supervisor.events import Bus
from supervisor.jobs import Policy
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.protocol import Store
from supervisor.stores.records import ClaimRequest, DeadLetter
from tests.stores.factories import dead, put
from tests.unit.jumping_loop import JumpingLoop


class DirectWriter:
    """Calls the store at once."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def submit(
        self, call: Callable[[Store], Any], purpose: Purpose = Purpose.READ, did_work: Any = None
    ) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        try:
            future.set_result(call(self.store))
        except StoreError as error:
            future.set_exception(CallFailed(str(error)))
        except Exception as error:
            future.set_exception(error)
        return future


class ScriptedSink(SinkRunner):
    """Accepts the ids for which `accepts` returns True; `offered` has all ids, in order."""

    def __init__(self, name: str, accepts: Callable[[int], bool] = lambda _: True) -> None:
        super().__init__(name, None)  # type: ignore[arg-type]
        self.accepts = accepts
        self.offered: list[int] = []

    async def publish(self, dead_letters: Sequence[Mapping[str, Any]], until: float) -> frozenset[int]:
        self.offered += [dead_letter["id"] for dead_letter in dead_letters]
        return frozenset(dead_letter["id"] for dead_letter in dead_letters if self.accepts(dead_letter["id"]))


class SlowCaller:
    """Makes a call at once, and gives its answer `seconds` after that of the call before."""

    def __init__(self, loop: JumpingLoop, seconds: float) -> None:
        self.loop = loop
        self.seconds = seconds
        self.free_at = 0.0

    def call(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        answer = self.loop.create_future()
        self.free_at = max(self.free_at, self.loop.time()) + self.seconds
        self.loop.call_at(self.free_at, self._answer, work, answer)
        return answer

    def _answer(self, work: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        try:
            answer.set_result(work())
        except Exception as error:
            answer.set_exception(error)

    def end(self) -> None:
        pass


class Scene:
    """One supervisor's store, bus and publisher on a loop whose clock jumps."""

    def __init__(self, loop: JumpingLoop) -> None:
        self.loop = loop
        self.store = MemoryStore(clock=loop.time)
        self.owe("file")
        self.bus = Bus()
        self.events: list[Any] = []
        self.bus.subscribe(self.events.append)

    def owe(self, *sinks: str) -> None:
        """Let the dead letters of jobs that fail from now on be owed to these sinks."""
        self.store.join("us", "here", 1, frozenset(sinks))

    def publish(self, *runners: SinkRunner, store: MemoryStore | None = None) -> DeadLetterPublisher:
        """Publish as the supervisor of this store, or of another one."""
        if store is None:
            store = self.store
            self.owe(*[runner.name for runner in runners])
        publisher = DeadLetterPublisher(DirectWriter(store), runners, self.bus, self.loop)  # type: ignore[arg-type]
        publisher.look()
        self.publisher = publisher
        return publisher

    def fail_jobs(self, count: int = 1, by: MemoryStore | None = None) -> list[int]:
        """Return the ids of new jobs whose dead letters are pending; `by` is the store of the supervisor that runs them."""
        store = by or self.store
        put(store, *["mail"] * count)
        takes = [ClaimRequest("default", count, count, count, 100)]
        leases = store.claim(takes, 30.0, lambda handler, queue: Policy())
        store.settle([dead(lease) for lease in leases])
        return [lease.id for lease in leases]

    def lock(self, *ids: int) -> set[int]:
        """Return the ids whose rows another session has locked from now on; remove them to unlock."""
        accepted, locked = self.store.mark_accepted, set(ids)

        def accept(dead_letters: Sequence[DeadLetter], sink: str) -> list[int]:
            if held := locked.intersection(dead_letter.id for dead_letter in dead_letters):
                raise RowsLocked("locked", frozenset(held))
            return accepted(dead_letters, sink)

        self.store.mark_accepted = accept  # type: ignore[method-assign]
        return locked

    def other_supervisor(self, *sinks: str) -> MemoryStore:
        other = MemoryStore(state=self.store.state)
        other.join("them", "there", 2, frozenset(sinks or ("file",)))
        return other

    def dead_letter(self, id: int) -> str:
        job = self.store.get(id)
        assert job is not None
        return str(job["dead_letter"])

    def emitted(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]
