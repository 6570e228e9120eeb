"""The tables, indexes, triggers and functions of a PostgreSQL store. See `connection.Names` for {s}, {jobs} and {channel}.

Times are microseconds since the epoch, by `{s}.clock()` alone.
"""

from __future__ import annotations

from supervisor.jobs import MAX_RETRIES
from supervisor.stores.codes import (
    BLOCKED,
    CANCELLED,
    DELIVERED,
    IN_FLIGHT,
    PENDING,
    READY,
    SCHEDULED,
    SUCCEEDED,
    WITHDRAWN,
)
from supervisor.stores.limits import (
    MAX_DEAD_LETTER_TOKEN,
    MAX_EXPIRED_COUNT,
    MAX_FACTOR,
    MAX_OPTION_SECONDS,
    MAX_TIME,
    MAX_TOKEN,
    MAX_TRIES,
)
from supervisor.stores.postgres import expiry, unique
from supervisor.stores.postgres.functions import BODY, FUNCTIONS, NOTIFY_UNLESS_OFF
from supervisor.stores.postgres.groups import (
    FREE_TURNS_OF_GONE,
    GROUP_FUNCTIONS,
    GROUP_TABLES,
    GROUP_TRIGGERS,
    MOVE_TURN,
)
from supervisor.stores.postgres.job_limits import HELD_BACK_MOVED, LIMIT_TABLES
from supervisor.stores.postgres.keys import KEY_FUNCTIONS, KEY_TABLES
from supervisor.stores.postgres.links import LINK_FUNCTIONS
from supervisor.stores.postgres.schedules import SCHEDULES
from supervisor.stores.postgres.tags import TAGS
from supervisor.stores.postgres.workflows import PARENT_FUNCTIONS, PARENT_TABLES
from supervisor.stores.transfer import closed_message

VERSION = 4

# A statement sees one time, and the next statement of its transaction a later one: in a transaction that is held open for an
# hour, leases and due times must not be of an hour ago. Names are written in full, since PostgreSQL does not inline a function
# with a search path of its own.
_CLOCK = """create function {s}.clock() returns bigint language sql stable parallel safe
  as 'select (extract(epoch from pg_catalog.statement_timestamp()) operator(pg_catalog.*) 1000000::numeric)::bigint'"""

# [max_retries, timeout, [base, factor, max, jitter] of a backoff], each of them a null if the job has none of its own.
_OPTIONS = f"""strict $.type() == "array" && $.size() == 3
  && ($[0] == null || ($[0] >= 0 && $[0] <= {MAX_RETRIES} && $[0].floor() == $[0]))
  && ($[1] == null || ($[1] >= 0 && $[1] <= {MAX_OPTION_SECONDS}))
  && ($[2] == null || ($[2].type() == "array" && $[2].size() == 4 && $[2][0] >= 0 && $[2][0] <= {MAX_OPTION_SECONDS}
    && $[2][1] >= 1 && $[2][1] <= {MAX_FACTOR} && $[2][2] >= 0 && $[2][2] <= {MAX_OPTION_SECONDS}
    && ($[2][3] == "full" || $[2][3] == "none" || ($[2][3] >= 0 && $[2][3] <= {MAX_OPTION_SECONDS}))))"""

LEASED = f"check (state <> {IN_FLIGHT} or (owner is not null and lease_until is not null))"
"""A job in flight without a lease would never be recovered."""

CLAIMABLE_JOB = f"""check (state between {BLOCKED} and {CANCELLED} and tier in (0, 1) and retries between 0 and {MAX_RETRIES}
      and due_at between {-MAX_TIME} and {MAX_TIME} and created_at between {-MAX_TIME} and {MAX_TIME}
      and (options is null or coalesce(options::jsonb @@ '{_OPTIONS}', false)))"""

