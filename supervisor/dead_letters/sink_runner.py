"""Offer dead letters to a sink, on a thread of its own, in parts, with rests after failures."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from supervisor.engine.tasks import drop_error
from supervisor.errors import NotAccepted
from supervisor.hooks import Sink
from supervisor.jobs import Backoff
from supervisor.retry import ceiling
from supervisor.stores.records import DeadLetter
from supervisor.threads import start_thread


class SinkLimits(NamedTuple):
    publish: float = 30.0  # seconds for one publish
    wait: float = 1.0  # seconds for an earlier publish to end
    rest: float = 5.0  # seconds, at most, that a sink rests, unless it asks for more
    retry_after: float = 3600.0  # seconds, at most, that a sink may ask for
    # An offer ends when the sink accepts nothing of so many parts in a row. At first the whole and its halves show whether the
    # sink fails or one dead letter is bad; once the sink has accepted some, more may be bad in a row.
    failed_parts_at_first: int = 3
    failed_parts: int = 12


OnAccepted = Callable[[Sequence[DeadLetter]], Awaitable[None]]

LIMITS = SinkLimits()
NOT_ACCEPTED = "publish has not returned its id"
EXPECTED = "expected the ids (int) of the dead letters that the sink has accepted"
_RETRIES = Backoff(base=1.0, factor=2.0, max=30.0, jitter="none")


def delay_after(failures: int) -> float:
    """Return the seconds until the next try after so many failures in a row."""
    return ceiling(_RETRIES, max(1, failures))


class ClaimExpired(Exception):
    """The dead letters were claimed too long ago: another supervisor may be publishing them."""


class Busy(Exception):
    """An earlier publish did not end in time, which is no failure of the sink yet."""


class _Call(NamedTuple):
    work: Callable[[], Any]
    future: asyncio.Future[Any]


class Caller(Protocol):
    """Runs the calls of a sink in order, outside of the loop: a thread, or a simulation of one."""

    def call(self, work: Callable[[], Any]) -> asyncio.Future[Any]: ...
    def end(self) -> None: ...


class SinkThread:
    """A daemon thread, unlike those of an executor: a call that hangs must not keep the process from exiting."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        start_thread(self._run, f"sink-{name}")

    def call(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(work, future))
        return future

    def end(self) -> None:
        """End the thread after the calls that were made."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            result, error = None, None
            try:
                result = call.work()
            except BaseException as raised:  # a sink that calls sys.exit must not end the loop either
                error = RuntimeError(f"{type(raised).__name__}: {raised}") if _is_exit(raised) else raised
            try:
                call.future.get_loop().call_soon_threadsafe(_deliver, call.future, result, error)
            except RuntimeError:
                return  # the loop has ended


def _is_exit(raised: BaseException) -> bool:
    return not isinstance(raised, Exception) or isinstance(raised, StopIteration)


def _deliver(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


class BatchSplitter:
    """One offer of dead letters to a sink, in parts, and its results.

    At first all are one part. A part that makes the sink raise is halved until the bad dead letter is alone. After `failures`
    of the sink in a row the parts begin small and grow, so that even among many bad dead letters the good ones are found.
    `offered` and `accepted` are ids; `error` is that of the last part that was refused, and `errors` those of single dead letters.
    """

    def __init__(self, dead_letters: Sequence[DeadLetter], failures: int) -> None:
        self._dead_letters = dead_letters
        self._ahead = dead_letters
        self._size = max(1, len(dead_letters) >> failures)
        self._halves: deque[Sequence[DeadLetter]] = deque()
        self._failed_parts = 0
        self.offered: set[int] = set()
        self.accepted: set[int] = set()
        self.claim_expired = False
        self.error = NOT_ACCEPTED
        self.errors: dict[int, str] = {}

    def next(self) -> Sequence[DeadLetter]:
        """Return the next part; it is empty if all were offered or the sink seems to fail."""
        limit = LIMITS.failed_parts if self.accepted else LIMITS.failed_parts_at_first
        if self._failed_parts >= limit:
            return ()
        if self._halves:
            return self._halves.popleft()
        part, self._ahead = self._ahead[: self._size], self._ahead[self._size :]
        return part

    def note(
        self, part: Sequence[DeadLetter], accepted: frozenset[int], refused: Mapping[int, str] | None = None
    ) -> list[DeadLetter]:
        """Note the result of a part, and return its dead letters that the sink has accepted. `refused` are errors by id, if the sink
        has given them; then the rest was not offered."""
        taken = [dead_letter for dead_letter in part if dead_letter.id in accepted]
        self.accepted.update(dead_letter.id for dead_letter in taken)
        if refused:
            self.errors.update(refused)
            self.error = next(reversed(list(refused.values())))
        tried = accepted.union(refused) if refused is not None else None
        self.offered.update(dead_letter.id for dead_letter in part if tried is None or dead_letter.id in tried)
        self._failed_parts = 0 if taken else self._failed_parts + 1
        if taken:
            self._size *= 2
        return taken

    def note_raised(self, part: Sequence[DeadLetter], error: str) -> None:
        self.error = error
        self.note(part, frozenset())
        if len(part) > 1:
            middle = len(part) // 2
            self._halves += (part[:middle], part[middle:])

    @property
    def refused(self) -> list[DeadLetter]:
        """The dead letters that were offered and not accepted."""
        return [dead_letter for dead_letter in self.left if dead_letter.id in self.offered]

    @property
    def left(self) -> list[DeadLetter]:
        """The dead letters that were not accepted, whether offered or not."""
        return [dead_letter for dead_letter in self._dead_letters if dead_letter.id not in self.accepted]


class SinkRunner:
    """A sink, its thread and its failures in a row. It rests for a while after an offer of which it accepts nothing."""

    def __init__(self, name: str, sink: Sink, caller: Callable[[str], Caller] = SinkThread) -> None:
        self.name = name
        self.failures = 0
        self._sink = sink
        self._calls = caller(name)
        self._under_way: asyncio.Future[frozenset[int]] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._overdue = False
        self._stopping = False
        self._rests_until = 0.0
        self.retry_after = 0.0
        """The seconds that the sink has asked for in the last offer."""

    @property
    def rests(self) -> bool:
        """Whether the sink has failed just now, so that nothing should be offered to it."""
        return asyncio.get_running_loop().time() < self._rests_until

    @property
    def free(self) -> bool:
        """Whether an offer would be answered soon: by a publish, or by an error if the sink hangs."""
        return not self.rests and (self.hangs or self._under_way is None or self._under_way.done())

    @property
    def hangs(self) -> bool:
        """Whether a publish that was reported as timed out still goes on."""
        return self._overdue and self._under_way is not None and not self._under_way.done()

    @property
    def call_under_way(self) -> str | None:
        """The method of the sink that has not returned."""
        if self._under_way is not None and not self._under_way.done():
            return "publish"
        return "close" if self._closing is not None and not self._closing.done() else None

    @property
    def rest_seconds(self) -> float:
        """The seconds for which the sink rests after its failures: few, since one bad dead letter may be the cause."""
        return max(self.retry_after, min(LIMITS.rest, delay_after(self.failures)))

    async def offer(self, dead_letters: Sequence[DeadLetter], until: float, on_accepted: OnAccepted) -> BatchSplitter:
        """Offer dead letters in parts, and wait for `on_accepted` after each part of which some are accepted.

        No part is begun after `until` by the loop's clock: it might go on when the claim has ended. A part that is not offered is no failure.
        """
        parts = BatchSplitter(dead_letters, self.failures)
        self.retry_after = 0.0
        try:
            while (part := parts.next()) and not (parts.offered and (self._stopping or self.hangs or self.retry_after)):
                await self._offer_part(parts, part, until, on_accepted)
        except Busy:
            pass
        except ClaimExpired:
            parts.claim_expired = True
        if parts.offered:
            self._count_failure(parts)
        return parts

    async def _offer_part(
        self, parts: BatchSplitter, part: Sequence[DeadLetter], until: float, on_accepted: OnAccepted
    ) -> None:
        refused: Mapping[int, str] | None = None
        try:
            accepted = await self.publish([dead_letter.job for dead_letter in part], until)
        except (Busy, ClaimExpired):
            raise
        except NotAccepted as answer:
            accepted = answer.accepted
            refused = answer.refused if answer.refused or accepted else None
            self.retry_after = min(max(answer.retry_after, 0.0), LIMITS.retry_after)
        except Exception as failure:
            parts.note_raised(part, f"{type(failure).__name__}: {failure}")
            return
        taken = parts.note(part, accepted, refused)
        if refused is None and len(taken) < len(part):
            parts.error = _not_accepted(part, accepted)
        if taken:
            await on_accepted(taken)

    def _count_failure(self, parts: BatchSplitter) -> None:
        """Count an offer of which nothing is accepted as a failure of the sink."""
        if parts.accepted:
            self.failures = max(0, self.failures - 1) if parts.refused else 0
        else:
            self.failures += 1
        rest = self.retry_after if parts.accepted else self.rest_seconds
        self._rests_until = asyncio.get_running_loop().time() + rest if rest else 0.0

    async def publish(self, dead_letters: Sequence[Mapping[str, Any]], until: float) -> frozenset[int]:
        """Return the ids that the sink has accepted.

        Raises Busy if an earlier publish goes on; TimeoutError if the publish takes too long, and soon while an earlier one
        has taken too long; ClaimExpired instead of beginning after `until`; and every error of the sink.
        """
        await self._wait_for_earlier()
        own = deepcopy(list(dead_letters))  # the sink may change what it is given
        if asyncio.get_running_loop().time() >= until:
            raise ClaimExpired
        self._overdue = False
        publishing: asyncio.Future[frozenset[int]] = self._calls.call(lambda: _ids(self._sink.publish(own)))
        publishing.add_done_callback(drop_error)
        self._under_way = publishing
        if not await _ends(publishing, LIMITS.publish):
            self._overdue = True
            raise TimeoutError(f"no answer within {LIMITS.publish:g}s")
        return publishing.result()

    async def _wait_for_earlier(self) -> None:
        """Wait until no publish is under way. When one ends, one of the waiting calls goes on, and the others wait for that."""
        loop = asyncio.get_running_loop()
        last = loop.time() + LIMITS.wait
        while (earlier := self._under_way) is not None and not earlier.done():
            if not await _ends(earlier, last - loop.time()):
                raise TimeoutError("still busy with an earlier publish") if self.hangs else Busy

    def stop(self) -> None:
        """Offer no further part of the current batch."""
        self._stopping = True

    async def close(self) -> None:
        """Close the sink after a publish under way. An error of the sink is dropped."""
        self._closing = self._calls.call(self._sink.close)
        self._closing.add_done_callback(drop_error)
        self._calls.end()
        await asyncio.wait([self._closing])


def _ids(returned: Any) -> frozenset[Any]:
    """Return the ids that a sink has returned. Raises TypeError if they can't be any."""
    try:
        return frozenset(returned)
    except TypeError as error:
        raise TypeError(f"publish returned {_shown(returned)}, {EXPECTED} ({error})") from error


def _not_accepted(part: Sequence[DeadLetter], returned: frozenset[Any]) -> str:
    """Return why a dead letter of the part is not accepted."""
    wrong = [id for id in returned - {dead_letter.id for dead_letter in part} if type(id) is not int]
    return f"publish returned {_shown(wrong[0])} among the ids, {EXPECTED}" if wrong else NOT_ACCEPTED


def _shown(value: object) -> str:
    return f"{value!r:.80} of type {type(value).__name__}"


async def _ends(work: asyncio.Future[Any], seconds: float) -> bool:
    done, _ = await asyncio.wait([work], timeout=seconds)
    return bool(done)
