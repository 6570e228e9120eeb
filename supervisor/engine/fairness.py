"""The order of dispatch: urgent jobs, then retries as far as their tokens go, then fresh jobs; queues take turns. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, groupby, zip_longest
from operator import itemgetter

from supervisor.config.retries import RetrySettings
from supervisor.engine.current_config import CurrentConfig
from supervisor.engine.left_in_store import LeftInStore
from supervisor.engine.shares import TokenBucket, retries_limit
from supervisor.jobs import (
    LEASE_EXPIRED_COUNT,
    LEASE_HANDLER,
    LEASE_ID,
    LEASE_PRIORITY,
    LEASE_QUEUE,
    LEASE_TIER,
    Lease,
    Tier,
)  # fmt: skip
from supervisor.retry import SUSPECT
from supervisor.stores.records import Waiting
from supervisor.workers.run_times import RunTimes
from supervisor.workers.slot import WorkerSlot
from supervisor.workers.worker_group import OTHERS

MAX_BUFFERS = 1000
MAX_QUEUES = 10_000  # whose kinds are remembered


class QueueBuffer:
    """The claimed and not yet dispatched jobs of one queue, in the order of their dispatch."""

    __slots__ = ("_paid", "earned", "fresh", "fresh_in_store", "retries", "retry", "tokens", "urgent")

    def __init__(self, retry: RetrySettings) -> None:
        self.retry = retry
        self.tokens = TokenBucket(retry.fetch_ratio, retry.burst)
        self.urgent: deque[Lease] = deque()
        self.retries: deque[Lease] = deque()
        self.fresh: deque[Lease] = deque()
        self.fresh_in_store = 0
        self.earned: set[int] = set()  # ids of requeued jobs: they have added to the tokens already
        self._paid: set[int] = set()  # ids of dispatched retries that have spent a token and may yet be requeued

    def __len__(self) -> int:
        return len(self.urgent) + len(self.retries) + len(self.fresh)

    @property
    def fresh_waits(self) -> bool:
        return bool(self.fresh) or self.fresh_in_store > 0

    def reconfigure(self, retry: RetrySettings) -> None:
        """Go on under other settings, with the jobs and the tokens that there are."""
        self.retry, jobs = retry, self.jobs()
        self.tokens.reconfigure(retry.fetch_ratio, retry.burst)
        for tier in (self.urgent, self.retries, self.fresh):
            tier.clear()
        self.add(jobs)

    def add(self, leases: Iterable[Lease]) -> None:
        """Append each job to its tier; the leases come in order. Hot path."""
        fresh, urgent_from = self.fresh.append, self.retry.urgent
        for lease in leases:
            if lease[LEASE_TIER] == 0 and lease[LEASE_PRIORITY] < urgent_from:
                fresh(lease)
            else:
                self._tier_of(lease).append(lease)

    def requeue(self, leases: Sequence[Lease]) -> None:
        """Put reclaimed jobs in front, each in its tier; the leases come in order."""
        self.earned.update([lease.id for lease in leases])
        for lease in reversed(leases):
            self._tier_of(lease).appendleft(lease)
            if lease.id in self._paid:
                self._paid.remove(lease.id)
                self.tokens.refund()

    def _tier_of(self, lease: Lease) -> deque[Lease]:
        if lease.tier == Tier.RETRY:
            return self.retries
        return self.urgent if lease.priority >= self.retry.urgent else self.fresh

    def in_turn(self, retries_allowed: bool = True) -> Iterator[Lease]:
        """Yield the jobs in the order of their dispatch, each removed from the buffer. Hot path.

        `retries_allowed` is False if, while fresh jobs wait, retries have their share of the workers.
        """
        tokens, urgent, retries, fresh = self.tokens, self.urgent, self.retries, self.fresh
        earned, paid = self.earned, self._paid
        if tokens.full and not earned:
            while fresh and not retries and not urgent:  # as it mostly is: there is no choice, and nothing to count
                yield fresh.popleft()
        while True:
            if urgent:
                lease = urgent.popleft()
            elif retries and not (fresh or self.fresh_in_store > 0):
                lease = retries.popleft()
                paid.discard(lease[LEASE_ID])
            elif retries and retries_allowed and tokens.suffices:
                lease = retries.popleft()
                tokens.spend()
                paid.add(lease[LEASE_ID])
            elif fresh:
                lease = fresh.popleft()
            else:
                return
            if earned and lease[LEASE_ID] in earned:
                earned.remove(lease[LEASE_ID])
            else:
                tokens.dispatched()
            yield lease

    def keep_paid(self, sent: set[int]) -> None:
        """Forget the retries that have spent a token, except these ids: only they may still be requeued."""
        self._paid &= sent

    def take_out(self, ids: set[int]) -> list[Lease]:
        self.earned -= ids
        taken = [lease for lease in self.jobs() if lease.id in ids]
        for tier in (self.urgent, self.retries, self.fresh) if taken else ():
            kept = [lease for lease in tier if lease.id not in ids]
            tier.clear()
            tier.extend(kept)
        return taken

    def jobs(self) -> list[Lease]:
        return [*self.urgent, *self.retries, *self.fresh]


class QueueBuffers:
    """The buffers of all queues, and the counts of the jobs that the last claim left in the store. `turn` is the number of frames so
    far."""

    def __init__(self, config: CurrentConfig) -> None:
        self.by_queue: dict[str, QueueBuffer] = {}
        self.turn = 0
        self.has_new = False  # since the last dispatch
        self.moved_at = float("inf")  # when jobs last came, or went to a worker
        self._config = config
        # In the order of their turns. Some may have no jobs any more.
        self._with_jobs = OrderedDict[str, QueueBuffer]()
        self._began: str | None = None  # the queue of the first job of this frame
        self._count = 0
        self.left_in_store = LeftInStore()

    def __len__(self) -> int:
        return self._count

    def of(self, queue: str) -> QueueBuffer:
        buffer = self.by_queue.get(queue)
        if buffer is None:
            buffer = self.by_queue[queue] = QueueBuffer(self._config.settings.retry_for(queue))
            if queue in self.left_in_store.by_queue:
                buffer.fresh_in_store = self.left_in_store.by_queue[queue].fresh
        return buffer

    def jobs(self) -> list[Lease]:
        return [lease for buffer in self.by_queue.values() for lease in buffer.jobs()]

    def reconfigure(self) -> None:
        """Go on under the settings in force now."""
        for queue, buffer in self.by_queue.items():
            buffer.reconfigure(self._config.settings.retry_for(queue))

    def note_left_in_store(self, left: Mapping[str, Waiting], behind: str | None = None) -> list[str]:
        """Note the ready jobs that the last claim left, by queue; a queue that is missing has none. If its look showed only the
        queues from `behind` to the last of these, return those between them that are known and have no jobs any more."""
        gone = self.left_in_store.note(left, behind)
        for queue in left:
            self.of(queue)
        self._forget_queues(left)
        known = self.left_in_store.by_queue
        for queue, buffer in self.by_queue.items():
            buffer.fresh_in_store = known[queue].fresh if queue in known else 0
        return gone

    def _forget_queues(self, left: Container[str]) -> None:
        """Queues may come and go by the thousand. Forget those that have no jobs: first those that lose no more than a full
        bucket by it, and if there are still too many the others, which start with all their tokens again."""
        for may_forget in (lambda tokens: tokens.full, lambda tokens: True):
            if len(self.by_queue) > MAX_BUFFERS:
                known = self.by_queue.items()
                self.by_queue = {q: it for q, it in known if len(it) or q in left or not may_forget(it.tokens)}

    def only_retries_wait(self) -> bool:
        """Return whether some queue has nothing but retries here: fresh jobs that come now would wait for all of them."""
        return any(buffer.retries and not buffer.fresh for buffer in self._with_jobs.values())

    def add(self, leases: Sequence[Lease]) -> None:
        for queue, of_queue in groupby(leases, itemgetter(LEASE_QUEUE)):
            buffer = self._with_jobs[queue] = self.of(queue)
            buffer.add(of_queue)
        self.has_new = True
        self._count += len(leases)

    def requeue(self, leases: Sequence[Lease]) -> None:
        for queue in dict.fromkeys(lease.queue for lease in leases):
            buffer = self._with_jobs[queue] = self.of(queue)
            buffer.requeue([lease for lease in leases if lease.queue == queue])
        self._count += len(leases)

    def in_turn(self, workers: int, with_retries: Callable[[], Counter[str]]) -> Iterator[Lease]:
        """Yield the jobs for one frame in the order of their dispatch, and pass the turn to the next queue.

        `with_retries` returns how many of the `workers` hold retries of each queue, not counting the one that gets the frame. Each
        job is removed from its buffer; the caller must count it with `dispatched`.
        """
        self.turn += 1
        self._began = None
        return chain.from_iterable(self._by_queue(workers, with_retries))

    def _by_queue(self, workers: int, with_retries: Callable[[], Counter[str]]) -> Iterator[Iterable[Lease]]:
        for queue, buffer in self._with_jobs.items():
            if len(buffer):
                jobs = buffer.in_turn(_retries_allowed(queue, buffer, workers, with_retries))
                if self._began is None and (first := next(jobs, None)) is not None:
                    self._began = queue
                    yield (first,)
                yield jobs

    def without_choice(self, limit: int) -> list[Lease]:
        """Remove and return the next jobs, up to `limit`, if there is one queue, all its jobs are fresh, and none counts. Hot path."""
        buffer = next(iter(self._with_jobs.values())) if len(self._with_jobs) == 1 else None
        if buffer is None or buffer.urgent or buffer.retries or buffer.earned or not buffer.tokens.full:
            return []
        leases = [buffer.fresh.popleft() for _ in range(min(limit, len(buffer.fresh)))]
        self.turn, self._count = self.turn + len(leases), self._count - len(leases)
        return leases

    def dispatched(self, count: int) -> None:
        """Count the jobs of a frame. The next frame begins with the queue behind the one that this frame began with."""
        self._count -= count
        queue = None
        while self._with_jobs and queue != self._began:
            queue, buffer = self._with_jobs.popitem(last=False)
            if len(buffer):
                self._with_jobs[queue] = buffer
        while self._with_jobs and not len(self._with_jobs[next(iter(self._with_jobs))]):
            self._with_jobs.popitem(last=False)

    def take_out(self, ids: set[int]) -> list[Lease]:
        taken = [lease for buffer in self.by_queue.values() for lease in buffer.take_out(ids)]
        self._count -= len(taken)
        return taken

    def take_queue(self, queue: str) -> list[Lease]:
        buffer = self.by_queue.get(queue)
        return self._take(buffer.jobs()) if buffer is not None else []

    def take_unserved(self) -> list[Lease]:
        """Remove and return the jobs of queues that a reload has taken out of those served here."""
        served = self._config.settings.workers.queues
        return [] if served is None else self._take([lease for lease in self.jobs() if lease.queue not in served])

    def take_all(self) -> list[Lease]:
        return self._take(self.jobs())

    def _take(self, leases: Iterable[Lease]) -> list[Lease]:
        return self.take_out({lease.id for lease in leases})

    def take_surplus(self, seconds: float, times: RunTimes, workers: int) -> list[Lease]:
        """Keep the first jobs in turn: `seconds` of work, but at least one for each worker. Remove and return the others: they
        would delay jobs that are more urgent, or are of another queue; or other supervisors could run them."""
        if self._count * max(times.longest, times.mean or 0.0) <= seconds:
            return []
        rows = zip_longest(*[buffer.jobs() for buffer in self.by_queue.values()])
        jobs = [lease for row in rows for lease in row if lease is not None]
        ends = accumulate([times.of(lease.handler) or times.mean or 0.0 for lease in jobs])
        return self._take(jobs[max(workers, bisect_right([*ends], seconds)) :])

    def keep_paid_of(self, slots: Iterable[WorkerSlot]) -> None:
        """Forget the retries that have spent a token, except those that a worker has: only they may still be requeued."""
        sent = {lease.id for slot in slots for lease in slot.sent}
        for buffer in self.by_queue.values():
            buffer.keep_paid(sent)


def _retries_allowed(queue: str, buffer: QueueBuffer, workers: int, with_retries: Callable[[], Counter[str]]) -> bool:
    if not (buffer.retries and buffer.fresh_waits):
        return True
    limit = retries_limit(buffer.retry, workers)
    return limit is None or with_retries()[queue] < limit


class JobBuffers:
    """The QueueBuffers of each group of workers, and `of_async`, which stays empty unless a plugin has an async handler.

    `sync_queues` and `async_queues` have had jobs of this kind, since a claim can choose queues, and not handlers.
    """

    def __init__(self, config: CurrentConfig) -> None:
        self.of_sync, self.of_async = QueueBuffers(config), QueueBuffers(config)
        self.groups = {OTHERS: self.of_sync}
        self.left_in_store = self.of_sync.left_in_store
        self.sync_queues: set[str] = set()
        self.async_queues: set[str] = set()
        self.suspects: list[Lease] = []
        """Jobs of async handlers that may have crashed a worker. They run apart from all others."""
        self._config = config
        self._set_groups()

    def __len__(self) -> int:
        return sum(map(len, self.groups.values())) + len(self.of_async) + len(self.suspects)

    def _all(self) -> Iterator[QueueBuffers]:
        return chain(self.groups.values(), (self.of_async,))

    def add(self, leases: Sequence[Lease]) -> None:
        for buffers, jobs in self._apart(leases):
            if jobs:
                buffers.add(jobs)

    def requeue(self, leases: Sequence[Lease]) -> None:
        for buffers, jobs in self._apart(leases):
            buffers.requeue(jobs)

    def _apart(self, leases: Sequence[Lease]) -> list[tuple[QueueBuffers, Sequence[Lease]]]:
        handlers, group_of = self._config.async_handlers, self._config.group_of
        if not handlers and not group_of:
            return [(self.of_sync, leases)]
        sync = [lease for lease in leases if lease[LEASE_HANDLER] not in handlers]
        of_async = [lease for lease in leases if lease[LEASE_HANDLER] in handlers]
        self.suspects += [lease for lease in of_async if lease[LEASE_EXPIRED_COUNT] >= SUSPECT]
        of_async = [lease for lease in of_async if lease[LEASE_EXPIRED_COUNT] < SUSPECT]
        for queues, of_kind in ((self.sync_queues, sync), (self.async_queues, of_async)):
            queues.update([lease[LEASE_QUEUE] for lease in of_kind])
            if len(queues) > MAX_QUEUES:
                queues.clear()
        apart: dict[str, list[Lease]] = {}
        for queue, jobs in groupby(sync, itemgetter(LEASE_QUEUE)):
            apart.setdefault(group_of.get(queue, OTHERS), []).extend(jobs)
        return [*((self.groups[name], jobs) for name, jobs in apart.items()), (self.of_async, of_async)]

    def reconfigure(self) -> None:
        """Go on under the settings and handlers in force now."""
        for buffers in self._all():
            buffers.reconfigure()
        # A queue may be of another group now, and a handler of the other kind.
        config = self._config
        if config.async_handlers or self.async_queues or config.group_of or len(self.groups) > 1:
            jobs = self.take_all()
            self._set_groups()
            self.sync_queues.clear()
            self.async_queues.clear()
            self.add(jobs)

    def _set_groups(self) -> None:
        served = self._config.settings.workers.served_groups
        named = {name: self.groups.get(name, QueueBuffers(self._config)) for name in served}
        self.groups = {OTHERS: self.of_sync, **named}

    def jobs(self) -> list[Lease]:
        return [*self.suspects, *(lease for buffers in self._all() for lease in buffers.jobs())]

    def note_left_in_store(self, left: Mapping[str, Waiting], behind: str | None = None) -> list[str]:
        """Do what QueueBuffers.note_left_in_store does, for both kinds: it is not known which kind is left."""
        if self.async_queues:
            self.of_async.note_left_in_store(left, behind)
        gone = self.of_sync.note_left_in_store(left, behind)
        for name, group in self._config.settings.workers.served_groups.items():
            self.groups[name].note_left_in_store(self.left_in_store.of(group.queues))
        return gone

    def groups_left(self) -> frozenset[str] | None:
        """Return the groups whose queues have ready jobs in the store, as far as the last claim has seen; None if there is one."""
        group_of = self._config.group_of
        return frozenset(group_of.get(queue, OTHERS) for queue in self.left_in_store.of()) if group_of else None

    def only_retries_wait(self) -> bool:
        return any(buffers.only_retries_wait() for buffers in self._all())

    def take_out(self, leases: Iterable[Lease]) -> list[Lease]:
        ids = {lease.id for lease in leases}
        return self._take(lambda lease: lease.id in ids, lambda buffers: buffers.take_out(ids))

    def take_queue(self, queue: str) -> list[Lease]:
        return self._take(lambda lease: lease.queue == queue, lambda buffers: buffers.take_queue(queue))

    def take_unserved(self) -> list[Lease]:
        served = self._config.settings.workers.queues
        return self._take(lambda lease: served is not None and lease.queue not in served, QueueBuffers.take_unserved)

    def take_all(self) -> list[Lease]:
        return self._take(lambda lease: True, QueueBuffers.take_all)

    def _take(self, suspect: Callable[[Lease], bool], take: Callable[[QueueBuffers], list[Lease]]) -> list[Lease]:
        taken = [lease for lease in self.suspects if suspect(lease)]
        self.suspects = [lease for lease in self.suspects if lease not in taken]
        return taken + [lease for buffers in self._all() for lease in take(buffers)]

    def keep_paid_of(self, slots: Iterable[WorkerSlot]) -> None:
        slots = list(slots)
        for buffers in self._all():
            buffers.keep_paid_of(slots)
