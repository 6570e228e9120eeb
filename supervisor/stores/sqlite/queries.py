"""Queries to a SQLite store, for people, programs and --drain. They change no jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from supervisor.events import MAX_COUNTED
from supervisor.jobs import JobState
from supervisor.stores.codes import (
    BLOCKED,
    DEAD_LETTERS,
    IN_FLIGHT,
    LEFT,
    PENDING,
    READY,
    SCHEDULED,
    STATES,
    SUCCEEDED,
    WITHDRAWN,
)
from supervisor.stores.counts import queue_rows, running_jobs
from supervisor.stores.job_reports import add_progress, shown_progress
from supervisor.stores.limits import LAST_TIME
from supervisor.stores.pages import PAGE_CHARACTERS, in_pages
from supervisor.stores.records import microseconds, own_max_retries, readable_attempt
from supervisor.stores.search import (
    MAX_FAILURES,
    UNLIMITED,
    USUAL,
    FoundJobs,
    IdRange,
    JobFilter,
    SearchLimits,
    failure_dict,
    find,
)
from supervisor.stores.shown import Shown, job_dict, key_holder
from supervisor.stores.sinks import count_by_work, missing_sinks, sink_rows, sinks_of
from supervisor.stores.sqlite.connection import Connection, Select, first_that_fit, packed
from supervisor.stores.sqlite.keys import KEY_HOLDER
from supervisor.stores.sqlite.owner_lock import OwnerLock
from supervisor.stores.sqlite.ownership import Ownership
from supervisor.stores.sqlite.policies import Policies
from supervisor.stores.sqlite.queue import PAUSED
from supervisor.stores.sqlite.schema import REPORT_LENGTH, SINK_LISTS
from supervisor.stores.sqlite.search import LAST_ATTEMPTS, Search
from supervisor.stores.sqlite.stuck import stuck
from supervisor.stores.sqlite.texts import HEADERS, PAYLOAD, TEXT_LENGTH
from supervisor.stores.stuck import has_blocked
from supervisor.stores.supervisors import SupervisorRow, read_about, read_list, supervisor_dict
from supervisor.stores.workflows import MAX_SHOWN, NO_RELATIVES, relatives
from supervisor.text.units import iso


def _shown(payload: str, result: str, headers: str, log: str) -> Select:
    return Select(
        f"""jobs.id, handler, {payload}, queue, priority, jobs.state, retries, policy, options,
          jobs.due_at, created_at, started_at, finished_at, {result}, {headers}, expired_count,
          (select supervisors.owner from supervisors where supervisors.id = jobs.owner), lease_until,
          cast(progress as text), progress_at, {log}, cast(extras.text as text), expires_at, {KEY_HOLDER}, dead_letters.state, owed, accepted,
          snoozes.n, snoozes.until""",
        """from json_each(?) as it cross join jobs on jobs.id = it.value
          left join extras on extras.job_id = jobs.id left join dead_letters on dead_letters.job_id = jobs.id
          left join reports on reports.job_id = jobs.id left join snoozes on snoozes.job_id = jobs.id""",
    )


SHOWN = _shown(PAYLOAD, "cast(result as text)", HEADERS, "cast(log as text)")
BRIEF = _shown("'null'", "null", "null", "null")
PROGRESS = Select(
    "job_id, cast(progress as text), progress_at",
    "from json_each(?) as it cross join reports on reports.job_id = it.value",
)
ATTEMPTS = Select(
    "job_id, cast(record as text)",
    "from json_each(?) as it cross join attempts on attempts.job_id = it.value",
)
LENGTHS_SHOWN = f"""
  select json_group_array({TEXT_LENGTH} + coalesce(length(result), 0) + {REPORT_LENGTH}
    + coalesce((select sum(length(record)) from attempts where job_id = jobs.id), 0))
  from json_each(?) as it left join jobs on jobs.id = it.value"""
ENDED = f"""
  select json_group_array(it.value) from json_each(?) as it
  where coalesce((select state from jobs where id = it.value), {SUCCEEDED}) >= {SUCCEEDED}"""
MEASURED_AT_ONCE = 8
"""Few, since attempts must be read to be measured."""

UNFINISHED = Select("queue, state, n", f"from counts where state < {SUCCEEDED}")
DUE_BY = f"""
  select count(*) from (
    select 1 from jobs where state = {SCHEDULED} and due_at <= ?1 and queue in (select value from json_each(?2))
      and (?4 is null or handler in (select value from json_each(?4)))
    order by due_at limit ?3)"""
# Steps from one pair of lists to the next in the index: many dead letters share few of them.
PENDING_DEAD_LETTERS = Select(
    f"""owed, accepted, (
      select count(*) from (
        select 1 from dead_letters where state = {PENDING} and {SINK_LISTS} = steps.lists limit ?))""",
    f"""from (
      with recursive steps(lists) as (
        select * from (select {SINK_LISTS} from dead_letters where state = {PENDING} order by {SINK_LISTS} limit 1)
        union all
        select (
          select {SINK_LISTS} from dead_letters where state = {PENDING} and {SINK_LISTS} > steps.lists
          order by {SINK_LISTS} limit 1) from steps where lists is not null)
      select lists from steps) as steps
    cross join dead_letters on dead_letters.job_id = (
      select job_id from dead_letters where state = {PENDING} and {SINK_LISTS} = steps.lists limit 1)""",
)

COUNTED = Select("queue, state, tier, n", "from counts where n > 0")
RUNNING_BY_QUEUE = Select(
    "queue, n",
    f"""from (
      select queue, count(*) as n from json_each(?) as it cross join jobs on jobs.id = it.value and jobs.state = {IN_FLIGHT}
      group by queue)""",
)
SUPERVISORS = Select(
    f"""id, owner, host, pid, state, seen_at, workers, sinks, about,
      (select count(*) from jobs where jobs.state = {IN_FLIGHT} and jobs.owner = supervisors.id),
      (select max(lease_until) from jobs where jobs.state = {IN_FLIGHT} and jobs.owner = supervisors.id)""",
    "from supervisors",
)
_UNSEEN = 3_600_000_000
HAVE_ANY = """
  select json_group_array(it.value) from json_each(?) as it
  where exists (select 1 from parents where child = it.value) or exists (select 1 from parents where parents.parent = it.value)"""
PARENTS = Select(
    "parent, handler, state, link",
    """from (
      select parents.parent, jobs.handler, jobs.state, link from parents left join jobs on jobs.id = parents.parent
      where child = ?1 order by place limit ?2)""",
)
CHILDREN = Select(
    "child, handler, state, link",
    """from (
      select parents.child, jobs.handler, jobs.state, link from parents cross join jobs on jobs.id = parents.child
      where parent = ?1 order by child limit ?2)""",
)
COUNTED_BY_STATE = Select(
    "state, n",
    """from (
      select state, count(*) as n from json_each(?) as it left join jobs on jobs.id = it.value group by state)""",
)


class Queries:
    def __init__(self, connection: Connection, policies: Policies, owner: Ownership, lock: OwnerLock) -> None:
        self._connection, self._policies, self._owner, self._lock = connection, policies, owner, lock
        self._search = Search(connection)

    def get(self, id: int) -> dict[str, Any] | None:
        with self._connection.snapshot():
            found = self.jobs_shown([id])
        return found[0] if found else None

    def list_jobs(
        self,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        handler: str | None = None,
        dead_letter: str | None = None,
        limit: int = 100,
        brief: bool = False,
    ) -> Iterator[dict[str, Any]]:
        where = JobFilter(state, queue, handler, dead_letter=dead_letter)
        with self._connection.snapshot():
            found = self._search.walk(where, IdRange(), None, limit, UNLIMITED)
        return in_pages([id for _, id in found.places], lambda page: self.get_many(page, brief))

    def find_jobs(
        self, where: JobFilter, *, before: str | None = None, limit: int = 100, limits: SearchLimits = USUAL
    ) -> FoundJobs:
        with self._connection.snapshot():
            found = find(self._search, where, before, limit, limits)
        return found._replace(jobs=in_pages(found.ids, lambda page: self.get_many(page, brief=True)))

    def failures(self, limit: int, among: int = MAX_FAILURES) -> list[dict[str, Any]]:
        with self._connection.snapshot():
            groups = self._search.failures(limit, among)
            found = self._connection.rows(LAST_ATTEMPTS, packed([group.id for group in groups]))
            attempts = {id: readable_attempt(record) for id, record in found}
        return [failure_dict(group, attempts.get(group.id, {})) for group in groups]

    def ended(self, ids: Sequence[int]) -> list[int]:
        with self._connection.snapshot():
            ended: list[int] = self._connection.json(ENDED, packed(ids))
        return ended

    def counts_by_state(self, ids: Sequence[int]) -> dict[str | None, int]:
        with self._connection.snapshot():
            rows = self._connection.rows(COUNTED_BY_STATE, packed(list(ids)))
        return {None if state is None else STATES[state].value: n for state, n in rows}

    def get_many(self, ids: list[int], brief: bool = False) -> tuple[int, list[dict[str, Any]]]:
        with self._connection.snapshot():
            if not brief:
                ids = self.first_that_fit(ids, PAGE_CHARACTERS)
            return len(ids), self.jobs_shown(ids, brief)

    def first_that_fit(self, ids: list[int], room: int) -> list[int]:
        """Return the first of these jobs, as many as have `room` characters of texts and attempts together, at least one."""
        return first_that_fit(self._connection, ids, LENGTHS_SHOWN, MEASURED_AT_ONCE, room)

    def jobs_shown(self, ids: Sequence[int], brief: bool = False) -> list[dict[str, Any]]:
        """Return the jobs that exist, in the order of `ids`."""
        batch = packed(ids)
        errors: dict[int, list[Mapping[str, Any]]] = {}
        for job_id, record in self._connection.rows(LAST_ATTEMPTS if brief else ATTEMPTS, batch):
            errors.setdefault(job_id, []).append(readable_attempt(record))
        jobs = [job_dict(self._shown(row, errors)) for row in self._connection.rows(BRIEF if brief else SHOWN, batch)]
        return jobs if brief else self._with_relatives(jobs)

    def _shown(self, row: Sequence[Any], errors: Mapping[int, Sequence[Mapping[str, Any]]]) -> Shown:
        id, handler, payload, queue, priority, state, retries, policy, options = row[:9]
        (
            *rest,
            expired,
            owner,
            until,
            progress,
            at,
            log,
            extras,
            expires_at,
            holder,
            dead_letter,
            owed,
            accepted,
            n,
            end,
        ) = row[9:]
        most = own_max_retries(options, None if policy is None else self._policies.get(policy))
        shown = STATES[state].value if state in STATES else str(state)  # another program may have changed it
        known = (id, handler, payload, queue, priority, shown, retries, most, *rest)
        missing = missing_sinks(owed, accepted) if dead_letter == PENDING else ()
        dead_letter = DEAD_LETTERS[dead_letter or WITHDRAWN]
        reports = (progress, at, log, extras, expires_at, key_holder(holder), n, end, options)
        return Shown._make((*known, errors.get(id, ()), dead_letter, missing, expired, owner, until, *reports))

    def _with_relatives(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        batch, rows = packed([job["id"] for job in jobs]), self._connection.rows
        found = {
            id: relatives(rows(PARENTS, id, MAX_SHOWN), rows(CHILDREN, id, MAX_SHOWN))
            for id in self._connection.json(HAVE_ANY, batch)
        }
        return [job | found.get(job["id"], NO_RELATIVES) for job in jobs]

    def remaining(
        self,
        served: frozenset[str] | None,
        latest: float | None,
        most: int = MAX_COUNTED,
        handlers: Collection[str] | None = None,
    ) -> dict[str, int]:
        with self._connection.snapshot():
            self._connection.counts.write()
            paused = self._connection.json(PAUSED)
            counted = [
                (queue, state, n)
                for queue, state, n in self._connection.rows(UNFINISHED)
                if n and queue not in paused and (served is None or queue in served)
            ]
            left = {
                of: sum(n for _, state, n in counted if state == of) for of in (BLOCKED, SCHEDULED, READY, IN_FLIGHT)
            }
            if (latest is not None or handlers is not None) and left[SCHEDULED]:
                waiting = packed(list({queue for queue, state, _ in counted if state == SCHEDULED}))
                due_by = LAST_TIME if latest is None else microseconds(latest)
                known = None if handlers is None else packed(list(handlers))
                left[SCHEDULED] = self._connection.value(DUE_BY, due_by, waiting, most, known)
            dead_letters = count_by_work(self.pending(most), self._owner.sinks, most)
        counts = {STATES[state].value: n for state, n in left.items()} | dead_letters
        return {name: n for name, n in counts.items() if n}

    def pending(self, most: int) -> list[tuple[str, str, int]]:
        """(owed, accepted, n) of pending dead letters; it counts to `most` only."""
        return [(owed, accepted, n) for owed, accepted, n in self._connection.rows(PENDING_DEAD_LETTERS, most)]

    def stats(self) -> dict[str, Any]:
        with self._connection.snapshot():
            self._connection.counts.write()
            supervisors = self.supervisors()
            running = packed(running_jobs(supervisors))
            processing = dict(self._connection.rows(RUNNING_BY_QUEUE, running))
            progress = {id: shown_progress(text, at) for id, text, at in self._connection.rows(PROGRESS, running)}
            add_progress(supervisors, progress)
            paused = frozenset(self._connection.json(PAUSED))
            counted = self._connection.rows(COUNTED)
            queues = queue_rows(counted, paused, processing)
            waits = stuck(self._connection) if has_blocked(counted) else []
            sinks = sink_rows(self.pending(MAX_COUNTED), supervisors)
            at = iso(self._connection.now())
        return {"at": at, "queues": queues, "supervisors": supervisors, "sinks": sinks, "stuck": waits}

    def sinks(self) -> list[dict[str, Any]]:
        with self._connection.snapshot():
            return sink_rows(self.pending(MAX_COUNTED), self.supervisors())

    def supervisors(self) -> list[dict[str, Any]]:
        """Return the supervisors without those that hold no lease and have left, are gone, or were not seen for an hour."""
        unseen = self._connection.now() - _UNSEEN
        shown = []
        for id, owner, host, pid, state, seen_at, workers, sinks, about, *leases in self._connection.rows(SUPERVISORS):
            it = SupervisorRow(owner, host, pid, state, seen_at, *leases)
            gone = state == LEFT or (id != self._owner.id and self._lock.is_gone(owner))
            if it.in_flight or not (gone or seen_at < unseen):
                shown.append(supervisor_dict(it, gone, read_list(workers), sinks_of(sinks), read_about(about)))
        return shown
