"""Letters are offered until every sink has them, whoever claimed them before: on a loop whose clock jumps, with scripted sinks."""

from __future__ import annotations

import asyncio
import gc
import selectors
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from supervisor.dead_letters.publisher import CLAIM_SECONDS, DeadLetterPublisher
from supervisor.dead_letters.sink_runner import SinkRunner
from supervisor.errors import RowsLocked
from supervisor.events import Bus, DeadLettersFailed, DeadLettersStale
from supervisor.jobs import Policy
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.protocol import Store
from supervisor.stores.records import ClaimRequest, DeadLetter, Retention
from tests.stores.factories import dead, put


class JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Where the loop would sleep, its clock jumps."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            self.now += timeout or 0.0
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = JumpingSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now


class ScriptedSink(SinkRunner):
    """Refuses letters, or raises, while `script` says so."""

    def __init__(self, name: str, script: Callable[[int], bool] = lambda _: True) -> None:
        super().__init__(name, None)  # type: ignore[arg-type]
        self.script = script
        self.offered: list[int] = []

    async def publish(self, dead_letters: Sequence[Mapping[str, Any]], until: float) -> frozenset[int]:
        self.offered += [dead_letter["id"] for dead_letter in dead_letters]
        return frozenset(dead_letter["id"] for dead_letter in dead_letters if self.script(dead_letter["id"]))


class DirectWriter:
    def __init__(self, store: Store) -> None:
        self.store = store

    def submit(self, call: Callable[[Store], Any]) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        try:
            future.set_result(call(self.store))
        except Exception as error:
            future.set_exception(error)
        return future


class Here:
    def __init__(self, loop: JumpingLoop) -> None:
        self.loop = loop
        self.store = MemoryStore(clock=loop.time)
        self.store.join("us", "here", 1)
        self.bus = Bus()
        self.events: list[Any] = []
        self.bus.subscribe(self.events.append)

    def publish(self, *runners: SinkRunner) -> DeadLetterPublisher:
        dead_letters = DeadLetterPublisher(DirectWriter(self.store), runners, self.bus, self.loop)  # type: ignore[arg-type]
        dead_letters.look()
        return dead_letters

    def die(self, count: int = 1) -> list[int]:
        put(self.store, *["mail"] * count)
        takes = [ClaimRequest("default", count, count, count, 100)]
        leases = self.store.claim(takes, 30.0, lambda handler, queue: Policy())
        self.store.settle([dead(lease) for lease in leases])
        return [lease.id for lease in leases]

    def lock(self, *ids: int) -> set[int]:
        """The letters that somebody has locked from now on."""
        accepted, locked = self.store.mark_accepted, set(ids)

        def accept(dead_letters: Sequence[DeadLetter], sink: str, wanted: frozenset[str]) -> list[int]:
            if held := locked.intersection(dead_letter.id for dead_letter in dead_letters):
                raise RowsLocked("locked", frozenset(held))
            return accepted(dead_letters, sink, wanted)

        self.store.mark_accepted = accept  # type: ignore[method-assign]
        return locked

    def dead_letter(self, id: int) -> str:
        job = self.store.get(id)
        assert job is not None
        return str(job["dead_letter"])


@pytest.fixture
def play() -> Any:
    """Runs a scene on the jumping loop, and ends what it left running."""
    loop = JumpingLoop()

    def run(scene: Callable[[Here], Coroutine[Any, Any, None]]) -> None:
        loop.run_until_complete(scene(Here(loop)))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))

    yield run
    loop.close()


def test_a_letter_that_another_supervisor_left_claimed_is_offered_when_its_claim_ends(play: Any) -> None:
    async def scene(here: Here) -> None:
        (id,) = here.die()
        other = here.store.sibling()
        other.join("them", "there", 2)
        assert other.claim_dead_letters(10, CLAIM_SECONDS)
        here.publish(ScriptedSink("file"))
        await asyncio.sleep(CLAIM_SECONDS + 10.0)
        assert here.dead_letter(id) == "delivered"

    play(scene)


def test_a_letter_whose_missing_sink_is_no_longer_configured_is_delivered(play: Any) -> None:
    async def scene(here: Here) -> None:
        (id,) = here.die()
        here.store.mark_accepted(here.store.claim_dead_letters(10, 1.0), "file", frozenset({"file", "gone"}))
        await asyncio.sleep(2.0)
        file = ScriptedSink("file")
        here.publish(file)
        await asyncio.sleep(10.0)
        assert (here.dead_letter(id), file.offered) == ("delivered", [])

    play(scene)


def test_a_sink_that_has_failed_often_does_not_slow_down_the_others(play: Any) -> None:
    async def scene(here: Here) -> None:
        first, second = here.die(2)
        stuck, once = ScriptedSink("stuck", lambda dead_letter: dead_letter != first), ScriptedSink("once")
        stuck.failures = 10
        once.script = lambda dead_letter: once.offered.count(dead_letter) > 1 or dead_letter == first
        here.publish(stuck, once)
        await asyncio.sleep(3.0)
        assert here.dead_letter(second) == "delivered"

    play(scene)


def test_a_letter_refused_for_a_while_is_accepted_once_and_its_job_stays_failed(play: Any) -> None:
    async def scene(here: Here) -> None:
        (id,) = here.die()
        file = ScriptedSink("file", lambda dead_letter: file.offered.count(dead_letter) == 4)
        here.publish(file)
        for _ in range(360):
            await asyncio.sleep(10.0)
            assert (here.store.promote(1000), here.store.expired_leases(1000)) == (0, [])
            assert here.store.prune(Retention(), 1000) == 0
        job = here.store.get(id)
        assert job is not None and (job["state"], job["dead_letter"], file.offered) == ("failed", "delivered", [id] * 4)

    play(scene)


