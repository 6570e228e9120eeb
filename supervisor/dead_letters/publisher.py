"""Publish dead letters: each stays pending until every sink has accepted it. No sink delays the dead letters of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from supervisor.dead_letters.sink_runner import LIMITS, BatchSplitter, SinkRunner, delay_after
from supervisor.engine.store_writer import CallFailed, Purpose, Writer
from supervisor.engine.tasks import report_error
from supervisor.errors import RowsLocked
from supervisor.events import Bus, DeadLettersFailed, DeadLettersPublished, DeadLettersStale, SinkCutOff
from supervisor.stores.protocol import Store
from supervisor.stores.records import DeadLetter
from supervisor.stores.sinks import Sinks

CUT_OFF = (
    "sink {sink}: its {call} has not returned at the end, and is cut off; dead letters that it has not accepted stay pending: give what "
    "it waits for a time limit"
)
SLACK = 0.01  # seconds after a delay, so that a delayed dead letter is due by then


class PublisherLimits(NamedTuple):
    batch: int = 100  # dead letters that are claimed at once
    claim: float = 90.0  # seconds that they stay claimed; a publish begins only if it can end within them
    look: float = 5.0  # seconds between two looks for dead letters that another supervisor has left
    slow_sink: float = 1.0  # seconds until the next are claimed although a sink is still busy with these
    forget: float = (
        120.0  # seconds until a failure is old: a dead letter that still waits would have been offered again
    )
    locked: float = 1.0  # seconds between two attempts to record an acceptance whose row is locked


USUAL_LIMITS = PublisherLimits()


class DeadLetterPublisher:
    """Claims dead letters under a token, as jobs are, so that two supervisors never publish the same one at once.

    `quiet` is true if nothing was pending at the last look and nothing is under way. `failing` has the last error of each sink
    that refuses dead letters.
    """

    def __init__(
        self, writer: Writer, runners: Sequence[SinkRunner], bus: Bus, loop: asyncio.AbstractEventLoop,
        limits: PublisherLimits = USUAL_LIMITS,
    ) -> None:  # fmt: skip
        self._writer = writer
        self._runners = runners
        self._bus = bus
        self._loop = loop
        self._limits = limits
        self._sinks = frozenset(runner.name for runner in runners)
        self._more = asyncio.Event()
        self._stopping = False
        self._publishing: dict[asyncio.Task[None], Sequence[DeadLetter]] = {}
        self._task = loop.create_task(self._run()) if runners else None
        if self._task is not None:
            self._task.add_done_callback(report_error)
        self.quiet = not runners
        self.on_quiet: Callable[[], None] = lambda: None
        self.failing: dict[str, str] = {}
        self._forget_at: dict[str, float] = {}
        self._refused = False  # the last claim failed

    @property
    def stuck(self) -> bool:
        """Whether a sink or the store refuses, or there is no sink: further attempts will probably deliver nothing."""
        return bool(self.failing) or self._refused or not self._runners

    def look(self) -> None:
        """Look for pending dead letters, since there may be some."""
        if self._runners:
            self.quiet = False
            self._more.set()

    async def settle_down(self) -> None:
        """Wait until nothing is pending, unless a sink or the store is known to refuse."""
        while not self.quiet and not self.stuck:
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Claim nothing more, and wait for the publishes under way. If this is cancelled, their dead letters stay pending."""
        if self._task is None:
            return
        self._stopping = True
        for runner in self._runners:
            runner.stop()
        self._more.set()
        try:
            await asyncio.wait([self._task, *self._publishing])
        finally:
            self._release([dead_letter for dead_letters in self._publishing.values() for dead_letter in dead_letters])
            for task in (self._task, *self._publishing):
                task.cancel()

    async def close(self) -> None:
        """Close the sinks. A sink may hang: it is reported if this is cancelled."""
        try:
            await asyncio.gather(*(runner.close() for runner in self._runners))
        except asyncio.CancelledError:
            for runner in self._runners:
                if call := runner.call_under_way:
                    self._bus.emit(SinkCutOff(runner.name, CUT_OFF.format(sink=runner.name, call=call)))
            raise

    def _release(self, dead_letters: Sequence[DeadLetter]) -> None:
        """End the claim, so that the next supervisor need not wait until it expires."""
        if dead_letters:
            self._postpone(dead_letters, 0.0).add_done_callback(report_error)

    def _postpone(self, dead_letters: Sequence[DeadLetter], delay: float) -> asyncio.Future[list[int]]:
        return self._writer.submit(lambda store: store.postpone(dead_letters, delay), Purpose.POSTPONE)

    # claiming

    async def _run(self) -> None:
        while not self._stopping:
            self._more.clear()
            free = frozenset(runner.name for runner in self._runners if runner.free)
            dead_letters, until = await self._claimed(free) if free else ((), 0.0)
            if dead_letters:
                publishing = self._start(self._publish(dead_letters, until), dead_letters)
                await asyncio.wait([publishing], timeout=self._limits.slow_sink)
            else:
                await self._rest()

    async def _claimed(self, free: Sinks) -> tuple[Sequence[DeadLetter], float]:
        """Claim dead letters that one of these sinks lacks; others are better left in the store."""
        try:
            claimed = await self._writer.submit(partial(self._claim, free), Purpose.CLAIM_DEAD_LETTERS)
        except CallFailed:
            self._refused = True
            return (), 0.0
        self._refused = False
        return claimed

    def _claim(self, free: Sinks, store: Store) -> tuple[Sequence[DeadLetter], float]:
        """Claim dead letters; the second value is the time of the loop's clock until which a publish of them may begin."""
        until = self._loop.time() + self._limits.claim - LIMITS.publish
        return store.claim_dead_letters(self._limits.batch, self._limits.claim, free), until

    def _start(self, work: Coroutine[Any, Any, None], dead_letters: Sequence[DeadLetter]) -> asyncio.Task[None]:
        """Start a task about these dead letters, which are released if it is cancelled."""
        task = self._loop.create_task(work)
        self._publishing[task] = dead_letters
        task.add_done_callback(self._published)
        return task

    def _published(self, task: asyncio.Task[None]) -> None:
        del self._publishing[task]
        report_error(task)
        self.look()

    async def _rest(self) -> None:
        """Wait until there is a reason to look again, or until another supervisor may have left dead letters."""
        for sink, forget_at in self._forget_at.items():
            if self._loop.time() > forget_at:
                self.failing.pop(sink, None)
        if not self._publishing:
            self.quiet = True
            self.on_quiet()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.look):
                await self._more.wait()

    # publishing

    async def _publish(self, dead_letters: Sequence[DeadLetter], until: float) -> None:
        """Offer the dead letters to every sink, and postpone those that a sink has not accepted."""
        # A store of an older version did not keep the sinks that these were owed to, and these waited for one that is gone.
        complete = [dead_letter for dead_letter in dead_letters if self._sinks <= dead_letter.accepted]
        if complete:
            await self._record_accepted(complete, self._runners[0].name)
        waits: dict[int, float] = {}
        for of_sink in await asyncio.gather(*(self._offer(runner, dead_letters, until) for runner in self._runners)):
            waits.update({id: min(waits.get(id, wait), wait) for id, wait in of_sink.items()})
        for delay in set(waits.values()):
            again = [dead_letter for dead_letter in dead_letters if waits.get(dead_letter.id) == delay]
            with suppress(CallFailed):  # the claim ends by itself
                await self._postpone(again, delay)
            self._look_after(delay)

    def _look_after(self, delay: float) -> None:
        self._loop.call_later(delay + SLACK, self.look)

    async def _offer(self, runner: SinkRunner, dead_letters: Sequence[DeadLetter], until: float) -> dict[int, float]:
        """Offer the sink what it has not accepted yet. Return, by id, the seconds to wait for what it still has not accepted."""
        missing = [dead_letter for dead_letter in dead_letters if runner.name not in dead_letter.accepted]
        if not missing:
            return {}
        if runner.rests:
            return {dead_letter.id: delay_after(runner.failures) for dead_letter in missing}
        parts = await runner.offer(missing, until, partial(self._accepted, runner.name))
        if parts.claim_expired:
            self._bus.emit(DeadLettersStale(runner.name, [dead_letter.id for dead_letter in parts.left], "claim"))
        if parts.offered:
            self._report(runner, parts)
        wait = 0.0 if parts.claim_expired else runner.rest_seconds
        return dict.fromkeys([dead_letter.id for dead_letter in parts.left], wait) | {
            dead_letter.id: _delay(runner, dead_letter) for dead_letter in parts.refused
        }

    def _report(self, runner: SinkRunner, parts: BatchSplitter) -> None:
        if parts.accepted:
            self.look()
        else:
            self._look_after(runner.rest_seconds)
        refused: dict[tuple[float, str], list[int]] = {}
        for dead_letter in parts.refused:
            error = parts.errors.get(dead_letter.id, parts.error)
            refused.setdefault((_delay(runner, dead_letter), error), []).append(dead_letter.id)
        for delay, error in sorted(refused):
            self._bus.emit(DeadLettersFailed(runner.name, refused[delay, error], error, delay))
        if refused:
            self.failing[runner.name] = parts.error
            self._forget_at[runner.name] = self._loop.time() + self._limits.forget + runner.retry_after
        else:
            self.failing.pop(runner.name, None)

    # recording what a sink has accepted

    async def _accepted(self, sink: str, dead_letters: Sequence[DeadLetter]) -> None:
        stale = await self._record_accepted(dead_letters, sink)
        self._bus.emit(DeadLettersPublished(sink, [dead_letter.id for dead_letter in dead_letters]))
        self._report_stale(sink, stale)

    def _report_stale(self, sink: str, ids: Sequence[int]) -> None:
        if ids:
            self._bus.emit(DeadLettersStale(sink, ids, "acceptance"))

    async def _record_accepted(self, dead_letters: Sequence[DeadLetter], sink: str) -> list[int]:
        """Record the acceptance; return the stale ids. Rows that others have locked are recorded later: nothing waits for it."""
        stale, locked = await self._record_unlocked(dead_letters, sink)
        if locked:
            self._start(self._record_later(locked, sink), locked)
        return stale

    async def _record_later(self, dead_letters: Sequence[DeadLetter], sink: str) -> None:
        while dead_letters:
            await asyncio.sleep(self._limits.locked)
            stale, dead_letters = await self._record_unlocked(dead_letters, sink)
            self._report_stale(sink, stale)

    async def _record_unlocked(
        self, dead_letters: Sequence[DeadLetter], sink: str
    ) -> tuple[list[int], Sequence[DeadLetter]]:
        """Return the stale ids, and the dead letters to be recorded later: their rows are locked, or the store refused the call."""

        def record(store: Store) -> tuple[list[int], frozenset[int]]:
            try:
                return store.mark_accepted(dead_letters, sink), frozenset()
            except RowsLocked as error:
                free = [dead_letter for dead_letter in dead_letters if dead_letter.id not in error.ids]
                return store.mark_accepted(free, sink) if free else [], error.ids

        try:
            stale, locked = await self._writer.submit(
                record, Purpose.ACCEPT, lambda recorded: len(recorded[1]) < len(dead_letters)
            )
        except CallFailed:
            return [], dead_letters
        return stale, [dead_letter for dead_letter in dead_letters if dead_letter.id in locked]


def _delay(runner: SinkRunner, dead_letter: DeadLetter) -> float:
    """Return the seconds until a dead letter that the sink has refused is offered again."""
    return max(delay_after(dead_letter.tries), runner.retry_after)
