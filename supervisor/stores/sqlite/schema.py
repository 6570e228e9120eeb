"""The tables, indexes and triggers of a SQLite store."""

from __future__ import annotations

from supervisor.jobs import MAX_RETRIES
from supervisor.stores.codes import BLOCKED, IN_FLIGHT, PENDING, READY, SCHEDULED, SUCCEEDED
from supervisor.stores.limits import (
    MAX_DEAD_LETTER_TOKEN,
    MAX_EXPIRED_COUNT,
    MAX_FACTOR,
    MAX_OPTION_SECONDS,
    MAX_TIME,
    MAX_TOKEN,
    MAX_TRIES,
)
from supervisor.stores.sqlite import expiry, unique
from supervisor.stores.sqlite.groups import FREE_MOVED_TURN, FREE_TURN, GROUP_TABLES, TAKE_MOVED_TURN, TAKE_TURN
from supervisor.stores.sqlite.job_limits import HELD_BACK_GONE, HELD_BACK_MOVED, LIMIT_TABLES
from supervisor.stores.sqlite.keys import KEY_TABLES
from supervisor.stores.sqlite.schedules import SCHEDULES
from supervisor.stores.sqlite.tags import TAGS
from supervisor.stores.sqlite.texts import PAYLOADS, headers_are_long, texts_are_long
from supervisor.stores.sqlite.workflows import PARENT_TABLES

APPLICATION_ID = 0x4A535631
VERSION = 4

_NOW = "cast((julianday('now') - 2440587.5) * 86400000000 as integer)"


def _whole(column: str, least: int, most: int) -> str:
    return f"typeof(new.{column}) = 'integer' and new.{column} between {least} and {most}"


def _option(path: str, least: int, most: int, kinds: str = "'integer', 'real'") -> str:
    value = f"json_extract(new.options, '{path}') between {least} and {most}"
    return f"(json_type(new.options, '{path}') in ({kinds}) and {value})"


# [max_retries, timeout, [base, factor, max, jitter] of a backoff], each of them a null if the job has none of its own.
_OPTIONS = f"""json_array_length(new.options) = 3
        and (json_type(new.options, '$[0]') = 'null' or {_option("$[0]", 0, MAX_RETRIES, "'integer'")})
        and (json_type(new.options, '$[1]') = 'null' or {_option("$[1]", 0, MAX_OPTION_SECONDS)})
        and (json_type(new.options, '$[2]') = 'null' or (json_array_length(new.options, '$[2]') = 4
          and {_option("$[2][0]", 0, MAX_OPTION_SECONDS)} and {_option("$[2][1]", 1, MAX_FACTOR)} and {_option("$[2][2]", 0, MAX_OPTION_SECONDS)}
          and (json_extract(new.options, '$[2][3]') in ('full', 'none') or {_option("$[2][3]", 0, MAX_OPTION_SECONDS)})))"""

_TIME = "microseconds since the epoch, up to 36,500 years from it"
_LEASED = f"new.state != {IN_FLIGHT} or (typeof(new.owner) = 'integer' and typeof(new.lease_until) = 'integer')"
_EXPECTED = {
    "handler": ("text", "typeof(new.handler) = 'text'"),
    "queue": ("text", "typeof(new.queue) = 'text'"),
    "priority": ("a whole number", "typeof(new.priority) = 'integer'"),
    "state": ("a whole number from -1 to 5", "new.state in (-1, 0, 1, 2, 3, 4, 5)"),
    "owner": ("a whole number, and lease_until with it, for a job in flight", _LEASED),
    "tier": ("0 or 1", "new.tier in (0, 1)"),
    "token": (f"a whole number from 0 to {MAX_TOKEN}", _whole("token", 0, MAX_TOKEN)),
    "retries": (f"a whole number from 0 to {MAX_RETRIES}", _whole("retries", 0, MAX_RETRIES)),
    "expired_count": (f"a whole number from 0 to {MAX_EXPIRED_COUNT}", _whole("expired_count", 0, MAX_EXPIRED_COUNT)),
    "due_at": (_TIME, _whole("due_at", -MAX_TIME, MAX_TIME)),
    "created_at": (_TIME, _whole("created_at", -MAX_TIME, MAX_TIME)),
    "options": ("[max_retries, timeout, backoff] in JSON", f"new.options is null or iif(json_valid(new.options), {_OPTIONS}, 0)"),
}  # fmt: skip


