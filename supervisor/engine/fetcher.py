"""Claims due jobs, holds at most 100 ms of work per worker, and hands it to workers in the order of tiers.py."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain, groupby, zip_longest
from operator import itemgetter
from typing import NamedTuple

from supervisor.config.settings import RetrySettings, Settings
from supervisor.engine.fairness import QueueBuffer, TokenBucket, plan_takes
from supervisor.engine.leases import Leases
from supervisor.engine.poll_intervals import USUAL, PollIntervals
from supervisor.engine.store_writer import Abandoned, Writer
from supervisor.events import Bus, JobsClaimed, QueueDepths
from supervisor.jobs import Lease, Tier
from supervisor.stores.protocol import Store
from supervisor.stores.records import ClaimRequest, Resolve, Waiting, by_queue_and_tier
from supervisor.workers.pool import Pool
from supervisor.workers.slot import FRAME_JOBS, FRAME_SECONDS, WorkerSlot

HELD_SECONDS = 0.100
MAX_HELD_PER_WORKER = 3000  # jobs per worker: what one gets through in that time at best
MAX_HELD = 20_000
MAX_CLAIM = 1000  # at once: whoever else writes has to wait for it
MAX_HELD_BYTES = 64_000_000  # characters of payloads
MAX_UNKNOWN = 1000
HEAD_START = 0.5  # seconds by which those that may have a handler look before those that don't
MAX_PROMOTED = 1000
BLOCKED_SECONDS = 1.0
MAX_BUFFERS = 1000
HELD_BY_OTHERS = 0.1
"""Seconds to the next look for what another supervisor is claiming; twice as many after each in vain."""
MAKE_WAY_EVERY = FRAME_SECONDS  # in less, a frame makes way by itself


class Claimed(NamedTuple):
    leases: list[Lease]
    waiting: dict[str, Waiting]
    due: float | None  # by the loop's time: when something will be
    missed: bool = False  # there were some to claim, and another supervisor had them all: it may not keep them


class Demand(NamedTuple):
    """What the fetcher wants, as a value that the writer's thread may read while the loop goes on. With no capacity left
    it wants only what overtakes what is held already: retries that have credit, and fresh jobs where only retries are held;
    nothing if that is heavy as it is.
    """

    capacity: int
    turn: int
    settings: Settings
    tokens_by_queue: dict[str, TokenBucket]
    held: dict[str, tuple[int, int]]  # (fresh, retries)
    holders: int
    workers: int
    large: bool  # what is held
    resolve: Resolve

    def takes(self, waiting: dict[str, Waiting]) -> list[ClaimRequest]:
        if not self.capacity:
            if self.large:
                return []
            return [take for queue, ready in waiting.items() if (take := self._overtaking(queue, ready)).limit > 0]
        return plan_takes(
            self.capacity, waiting, self.turn, self._allowance, self._max_retries_claimed, self._urgent_from
        )

    def _overtaking(self, queue: str, ready: Waiting) -> ClaimRequest:
        fresh_held, retries_held = self.held.get(queue, (0, 0))
        most = self._max_retries_claimed(queue, True)
        overtaking = min(ready.retries, fresh_held, fresh_held if most is None else most)
        retries = max(0, self._allowance(queue, retries_held + overtaking) - retries_held)
        fresh = 0 if fresh_held else min(ready.fresh, retries_held)
        return ClaimRequest(queue, fresh + retries, retries, retries, self._urgent_from(queue))

    def _allowance(self, queue: str, count: int) -> int:
        retry = self.settings.retry_for(queue)
        tokens = self.tokens_by_queue.get(queue) or TokenBucket(retry.fetch_ratio, retry.burst)
        return tokens.allowance(count)

    def _max_retries_claimed(self, queue: str, fresh_waits: bool) -> int | None:
        limit = retries_limit(self.settings.retry_for(queue), fresh_waits, self.workers)
        return None if limit is None or self.holders < limit else 0

    def _urgent_from(self, queue: str) -> int:
        return self.settings.retry_for(queue).urgent


def retries_limit(retry: RetrySettings, fresh_waits: bool, workers: int) -> int | None:
    """How many workers may hold retries at once, by `retry.max_in_flight`; None for all."""
    if retry.max_in_flight == "half":
        return -(-workers // 2) if fresh_waits else None
    return None if retry.max_in_flight is None else int(retry.max_in_flight)


class Fetcher:
    """`pump` is called whenever something changed; it never waits."""

    def __init__(
        self, writer: Writer, pool: Pool, leases: Leases, settings: Settings, bus: Bus, loop: asyncio.AbstractEventLoop, *,
        known: Callable[[str], bool], unknown: Callable[[list[Lease]], None],
        overtaken: Callable[[Sequence[Lease]], None], release: Callable[[list[Lease], str], None],
        may_dispatch: Callable[[], bool], dispatched: Callable[[WorkerSlot], None], intervals: PollIntervals = USUAL,
    ) -> None:  # fmt: skip
        self._writer = writer
        self._pool = pool
        self._leases = leases
        self._bus = bus
        self._loop = loop
        self._known = known
        self._unknown = unknown
        self._overtaken = overtaken
        self._reclaim = release
        self._may_dispatch = may_dispatch
        self._dispatched = dispatched
        self._intervals = intervals
        self._buffers: dict[str, QueueBuffer] = {}
        self._turn = 0
        self._count = 0
        self._claims = 0  # under way
        self._wanted = 0  # by these
        self._begun = False  # the last of them: what is wanted now comes with the next commit
        self._more = True  # the store may have claimable jobs
        self._notified = False  # it was said so while a claim was under way
        self._changed = False  # a worker has, since the last claim began: what held jobs off may do so no more
        self._came_due = False  # since the last claim began: a retry may have to overtake what is held
        self._left = False  # the last claim left some
        self._unknown_count = 0  # jobs in the last claim, if nobody here knows the handler of any
        self._made_way_at = float("-inf")
        self._waiting: dict[str, Waiting] = {}
        self._due: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._again_in = HELD_BY_OTHERS
        self._moved_at = loop.time()
        self.closed = True  # and before it is open
        self._settings = settings

    def open(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self.closed = False
        self._poll()

    def configure(self, settings: Settings, resolve: Resolve) -> None:
        """Settings changed while it runs; what is held moves to lanes of the new settings."""
        self._settings, self._resolve = settings, resolve
        held = [lease for buffer in self._buffers.values() for lease in buffer.everything()]
        self._buffers = {}
        for lease in held:
            self._buffer(lease.queue).add((lease,))

    def __len__(self) -> int:
        return self._count

    @property
    def claiming(self) -> bool:
        """A claim is under way, and may bring jobs."""
        return self._claims > 0

    @property
    def quiet(self) -> bool:
        """Nothing held, and at the last look nothing claimable in the store."""
        return not self._count and not self._claims and not self._more

    def ready_in(self, queue: str) -> int:
        waiting = self._waiting.get(queue)
        return waiting.fresh + waiting.retries if waiting else 0

    # wake-ups

    def notify(self) -> None:
        """The store may have claimable work."""
        self._more = self._notified = True
        self.pump()

    def due_at(self, when: float) -> None:
        """Something will be due: look then, if not before."""
        if self._due is None or when < self._due.when():
            if self._due is not None:
                self._due.cancel()
            self._due = self._loop.call_at(when, self._notify_due)

    def _notify_due(self) -> None:
        self._due = None
        self._came_due = True
        self.notify()

    def _look_again(self) -> None:
        self._again = None
        self.notify()

    def _poll(self) -> None:
        """Covers a ring that was lost."""
        self._loop.call_later(self._intervals.poll, self._poll)
        if not self.closed:
            self.notify()

    def released(self) -> None:
        """Jobs are in the store again; whoever is free first claims them, here if no other does."""
        self._left = True

    def worker_changed(self) -> None:
        self._more = self._more or self._left
        self._changed = True
        self.pump()

    def pump(self) -> None:
        if not self._may_dispatch():
            return
        if self._count:
            self._dispatch()
        if not self._more or self.closed:
            return
        if not self._claims:
            want = self._room()
            if want > 0 or self._came_due or (self._notified and self._only_retries_held()):
                self._claim(want)
        elif self._claims == 1 and self._begun and not self._unknown_count and (want := self._room()) >= MAX_CLAIM:
            # Jobs so quick that it takes as long to claim them as to run them: while the loop hands out what the one claim
            # brings, the writer goes on with the other, and with what is to be settled, in one commit.
            self._claim(want)

    def _only_retries_held(self) -> bool:
        """Of some queue: fresh jobs that come now would wait for all of them."""
        return any(buffer.retries and not buffer.fresh for buffer in self._buffers.values())

    # dispatch

    def _dispatch(self) -> None:
        workers = self._pool.slots_with_room()
        if not workers:
            return
        most = max(1, min(FRAME_JOBS, -(-self._count // len(workers))))
        for worker in workers:
            frame = self._frame(worker, most)
            if frame:
                self._count -= len(frame)
                self._moved_at = self._loop.time()
                worker.send(frame)
                self._dispatched(worker)
            if not self._count:
                return

    def _frame(self, worker: WorkerSlot, most: int) -> list[Lease]:
        """Queues take turns, a frame each."""
        order = [
            (buffer, self._retries_allowed(queue, worker)) for queue, buffer in self._buffers.items() if len(buffer)
        ]
        self._turn += 1
        start = self._turn % len(order)
        order = order[start:] + order[:start]

        in_turn = chain.from_iterable(buffer.in_turn(retries_allowed) for buffer, retries_allowed in order)
        return worker.frame_for(in_turn, most)

    def _retries_allowed(self, queue: str, worker: WorkerSlot) -> bool:
        """`retry.max_in_flight`, counted in workers that hold retries: a frame of many short ones takes one worker."""
        buffer = self._buffer(queue)
        fresh_waits = bool(buffer.fresh) or buffer.fresh_in_store > 0
        limit = retries_limit(self._settings.retry_for(queue), fresh_waits, self._pool.count)
        return limit is None or self._holders(worker) < limit

    def requeue(self, leases: Sequence[Lease]) -> None:
        """Dispatched and not started: first in their tiers again."""
        for queue in dict.fromkeys(lease.queue for lease in leases):
            self._buffer(queue).requeue([lease for lease in leases if lease.queue == queue])
        self._count += len(leases)

    def take_out(self, leases: Iterable[Lease]) -> list[Lease]:
        ids = {lease.id for lease in leases}
        taken = [lease for buffer in self._buffers.values() for lease in buffer.take_out(ids)]
        self._count -= len(taken)
        return taken

    def take_queue(self, queue: str) -> list[Lease]:
        buffer = self._buffers.get(queue)
        return self.take_out(buffer.everything()) if buffer is not None else []

    def close(self) -> list[Lease]:
        """Claim no more; gives what is held. A claim under way comes back empty, or is given back when it comes."""
        self.closed = True
        return self.take_all()

    def take_all(self) -> list[Lease]:
        return self.take_out([lease for buffer in self._buffers.values() for lease in buffer.everything()])

    def surplus(self) -> list[Lease]:
        """What is held past twice what may be, since it takes longer than what was run when it was claimed: the last in turn.
        Kept, it would stand between the workers and whatever is more urgent, of another queue, or idle elsewhere."""
        times, workers = self._pool.times, self._pool.ready_count()
        seconds = 2 * HELD_SECONDS * workers
        if self._count * max(times.longest, times.mean or 0.0) <= seconds:
            return []
        rows = zip_longest(*[buffer.everything() for buffer in self._buffers.values()])
        held = [lease for row in rows for lease in row if lease is not None]
        ends = accumulate([times.of(lease.handler) or times.mean or 0.0 for lease in held])
        return self.take_out(held[max(workers, bisect_right([*ends], seconds)) :])

    def forget_started(self) -> None:
        sent = {lease.id for worker in self._pool.workers.values() for lease in worker.sent}
        for buffer in self._buffers.values():
            buffer.forget_all_but(sent)

    def has_blocked_jobs(self) -> bool:
        """Jobs have been held for a second without one being started."""
        return self._count > 0 and self._stands_still()

    def _stands_still(self) -> bool:
        return self._loop.time() - self._moved_at > BLOCKED_SECONDS

    # claims

    def _room(self) -> int:
        """How many more jobs may be held: 100 ms of work per worker, or one for each idle worker if they are heavy or all
        workers are busy with long ones."""
        idle = self._pool.idle_count()
        if self._leases.size >= MAX_HELD_BYTES or (not idle and self._stands_still()):
            return idle - self._wanted
        mean = self._pool.times.mean
        target = idle
        if mean is not None and mean < HELD_SECONDS:
            each = min(MAX_HELD_PER_WORKER, HELD_SECONDS / max(mean, 1e-6))
            target = max(idle, min(MAX_HELD, int(each) * self._pool.ready_count()))
        want = min(target - self._count - self._wanted, MAX_CLAIM)
        # Whoever still idles after a dispatch can start nothing of what is held.
        return max(want if want >= min(target // 2, MAX_CLAIM) else 0, idle - self._wanted)

    def _claim(self, want: int) -> None:
        """A crowd of unknown handlers is passed in large steps, or jobs behind it would wait for each of it."""
        overtaking = not want or self._came_due
        self._notified = self._came_due = self._changed = self._begun = False
        self._claims += 1
        self._wanted += want
        unknown = min(MAX_UNKNOWN, 2 * self._unknown_count) if want else 0
        max_known = want if unknown else None
        demand = self._demand(want + unknown)

        def claim(store: Store) -> Claimed:
            self._begun = True
            if self.closed:
                return Claimed([], {}, None)
            waiting, due_in = store.look(demand.settings.workers.queues, MAX_PROMOTED)
            due = None if due_in is None else self._loop.time() + due_in  # now, since a commit may take long
            takes = demand.takes(waiting)
            leases = store.claim(takes, demand.settings.lease.ttl, demand.resolve) if takes else []
            return Claimed(leases, waiting, due, missed=bool(takes) and not leases)

        self._writer.submit(claim).add_done_callback(lambda future: self._claimed(future, want, max_known, overtaking))

    def _demand(self, capacity: int) -> Demand:
        tokens_by_queue = {queue: buffer.tokens.copy() for queue, buffer in self._buffers.items()}
        held = {
            queue: (len(buffer.fresh), len(buffer.retries)) for queue, buffer in self._buffers.items() if len(buffer)
        }
        workers = self._pool.count
        large = self._leases.size >= MAX_HELD_BYTES
        return Demand(
            capacity,
            self._turn,
            self._settings,
            tokens_by_queue,
            held,
            self._holders(None),
            workers,
            large,
            self._resolve,
        )

    def _holders(self, but: WorkerSlot | None) -> int:
        return sum(1 for worker in self._pool.workers.values() if worker.retries and worker is not but)

    # back on the loop

    def _claimed(self, future: asyncio.Future[Claimed], want: int, max_known: int | None, overtaking: bool) -> None:
        self._claims -= 1
        self._wanted -= want
        error = future.exception()
        if isinstance(error, Abandoned):
            return
        if error is not None:
            raise error
        claimed = future.result()
        self._note_waiting(claimed)
        if claimed.leases:
            self._overtaken(claimed.leases)
            self._leases.add(claimed.leases)
            self._bus.emit(JobsClaimed(claimed.leases))
            if self.closed:
                self._reclaim(claimed.leases, "shutdown")
                return
            self._accept(claimed.leases, max_known)
            if overtaking:
                self._make_way(claimed.leases)
        if not claimed.missed:
            self._again_in = HELD_BY_OTHERS
        elif self._again is None:
            self._again = self._loop.call_later(self._again_in, self._look_again)
            self._again_in = min(self._intervals.poll, 2 * self._again_in)
        if claimed.due is not None:
            self.due_at(claimed.due + (HEAD_START if self._unknown_count else 0.0))
        self.pump()

    def _note_waiting(self, claimed: Claimed) -> None:
        taken = by_queue_and_tier(claimed.leases)
        left = {
            queue: Waiting(
                ready.fresh - taken.get((queue, Tier.FRESH), 0), ready.retries - taken.get((queue, Tier.RETRY), 0)
            )
            for queue, ready in claimed.waiting.items()
        }
        self._waiting = left
        for queue in left:
            self._buffer(queue)
        self._forget_buffers(left)
        for queue, buffer in self._buffers.items():
            buffer.fresh_in_store = left[queue].fresh if queue in left else 0
        self._left = any(w.fresh > 0 or w.retries > 0 for w in left.values())
        # What is left though nothing was claimed is held off by a limit: looked at again when a worker has changed; or
        # it was missed.
        self._more = self._notified or (self._left and (self._changed or bool(claimed.leases)))
        self._bus.emit(QueueDepths({queue: (w.fresh, w.retries) for queue, w in claimed.waiting.items()}))

    def _forget_buffers(self, left: Mapping[str, Waiting]) -> None:
        """Queues may come and go by the thousand; one with nothing in it starts with full credit again."""
        if len(self._buffers) > MAX_BUFFERS:
            self._buffers = {queue: buffer for queue, buffer in self._buffers.items() if len(buffer) or queue in left}

    def _make_way(self, leases: list[Lease]) -> None:
        """Retries that came due go before the fresh jobs that are sent and not started, and the other way round."""
        now = self._loop.time()
        if now < self._made_way_at + MAKE_WAY_EVERY:
            return
        self._made_way_at = now
        retries = sum(1 for lease in leases if lease[8] == Tier.RETRY)
        sent = [worker for worker in self._pool.workers.values() if len(worker.sent) > 1]
        if any(worker.retries if len(leases) > retries else worker.retries < len(worker.sent) for worker in sent):
            self._pool.reclaim_unstarted()

    def _accept(self, leases: list[Lease], max_known: int | None) -> None:
        missing = {handler for handler in {lease[2] for lease in leases} if not self._known(handler)}
        unknown = [lease for lease in leases if lease.handler in missing] if missing else []
        self._unknown_count = len(unknown) if len(unknown) == len(leases) else 0
        if unknown:
            leases = [lease for lease in leases if lease.handler not in missing]
            self._unknown(unknown)
        if max_known is not None and len(leases) > max_known:
            self._reclaim(leases[max_known:], "more than can be held")
            leases = leases[:max_known]
        for queue, own in groupby(leases, itemgetter(3)):
            self._buffer(queue).add(own)
        self._count += len(leases)
        self._moved_at = self._loop.time()

    def _buffer(self, queue: str) -> QueueBuffer:
        buffer = self._buffers.get(queue)
        if buffer is None:
            retry = self._settings.retry_for(queue)
            buffer = self._buffers[queue] = QueueBuffer(TokenBucket(retry.fetch_ratio, retry.burst), retry.urgent)
        return buffer
