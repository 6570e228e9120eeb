"""Sinks that are slow or down, and dead letters that make them raise: the others are not held up."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.dead_letters.sink_runner import SinkLimits, SinkRunner
from supervisor.errors import StoreBroken
from supervisor.events import DeadLettersFailed
from tests.unit.dead_letters.conftest import Play
from tests.unit.dead_letters.scripted import Scene, ScriptedSink, SlowCaller

SLOW = 6.0
LIMITS = SinkLimits()


class CountingSink:
    """Accepts a batch without `bad` ids, and raises for any other; for all, while it is down."""

    def __init__(self) -> None:
        self.bad: set[int] = set()
        self.down = False
        self.calls: list[list[int]] = []
        self.taken: list[int] = []

    def publish(self, dead_letters: Any) -> Any:
        ids = [dead_letter["id"] for dead_letter in dead_letters]
        self.calls.append(ids)
        if self.down or self.bad.intersection(ids):
            raise OSError("413 too large")
        self.taken += ids
        return ids

    def close(self) -> None:
        pass


def publish(here: Scene, *sinks: tuple[CountingSink, float]) -> DeadLetterPublisher:
    """Publish to these sinks, each given with the seconds that a call of it takes."""
    return here.publish(
        *(
            SinkRunner(("file", "other")[number], sink, lambda _, seconds=seconds: SlowCaller(here.loop, seconds))  # type: ignore[misc]
            for number, (sink, seconds) in enumerate(sinks)
        )
    )


def test_dead_letters_that_wait_for_a_slow_sink_have_not_failed(play: Play) -> None:
    async def act(here: Scene) -> None:
        ids = here.fail_jobs(500)
        slow = CountingSink()
        publisher = publish(here, (slow, SLOW))
        while not publisher.quiet:
            assert publisher.failing == {}
            await asyncio.sleep(1.0)
        assert sorted(slow.taken) == ids
        assert (len(slow.calls), here.emitted(DeadLettersFailed)) == (5, [])

    play(act)


def test_a_slow_sink_beside_a_quick_one_has_not_failed_and_is_never_left_idle_for_long(play: Play) -> None:
    async def act(here: Scene) -> None:
        here.owe("file", "other")
        ids = here.fail_jobs(500)
        slow, quick = CountingSink(), CountingSink()
        publisher = publish(here, (slow, SLOW), (quick, 0.0))
        began = here.loop.time()
        await asyncio.sleep(SLOW)
        assert sorted(quick.taken) == ids
        while not publisher.quiet:
            assert publisher.failing == {}
            await asyncio.sleep(1.0)
        assert sorted(slow.taken) == ids
        assert here.emitted(DeadLettersFailed) == []
        assert here.loop.time() - began < 5 * SLOW + 10.0

    play(act)


def test_a_sink_that_hangs_is_reported_as_failing_and_another_sink_is_not(play: Play) -> None:
    async def act(here: Scene) -> None:
        here.owe("file", "other")
        here.fail_jobs(200)
        publisher = publish(here, (CountingSink(), 10 * LIMITS.publish), (CountingSink(), 0.0))
        await asyncio.sleep(LIMITS.publish + 2 * LIMITS.rest)
        assert "TimeoutError" in publisher.failing["file"]
        assert "other" not in publisher.failing

    play(act)


def test_one_dead_letter_that_makes_a_sink_raise_holds_back_no_other(play: Play) -> None:
    async def act(here: Scene) -> None:
        ids = here.fail_jobs(20)
        strict = CountingSink()
        strict.bad = {ids[10]}
        publisher = publish(here, (strict, 0.0))
        await asyncio.sleep(0.5)
        assert [id for id in ids if here.dead_letter(id) == "pending"] == [ids[10]]
        assert [event.ids for event in here.emitted(DeadLettersFailed)] == [[ids[10]]]
        assert publisher.failing == {"file": "OSError: 413 too large"}
        await asyncio.sleep(3600.0)
        assert 110 < strict.calls.count([ids[10]]) < 140, "each 30 seconds at last"
        (late,) = here.fail_jobs()
        publisher.look()
        await asyncio.sleep(LIMITS.rest)
        assert here.dead_letter(late) == "delivered"

    play(act)


def test_a_sink_that_is_down_is_called_now_and_then_however_many_dead_letters_wait(play: Play) -> None:
    async def act(here: Scene) -> None:
        ids = here.fail_jobs(2000)
        down = CountingSink()
        down.down = True
        publisher = publish(here, (down, 0.0))
        await asyncio.sleep(600.0)
        assert "OSError" in publisher.failing["file"]
        assert len(down.calls) <= 3 * (600.0 / LIMITS.rest + 5)
        down.down = False
        await asyncio.sleep(90.0)
        assert sorted(down.taken) == ids
        assert publisher.failing == {}

    play(act)


async def settle_down(here: Scene, publisher: DeadLetterPublisher) -> float:
    """Return the seconds that it took."""
    began = here.loop.time()
    async with asyncio.timeout(600.0):
        await publisher.settle_down()
    return here.loop.time() - began


def test_settling_down_ends_as_soon_as_all_are_delivered(play: Play) -> None:
    async def act(here: Scene) -> None:
        ids = here.fail_jobs(3)
        quiet: list[bool] = []
        publisher = publish(here, (CountingSink(), SLOW))
        publisher.on_quiet = lambda: quiet.append(publisher.quiet)
        assert SLOW <= await settle_down(here, publisher) < SLOW + 0.1
        assert {here.dead_letter(id) for id in ids} == {"delivered"}
        assert quiet == [True]

    play(act)


def test_settling_down_does_not_wait_for_a_sink_that_is_down(play: Play) -> None:
    async def act(here: Scene) -> None:
        here.fail_jobs()
        down = CountingSink()
        down.down = True
        publisher = publish(here, (down, SLOW))
        await asyncio.sleep(SLOW + 2.0)
        assert not publisher.quiet, "it is being tried again"
        assert await settle_down(here, publisher) < 0.1
        assert publisher.failing == {"file": "OSError: 413 too large"}

    play(act)


def test_settling_down_does_not_wait_for_a_store_that_refuses(play: Play) -> None:
    async def act(here: Scene) -> None:
        def refuse(*_: Any) -> Any:
            raise StoreBroken("no right")

        here.fail_jobs()
        here.store.claim_dead_letters = refuse  # type: ignore[method-assign]
        publisher = publish(here, (CountingSink(), 0.0))
        assert await settle_down(here, publisher) < 0.1
        assert publisher.stuck and not publisher.failing

    play(act)


def test_settling_down_waits_again_for_a_store_that_has_refused(play: Play) -> None:
    async def act(here: Scene) -> None:
        (id,) = here.fail_jobs()
        really, refusals = here.store.claim_dead_letters, iter([StoreBroken("no right")])

        def refuse_once(*arguments: Any) -> Any:
            if (error := next(refusals, None)) is not None:
                raise error
            return really(*arguments)

        here.store.claim_dead_letters = refuse_once  # type: ignore[method-assign]
        publisher = publish(here, (CountingSink(), SLOW))
        await settle_down(here, publisher)
        assert publisher.stuck
        publisher.look()
        await asyncio.sleep(1.0)
        assert not publisher.stuck
        await settle_down(here, publisher)
        assert here.dead_letter(id) == "delivered"

    play(act)


def test_no_further_part_is_offered_while_the_supervisor_ends(play: Play) -> None:
    async def act(here: Scene) -> None:
        ids = here.fail_jobs(20)
        down = CountingSink()
        down.down = True
        publisher = publish(here, (down, SLOW))
        await asyncio.sleep(1.0)
        await publisher.stop()
        assert down.calls == [ids]

    play(act)


def test_dead_letters_of_a_publish_that_is_not_waited_for_are_due_at_once_for_others(play: Play) -> None:
    async def act(here: Scene) -> None:
        ids = here.fail_jobs(3)
        publisher = publish(here, (CountingSink(), LIMITS.publish))
        await asyncio.sleep(1.0)
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await publisher.stop()
        assert [it.id for it in here.other_supervisor("file").claim_dead_letters(10, 90.0)] == ids

    play(act)


def test_a_failure_is_forgotten_once_nothing_waits_for_the_sink(play: Play) -> None:
    """An operator may have deleted the dead letter, or another supervisor delivered it."""

    async def act(here: Scene) -> None:
        (id,) = here.fail_jobs()
        publisher = here.publish(ScriptedSink("file", lambda _: False))
        await asyncio.sleep(1000.0)
        assert publisher.failing, "as long as it waits"
        here.store.delete([id], force=True)
        await asyncio.sleep(200.0)
        assert publisher.failing == {} and not publisher.stuck

    play(act)