def _refusals(*columns: str) -> str:
    return "\n      ".join(
        f"select raise(abort, 'jobs.{column}: expected {expected}') where ({condition}) is not true;"
        for column, (expected, condition) in _EXPECTED.items()
        if column in columns
    )


# Times are microseconds since the epoch. `age` orders a tier: for a fresh job it is its id, for a retry its due time, for a
# redriven job the next value of the id sequence. `settled` is the token of the last settle that was accepted.
JOBS = f"""create table jobs(
      id integer primary key autoincrement,
      handler text not null,
      queue text not null default 'default',
      payload text,
      headers text,
      priority int not null default 0,
      state int not null default {READY},
      tier int not null default 0,
      age int,
      token int not null default 0,
      settled int,
      owner int,
      lease_until int,
      started_at int,
      due_at int not null default ({_NOW}),
      created_at int not null default ({_NOW}),
      finished_at int,
      retries int not null default 0,
      expired_count int not null default 0,
      policy int,
      options text,
      result text)"""

# A row that no claim could read would block all others, so it is refused when it is written. The store itself gives every row
# its age: a row without one was inserted with plain SQL by another program, and is counted here.
_STATE_AT_FIRST = f"iif(new.state = {READY} and new.due_at > {_NOW}, {SCHEDULED}, new.state)"
INSERTED_BY_SQL = f"""create trigger inserted_by_sql after insert on jobs when new.age is null begin
      {_refusals(*_EXPECTED)}
      insert into payloads
        select new.id, new.payload, iif({headers_are_long("new")}, new.headers, null) where {texts_are_long("new")};
      update jobs set age = id, state = {_STATE_AT_FIRST}, payload = iif({texts_are_long("new")}, null, payload),
        headers = iif({headers_are_long("new")}, null, headers) where id = new.id;
      insert into counts values ({_STATE_AT_FIRST}, new.queue, new.tier, 1)
        on conflict(state, queue, tier) do update set n = n + 1;
      {TAKE_TURN}
    end"""
# It checks columns that the store itself never updates.
UPDATED_BY_SQL = f"""create trigger updated_by_sql before update of handler, queue, priority, created_at, options on jobs begin
      {_refusals("handler", "queue", "priority", "created_at", "options")}
    end"""

QUEUE_CHANGED = f"""create trigger queue_changed after update of queue on jobs begin
      {HELD_BACK_MOVED};
      {FREE_MOVED_TURN}
      update counts set n = n - 1 where state = old.state and queue = old.queue and tier = old.tier;
      insert into counts values (new.state, new.queue, new.tier, 1) on conflict(state, queue, tier) do update set n = n + 1;
      {TAKE_MOVED_TURN}
    end"""
# All that belongs to a job is deleted with it, whoever deletes it.
JOB_DELETED = f"""create trigger job_deleted after delete on jobs begin
      {HELD_BACK_GONE};
      {FREE_TURN}
      delete from payloads where job_id = old.id;
      delete from key_waiters
        where key = (select key from extras where job_id = old.id) and job_id = old.id;
      delete from parents where child = old.id;
      {unique.FORGET_DELETED};
      {expiry.FORGET_DELETED};
      delete from extras where job_id = old.id;
      delete from attempts where job_id = old.id;
      delete from reports where job_id = old.id;
      delete from snoozes where job_id = old.id;
      delete from dead_letters where job_id = old.id;
      update counts set n = n - 1 where state = old.state and queue = old.queue and tier = old.tier;
    end"""


def between(column: str, least: int, most: int) -> str:
    """A condition for a whole number from `least` to `most`."""
    return f"typeof({column}) = 'integer' and {column} between {least} and {most}"


def is_list(column: str) -> str:
    """A condition for a list in JSON."""
    return f"iif(typeof({column}) = 'text' and json_valid({column}), json_type({column}) = 'array', 0)"


