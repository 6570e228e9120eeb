"""The operator's verbs on a SQLite store, and pruning. Each changes what it may in batches, and says what it refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from supervisor.stores.base import Retention
from supervisor.stores.sqlite_db import packed
from supervisor.stores.sqlite_letters import Letters
from supervisor.stores.sqlite_policies import BY_ID
from supervisor.stores.sqlite_schema import (
    CANCELLED,
    DELIVERED,
    FAILED,
    IN_FLIGHT,
    PENDING,
    READY,
    SCHEDULED,
    STATES,
    SUCCEEDED,
    WITHDRAWN,
)

BATCH = 1000
PENDING_LETTER = "its dead letter is pending: not every sink has it yet (--force to do it all the same)"
Verdict = tuple[list[int], dict[int, str]]

_TARGET = f"{BY_ID} left join letters on letters.job_id = jobs.id"
_DEAD = (
    f"""(select job_id from letters where state in ({PENDING}, {DELIVERED}) and job_id > ? order by job_id limit ?)"""
)

CANCEL = f"""update jobs set state = {CANCELLED}, token = token + 1, finished_at = ?1, owner = null, lease_until = null
  where id in (select value from json_each(?2))"""
DUE_NOW = f"""update jobs set state = {READY}, due_at = ?1, age = iif(tier, ?1, age)
  where id in (select value from json_each(?2))"""
REDRIVE = f"""update jobs set state = {READY}, tier = 0, age = ?1 + it.key, due_at = ?2, retries = 0, lapses = 0,
    started_at = null, finished_at = null, result = null
  from json_each(?3) as it where jobs.id = it.value"""
WITHDRAW = f"update letters set state = {WITHDRAWN} where job_id in (select value from json_each(?))"

EXPIRED = f"""(select id from jobs where state = ? and finished_at <= ?
  and not exists (select 1 from letters where job_id = jobs.id and letters.state = {PENDING})
  order by finished_at limit ?)"""


class Target(NamedTuple):
    id: int
    state: int
    queue: str
    tier: int
    letter: int | None


class Verbs(Letters):
    def cancel(self, ids: Sequence[int]) -> Verdict:
        return self._do(ids, _refuse_finished, self._cancel)

    def retry(self, ids: Sequence[int]) -> Verdict:
        return self._do(ids, _refuse_unless_waiting_or_finished, self._retry)

    def redrive(self, ids: Sequence[int] | None, force: bool = False) -> Verdict:
        return self._do(ids, _refuse_unless_finished(force), self._redrive)

    def delete(self, ids: Sequence[int], force: bool = False) -> Verdict:
        return self._do(ids, _refuse_in_flight(force), self._delete)

    def purge(self, force: bool = False) -> Verdict:
        return self._do(None, _refuse_in_flight(force), self._delete)

    def pause(self, queue: str, paused: bool) -> None:
        with self.transaction():
            self.run("insert or replace into queues(queue, paused) values (?, ?)", queue, paused)
        self.bells.ring()

    def prune(self, retention: Retention, limit: int) -> int:
        kept = ((SUCCEEDED, retention.succeeded), (CANCELLED, retention.cancelled), (FAILED, retention.failed))
        with self.transaction():
            pruned = 0
            for state, seconds in kept:
                if seconds is not None and pruned < limit:
                    past = self.now() - round(seconds * 1e6)
                    ids = self.column("id", EXPIRED, state, past, limit - pruned)
                    self._delete(self._targets(ids))
                    pruned += len(ids)
            return pruned

    def _do(
        self, ids: Sequence[int] | None, refuse: Callable[[Target], str | None], change: Callable[[list[Target]], None]
    ) -> Verdict:
        """Change the jobs that `refuse` has nothing to say against; without ids, all that are dead letters."""
        done: list[int] = []
        refused: dict[int, str] = {}
        for batch in self._dead() if ids is None else _batches(ids):
            with self.transaction():
                targets = {target.id: target for target in self._targets(batch)}
                why = {id: refuse(targets[id]) if id in targets else "no such job" for id in batch}
                changed = [id for id, reason in why.items() if reason is None]
                if changed:
                    change([targets[id] for id in changed])
            done += changed
            refused |= {id: reason for id, reason in why.items() if reason is not None}
        self.bells.ring()
        return done, refused

    def _dead(self) -> Iterator[Sequence[int]]:
        last = 0
        while batch := self.column("job_id", _DEAD, last, BATCH):
            yield batch
            last = batch[-1]

    def _targets(self, ids: Sequence[int]) -> list[Target]:
        return [
            Target(*row) for row in self.rows("jobs.id, jobs.state, queue, tier, letters.state", _TARGET, packed(ids))
        ]

    def _cancel(self, targets: list[Target]) -> None:
        self._recount(targets, CANCELLED)
        self.run(CANCEL, self.now(), _ids(targets))

    def _retry(self, targets: list[Target]) -> None:
        waiting = [target for target in targets if target.state == SCHEDULED]
        self._recount(waiting, READY)
        self.run(DUE_NOW, self.now(), _ids(waiting))
        self._redrive([target for target in targets if target.state != SCHEDULED])

    def _redrive(self, targets: list[Target]) -> None:
        if not targets:
            return
        self._recount(targets, READY, tier=0)
        age = self.next_age()
        self.run("update sqlite_sequence set seq = ? where name = 'jobs'", age + len(targets) - 1)
        self.run(REDRIVE, age, self.now(), _ids(targets))
        self.run(WITHDRAW, _ids(targets))

    def _delete(self, targets: list[Target]) -> None:
        self._recount(targets, None)
        for table, key in (("jobs", "id"), ("attempts", "job_id"), ("letters", "job_id")):
            self.run(f"delete from {table} where {key} in (select value from json_each(?))", _ids(targets))

    def _recount(self, targets: Iterable[Target], state: int | None, tier: int | None = None) -> None:
        for (old, queue, old_tier), n in Counter((it.state, it.queue, it.tier) for it in targets).items():
            self.count(old, queue, old_tier, -n)
            if state is not None:
                self.count(state, queue, old_tier if tier is None else tier, n)


def _ids(targets: Iterable[Target]) -> str:
    return packed([target.id for target in targets])


def _batches(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), BATCH):
        yield ids[start : start + BATCH]


def _refuse_finished(target: Target) -> str | None:
    return f"already {STATES[target.state].value}" if target.state >= SUCCEEDED else None


def _refuse_unless_waiting_or_finished(target: Target) -> str | None:
    if target.state == SCHEDULED:
        return None
    return _refuse_unless_finished(force=False)(target)


def _refuse_unless_finished(force: bool) -> Callable[[Target], str | None]:
    def refuse(target: Target) -> str | None:
        if target.state < SUCCEEDED:
            return f"{STATES[target.state].value.replace('_', ' ')}: it is going to run anyway"
        return PENDING_LETTER if target.letter == PENDING and not force else None

    return refuse


def _refuse_in_flight(force: bool) -> Callable[[Target], str | None]:
    def refuse(target: Target) -> str | None:
        if target.state == IN_FLIGHT:
            return "in flight: cancel it first"
        return PENDING_LETTER if target.letter == PENDING and not force else None

    return refuse
