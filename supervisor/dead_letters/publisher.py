"""Publishes dead letters: each stays pending until every sink has accepted it. No sink holds up another's letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from supervisor.dead_letters.batch_splitter import BatchSplitter
from supervisor.dead_letters.sink_runner import Busy, ClaimEnded, SinkRunner, delay_after
from supervisor.engine.poll_intervals import USUAL, PollIntervals
from supervisor.engine.store_writer import Abandoned, Writer
from supervisor.errors import RowsLocked
from supervisor.events import Bus, DeadLettersFailed, DeadLettersPublished, DeadLettersStale
from supervisor.stores.protocol import Store
from supervisor.stores.records import DeadLetter

BATCH = 100
CLAIM_SECONDS = 60.0
HELD_UP_SECONDS = 1.0
LOCKED_SECONDS = 1.0


class DeadLetterPublisher:
    """Letters are claimed under a token like jobs, so two supervisors never publish one at once."""

    def __init__(
        self,
        writer: Writer,
        runners: Sequence[SinkRunner],
        bus: Bus,
        loop: asyncio.AbstractEventLoop,
        intervals: PollIntervals = USUAL,
    ) -> None:
        self._writer = writer
        self._runners = runners
        self._intervals = intervals
        self._bus = bus
        self._loop = loop
        self._wanted = frozenset(runner.name for runner in runners)
        self._more = asyncio.Event()
        self._ending = False
        self._publishing: dict[asyncio.Task[None], Sequence[DeadLetter]] = {}
        self._task = loop.create_task(self._run()) if runners else None
        if self._task is not None:
            self._task.add_done_callback(self._report_fault)
        self.quiet = not runners
        self.on_quiet: Callable[[], None] = lambda: None
        self.failing: dict[str, str] = {}

    @property
    def stuck(self) -> bool:
        """What is pending is not delivered by trying on: a sink refuses it, or there is none."""
        return bool(self.failing) or not self._runners

    def look(self) -> None:
        """There may be pending letters."""
        if self._runners:
            self.quiet = False
            self._more.set()

    async def settle_down(self) -> None:
        """Give what is pending a chance, unless a sink is known to fail."""
        while not self.quiet and not self.failing:
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Begin nothing, and let publishes under way end; when cancelled, what is pending then stays pending."""
        if self._task is None:
            return
        self._ending = True
        self._more.set()
        try:
            await asyncio.wait([self._task, *self._publishing])
        finally:
            self._reclaim([dead_letter for dead_letters in self._publishing.values() for dead_letter in dead_letters])
            for task in (self._task, *self._publishing):
                task.cancel()

    async def close(self) -> None:
        await asyncio.gather(*(runner.close() for runner in self._runners))

    def _reclaim(self, dead_letters: Sequence[DeadLetter]) -> None:
        """The next supervisor need not wait for our claim to end."""
        if dead_letters:
            self._writer.submit(lambda store: store.postpone(dead_letters, 0.0)).add_done_callback(self._report_fault)

    async def _run(self) -> None:
        while not self._ending:
            self._more.clear()
            dead_letters, until = await self._writer.submit(self._claim) if self._any_free() else ((), 0.0)
            if dead_letters:
                await self._begin(dead_letters, until)
            else:
                await self._rest()

    def _any_free(self) -> bool:
        """While every sink is busy or rests, letters are better left in the store."""
        return any(runner.free for runner in self._runners)

    def _claim(self, store: Store) -> tuple[Sequence[DeadLetter], float]:
        """Letters, and until when they are ours alone."""
        until = self._loop.time() + CLAIM_SECONDS
        return store.claim_dead_letters(BATCH, CLAIM_SECONDS), until

    async def _begin(self, dead_letters: Sequence[DeadLetter], until: float) -> None:
        """Go on to the next letters when a sink is slow with these."""
        await asyncio.wait([self._keep(self._publish(dead_letters, until), dead_letters)], timeout=HELD_UP_SECONDS)

    def _keep(self, work: Coroutine[Any, Any, None], dead_letters: Sequence[DeadLetter]) -> asyncio.Task[None]:
        """A task about these letters, which are given back if it must not end."""
        task = self._loop.create_task(work)
        self._publishing[task] = dead_letters
        task.add_done_callback(self._published)
        return task

    def _published(self, task: asyncio.Task[None]) -> None:
        del self._publishing[task]
        self._report_fault(task)
        self.look()

    async def _rest(self) -> None:
        """Until told of a letter, or long enough for one that another supervisor has left."""
        if not self._publishing:
            self.quiet = True
            self.on_quiet()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._intervals.dead_letters):
                await self._more.wait()

    def _report_fault(self, ended: asyncio.Future[Any]) -> None:
        error = None if ended.cancelled() else ended.exception()
        if error is not None and not isinstance(error, Abandoned):
            self._loop.call_exception_handler({"message": "publishing dead letters failed", "exception": error})

    async def _publish(self, dead_letters: Sequence[DeadLetter], until: float) -> None:
        await self._deliver_complete(
            [dead_letter for dead_letter in dead_letters if self._wanted <= dead_letter.accepted]
        )
        late: dict[int, float] = {}
        for waits in await asyncio.gather(*(self._offer(runner, dead_letters, until) for runner in self._runners)):
            late.update({id: min(late.get(id, wait), wait) for id, wait in waits.items()})
        for delay in set(late.values()):
            again = [dead_letter for dead_letter in dead_letters if late.get(dead_letter.id) == delay]
            await self._writer.submit(lambda store, again=again, delay=delay: store.postpone(again, delay))  # type: ignore[misc]
            self._loop.call_later(delay + 0.01, self.look)

    async def _deliver_complete(self, dead_letters: Sequence[DeadLetter]) -> None:
        """What they still waited for was a sink that is no longer configured."""
        if dead_letters:
            await self._note_accepted(dead_letters, self._runners[0].name)

    async def _offer(self, runner: SinkRunner, dead_letters: Sequence[DeadLetter], until: float) -> dict[int, float]:
        """Publish what this sink has not accepted yet; gives, for each id that it still has not, the seconds that it is to
        wait for this sink."""
        missing = [dead_letter for dead_letter in dead_letters if runner.name not in dead_letter.accepted]
        if not missing:
            return {}
        if runner.rests:
            return {dead_letter.id: runner.delay() for dead_letter in missing}
        parts = BatchSplitter(missing, runner.failures)
        claimed = await self._offer_parts(runner, parts, until)
        self._note(runner, parts)
        if not claimed:
            return {}
        waits = {dead_letter.id: runner.rest() for dead_letter in parts.left}
        return waits | {dead_letter.id: delay_after(dead_letter.tries) for dead_letter in parts.refused}

    async def _offer_parts(self, runner: SinkRunner, parts: BatchSplitter, until: float) -> bool:
        """False if the claim ended meanwhile. What did not get its turn is no failure."""
        try:
            while (part := parts.next()) and not (parts.offered and (self._ending or runner.hangs)):
                await self._offer_part(runner, parts, part, until)
        except Busy:
            pass
        except ClaimEnded:
            self._bus.emit(DeadLettersStale(runner.name, [dead_letter.id for dead_letter in parts.left], "claim"))
            return False
        return True

    async def _offer_part(
        self, runner: SinkRunner, parts: BatchSplitter, part: Sequence[DeadLetter], until: float
    ) -> None:
        try:
            accepted = await runner.publish([dead_letter.job for dead_letter in part], until)
        except (Busy, ClaimEnded):
            raise
        except Exception as failure:
            parts.note_raised(part, f"{type(failure).__name__}: {failure}")
            return
        if taken := parts.note(part, accepted):
            stale = await self._note_accepted(taken, runner.name)
            self._bus.emit(DeadLettersPublished(runner.name, [dead_letter.id for dead_letter in taken]))
            if stale:
                self._bus.emit(DeadLettersStale(runner.name, stale, "acceptance"))

    async def _note_accepted(self, dead_letters: Sequence[DeadLetter], sink: str) -> list[int]:
        """Gives the stale ids. What others have locked in the store is noted later: the sink has it, and nothing waits for it."""
        stale, locked = await self._try_to_note(dead_letters, sink)
        if locked:
            self._keep(self._note_later(locked, sink), locked)
        return stale

    async def _note_later(self, dead_letters: Sequence[DeadLetter], sink: str) -> None:
        while dead_letters:
            await asyncio.sleep(LOCKED_SECONDS)
            stale, dead_letters = await self._try_to_note(dead_letters, sink)
            if stale:
                self._bus.emit(DeadLettersStale(sink, stale, "acceptance"))

    async def _try_to_note(
        self, dead_letters: Sequence[DeadLetter], sink: str
    ) -> tuple[list[int], Sequence[DeadLetter]]:
        """The stale ids, and what is locked."""

        def note(store: Store) -> tuple[list[int], frozenset[int]]:
            try:
                return store.mark_accepted(dead_letters, sink, self._wanted), frozenset()
            except RowsLocked as error:
                free = [dead_letter for dead_letter in dead_letters if dead_letter.id not in error.ids]
                return store.mark_accepted(free, sink, self._wanted) if free else [], error.ids

        stale, locked = await self._writer.submit(note)
        return stale, [dead_letter for dead_letter in dead_letters if dead_letter.id in locked]

    def _note(self, runner: SinkRunner, parts: BatchSplitter) -> None:
        if not parts.offered:
            return
        refused = parts.refused
        runner.note(accepted=bool(parts.accepted), refused=bool(refused))
        if parts.accepted:
            self.look()
        else:
            self._loop.call_later(runner.rest() + 0.01, self.look)
        for delay in sorted({delay_after(dead_letter.tries) for dead_letter in refused}):
            ids = [dead_letter.id for dead_letter in refused if delay_after(dead_letter.tries) == delay]
            self._bus.emit(DeadLettersFailed(runner.name, ids, parts.error, delay))
        if refused:
            self.failing[runner.name] = parts.error
        else:
            self.failing.pop(runner.name, None)