# `linked` is true if other jobs may wait for this one, and false if it only has a group. A row that no claim could read would block all others, so it is refused when it is written. `age` orders a tier: for a fresh
# job it is its id, for a retry its due time, for a redriven job the next value of the id sequence. `settled` is the token of the
# last settle that was accepted. Room is left in each page, so that the new version of a row stands beside the old one, whose
# room is used again without a vacuum.
_JOBS = f"""create table {{s}}.jobs(
    id bigint generated always as identity primary key,
    age bigint,
    token bigint not null default 0,
    settled bigint,
    owner bigint,
    lease_until bigint,
    started_at bigint,
    due_at bigint not null default {{s}}.clock(),
    created_at bigint not null default {{s}}.clock(),
    finished_at bigint,
    priority bigint not null default 0,
    retries int not null default 0,
    expired_count int not null default 0,
    state smallint not null default {READY},
    tier smallint not null default 0,
    queue text collate "C" not null default 'default',
    handler text not null,
    payload text,
    headers text,
    options text,
    policy text,
    result text,
    linked boolean,
    constraint leased {LEASED},
    constraint claimable {CLAIMABLE_JOB})
  with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05)"""

SINK_LISTS = "hashtextextended(owed || accepted, 0)"
"""One number for both lists, which may be too long for an index."""
PENDING_DEAD_LETTERS = f"""create index pending_dead_letters on {{s}}.dead_letters({SINK_LISTS}, due_at, job_id)
    where state = {PENDING}"""
CLAIMABLE = f"""check (state between {WITHDRAWN} and {DELIVERED} and token between 0 and {MAX_DEAD_LETTER_TOKEN}
    and tries between 0 and {MAX_TRIES} and due_at between {-2 * MAX_TIME} and {2 * MAX_TIME}
    and jsonb_typeof(owed::jsonb) = 'array' and jsonb_typeof(accepted::jsonb) = 'array')"""
"""A dead letter that no claim could read is refused. `owed` and `accepted` are lists of sinks: see `supervisor.stores.sinks`."""

_COUNTS = """create table {s}.counts(
    n bigint not null, state smallint not null, tier smallint not null, queue text collate "C" not null)
  with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0)"""

COUNTS_BY_QUEUE = "create index counts_by_queue on {s}.counts(state, queue, tier)"
"""A look reads the first queues with ready jobs."""

BLOCKED_JOBS = f"create index blocked on {{s}}.jobs(id) where state = {BLOCKED}"
# A text that is no JSON would keep its job from being deleted, so it is refused.
EXTRAS = """create table {s}.extras(
    job_id bigint primary key, key text collate "C", expires_at bigint,
    text text not null constraint json check (text::json is not null))"""

# Only jobs that have reported something have a row. See `supervisor.stores.job_reports`.
REPORTS = """create table {s}.reports(job_id bigint primary key, progress text, progress_at bigint, log text)
  with (fillfactor = 70)"""

# Only jobs that have snoozed have a row: how often, and the time at which the last snooze ends.
SNOOZES = """create table {s}.snoozes(job_id bigint primary key, n int not null, until bigint not null)
  with (fillfactor = 70)"""

# The store itself gives every row its age: a row without one was inserted with plain SQL by another program, and is counted here.
INSERTED_BY_SQL = (
    f"""create function {{s}}.inserted_by_sql() returns trigger language plpgsql
      set search_path = pg_catalog, pg_temp as {BODY}
      begin
        if new.token not between 0 and {MAX_TOKEN} or new.expired_count not between 0 and {MAX_EXPIRED_COUNT} then
          raise exception using errcode = 'check_violation',
            message = 'token: expected 0 to {MAX_TOKEN}; expired_count: expected 0 to {MAX_EXPIRED_COUNT}';
        end if;
        if new.state = {READY} and new.due_at > {{s}}.clock() then
          new.state = {SCHEDULED};
        end if;
        update {{s}}.jobs set age = new.id, state = new.state where id = new.id;
        insert into {{s}}.counts(state, queue, tier, n) values (new.state, new.queue, new.tier, 1);
        {NOTIFY_UNLESS_OFF}
        return null;
      end {BODY}""",
    """create trigger inserted_by_sql after insert on {s}.jobs for each row when (new.age is null)
      execute function {s}.inserted_by_sql()""",
    "revoke execute on function {s}.inserted_by_sql() from public",
)

