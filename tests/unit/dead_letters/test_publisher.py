"""Dead letters are pending until every sink has them, whichever supervisor has claimed them before."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from supervisor.config.settings import RetentionSettings
from supervisor.dead_letters.publisher import DeadLetterPublisher, PublisherLimits
from supervisor.dead_letters.sink_runner import LIMITS, SinkRunner
from supervisor.events import DeadLettersFailed, DeadLettersStale, SinkCutOff
from tests.stores.factories import promote
from tests.unit.dead_letters.conftest import Play
from tests.unit.dead_letters.scripted import DirectWriter, Scene, ScriptedSink
from tests.unit.jumping_loop import JumpingLoop

CLAIM = PublisherLimits().claim


def test_a_dead_letter_that_another_supervisor_left_claimed_is_offered_when_the_claim_expires(play: Play) -> None:
    async def act(here: Scene) -> None:
        (id,) = here.fail_jobs()
        other = here.other_supervisor()
        assert other.claim_dead_letters(10, CLAIM)
        here.publish(ScriptedSink("file"))
        await asyncio.sleep(CLAIM + 10.0)
        assert here.dead_letter(id) == "delivered"

    play(act)


def test_a_dead_letter_waits_for_a_sink_that_is_configured_nowhere_until_an_operator_drops_it(play: Play) -> None:
    async def act(here: Scene) -> None:
        before = here.other_supervisor("file", "gone")
        (id,) = here.fail_jobs(by=before)
        before.leave()
        file = ScriptedSink("file")
        publisher = here.publish(file)
        await asyncio.sleep(100.0)
        assert (here.dead_letter(id), file.offered) == ("pending", [id])
        assert here.store.remaining(None, None) == {"dead_letters_for_other_sinks": 1}
        assert publisher.quiet
        assert here.store.drop_sink("gone") == 1
        assert here.dead_letter(id) == "delivered"

    play(act)


def test_a_dead_letter_that_an_older_store_kept_is_delivered_once_the_sinks_of_now_have_it(play: Play) -> None:
    """Such a store did not keep the sinks that a dead letter was owed to."""

    async def act(here: Scene) -> None:
        (id,) = here.fail_jobs()
        record = here.store.state.jobs[id].dead_letter
        assert record is not None
        record.owed, record.accepted = frozenset(), frozenset({"file"})
        file = ScriptedSink("file")
        here.publish(file)
        await asyncio.sleep(10.0)
        assert (here.dead_letter(id), file.offered) == ("delivered", [])

    play(act)


def test_a_sink_that_only_another_supervisor_has_gets_the_dead_letters_of_both(play: Play) -> None:
    async def act(here: Scene) -> None:
        there = here.other_supervisor("file", "pager")
        (ours,), (theirs,) = here.fail_jobs(), here.fail_jobs(by=there)
        here.publish(ScriptedSink("file"))
        await asyncio.sleep(CLAIM)
        assert (here.dead_letter(ours), here.dead_letter(theirs)) == ("delivered", "pending")
        claimed = there.claim_dead_letters(10, CLAIM)
        assert [(it.id, it.accepted) for it in claimed] == [(theirs, {"file"})]
        there.mark_accepted(claimed, "pager")
        assert here.dead_letter(theirs) == "delivered"

    play(act)


def test_a_dead_letter_is_not_claimed_while_only_a_sink_that_rests_lacks_it(play: Play) -> None:
    """It would be put off for as long as the sink has failed, by tries that the sink never saw."""

    async def act(here: Scene) -> None:
        here.fail_jobs()
        down = ScriptedSink("down", lambda _: False)
        publisher = here.publish(ScriptedSink("file"), down)
        await asyncio.sleep(3.5)
        there = here.other_supervisor("file")
        (id,) = here.fail_jobs()
        there.mark_accepted(there.claim_dead_letters(10, CLAIM), "file")
        assert down.rests and here.dead_letter(id) == "pending"
        publisher.look()
        await asyncio.sleep(0.1)
        assert down.rests
        record = here.store.state.jobs[id].dead_letter
        assert record is not None and record.tries == 1
        await asyncio.sleep(LIMITS.rest)
        assert down.offered.count(id) == 1

    play(act)


def test_a_sink_that_has_failed_often_does_not_slow_down_the_others(play: Play) -> None:
    async def act(here: Scene) -> None:
        here.owe("stuck", "once")
        first, second = here.fail_jobs(2)
        stuck, once = ScriptedSink("stuck", lambda job: job != first), ScriptedSink("once")
        stuck.failures = 10
        once.accepts = lambda job: once.offered.count(job) > 1 or job == first
        here.publish(stuck, once)
        await asyncio.sleep(3.0)
        assert here.dead_letter(second) == "delivered"

    play(act)


def test_a_dead_letter_refused_for_a_while_is_accepted_once_and_its_job_stays_failed(play: Play) -> None:
    async def act(here: Scene) -> None:
        (id,) = here.fail_jobs()
        file = ScriptedSink("file", lambda job: file.offered.count(job) == 4)
        here.publish(file)
        for _ in range(360):
            await asyncio.sleep(10.0)
            assert (promote(here.store, 1000), here.store.expired_leases(1000)) == (0, [])
            assert here.store.prune(RetentionSettings(), 1000) == 0
        job = here.store.get(id)
        assert job is not None and (job["state"], job["dead_letter"], file.offered) == ("failed", "delivered", [id] * 4)

    play(act)


def test_an_acceptance_is_recorded_once_its_row_is_unlocked_and_the_dead_letter_is_not_offered_again(
    play: Play,
) -> None:
    async def act(here: Scene) -> None:
        first, second = here.fail_jobs(2)
        locked = here.lock(first)
        file = ScriptedSink("file")
        here.publish(file)
        await asyncio.sleep(CLAIM / 2)
        assert [here.dead_letter(id) for id in (first, second)] == ["pending", "delivered"]
        (third,) = here.fail_jobs()
        locked.clear()
        await asyncio.sleep(5.0)
        assert [here.dead_letter(id) for id in (first, second)] == ["delivered", "delivered"]
        assert file.offered == [first, second, third] and here.dead_letter(third) == "delivered"

    play(act)


def test_a_dead_letter_with_a_locked_row_does_not_hold_up_another_that_a_sink_has_refused(play: Play) -> None:
    async def act(here: Scene) -> None:
        first, second = here.fail_jobs(2)
        here.lock(first)
        pager = ScriptedSink("pager", lambda job: job == first or len(pager.offered) > 2)
        here.publish(ScriptedSink("file"), pager)
        await asyncio.sleep(CLAIM / 2)
        assert [here.dead_letter(id) for id in (first, second)] == ["pending", "delivered"]
        assert pager.offered == [first, second, second]

    play(act)


class KeepingSink:
    """Keeps the ids of what it is given; it is its own caller, and answers at once."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def publish(self, dead_letters: Any) -> Any:
        self.ids += [dead_letter["id"] for dead_letter in dead_letters]
        return self.ids

    def call(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(work())
        return answer


def test_dead_letters_whose_claim_expired_before_they_were_published_are_claimed_again_first(play: Play) -> None:
    async def act(here: Scene) -> None:
        (id,) = here.fail_jobs()
        sink = KeepingSink()
        publisher = here.publish(SinkRunner("file", sink, lambda name: sink))  # type: ignore[arg-type, return-value]
        await asyncio.sleep(0)
        here.loop.stand_still(CLAIM)  # while it holds the claim
        other = here.other_supervisor()
        (theirs,) = other.claim_dead_letters(10, CLAIM)
        await asyncio.sleep(1.0)
        assert sink.ids == []
        assert here.emitted(DeadLettersStale) == [("file", [id], "claim")]
        assert publisher.failing == {}
        other.postpone([theirs], 0.0)
        await asyncio.sleep(10.0)
        assert (sink.ids, here.dead_letter(id)) == ([id], "delivered")

    play(act)


def test_an_acceptance_after_the_claim_has_expired_changes_nothing_and_is_reported(play: Play) -> None:
    async def act(here: Scene) -> None:
        (id,) = here.fail_jobs()
        other = here.other_supervisor()

        def stand_still(id: int) -> bool:
            here.loop.stand_still(CLAIM)
            return bool(other.claim_dead_letters(10, CLAIM))

        here.publish(ScriptedSink("file", stand_still))
        await asyncio.sleep(1.0)
        assert here.dead_letter(id) == "pending"
        assert here.emitted(DeadLettersStale) == [("file", [id], "acceptance")]

    play(act)


class TimedSink:
    """Takes so many seconds for a publish, and refuses the first ones; it is its own caller. `spans` has the ids, the beginning and
    the end of each publish."""

    def __init__(self, loop: JumpingLoop, seconds: float, refuses: int) -> None:
        self._loop, self._seconds, self._refuses = loop, seconds, refuses
        self.spans: list[tuple[set[int], float, float]] = []

    def publish(self, dead_letters: Any) -> Any:
        began, ids = self._loop.time() - self._seconds, {dead_letter["id"] for dead_letter in dead_letters}
        self.spans.append((ids, began, self._loop.time()))
        if len(self.spans) <= self._refuses:
            raise ConnectionError("nobody there")
        return ids

    def call(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        answer = self._loop.create_future()

        def run() -> None:
            try:
                answer.set_result(work())
            except ConnectionError as error:
                answer.set_exception(error)

        self._loop.call_later(self._seconds, run)
        return answer

    def end(self) -> None:
        pass


def test_no_publish_goes_on_after_its_claim_has_ended_beside_that_of_another_supervisor(play: Play) -> None:
    async def act(here: Scene) -> None:
        sinks = [TimedSink(here.loop, LIMITS.publish - 1.0, refuses) for refuses in (2, 0)]
        ids = here.fail_jobs(4)
        for store, sink in zip((here.store, here.other_supervisor()), sinks, strict=True):
            runner = SinkRunner("file", sink, lambda _, sink=sink: sink)  # type: ignore[misc, arg-type]
            here.publish(runner, store=store)
        await asyncio.sleep(600.0)
        assert {here.dead_letter(id) for id in ids} == {"delivered"}
        ours, theirs = (sink.spans for sink in sinks)
        at_once = [
            (one, other)
            for one in ours
            for other in theirs
            if one[0] & other[0] and one[1] < other[2] and other[1] < one[2]
        ]
        assert at_once == []
        assert not [event for event in here.emitted(DeadLettersStale) if event.what == "acceptance"]
        assert sum(len(ids) for ids, _, _ in ours[2:] + theirs) == 4, "each is accepted once"

    play(act)


class Exiting:
    def publish(self, dead_letters: Any) -> Any:
        raise SystemExit(3)

    def close(self) -> None:
        pass


def test_a_sink_that_calls_exit_counts_as_a_sink_that_failed() -> None:
    async def act() -> None:
        loop = asyncio.get_running_loop()
        here = Scene(loop)  # type: ignore[arg-type]
        (id,) = here.fail_jobs()
        failed = asyncio.Event()
        here.bus.subscribe(lambda _: failed.set(), DeadLettersFailed)
        publisher = here.publish(SinkRunner("file", Exiting()))  # type: ignore[arg-type]
        await asyncio.wait_for(failed.wait(), 30)
        assert "SystemExit" in publisher.failing["file"]
        assert here.dead_letter(id) == "pending"
        await publisher.stop()

    asyncio.run(act())


class FailingToClose(Exiting):
    def close(self) -> None:
        raise SystemExit(0)


def test_a_sink_that_fails_to_close_is_no_fault_of_the_supervisor() -> None:
    async def act() -> None:
        faults: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        here = Scene(asyncio.get_running_loop())  # type: ignore[arg-type]
        publisher = DeadLetterPublisher(
            DirectWriter(here.store), [SinkRunner("closing", FailingToClose())], here.bus, here.loop
        )  # type: ignore[arg-type]
        (thread,) = [it for it in threading.enumerate() if it.name == "sink-closing"]
        await publisher.stop()
        await publisher.close()
        thread.join(30)
        assert not thread.is_alive()
        gc.collect()
        assert faults == []

    asyncio.run(act())


class HangingAtClose(Exiting):
    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def close(self) -> None:
        self.begun.set()
        self.go.wait(30)


def test_a_sink_whose_close_hangs_is_named_when_it_is_cut_off() -> None:
    async def act() -> None:
        here = Scene(asyncio.get_running_loop())  # type: ignore[arg-type]
        sink = HangingAtClose()
        runners = [SinkRunner("hangs", sink), SinkRunner("closes", FailingToClose())]
        publisher = DeadLetterPublisher(DirectWriter(here.store), runners, here.bus, here.loop)  # type: ignore[arg-type]
        await publisher.stop()
        closing = asyncio.create_task(publisher.close())
        while not sink.begun.is_set() or runners[1].call_under_way or not runners[1]._closing:
            await asyncio.sleep(0.001)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        (event,) = here.emitted(SinkCutOff)
        assert (event.sink, "its close has not returned at the end" in event.text) == ("hangs", True)
        sink.go.set()

    asyncio.run(act())


def test_a_store_that_raises_at_a_claim_of_dead_letters_is_reported_as_a_fault(play: Play) -> None:
    async def act(here: Scene) -> None:
        faults: list[Any] = []
        here.loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))
        here.store.claim_dead_letters = lambda *_: 1 / 0  # type: ignore[assignment, return-value]
        here.publish(ScriptedSink("file"))
        await asyncio.sleep(1.0)
        assert [type(fault) for fault in faults] == [ZeroDivisionError]

    play(act)