def test_what_a_sink_has_accepted_is_noted_once_nobody_has_locked_it_and_not_offered_again(play: Any) -> None:
    async def scene(here: Here) -> None:
        first, second = here.die(2)
        locked = here.lock(first)
        file = ScriptedSink("file")
        here.publish(file)
        await asyncio.sleep(CLAIM_SECONDS / 2)
        assert [here.dead_letter(id) for id in (first, second)] == ["pending", "delivered"]
        (third,) = here.die()
        locked.clear()
        await asyncio.sleep(5.0)
        assert [here.dead_letter(id) for id in (first, second)] == ["delivered", "delivered"]
        assert file.offered == [first, second, third] and here.dead_letter(third) == "delivered"

    play(scene)


def test_a_letter_that_is_locked_holds_up_no_other_that_a_sink_has_refused(play: Any) -> None:
    async def scene(here: Here) -> None:
        first, second = here.die(2)
        here.lock(first)
        pager = ScriptedSink("pager", lambda its: its == first or len(pager.offered) > 2)
        here.publish(ScriptedSink("file"), pager)
        await asyncio.sleep(CLAIM_SECONDS / 2)
        assert [here.dead_letter(id) for id in (first, second)] == ["pending", "delivered"]
        assert pager.offered == [first, second, second]

    play(scene)


class Kept:
    """A sink that keeps what it is given; its calls are made at once."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def publish(self, dead_letters: Any) -> Any:
        self.ids += [dead_letter["id"] for dead_letter in dead_letters]
        return self.ids

    def call(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(work())
        return answer


def test_letters_whose_claim_ended_before_they_could_be_published_are_claimed_anew_first(play: Any) -> None:
    async def scene(here: Here) -> None:
        (id,) = here.die()
        sink = Kept()
        dead_letters = here.publish(SinkRunner("file", sink, lambda name: sink))  # type: ignore[arg-type, return-value]
        await asyncio.sleep(0)
        here.loop.selector.now += CLAIM_SECONDS  # it stood still with the claim in its hand
        other = here.store.sibling()
        other.join("them", "there", 2)
        (theirs,) = other.claim_dead_letters(10, CLAIM_SECONDS)
        await asyncio.sleep(1.0)
        assert sink.ids == []
        assert [event for event in here.events if isinstance(event, DeadLettersStale)] == [("file", [id], "claim")]
        assert dead_letters.failing == {}
        other.postpone([theirs], 0.0)
        await asyncio.sleep(10.0)
        assert (sink.ids, here.dead_letter(id)) == ([id], "delivered")

    play(scene)


def test_an_acceptance_after_the_claim_has_ended_changes_nothing_and_is_told(play: Any) -> None:
    async def scene(here: Here) -> None:
        (id,) = here.die()
        other = here.store.sibling()
        other.join("them", "there", 2)

        def stand_still(dead_letter: int) -> bool:
            here.loop.selector.now += CLAIM_SECONDS
            return bool(other.claim_dead_letters(10, CLAIM_SECONDS))

        here.publish(ScriptedSink("file", stand_still))
        await asyncio.sleep(1.0)
        assert here.dead_letter(id) == "pending"
        assert [event for event in here.events if isinstance(event, DeadLettersStale)] == [("file", [id], "acceptance")]

    play(scene)


class Exiting:
    def publish(self, dead_letters: Any) -> Any:
        raise SystemExit(3)

    def close(self) -> None:
        pass


def test_a_sink_that_calls_exit_is_a_sink_that_failed() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        here = Here(loop)  # type: ignore[arg-type]
        (id,) = here.die()
        failed = asyncio.Event()
        here.bus.subscribe(lambda event: failed.set() if isinstance(event, DeadLettersFailed) else None)
        dead_letters = here.publish(SinkRunner("file", Exiting()))  # type: ignore[arg-type]
        await asyncio.wait_for(failed.wait(), 30)
        assert "SystemExit" in dead_letters.failing["file"]
        assert here.dead_letter(id) == "pending"
        await dead_letters.stop()

    asyncio.run(scene())


class Clinging(Exiting):
    def close(self) -> None:
        raise SystemExit(0)


def test_a_sink_that_does_not_close_is_no_fault_of_the_supervisor() -> None:
    async def scene() -> None:
        faults: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        here = Here(asyncio.get_running_loop())  # type: ignore[arg-type]
        dead_letters = DeadLetterPublisher(
            DirectWriter(here.store), [SinkRunner("file", Clinging())], here.bus, here.loop
        )  # type: ignore[arg-type]
        await dead_letters.stop()
        await dead_letters.close()
        gc.collect()
        assert faults == []

    asyncio.run(scene())


def test_letters_that_the_store_no_longer_gives_are_a_fault_that_is_told(play: Any) -> None:
    async def scene(here: Here) -> None:
        faults: list[Any] = []
        here.loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))
        here.store.claim_dead_letters = lambda limit, ttl: 1 / 0  # type: ignore[assignment, return-value]
        here.publish(ScriptedSink("file"))
        await asyncio.sleep(1.0)
        assert [type(fault) for fault in faults] == [ZeroDivisionError]

    play(scene)
