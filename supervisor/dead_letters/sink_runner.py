"""A configured dead-letter sink, and the thread it runs on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from supervisor.hooks import Sink

PUBLISH_SECONDS = 30.0
TURN_SECONDS = 1.0
RETRY_DELAYS = (1.0, 60.0)
MAX_PAUSE = 5.0


class ClaimEnded(Exception):
    """The letters were claimed too long ago: another supervisor may be publishing them."""


class Busy(Exception):
    """It was not this publish's turn in time; the sink is well, as far as is known."""


class Call(NamedTuple):
    work: Callable[[], Any]
    answer: asyncio.Future[Any]


class Caller(Protocol):
    """Runs a sink's calls in order, away from the loop: a thread, or a simulation of one."""

    def call(self, work: Callable[[], Any]) -> asyncio.Future[Any]: ...
    def end(self) -> None: ...


class SinkThread:
    """Runs calls in order. A daemon: one that hangs must not keep the process from ending, as an executor's threads do."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        threading.Thread(target=self._run, name=f"sink-{name}", daemon=True).start()

    def call(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.put(Call(work, answer))
        return answer

    def end(self) -> None:
        """After the calls that were made."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            result, error = None, None
            try:
                result = call.work()
            except BaseException as raised:  # a sink that calls sys.exit must not end the loop either
                error = RuntimeError(f"{type(raised).__name__}: {raised}") if _is_exit(raised) else raised
            try:
                call.answer.get_loop().call_soon_threadsafe(_deliver, call.answer, result, error)
            except RuntimeError:
                return  # the loop has ended


def _is_exit(raised: BaseException) -> bool:
    return not isinstance(raised, Exception) or isinstance(raised, StopIteration)


def _deliver(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.cancelled():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)


class SinkRunner:
    def __init__(self, name: str, sink: Sink, caller: Callable[[str], Caller] = SinkThread) -> None:
        self.name = name
        self.failures = 0
        self._sink = sink
        self._calls = caller(name)
        self._under_way: asyncio.Future[frozenset[int]] | None = None
        self._overdue = False
        self._rests_until = 0.0

    @property
    def rests(self) -> bool:
        """It has failed just now: nothing is to be offered to it."""
        return asyncio.get_running_loop().time() < self._rests_until

    @property
    def free(self) -> bool:
        """A publish would be begun, or the sink known to hang."""
        return not self.rests and (self.hangs or self._under_way is None or self._under_way.done())

    @property
    def hangs(self) -> bool:
        """A publish that was told as timed out still goes on."""
        return self._overdue and self._under_way is not None and not self._under_way.done()

    async def publish(self, dead_letters: Sequence[Mapping[str, Any]], until: float) -> frozenset[int]:
        """The ids that the sink has accepted. Raises Busy if an earlier publish goes on; TimeoutError after PUBLISH_SECONDS,
        and soon while an earlier one hangs that long; ClaimEnded instead of beginning later than `until`, by the loop's
        clock; whatever the sink raises."""
        await self._turn()
        own = deepcopy(list(dead_letters))  # a sink may change what it is given
        if asyncio.get_running_loop().time() >= until:
            raise ClaimEnded
        self._overdue = False
        answer: asyncio.Future[frozenset[int]] = self._calls.call(lambda: frozenset(self._sink.publish(own)))
        answer.add_done_callback(_ask_for_error)
        self._under_way = answer
        if not await _ends(answer, PUBLISH_SECONDS):
            self._overdue = True
            raise TimeoutError(f"no answer within {PUBLISH_SECONDS:g}s")
        return answer.result()

    async def _turn(self) -> None:
        """Several may wait for it: whoever is late waits for the next."""
        loop = asyncio.get_running_loop()
        last = loop.time() + TURN_SECONDS
        while (earlier := self._under_way) is not None and not earlier.done():
            if not await _ends(earlier, last - loop.time()):
                raise TimeoutError("still busy with an earlier publish") if self.hangs else Busy

    def note(self, *, accepted: bool, refused: bool) -> None:
        """What became of an offer: nothing accepted is a failure of the sink, which then rests."""
        if accepted:
            self.failures = max(0, self.failures - 1) if refused else 0
            self._rests_until = 0.0
        else:
            self.failures += 1
            self._rests_until = asyncio.get_running_loop().time() + self.rest()

    def delay(self) -> float:
        """Seconds until letters that the sink was not offered, since it rests, are looked at again."""
        return delay_after(self.failures)

    def rest(self) -> float:
        """Seconds until anything is offered to it again: not many, for it may be one letter that fails, and not the sink."""
        return min(MAX_PAUSE, self.delay())

    async def close(self) -> None:
        """After a publish under way. What the sink raises is told to nobody."""
        closed = self._calls.call(self._sink.close)
        closed.add_done_callback(_ask_for_error)
        self._calls.end()
        await asyncio.wait([closed])


def delay_after(tries: int) -> float:
    """Seconds until the next, after so many in a row that failed."""
    first, most = RETRY_DELAYS
    return min(most, first * 2.0 ** min(max(0, tries - 1), 30))


async def _ends(work: asyncio.Future[Any], seconds: float) -> bool:
    done, _ = await asyncio.wait([work], timeout=seconds)
    return bool(done)


def _ask_for_error(answer: asyncio.Future[Any]) -> None:
    """asyncio takes an error that nobody has asked for to be a fault, and a fault ends the supervisor."""
    if not answer.cancelled():
        answer.exception()
