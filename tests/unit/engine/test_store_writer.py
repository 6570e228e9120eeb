"""The store writer: one commit for all work that waits, refused work fails alone, none is dropped while the store is
unavailable."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import ANY

import pytest

from supervisor.engine.store_writer import USUAL_PAUSES, Abandoned, CallFailed, Purpose, Writer, WriterPauses
from supervisor.errors import RowRefused, StoreBroken, StoreContended, StoreUnavailable, Unsupported
from supervisor.events import Bus, StoreAvailableAgain, StoreBecameUnavailable, StoreCallFailed, StoreCallSucceeded


class Notebook:
    """A store that keeps what was committed. A commit raises `error` while `unavailable` returns True."""

    def __init__(self) -> None:
        self.kept: list[list[str]] = []
        self.open: list[str] = []
        self.brief: list[bool] = []
        self.unavailable: Callable[[], bool] = lambda: False
        self.error = StoreUnavailable

    @contextmanager
    def transaction(self, *, single: bool = False, brief: bool = False) -> Iterator[None]:
        self.open = []
        self.brief.append(brief)
        yield
        if self.unavailable():
            raise self.error("simulated")
        if self.open:
            self.kept.append(self.open)

    def clock(self) -> float:
        return 0.0


def note(text: str) -> Callable[[Any], str]:
    def write(store: Any) -> str:
        store.open.append(text)
        return text

    return write


def refuse(store: Any) -> None:
    store.open.append("half a row")
    raise RowRefused("bad row")


def play(
    scene: Callable[[Writer, Notebook, list[Any]], Coroutine[Any, Any, None]], pauses: WriterPauses = USUAL_PAUSES
) -> None:
    async def run() -> None:
        store, events, bus = Notebook(), [], Bus()
        bus.subscribe(events.append)
        writer = Writer(store, asyncio.get_running_loop(), bus, pauses=pauses)  # type: ignore[arg-type]
        await scene(writer, store, events)

    asyncio.run(run())


def test_work_that_arrives_in_the_pause_after_a_small_commit_shares_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests, go_on = threading.Event(), threading.Event()

    def rest(seconds: float) -> None:
        assert seconds == USUAL_PAUSES.pause
        rests.set()
        assert go_on.wait(10)

    monkeypatch.setattr("supervisor.engine.store_writer.time.sleep", rest)

    async def scene(writer: Writer, store: Notebook, events: list[Any]) -> None:
        await writer.submit(note("a"))
        assert await asyncio.to_thread(rests.wait, 10)
        b = writer.submit(note("b"))
        await asyncio.sleep(0)
        c = writer.submit(note("c"))
        await asyncio.sleep(0)
        assert store.kept == [["a"]]
        go_on.set()
        assert await asyncio.gather(b, c) == ["b", "c"]
        assert store.kept == [["a"], ["b", "c"]]

    play(scene, WriterPauses(small_commit=60.0))  # however long this machine takes


def test_work_submitted_together_shares_one_commit_and_is_answered_in_order() -> None:
    async def scene(writer: Writer, store: Notebook, events: list[Any]) -> None:
        answered: list[str] = []
        for text in "abc":
            writer.submit(note(text)).add_done_callback(lambda future: answered.append(future.result()))
        assert await writer.close(30)
        assert store.kept == [["a", "b", "c"]]
        await asyncio.sleep(0)
        assert answered == ["a", "b", "c"]

    play(scene)


def test_work_that_is_refused_fails_alone_and_is_rolled_back() -> None:
    async def scene(writer: Writer, store: Notebook, events: list[Any]) -> None:
        good, bad, last = (
            writer.submit(note("good")),
            writer.submit(refuse, Purpose.SETTLE),
            writer.submit(note("last")),
        )
        assert (await good, await last) == ("good", "last")
        with pytest.raises(RowRefused):
            await bad
        assert store.kept == [["good"], ["last"]]
        assert await writer.close(30)

    play(scene)


def test_work_that_the_store_does_not_support_is_answered_and_no_failure_is_reported() -> None:
    def ask_too_much(store: Any) -> None:
        raise Unsupported("do this", "ask another")

    async def scene(writer: Writer, store: Notebook, events: list[Any]) -> None:
        asked = writer.submit(ask_too_much, Purpose.READ)
        assert await writer.submit(note("a")) == "a"
        with pytest.raises(Unsupported, match="this store can't do this: ask another"):
            await asked
        assert await writer.submit(note("b"), Purpose.READ) == "b"
        assert events == []

    play(scene)


def test_work_that_finds_the_store_unavailable_is_done_once_it_is_available() -> None:
    async def scene(writer: Writer, store: Notebook, events: list[Any]) -> None:
        tries = iter([True, True, False, False])
        store.unavailable = lambda: next(tries)
        assert await writer.submit(note("a")) == "a"
        assert store.kept == [["a"]]
        assert [type(event) for event in events] == [StoreBecameUnavailable, StoreAvailableAgain]
        store.unavailable = lambda: False
        assert not writer.unavailable
        assert await writer.close(30)

    play(scene)


def test_work_that_meets_a_lock_is_tried_again_at_once_and_the_store_is_not_reported_as_unavailable() -> None:
    async def scene(writer: Writer, store: Notebook, events: list[Any]) -> None:
        store.error = StoreContended
        tries = iter([True, False])
        store.unavailable = lambda: next(tries)
        assert await asyncio.gather(
            writer.submit(note("a"), Purpose.SETTLE), writer.submit(note("b"), Purpose.CLAIM)
        ) == ["a", "b"]
        assert store.kept == [["a", "b"]]
        assert await writer.close(30)
        assert events == []

    play(scene)


FAILURES = [StoreBroken("no right"), StoreContended("a table is locked"), StoreUnavailable("it took too long")]


@pytest.mark.parametrize("error", FAILURES)
def test_a_call_that_keeps_failing_fails_alone_and_is_reported_once_until_it_succeeds(error: StoreUnavailable) -> None:
    def fail(store: Any) -> None:
        raise error

    async def scene(writer: Writer, store: Notebook, events: list[Any]) -> None:
        for text in "ab":
            pruned, extended = writer.submit(fail, Purpose.PRUNE), writer.submit(note(text), Purpose.EXTEND)
            assert await extended == text
            with pytest.raises(CallFailed, match=str(error)):
                await pruned
        report = StoreCallFailed(Purpose.PRUNE.text, str(error), Purpose.PRUNE.meanwhile)
        assert events == [report]
        await writer.submit(note("c"), Purpose.PRUNE)
        assert events == [report, StoreCallSucceeded(Purpose.PRUNE.text, ANY)]
        with pytest.raises(CallFailed):
            await writer.submit(fail, Purpose.PRUNE)
        assert events == [report, StoreCallSucceeded(Purpose.PRUNE.text, ANY), report]
        assert store.kept == [["a"], ["b"], ["c"]]
        assert await writer.close(30)

    play(scene)


@pytest.mark.parametrize("purpose", [Purpose.CLAIM, Purpose.SETTLE, Purpose.EXTEND])
@pytest.mark.parametrize("error", FAILURES)
def test_a_claim_a_settle_and_an_extend_are_tried_until_they_are_done_and_stop_no_other_call(
    purpose: Purpose, error: StoreUnavailable
) -> None:
    granted = threading.Event()

    def fail(store: Any) -> str:
        if not granted.is_set():
            raise error
        return note("late")(store)

    async def scene(writer: Writer, store: Notebook, events: list[Any]) -> None:
        late = writer.submit(fail, purpose)
        for other in {Purpose.EXTEND, Purpose.SETTLE, Purpose.CHECK} - {purpose}:
            assert await writer.submit(note(other.name), other) == other.name
        assert not late.done()
        assert not writer.unavailable
        granted.set()
        assert await late == "late"
        failed, succeeded = (
            StoreCallFailed(purpose.text, str(error), purpose.meanwhile),
            StoreCallSucceeded(purpose.text, ANY),
        )
        assert events == [failed, succeeded]
        assert writer.outages > 0, "others may have extended no lease either"
        assert await writer.close(30)

    play(scene)


def test_a_call_that_had_nothing_to_do_does_not_show_that_the_store_does_such_calls_again() -> None:
    async def scene(writer: Writer, store: Notebook, events: list[Any]) -> None:
        def fail(store: Any) -> str:
            raise StoreBroken("no right")

        with pytest.raises(CallFailed):
            await writer.submit(fail, Purpose.PRUNE, bool)
        await writer.submit(lambda store: "", Purpose.PRUNE, bool)
        assert [type(event) for event in events] == [StoreCallFailed]
        await writer.submit(note("done"), Purpose.PRUNE, bool)
        assert [type(event) for event in events] == [StoreCallFailed, StoreCallSucceeded]
        assert await writer.close(30)

    play(scene)


def test_nothing_waits_for_a_call_that_has_failed_before_and_it_waits_for_no_lock() -> None:
    async def scene(writer: Writer, store: Notebook, events: list[Any]) -> None:
        def fail(_: Any) -> None:
            raise StoreBroken("no right")

        with pytest.raises(CallFailed):
            await writer.submit(fail, Purpose.ANNOUNCE)
        kept_before: list[list[str]] = []

        def announce(_: Any) -> None:
            kept_before.extend(store.kept)
            store.open.append("announced")

        store.brief.clear()
        announced, extend = writer.submit(announce, Purpose.ANNOUNCE), writer.submit(note("extended"), Purpose.EXTEND)
        await asyncio.gather(announced, extend)
        assert kept_before == [["extended"]]
        assert store.kept == [["extended"], ["announced"]]
        assert (store.brief[0], store.brief[-1]) == (False, True)
        assert await writer.close(30)

    play(scene)


def test_after_a_lock_was_met_claims_settles_and_extends_come_first_and_others_wait_for_no_lock() -> None:
    async def scene(writer: Writer, store: Notebook, events: list[Any]) -> None:
        meets = iter([StoreContended("locked"), None])

        def announce(_: Any) -> None:
            if (error := next(meets)) is not None:
                raise error
            store.open.append("announced")

        announced, extended = writer.submit(announce, Purpose.ANNOUNCE), writer.submit(note("extended"), Purpose.EXTEND)
        await asyncio.gather(announced, extended)
        assert store.kept == [["extended"], ["announced"]]
        assert (store.brief[0], *store.brief[-2:]) == (False, False, True)
        assert events == []
        assert await writer.close(30)

    play(scene)


def test_no_job_is_claimed_while_the_store_refuses_to_settle() -> None:
    granted = threading.Event()

    def fail(store: Any) -> str:
        if not granted.is_set():
            raise StoreBroken("no right")
        return note("settled")(store)

    async def scene(writer: Writer, store: Notebook, events: list[Any]) -> None:
        settled, claimed = writer.submit(fail, Purpose.SETTLE), writer.submit(note("claimed"), Purpose.CLAIM)
        assert await writer.submit(note("extended"), Purpose.EXTEND) == "extended"
        assert not claimed.done()
        granted.set()
        await asyncio.gather(settled, claimed)
        assert store.kept == [["extended"], ["settled"], ["claimed"]]
        assert await writer.close(30)

    play(scene)


def test_work_is_abandoned_if_the_writer_is_closed_while_the_store_is_unavailable() -> None:
    async def scene(writer: Writer, store: Notebook, events: list[Any]) -> None:
        store.unavailable = lambda: True
        waiting = writer.submit(note("a"))
        assert not await writer.close(0.0)
        with pytest.raises(Abandoned):
            await waiting
        with pytest.raises(Abandoned):
            await writer.submit(note("b"))

    play(scene)


def test_a_store_that_answers_after_the_loop_has_ended_does_no_harm() -> None:
    faults: list[Any] = []
    hook, threading.excepthook = threading.excepthook, faults.append
    go_on = threading.Event()
    threads: list[Any] = []

    async def scene(writer: Writer, store: Notebook, events: list[Any]) -> None:
        store.unavailable = lambda: go_on.wait() and True
        writer.submit(note("a"))
        assert not await writer.close(0.0)
        threads.append(writer._executor)

    try:
        play(scene)
        go_on.set()
        threads[0].join(30)
    finally:
        threading.excepthook = hook
    assert faults == []
