"""The operator's verbs on a SQLite store, and pruning. Each changes what it may in batches, and says what it refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from supervisor.jobs import JobState
from supervisor.stores.base import Retention
from supervisor.stores.shapes import (
    NO_SUCH_JOB,
    Verdict,
    microseconds,
    refuse_cancel,
    refuse_delete,
    refuse_redrive,
    refuse_retry,
)
from supervisor.stores.sqlite_db import packed
from supervisor.stores.sqlite_letters import Letters
from supervisor.stores.sqlite_policies import BY_ID
from supervisor.stores.sqlite_schema import (
    CANCELLED,
    DELIVERED,
    FAILED,
    LETTERS,
    PENDING,
    READY,
    SCHEDULED,
    STATES,
    SUCCEEDED,
    WITHDRAWN,
)

BATCH = 1000
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

EXPIRED = f"""(select id from jobs where state = ? and state >= {SUCCEEDED} and finished_at <= ?
  and not exists (select 1 from letters where job_id = jobs.id and letters.state = {PENDING})
  order by finished_at limit ?)"""


class _Target(NamedTuple):
    id: int
    state: int
    queue: str
    tier: int
    letter: int | None


class Verbs(Letters):
    def cancel(self, ids: Sequence[int]) -> Verdict:
        return self._do(ids, refuse_cancel, self._cancel)

    def retry(self, ids: Sequence[int]) -> Verdict:
        return self._do(ids, refuse_retry, self._retry)

    def redrive(self, ids: Sequence[int] | None, force: bool = False) -> Verdict:
        return self._do(ids, lambda state, letter: refuse_redrive(state, letter, force), self._redrive)

    def delete(self, ids: Sequence[int], force: bool = False) -> Verdict:
        return self._do(ids, lambda state, letter: refuse_delete(state, letter, force), self._delete)

    def purge(self, force: bool = False) -> Verdict:
        return self._do(None, lambda state, letter: refuse_delete(state, letter, force), self._delete)

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
                    past = self.now() - microseconds(seconds)
                    ids = self.column("id", EXPIRED, state, past, limit - pruned)
                    if ids:
                        self._delete(self._targets(ids))
                    pruned += len(ids)
            self.write_counts()
            self.run("delete from counts where n = 0")
            return pruned

    def _do(
        self,
        ids: Sequence[int] | None,
        refuse: Callable[[JobState, str | None], str | None],
        change: Callable[[list[_Target]], None],
    ) -> Verdict:
        """Change the jobs that `refuse` has nothing to say against; without ids, all that are dead letters."""
        done: list[int] = []
        refused: dict[int, str] = {}
        for batch in self._dead() if ids is None else _batches(ids):
            with self.transaction():
                targets = {target.id: target for target in self._targets(batch)}
                why = dict.fromkeys(batch, NO_SUCH_JOB) | {
                    id: refuse(STATES[target.state], LETTERS[target.letter or 0]) for id, target in targets.items()
                }
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

    def _targets(self, ids: Sequence[int]) -> list[_Target]:
        return [
            _Target(*row) for row in self.rows("jobs.id, jobs.state, queue, tier, letters.state", _TARGET, packed(ids))
        ]

    def _cancel(self, targets: list[_Target]) -> None:
        self._recount(targets, CANCELLED)
        self.run(CANCEL, self.now(), _ids(targets))

    def _retry(self, targets: list[_Target]) -> None:
        waiting = [target for target in targets if target.state == SCHEDULED]
        self._recount(waiting, READY)
        self.run(DUE_NOW, self.now(), _ids(waiting))
        self._redrive([target for target in targets if target.state != SCHEDULED])

    def _redrive(self, targets: list[_Target]) -> None:
        if not targets:
            return
        self._recount(targets, READY, tier=0)
        age = self.next_age()
        self.run("update sqlite_sequence set seq = ? where name = 'jobs'", age + len(targets) - 1)
        self.run(REDRIVE, age, self.now(), _ids(targets))
        self.run(WITHDRAW, _ids(targets))

    def _delete(self, targets: list[_Target]) -> None:
        self._recount(targets, None)
        for table, key in (("jobs", "id"), ("attempts", "job_id"), ("letters", "job_id")):
            self.run(f"delete from {table} where {key} in (select value from json_each(?))", _ids(targets))

    def _recount(self, targets: Iterable[_Target], state: int | None, tier: int | None = None) -> None:
        for (old, queue, old_tier), n in Counter((it.state, it.queue, it.tier) for it in targets).items():
            self.count(old, queue, old_tier, -n)
            if state is not None:
                self.count(state, queue, old_tier if tier is None else tier, n)


def _ids(targets: Iterable[_Target]) -> str:
    return packed([target.id for target in targets])


def _batches(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), BATCH):
        yield ids[start : start + BATCH]