QUEUE_CHANGED = (
    f"""create or replace function {{s}}.queue_changed() returns trigger language plpgsql security definer
      set search_path = pg_catalog, pg_temp as {BODY}
      begin
        insert into {{s}}.counts(state, queue, tier, n)
          values (old.state, old.queue, old.tier, -1), (new.state, new.queue, new.tier, 1);
        {HELD_BACK_MOVED};
        {MOVE_TURN}
        {NOTIFY_UNLESS_OFF}
        return null;
      end {BODY}""",
    """create trigger queue_changed after update of queue on {s}.jobs for each row
      when (old.queue is distinct from new.queue) execute function {s}.queue_changed()""",
    "revoke execute on function {s}.queue_changed() from public",
)
# All that belongs to a job is deleted with it, whoever deletes it.
JOBS_DELETED_FUNCTIONS = (
    f"""create or replace function {{s}}.jobs_deleted() returns trigger language plpgsql security definer
      set search_path = pg_catalog, pg_temp as {BODY}
      declare
        ids constant bigint[] := array(select id from gone);
      begin
        {FREE_TURNS_OF_GONE}
        delete from {{s}}.attempts where job_id = any(ids);
        delete from {{s}}.key_waiters using {{s}}.extras
          where extras.job_id = any(ids) and key_waiters.key = extras.key and key_waiters.job_id = extras.job_id;
        delete from {{s}}.parents where child = any(ids);
        {unique.FORGET_DELETED};
        {expiry.FORGET_DELETED};
        delete from {{s}}.extras where job_id = any(ids);
        delete from {{s}}.held_back where job_id = any(ids);
        delete from {{s}}.reports where job_id = any(ids);
        delete from {{s}}.snoozes where job_id = any(ids);
        delete from {{s}}.dead_letters where job_id = any(ids);
        insert into {{s}}.counts(state, queue, tier, n)
          select state, queue, tier, -count(*) from gone group by state, queue, tier;
        return null;
      end {BODY}""",
    f"""create or replace function {{s}}.jobs_truncated() returns trigger language plpgsql security definer
      set search_path = pg_catalog, pg_temp as {BODY}
      begin
        delete from {{s}}.attempts;
        delete from {{s}}.extras;
        delete from {{s}}.key_holders;
        delete from {{s}}.key_waiters;
        delete from {{s}}.held_back;
        delete from {{s}}.group_lines;
        delete from {{s}}.limited_leases;
        delete from {{s}}.parents;
        delete from {{s}}.unique_jobs;
        delete from {{s}}.expiries;
        delete from {{s}}.turns;
        delete from {{s}}.job_groups;
        delete from {{s}}.reports;
        delete from {{s}}.snoozes;
        delete from {{s}}.dead_letters;
        delete from {{s}}.counts;
        return null;
      end {BODY}""",
    "revoke execute on function {s}.jobs_deleted(), {s}.jobs_truncated() from public",
)
JOBS_DELETED = (
    *JOBS_DELETED_FUNCTIONS,
    """create trigger jobs_deleted after delete on {s}.jobs referencing old table as gone for each statement
      execute function {s}.jobs_deleted()""",
    """create trigger jobs_truncated after truncate on {s}.jobs for each statement
      execute function {s}.jobs_truncated()""",
)

# In a publication, for example one of all tables, the server refuses updates and deletes in a table without a key if it does not
# know by what to identify a row.
KEYLESS_TABLES = (
    "alter table {s}.version replica identity full",
    "alter table {s}.counts replica identity full",
)
# A role that may only enqueue reads it too, before it calls a function of that version.
VERSION_FOR_ALL = "grant select on {s}.version to public"

