"""How a sink is called, and in what parts it is offered dead letters."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any

import pytest

from supervisor.dead_letters.sink_runner import BatchSplitter, SinkLimits, SinkRunner
from supervisor.stores.records import DeadLetter
from tests.unit.dead_letters.conftest import Play
from tests.unit.dead_letters.scripted import Scene, SlowCaller
from tests.unit.jumping_loop import JumpingLoop

COUNT = 100
FAR = float("inf")
LIMITS = SinkLimits()

# --- calls: in order, each with its own answer, whenever the answer comes


class AcceptingSink:
    def publish(self, dead_letters: Any) -> Iterable[int]:
        return [dead_letter["id"] for dead_letter in dead_letters]

    def close(self) -> None:
        pass


class RaisingSink(AcceptingSink):
    def publish(self, dead_letters: Any) -> Iterable[int]:
        raise OSError("connection timed out")


def runner(loop: JumpingLoop, seconds: float, sink: Any) -> SinkRunner:
    return SinkRunner("slow", sink, lambda _: SlowCaller(loop, seconds))


async def begun(work: Coroutine[Any, Any, frozenset[int]]) -> asyncio.Task[frozenset[int]]:
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    return task


def test_a_sink_that_raises_after_its_time_is_no_fault_of_the_supervisor(play: Play) -> None:
    async def act(here: Scene) -> None:
        faults: list[Any] = []
        here.loop.set_exception_handler(lambda _, context: faults.append(context["message"]))
        slow = runner(here.loop, LIMITS.publish + 5.0, RaisingSink())
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await slow.publish([{"id": 1}], FAR)
            await asyncio.sleep(10.0)
        del slow
        gc.collect()
        assert faults == []

    play(act)


def test_each_publish_that_waited_for_an_earlier_one_has_its_own_answer(play: Play) -> None:
    async def act(here: Scene) -> None:
        slow = runner(here.loop, 0.3, AcceptingSink())
        publishes = [await begun(slow.publish([{"id": id}], FAR)) for id in (1, 2, 3)]
        assert await asyncio.gather(*publishes) == [{1}, {2}, {3}]

    play(act)


async def ignore(_: Any) -> None:
    pass


def test_a_sink_that_hangs_is_offered_one_part_and_later_others_at_once(play: Play) -> None:
    async def act(here: Scene) -> None:
        slow = runner(here.loop, 3 * LIMITS.publish, AcceptingSink())
        began = here.loop.time()
        offering = asyncio.ensure_future(slow.offer(dead_letters(8), FAR, ignore))
        await asyncio.sleep(1.0)
        assert not slow.free and not slow.hangs
        parts = await offering
        assert (here.loop.time() - began, len(parts.refused)) == (LIMITS.publish, 8)
        assert slow.hangs and slow.rests
        await asyncio.sleep(slow.rest_seconds)
        assert slow.hangs and slow.free, "an offer is answered soon, by an error"
        await asyncio.sleep(2 * LIMITS.publish)
        assert slow.free and not slow.hangs

    play(act)


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        (["1"], "publish returned '1' of type str among the ids, expected the ids (int) of"),
        (None, "TypeError: publish returned None of type NoneType, expected the ids (int) of"),
        ([{"id": 1}], "TypeError: publish returned [{'id': 1}] of type list, expected the ids (int) of"),
        ([], "publish has not returned its id"),
    ],
)
def test_what_a_sink_returned_instead_of_ids_is_named(play: Play, returned: Any, error: str) -> None:
    class WrongSink(AcceptingSink):
        def publish(self, dead_letters: Any) -> Any:
            return returned

    async def act(here: Scene) -> None:
        parts = await runner(here.loop, 0.0, WrongSink()).offer(dead_letters(1), FAR, ignore)
        assert parts.error.startswith(error)

    play(act)


class PickySink(AcceptingSink):
    def __init__(self) -> None:
        self.accepts = {0}

    def publish(self, dead_letters: Any) -> Iterable[int]:
        return self.accepts.intersection(dead_letter["id"] for dead_letter in dead_letters)


def test_the_failures_of_a_sink_grow_with_offers_in_vain_and_end_one_by_one_or_with_a_full_success(play: Play) -> None:
    async def act(here: Scene) -> None:
        sink = PickySink()
        picky = runner(here.loop, 0.0, sink)
        failures = []
        for accepts in ({7}, {7}, {7}, {0}, {0, 1}, {7}):
            sink.accepts = accepts
            await picky.offer(dead_letters(2), FAR, ignore)
            failures.append(picky.failures)
        assert failures == [1, 2, 3, 2, 0, 1]

    play(act)


# --- parts: the good dead letters get through, and a sink that is down is called a few times only


def dead_letters(count: int) -> list[DeadLetter]:
    return [DeadLetter(id, 1, 1, frozenset(), {"id": id}) for id in range(count)]


def offer(parts: BatchSplitter, raises: Callable[[list[int]], bool]) -> list[list[int]]:
    """Return the ids of each part, as offered to a sink that accepts all of a part or raises."""
    offered = []
    while part := parts.next():
        ids = [dead_letter.id for dead_letter in part]
        offered.append(ids)
        if raises(ids):
            parts.note_raised(part, "413")
        else:
            parts.note(part, frozenset(ids))
    return offered


def test_a_sink_that_accepts_is_offered_all_at_once() -> None:
    parts = BatchSplitter(dead_letters(COUNT), 0)
    assert offer(parts, lambda ids: False) == [[*range(COUNT)]]
    assert (parts.left, parts.refused) == ([], [])


def test_a_sink_that_failed_and_accepts_again_is_offered_a_part_and_then_more_and_more() -> None:
    assert offer(BatchSplitter(dead_letters(8), 3), lambda ids: False) == [[0], [1, 2], [3, 4, 5, 6], [7]]


def test_a_sink_that_goes_down_during_an_offer_is_not_offered_the_rest() -> None:
    accepted: list[int] = []
    calls = offer(BatchSplitter(dead_letters(COUNT), 7), lambda ids: bool(accepted) or accepted.append(1) is not None)
    assert len(calls) == 1 + LIMITS.failed_parts


@pytest.mark.parametrize("bad", [0, 1, 49, 50, 99])
def test_one_bad_dead_letter_is_offered_alone_in_the_end(bad: int) -> None:
    parts = BatchSplitter(dead_letters(COUNT), 0)
    calls = offer(parts, lambda ids: bad in ids)
    assert [dead_letter.id for dead_letter in parts.refused] == [dead_letter.id for dead_letter in parts.left] == [bad]
    assert [bad] in calls and len(calls) <= 15


@pytest.mark.parametrize("failures", [0, 1, 3, 7, 1000])
def test_a_sink_that_is_down_is_called_a_few_times_only(failures: int) -> None:
    parts = BatchSplitter(dead_letters(COUNT), failures)
    assert len(offer(parts, lambda ids: True)) == LIMITS.failed_parts_at_first
    assert len(parts.left) == COUNT


def test_dead_letters_that_a_sink_leaves_out_are_not_offered_in_halves() -> None:
    parts = BatchSplitter(dead_letters(4), 0)
    assert parts.note(parts.next(), frozenset({0, 1, 3})) == [it for it in dead_letters(4) if it.id != 2]
    assert (parts.next(), [dead_letter.id for dead_letter in parts.refused]) == ([], [2])


@pytest.mark.parametrize("bad", [2, 10, 20, 50, 80, 99])
def test_among_many_bad_dead_letters_the_good_ones_are_found_in_the_end(bad: int) -> None:
    """Offer after offer, with those first that were not offered before."""
    waiting, failures = dead_letters(COUNT), 0
    wrong = set(Random(bad).sample(range(COUNT), bad))
    for _ in range(50):
        parts = BatchSplitter(waiting, failures)
        offer(parts, lambda ids: not wrong.isdisjoint(ids))
        failures = max(0, failures - 1) if parts.accepted else failures + 1
        waiting = [dead_letter for dead_letter in parts.left if dead_letter.id not in parts.offered] + parts.refused
    assert {dead_letter.id for dead_letter in waiting} == wrong
