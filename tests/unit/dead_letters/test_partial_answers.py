"""Sinks that raise NotAccepted: each dead letter has its own result, and a sink may ask for a pause."""

from __future__ import annotations

import asyncio
from typing import Any

from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.dead_letters.sink_runner import SinkLimits, SinkRunner
from supervisor.errors import NotAccepted
from supervisor.events import DeadLettersFailed
from tests.unit.dead_letters.conftest import Play
from tests.unit.dead_letters.scripted import Scene, SlowCaller


class AnsweringSink:
    """Refuses the ids in `bad`, leaves those in `untried`, and asks for a pause of `retry_after`."""

    def __init__(self) -> None:
        self.bad: dict[int, str] = {}
        self.untried: set[int] = set()
        self.retry_after = 0.0
        self.calls: list[list[int]] = []
        self.taken: list[int] = []

    def publish(self, dead_letters: Any) -> Any:
        ids = [dead_letter["id"] for dead_letter in dead_letters]
        self.calls.append(ids)
        taken = [id for id in ids if id not in self.bad and id not in self.untried]
        self.taken += taken
        refused = {id: self.bad[id] for id in ids if id in self.bad}
        if len(taken) == len(ids):
            return ids
        raise NotAccepted(refused, taken, self.retry_after)

    def close(self) -> None:
        pass


def publish(here: Scene, sink: AnsweringSink) -> DeadLetterPublisher:
    return here.publish(SinkRunner("file", sink, lambda _: SlowCaller(here.loop, 0.0)))


def test_each_refused_dead_letter_has_its_own_error_and_none_is_offered_twice_at_once(play: Play) -> None:
    async def act(here: Scene) -> None:
        ids = here.fail_jobs(10)
        sink = AnsweringSink()
        sink.bad = {ids[3]: "413 too large", ids[7]: "422 no such team"}
        publisher = publish(here, sink)
        await asyncio.sleep(0.5)
        assert sink.calls == [ids]
        failed = {id: event.error for event in here.emitted(DeadLettersFailed) for id in event.ids}
        assert failed == sink.bad
        assert {id for id in ids if here.dead_letter(id) == "pending"} == set(sink.bad)
        assert publisher.failing == {"file": "422 no such team"}
        sink.bad = {}
        await asyncio.sleep(60.0)
        assert sorted(sink.taken) == ids
        assert publisher.failing == {}

    play(act)


def test_dead_letters_that_were_not_tried_have_not_failed_and_come_soon(play: Play) -> None:
    async def act(here: Scene) -> None:
        ids = here.fail_jobs(10)
        sink = AnsweringSink()
        sink.untried = set(ids[5:])
        publisher = publish(here, sink)
        await asyncio.sleep(0.5)
        assert (here.emitted(DeadLettersFailed), publisher.failing) == ([], {})
        sink.untried = set()
        await asyncio.sleep(2.0)
        assert sorted(sink.taken) == ids

    play(act)


def test_a_sink_that_asks_for_a_pause_is_offered_nothing_until_its_end(play: Play) -> None:
    async def act(here: Scene) -> None:
        ids = here.fail_jobs(10)
        sink = AnsweringSink()
        sink.bad, sink.untried, sink.retry_after = {ids[1]: "429"}, set(ids[2:]), 120.0
        publish(here, sink)
        await asyncio.sleep(1.0)
        sink.bad, sink.untried, sink.retry_after = {}, set(), 0.0
        (later,) = here.fail_jobs()
        here.publisher.look()
        await asyncio.sleep(118.0)
        assert len(sink.calls) == 1
        assert [event.retry_in for event in here.emitted(DeadLettersFailed)] == [120.0]
        await asyncio.sleep(10.0)
        assert sorted(sink.taken) == [*ids, later]

    play(act)


def test_a_pause_begins_before_the_next_part_of_an_offer(play: Play) -> None:
    async def act(here: Scene) -> None:
        ids = here.fail_jobs(8)
        sink = AnsweringSink()
        sink.bad = dict.fromkeys(ids, "500")
        publish(here, sink)
        await asyncio.sleep(0.5)
        sink.bad, sink.untried, sink.retry_after = {ids[0]: "429"}, set(ids[1:]), 120.0
        sink.calls.clear()
        await asyncio.sleep(60.0)
        assert len(sink.calls) == 1
        assert len(sink.calls[0]) < len(ids), "the parts are small after a failure"

    play(act)


def test_a_pause_has_a_limit(play: Play) -> None:
    async def act(here: Scene) -> None:
        (id,) = here.fail_jobs()
        sink = AnsweringSink()
        sink.bad, sink.retry_after = {id: "503"}, 1e9
        publish(here, sink)
        await asyncio.sleep(1.0)
        sink.bad = {}
        await asyncio.sleep(SinkLimits().retry_after + 10.0)
        assert sink.taken == [id]

    play(act)


def test_a_sink_that_asks_for_a_pause_is_a_problem_until_the_next_offer(play: Play) -> None:
    async def act(here: Scene) -> None:
        (id,) = here.fail_jobs()
        sink = AnsweringSink()
        sink.bad, sink.retry_after = {id: "503"}, 1800.0
        publisher = publish(here, sink)
        await asyncio.sleep(1790.0)
        assert publisher.failing == {"file": "503"}
        sink.bad = {}
        await asyncio.sleep(20.0)
        assert publisher.failing == {}

    play(act)


def test_a_failure_is_forgotten_when_nothing_waits_for_the_sink_any_more(play: Play) -> None:
    async def act(here: Scene) -> None:
        (id,) = here.fail_jobs()
        sink = AnsweringSink()
        sink.bad = {id: "422"}
        publisher = publish(here, sink)
        await asyncio.sleep(0.5)
        assert publisher.failing == {"file": "422"}
        here.store.redrive([id], force=True)
        await asyncio.sleep(130.0)
        assert publisher.failing == {}

    play(act)


def test_a_sink_that_raises_without_any_result_has_refused_all(play: Play) -> None:
    async def act(here: Scene) -> None:
        ids = here.fail_jobs(2)
        sink = AnsweringSink()
        sink.untried = set(ids)
        publisher = publish(here, sink)
        await asyncio.sleep(0.5)
        assert sorted(id for event in here.emitted(DeadLettersFailed) for id in event.ids) == ids
        assert "file" in publisher.failing

    play(act)