SCHEMA = (
    "create table {s}.version(version int not null)",
    VERSION_FOR_ALL,
    _CLOCK,
    "revoke execute on function {s}.clock() from public",
    _JOBS,
    f"create index ready on {{s}}.jobs(queue, tier, priority desc, age, id) where state = {READY}",
    f"create index scheduled on {{s}}.jobs(due_at, id) where state = {SCHEDULED}",
    # The index has no deadline, so that an extend changes no index.
    f"create index in_flight on {{s}}.jobs(owner) where state = {IN_FLIGHT}",
    BLOCKED_JOBS,
    f"create index terminal on {{s}}.jobs(state, finished_at) where state >= {SUCCEEDED}",
    _COUNTS,
    COUNTS_BY_QUEUE,
    *INSERTED_BY_SQL,
    """create table {s}.attempts(
      id bigint generated always as identity primary key,
      job_id bigint not null,
      at bigint not null,
      record text not null)""",
    "create index attempts_of on {s}.attempts(job_id, id)",
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
    f"""create table {{s}}.dead_letters(
      job_id bigint primary key,
      state smallint not null,
      token bigint not null default 0,
      owner bigint,
      due_at bigint not null,
      tries int not null default 0,
      accepted text collate "C" not null default '[]',
      owed text collate "C" not null default '[]',
      constraint claimable_dead_letter {CLAIMABLE})""",
    PENDING_DEAD_LETTERS,
    """create table {s}.queues(queue text collate "C" primary key, paused boolean not null)""",
    """create table {s}.supervisors(
      id bigint generated always as identity primary key,
      owner text not null unique,
      host text not null,
      pid bigint not null,
      owner_lock text,
      state text not null,
      seen_at bigint not null,
      unseen_after bigint not null,
      idle int not null default 0,
      workers text not null default '[]',
      sinks text not null default '[]',
      about text not null default '{}')
    with (fillfactor = 50)""",
    SCHEDULES,
    *KEYLESS_TABLES,
    *QUEUE_CHANGED,
    *JOBS_DELETED,
    *GROUP_FUNCTIONS,
    *KEY_FUNCTIONS,
    *PARENT_FUNCTIONS,
    *LINK_FUNCTIONS,
    *unique.UNIQUE_FUNCTIONS,
    *FUNCTIONS,
    *GROUP_TRIGGERS,
)

# Only in stores whose jobs were transferred: see `supervisor.stores.transfer`.
TRANSFER_OUT = "create table {s}.transfer_out(id text not null, target text not null, place text not null, arrived boolean not null)"
TRANSFERS_IN = "create table if not exists {s}.transfers_in(id text primary key)"
# The triggers hold whatever `session_replication_role` is: a job that is enqueued in a closed store is never run.
CLOSE = (
    "alter table {s}.transfer_out replica identity full",
    f"""create function {{s}}.refuse_closed() returns trigger language plpgsql security definer
      set search_path = pg_catalog, pg_temp as {BODY}
      begin
        raise exception using message = format('{closed_message("%s")}', (select target from {{s}}.transfer_out));
      end {BODY}""",
    """create trigger closed_to_enqueues before insert on {s}.jobs for each statement
      execute function {s}.refuse_closed()""",
    "alter table {s}.jobs enable always trigger closed_to_enqueues",
    """create trigger closed_to_updates before update on {s}.jobs for each statement
      execute function {s}.refuse_closed()""",
    "alter table {s}.jobs enable always trigger closed_to_updates",
    """create trigger closed_to_joins before insert on {s}.supervisors for each statement
      execute function {s}.refuse_closed()""",
    "alter table {s}.supervisors enable always trigger closed_to_joins",
)
REOPEN = (
    "drop trigger closed_to_enqueues on {s}.jobs",
    "drop trigger closed_to_updates on {s}.jobs",
    "drop trigger closed_to_joins on {s}.supervisors",
    "drop function {s}.refuse_closed()",
    "drop table {s}.transfer_out",
)
