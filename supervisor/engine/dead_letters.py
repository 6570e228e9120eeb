"""Publishes dead letters: each stays pending until every sink has accepted it. One thread a sink, so none holds up another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from supervisor.engine.writer import Abandoned, Writer
from supervisor.events import Bus, LettersFailed, LettersPublished
from supervisor.hooks import Sink
from supervisor.stores.base import Letter

BATCH = 100
CLAIM_SECONDS = 60.0
PUBLISH_SECONDS = 30.0
RETRY_DELAYS = (1.0, 60.0)


class Outlet:
    """One configured sink, and the thread it runs on."""

    def __init__(self, name: str, sink: Sink) -> None:
        self.name = name
        self.sink = sink
        self.failures = 0
        self._under_way: asyncio.Future[frozenset[int]] | None = None
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"sink-{name}")

    async def publish(self, letters: Sequence[Mapping[str, Any]]) -> frozenset[int]:
        """Raises TimeoutError after PUBLISH_SECONDS, and at once while an earlier publish still hangs."""
        if self._under_way is not None and not self._under_way.done():
            raise TimeoutError("still busy with an earlier publish")
        loop = asyncio.get_running_loop()
        self._under_way = loop.run_in_executor(self.thread, lambda: frozenset(self.sink.publish(letters)))
        done, _ = await asyncio.wait([self._under_way], timeout=PUBLISH_SECONDS)
        if not done:
            raise TimeoutError(f"no answer within {PUBLISH_SECONDS:g}s")
        return self._under_way.result()

    def delay(self) -> float:
        """Seconds until the next try, after `failures` in a row."""
        first, most = RETRY_DELAYS
        return min(most, first * 2.0 ** min(max(0, self.failures - 1), 30))


class DeadLetters:
    """Letters are claimed under a token like jobs, so two supervisors never publish one at once."""

    def __init__(self, writer: Writer, outlets: Sequence[Outlet], bus: Bus, loop: asyncio.AbstractEventLoop) -> None:
        self._writer = writer
        self._outlets = outlets
        self._bus = bus
        self._loop = loop
        self._wanted = frozenset(outlet.name for outlet in outlets)
        self._more = asyncio.Event()
        self._task = loop.create_task(self._run()) if outlets else None
        self._timer: asyncio.TimerHandle | None = None
        self.quiet = not outlets
        self.on_quiet: Callable[[], None] = lambda: None
        self.failing: dict[str, str] = {}

    def look(self) -> None:
        """There may be pending letters."""
        if self._outlets:
            self.quiet = False
            self._more.set()

    async def settle_down(self, patience: float) -> None:
        """Give what is pending a chance, for at most `patience` seconds, unless a sink is known to fail."""
        deadline = self._loop.time() + patience
        while not self.quiet and not self.failing and self._loop.time() < deadline:
            await asyncio.sleep(0.005)

    async def stop(self, patience: float) -> None:
        """Let a publish under way end, for at most `patience` seconds; what is pending stays pending."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=patience)
        closing = [self._loop.run_in_executor(outlet.thread, outlet.sink.close) for outlet in self._outlets]
        if closing:
            await asyncio.wait(closing, timeout=patience)
        for outlet in self._outlets:
            outlet.thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        try:
            while True:
                self._more.clear()
                letters = await self._writer.submit(lambda store: store.dead_letters(BATCH, CLAIM_SECONDS))
                if letters:
                    await self._publish(letters)
                else:
                    self.quiet = True
                    self.on_quiet()
                    await self._more.wait()
        except Abandoned:
            return

    async def _publish(self, letters: Sequence[Letter]) -> None:
        refused = await asyncio.gather(*(self._offer(outlet, letters) for outlet in self._outlets))
        late: dict[int, float] = {}
        for outlet, ids in zip(self._outlets, refused, strict=True):
            late.update({id: max(late.get(id, 0.0), outlet.delay()) for id in ids})
        for delay in set(late.values()):
            again = [letter for letter in letters if late.get(letter.id) == delay]
            await self._writer.submit(lambda store, again=again, delay=delay: store.postpone(again, delay))  # type: ignore[misc]
            self._look_in(delay)

    async def _offer(self, outlet: Outlet, letters: Sequence[Letter]) -> list[int]:
        """Publish what this sink has not accepted yet; gives the ids it still has not."""
        missing = [letter for letter in letters if outlet.name not in letter.accepted]
        if not missing:
            return []
        error = "not accepted"
        accepted: frozenset[int] = frozenset()
        try:
            jobs = [letter.job for letter in missing]
            accepted = await outlet.publish(jobs)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        taken = [letter for letter in missing if letter.id in accepted]
        if taken:
            await self._writer.submit(lambda store: store.accepted(taken, outlet.name, self._wanted))
            self._bus.emit(LettersPublished(outlet.name, [letter.id for letter in taken]))
        left = [letter.id for letter in missing if letter.id not in accepted]
        self._note(outlet, left, error)
        return left

    def _note(self, outlet: Outlet, left: Sequence[int], error: str) -> None:
        if left:
            outlet.failures += 1
            self._bus.emit(LettersFailed(outlet.name, left, error, outlet.delay()))
            self.failing[outlet.name] = error
        else:
            outlet.failures = 0
            self.failing.pop(outlet.name, None)

    def _look_in(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay + 0.01, self.look)