# `owed` and `accepted` are JSON lists of sinks: see `supervisor.stores.sinks`. A row that no claim could read is refused.
DEAD_LETTERS = f"""create table dead_letters(
      job_id integer primary key,
      state int not null check (state in (0, 1, 2)),
      token int not null default 0 check ({between("token", 0, MAX_DEAD_LETTER_TOKEN)}),
      owner int,
      due_at int not null check ({between("due_at", -2 * MAX_TIME, 2 * MAX_TIME)}),
      tries int not null default 0 check ({between("tries", 0, MAX_TRIES)}),
      owed text not null default '[]' check ({is_list("owed")}),
      accepted text not null default '[]' check ({is_list("accepted")}))"""
SINK_LISTS = "owed || accepted"
"""Both lists as one text, so that the index can be walked from one pair to the next."""
PENDING_DEAD_LETTERS = f"""create index pending_dead_letters on dead_letters({SINK_LISTS}, due_at)
      where state = {PENDING}"""

# Only jobs that have reported something have a row. See `supervisor.stores.job_reports`.
REPORTS = "create table reports(job_id integer primary key, progress text, progress_at int, log text)"
REPORT_LENGTH = (
    "coalesce((select coalesce(length(progress), 0) + coalesce(length(log), 0) from reports where job_id = jobs.id), 0)"
)

# A text that is no JSON would keep its job from being deleted, so it is refused.
EXTRAS = """create table extras(
      job_id integer primary key, key text, expires_at int, text text not null check (json_valid(text)))"""
# Only jobs that have snoozed have a row: how often, and the time at which the last snooze ends. See `snoozes`.
SNOOZES = "create table snoozes(job_id integer primary key, n int not null, until int not null)"
BLOCKED_JOBS = f"create index blocked on jobs(id) where state = {BLOCKED}"

SUPERVISORS = """create table supervisors(
      id integer primary key autoincrement,
      owner text not null unique,
      host text not null,
      pid int not null,
      state text not null,
      seen_at int not null,
      idle int not null default 0,
      workers text not null default '[]',
      sinks text not null default '[]',
      about text not null default '{}')"""

SCHEMA = (
    JOBS,
    PAYLOADS,
    "insert into sqlite_sequence(name, seq) values ('jobs', 0)",
    f"create index ready on jobs(queue, tier, priority desc, age) where state = {READY}",
    f"create index scheduled on jobs(due_at) where state = {SCHEDULED}",
    f"create index in_flight on jobs(owner, lease_until) where state = {IN_FLIGHT}",
    BLOCKED_JOBS,
    f"create index terminal on jobs(state, finished_at) where state >= {SUCCEEDED}",
    "create table counts(state int, queue text, tier int, n int not null, primary key(state, queue, tier)) without rowid",
    INSERTED_BY_SQL,
    UPDATED_BY_SQL,
    QUEUE_CHANGED,
    JOB_DELETED,
    "create table policies(id integer primary key, policy text not null unique)",
    "create table attempts(id integer primary key, job_id int not null, record text not null)",
    "create index attempts_of on attempts(job_id)",
    REPORTS,
    SNOOZES,
    EXTRAS,
    *TAGS,
    *KEY_TABLES,
    *LIMIT_TABLES,
    *PARENT_TABLES,
    *unique.UNIQUE_TABLES,
    expiry.EXPIRIES,
    *GROUP_TABLES,
    DEAD_LETTERS,
    PENDING_DEAD_LETTERS,
    "create table queues(queue text primary key, paused int not null) without rowid",
    SUPERVISORS,
    SCHEDULES,
)

# Only in stores whose jobs were transferred: see `supervisor.stores.transfer`.
TRANSFER_OUT = (
    "create table transfer_out(id text not null, target text not null, place text not null, arrived int not null)"
)
TRANSFERS_IN = "create table if not exists transfers_in(id text primary key) without rowid"
CLOSED_TRIGGERS = {
    "closed_to_enqueues": "insert on jobs",
    "closed_to_updates": "update on jobs",
    "closed_to_joins": "insert on supervisors",
}


def closed_trigger(name: str, message: str) -> str:
    """Return the statement that makes one of CLOSED_TRIGGERS, which refuses with `message`."""
    text = message.replace("'", "''")
    return f"create trigger {name} before {CLOSED_TRIGGERS[name]} begin select raise(abort, '{text}'); end"
