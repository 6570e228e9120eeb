"""Publishes dead letters: each stays pending until every sink has accepted it. No sink holds up another's letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from supervisor.dead_letters.batch_splitter import Parts
from supervisor.dead_letters.sink_runner import Busy, ClaimEnded, Outlet, delay_after
from supervisor.engine.poll_intervals import USUAL, Pace
from supervisor.engine.store_writer import Abandoned, Writer
from supervisor.events import Bus, LettersFailed, LettersPublished, LettersStale
from supervisor.stores.protocol import Letter, RowsLocked, Store

BATCH = 100
CLAIM_SECONDS = 60.0
HELD_UP_SECONDS = 1.0
LOCKED_SECONDS = 1.0


class DeadLetters:
    """Letters are claimed under a token like jobs, so two supervisors never publish one at once."""

    def __init__(
        self, writer: Writer, outlets: Sequence[Outlet], bus: Bus, loop: asyncio.AbstractEventLoop, pace: Pace = USUAL
    ) -> None:
        self._writer = writer
        self._outlets = outlets
        self._pace = pace
        self._bus = bus
        self._loop = loop
        self._wanted = frozenset(outlet.name for outlet in outlets)
        self._more = asyncio.Event()
        self._ending = False
        self._publishing: dict[asyncio.Task[None], Sequence[Letter]] = {}
        self._task = loop.create_task(self._run()) if outlets else None
        if self._task is not None:
            self._task.add_done_callback(self._tell_fault)
        self.quiet = not outlets
        self.on_quiet: Callable[[], None] = lambda: None
        self.failing: dict[str, str] = {}

    @property
    def stuck(self) -> bool:
        """What is pending is not delivered by trying on: a sink refuses it, or there is none."""
        return bool(self.failing) or not self._outlets

    def look(self) -> None:
        """There may be pending letters."""
        if self._outlets:
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
            self._give_back([letter for letters in self._publishing.values() for letter in letters])
            for task in (self._task, *self._publishing):
                task.cancel()

    async def close(self) -> None:
        await asyncio.gather(*(outlet.close() for outlet in self._outlets))

    def _give_back(self, letters: Sequence[Letter]) -> None:
        """The next supervisor need not wait for our claim to end."""
        if letters:
            self._writer.submit(lambda store: store.postpone(letters, 0.0)).add_done_callback(self._tell_fault)

    async def _run(self) -> None:
        while not self._ending:
            self._more.clear()
            letters, until = await self._writer.submit(self._claim) if self._any_free() else ((), 0.0)
            if letters:
                await self._begin(letters, until)
            else:
                await self._rest()

    def _any_free(self) -> bool:
        """While every sink is busy or rests, letters are better left in the store."""
        return any(outlet.free for outlet in self._outlets)

    def _claim(self, store: Store) -> tuple[Sequence[Letter], float]:
        """Letters, and until when they are ours alone."""
        until = self._loop.time() + CLAIM_SECONDS
        return store.dead_letters(BATCH, CLAIM_SECONDS), until

    async def _begin(self, letters: Sequence[Letter], until: float) -> None:
        """Go on to the next letters when a sink is slow with these."""
        await asyncio.wait([self._keep(self._publish(letters, until), letters)], timeout=HELD_UP_SECONDS)

    def _keep(self, work: Coroutine[Any, Any, None], letters: Sequence[Letter]) -> asyncio.Task[None]:
        """A task about these letters, which are given back if it must not end."""
        task = self._loop.create_task(work)
        self._publishing[task] = letters
        task.add_done_callback(self._published)
        return task

    def _published(self, task: asyncio.Task[None]) -> None:
        del self._publishing[task]
        self._tell_fault(task)
        self.look()

    async def _rest(self) -> None:
        """Until told of a letter, or long enough for one that another supervisor has left."""
        if not self._publishing:
            self.quiet = True
            self.on_quiet()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.letters):
                await self._more.wait()

    def _tell_fault(self, ended: asyncio.Future[Any]) -> None:
        error = None if ended.cancelled() else ended.exception()
        if error is not None and not isinstance(error, Abandoned):
            self._loop.call_exception_handler({"message": "publishing dead letters failed", "exception": error})

    async def _publish(self, letters: Sequence[Letter], until: float) -> None:
        await self._deliver_complete([letter for letter in letters if self._wanted <= letter.accepted])
        late: dict[int, float] = {}
        for waits in await asyncio.gather(*(self._offer(outlet, letters, until) for outlet in self._outlets)):
            late.update({id: min(late.get(id, wait), wait) for id, wait in waits.items()})
        for delay in set(late.values()):
            again = [letter for letter in letters if late.get(letter.id) == delay]
            await self._writer.submit(lambda store, again=again, delay=delay: store.postpone(again, delay))  # type: ignore[misc]
            self._loop.call_later(delay + 0.01, self.look)

    async def _deliver_complete(self, letters: Sequence[Letter]) -> None:
        """What they still waited for was a sink that is no longer configured."""
        if letters:
            await self._note_accepted(letters, self._outlets[0].name)

    async def _offer(self, outlet: Outlet, letters: Sequence[Letter], until: float) -> dict[int, float]:
        """Publish what this sink has not accepted yet; gives, for each id that it still has not, the seconds that it is to
        wait for this sink."""
        missing = [letter for letter in letters if outlet.name not in letter.accepted]
        if not missing:
            return {}
        if outlet.rests:
            return {letter.id: outlet.delay() for letter in missing}
        parts = Parts(missing, outlet.failures)
        claimed = await self._offer_parts(outlet, parts, until)
        self._note(outlet, parts)
        if not claimed:
            return {}
        waits = {letter.id: outlet.rest() for letter in parts.left}
        return waits | {letter.id: delay_after(letter.tries) for letter in parts.refused}

    async def _offer_parts(self, outlet: Outlet, parts: Parts, until: float) -> bool:
        """False if the claim ended meanwhile. What did not get its turn is no failure."""
        try:
            while (part := parts.next()) and not (parts.offered and (self._ending or outlet.hangs)):
                await self._offer_part(outlet, parts, part, until)
        except Busy:
            pass
        except ClaimEnded:
            self._bus.emit(LettersStale(outlet.name, [letter.id for letter in parts.left], "claim"))
            return False
        return True

    async def _offer_part(self, outlet: Outlet, parts: Parts, part: Sequence[Letter], until: float) -> None:
        try:
            accepted = await outlet.publish([letter.job for letter in part], until)
        except (Busy, ClaimEnded):
            raise
        except Exception as failure:
            parts.note_raised(part, f"{type(failure).__name__}: {failure}")
            return
        if taken := parts.note(part, accepted):
            stale = await self._note_accepted(taken, outlet.name)
            self._bus.emit(LettersPublished(outlet.name, [letter.id for letter in taken]))
            if stale:
                self._bus.emit(LettersStale(outlet.name, stale, "acceptance"))

    async def _note_accepted(self, letters: Sequence[Letter], sink: str) -> list[int]:
        """Gives the stale ids. What others have locked in the store is noted later: the sink has it, and nothing waits for it."""
        stale, locked = await self._try_to_note(letters, sink)
        if locked:
            self._keep(self._note_later(locked, sink), locked)
        return stale

    async def _note_later(self, letters: Sequence[Letter], sink: str) -> None:
        while letters:
            await asyncio.sleep(LOCKED_SECONDS)
            stale, letters = await self._try_to_note(letters, sink)
            if stale:
                self._bus.emit(LettersStale(sink, stale, "acceptance"))

    async def _try_to_note(self, letters: Sequence[Letter], sink: str) -> tuple[list[int], Sequence[Letter]]:
        """The stale ids, and what is locked."""

        def note(store: Store) -> tuple[list[int], frozenset[int]]:
            try:
                return store.accepted(letters, sink, self._wanted), frozenset()
            except RowsLocked as error:
                free = [letter for letter in letters if letter.id not in error.ids]
                return store.accepted(free, sink, self._wanted) if free else [], error.ids

        stale, locked = await self._writer.submit(note)
        return stale, [letter for letter in letters if letter.id in locked]

    def _note(self, outlet: Outlet, parts: Parts) -> None:
        if not parts.offered:
            return
        refused = parts.refused
        outlet.note(accepted=bool(parts.accepted), refused=bool(refused))
        if parts.accepted:
            self.look()
        else:
            self._loop.call_later(outlet.rest() + 0.01, self.look)
        for delay in sorted({delay_after(letter.tries) for letter in refused}):
            ids = [letter.id for letter in refused if delay_after(letter.tries) == delay]
            self._bus.emit(LettersFailed(outlet.name, ids, parts.error, delay))
        if refused:
            self.failing[outlet.name] = parts.error
        else:
            self.failing.pop(outlet.name, None)
