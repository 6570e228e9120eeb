"""Sinks that are slow or down, and letters that make them raise: what is well gets on. On a loop whose clock jumps."""

from __future__ import annotations

import asyncio
from typing import Any

from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.dead_letters.sink_runner import MAX_PAUSE, PUBLISH_SECONDS, SinkRunner
from supervisor.events import DeadLettersFailed
from tests.unit.dead_letters.test_publisher import Here, play  # noqa: F401
from tests.unit.dead_letters.test_sink_runner import SlowCaller

SLOW = 6.0


class Counting:
    """Takes what is not `bad`, and raises for the rest; for all, while it is down."""

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


def publish(here: Here, *sinks: tuple[Counting, float]) -> DeadLetterPublisher:
    """Each sink with the seconds that a call of it takes."""
    return here.publish(
        *(
            SinkRunner(f"sink {number}", sink, lambda _, seconds=seconds: SlowCaller(here.loop, seconds))  # type: ignore[misc]
            for number, (sink, seconds) in enumerate(sinks)
        )
    )


def failed(here: Here) -> list[DeadLettersFailed]:
    return [event for event in here.events if isinstance(event, DeadLettersFailed)]


def test_letters_that_wait_for_a_slow_sink_have_not_failed(play: Any) -> None:  # noqa: F811
    async def scene(here: Here) -> None:
        ids = here.die(500)
        slow = Counting()
        dead_letters = publish(here, (slow, SLOW))
        while not dead_letters.quiet:
            assert dead_letters.failing == {}
            await asyncio.sleep(1.0)
        assert sorted(slow.taken) == ids
        assert (len(slow.calls), failed(here)) == (5, [])

    play(scene)


def test_a_slow_sink_beside_a_quick_one_has_not_failed_and_is_never_left_idle_for_long(play: Any) -> None:  # noqa: F811
    async def scene(here: Here) -> None:
        ids = here.die(500)
        slow, quick = Counting(), Counting()
        dead_letters = publish(here, (slow, SLOW), (quick, 0.0))
        began = here.loop.time()
        await asyncio.sleep(SLOW)
        assert sorted(quick.taken) == ids
        while not dead_letters.quiet:
            assert dead_letters.failing == {}
            await asyncio.sleep(1.0)
        assert sorted(slow.taken) == ids
        assert failed(here) == []
        assert here.loop.time() - began < 5 * SLOW + 10.0

    play(scene)


def test_a_sink_that_hangs_is_told_to_fail_and_what_waits_for_it_with_it(play: Any) -> None:  # noqa: F811
    async def scene(here: Here) -> None:
        here.die(200)
        dead_letters = publish(here, (Counting(), 10 * PUBLISH_SECONDS), (Counting(), 0.0))
        await asyncio.sleep(PUBLISH_SECONDS + 2 * MAX_PAUSE)
        assert "TimeoutError" in dead_letters.failing["sink 0"]
        assert "sink 1" not in dead_letters.failing

    play(scene)


def test_one_letter_that_makes_a_sink_raise_holds_back_no_other(play: Any) -> None:  # noqa: F811
    async def scene(here: Here) -> None:
        ids = here.die(20)
        strict = Counting()
        strict.bad = {ids[10]}
        dead_letters = publish(here, (strict, 0.0))
        await asyncio.sleep(0.5)
        assert [id for id in ids if here.dead_letter(id) == "pending"] == [ids[10]]
        assert [event.ids for event in failed(here)] == [[ids[10]]]
        assert dead_letters.failing == {"sink 0": "OSError: 413 too large"}
        await asyncio.sleep(3600.0)
        assert strict.calls.count([ids[10]]) < 80
        (late,) = here.die()
        dead_letters.look()
        await asyncio.sleep(MAX_PAUSE)
        assert here.dead_letter(late) == "delivered"

    play(scene)


def test_a_sink_that_is_down_is_called_now_and_then_however_many_letters_wait(play: Any) -> None:  # noqa: F811
    async def scene(here: Here) -> None:
        ids = here.die(2000)
        down = Counting()
        down.down = True
        dead_letters = publish(here, (down, 0.0))
        await asyncio.sleep(600.0)
        assert "OSError" in dead_letters.failing["sink 0"]
        assert len(down.calls) <= 3 * (600.0 / MAX_PAUSE + 5)
        down.down = False
        await asyncio.sleep(90.0)
        assert sorted(down.taken) == ids
        assert dead_letters.failing == {}

    play(scene)
