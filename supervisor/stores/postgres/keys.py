"""The order of jobs that have the same key, in PostgreSQL: one of them holds the key until it has ended, and the others are blocked.

Whoever changes who holds a key, or who waits for it, locks its row in `key_holders` first, in the order of the keys, and looks with
the next statement, which sees what was committed meanwhile. While jobs wait for a key, its row is updated, and never deleted.

A program may enqueue inside a long transaction of its own, and holds the rows of its keys until that ends. Other programs that enqueue
the same keys wait for it, and a supervisor does not: it does the rest later.
"""

from __future__ import annotations

from supervisor.stores.codes import BLOCKED, FAILED, READY, SCHEDULED, SUCCEEDED
from supervisor.stores.postgres.connection import NOW
from supervisor.stores.postgres.functions import BODY
from supervisor.stores.workflows import WAITS

KEY_TABLES = (
    """create table {s}.key_holders(key text collate "C" primary key, job_id bigint not null) with (fillfactor = 50)""",
    "create unique index held_by on {s}.key_holders(job_id)",
    """create table {s}.key_waiters(key text collate "C", job_id bigint, primary key(key, job_id))""",
)

DUE_MILLISECONDS, ENDED_MILLISECONDS = 50, 500
"""The time for which a look, and the end of jobs, wait for the rows of keys: longer than most ends take, shorter than the search for
deadlocks."""
DUE_LATER = 1_000_000
"""Microseconds until jobs are due again whose keys were locked."""

_HEAD = "language plpgsql security definer set search_path = pg_catalog, pg_temp"
# A job that has failed, and is to hold its key then, keeps it until it is redriven or deleted.
KEEPS_ITS_KEY = f"""exists (
  select from {{s}}.jobs join {{s}}.extras on extras.job_id = jobs.id
  where jobs.id = key_holders.job_id and jobs.state = {FAILED} and extras.text::json ->> 'on_failure' = 'hold')"""

# The end of a statement that has `moved` blocked jobs: they are ready, and are counted as that. It returns their queues.
_COUNT_MOVED = f"""counted as (
          insert into {{s}}.counts(state, queue, tier, n)
          select change.state, queue, tier, sum(change.sign)
          from moved, (values ({BLOCKED}, -1), ({READY}, 1)) as change(state, sign) group by change.state, queue, tier)
      select distinct queue from moved;"""

_HOLD = """insert into {s}.key_holders(key, job_id)
      select key, min(job_id) from {s}.extras where job_id = any(ids) and key is not null group by key order by key
      on conflict (key) do update set job_id = key_holders.job_id"""
# Give these jobs their keys unless others hold them, and return those whose keys other sessions have locked.
_TRY_TO_HOLD = f"""create function {{s}}.try_to_hold_keys(ids bigint[]) returns bigint[] {_HEAD}
  set lock_timeout = '{DUE_MILLISECONDS}ms' as {BODY}
  declare
    late bigint[] := '{{}}';
    its bigint[];
  begin
    {_HOLD};
    return late;
  exception when lock_not_available then
    for its in
      select array_agg(job_id) from {{s}}.extras where job_id = any(ids) and key is not null group by key order by key
    loop
      if not {{s}}.try_to_hold_key(its) then
        late := late || its;
      end if;
    end loop;
    return late;
  end {BODY}"""
_TRY_TO_HOLD_ONE = f"""create function {{s}}.try_to_hold_key(ids bigint[]) returns boolean {_HEAD}
  set lock_timeout = '1ms' as {BODY}
  begin
    {_HOLD};
    return true;
  exception when lock_not_available then
    return false;
  end {BODY}"""

# Give these ready jobs their keys, and block those that have to wait.
_ACQUIRE_KEYS = f"""create function {{s}}.acquire_keys(ids bigint[]) returns void {_HEAD} as {BODY}
  begin
    {_HOLD};
    perform {{s}}.wait_for_keys(ids);
  end {BODY}"""
# Do so for a supervisor: jobs whose keys are locked are due later. Return the others.
_TRY_TO_ACQUIRE_KEYS = f"""create function {{s}}.try_to_acquire_keys(ids bigint[]) returns bigint[] {_HEAD} as {BODY}
  declare
    late bigint[];
    others bigint[];
  begin
    if not exists (select from {{s}}.extras where job_id = any(ids) and key is not null) then
      return ids;
    end if;
    late := {{s}}.try_to_hold_keys(ids);
    with moved as (
      update {{s}}.jobs set state = {SCHEDULED}, due_at = {NOW} + {DUE_LATER} where id = any(late) and state = {READY}
      returning queue, tier)
    insert into {{s}}.counts(state, queue, tier, n)
      select change.state, queue, tier, sum(change.sign) from moved, (values ({READY}, -1), ({SCHEDULED}, 1)) as change(state, sign)
      group by change.state, queue, tier;
    others := array(select id from unnest(ids) as it(id) where id <> all(late));
    perform {{s}}.wait_for_keys(others);
    return others;
  end {BODY}"""
# Block those of these ready jobs whose keys others hold.
_WAIT_FOR_KEYS = f"""create function {{s}}.wait_for_keys(ids bigint[]) returns void {_HEAD} as {BODY}
  declare
    waiting bigint[];
  begin
    with it as (
      insert into {{s}}.key_waiters(key, job_id)
      select extras.key, extras.job_id from {{s}}.extras join {{s}}.key_holders on key_holders.key = extras.key
      where extras.job_id = any(ids) and extras.job_id <> key_holders.job_id
      on conflict do nothing returning job_id)
    select array_agg(job_id) from it into waiting;
    with moved as (
      update {{s}}.jobs set state = {BLOCKED} where id = any(waiting) and state = {READY} returning queue, tier)
    insert into {{s}}.counts(state, queue, tier, n)
      select change.state, queue, tier, sum(change.sign) from moved, (values ({READY}, -1), ({BLOCKED}, 1)) as change(state, sign)
      group by change.state, queue, tier;
  end {BODY}"""

# Pass on these keys, whose rows are locked, to the jobs that wait for them. Return the queues of these jobs. A job whose row is
# locked is about to be cancelled: it then waits for the key, and passes it on.
_PASS_ON_KEYS = f"""create function {{s}}.pass_on_keys(keys text[]) returns setof text {_HEAD} as {BODY}
  declare
    next bigint[];
  begin
    with first as (
        select it.key, first.job_id from unnest(keys) as it(key) cross join lateral (
          select job_id from {{s}}.key_waiters where key_waiters.key = it.key order by job_id limit 1) as first),
      passed as (
        update {{s}}.key_holders set job_id = first.job_id from first where key_holders.key = first.key),
      gone as (
        delete from {{s}}.key_waiters using first where key_waiters.key = first.key and key_waiters.job_id = first.job_id)
    select array_agg(job_id) from first into next;
    delete from {{s}}.key_holders where key = any(keys) and job_id <> all(coalesce(next, '{{}}'));
    return query
      with moved as (
          update {{s}}.jobs set state = {READY}
          where id = any(array(
            select id from {{s}}.jobs where id = any(next) and state = {BLOCKED} for no key update skip locked))
          returning queue, tier),
        {_COUNT_MOVED}
    if next is not null and exists (select from {{s}}.turns) then
      perform {{s}}.take_turns(next);
    end if;
  end {BODY}"""

# Lock the rows of these keys, and return the keys. One that another session holds for long is left out: the repair of the store passes
# it on.
_LOCK_KEYS = f"""create function {{s}}.lock_keys(keys text[]) returns text[] {_HEAD}
  set lock_timeout = '{ENDED_MILLISECONDS}ms' as {BODY}
  begin
    return array(select key from {{s}}.key_holders where key = any(keys) order by key for update);
  exception when lock_not_available then
    return array(select key from {{s}}.key_holders where key = any(keys) order by key for update skip locked);
  end {BODY}"""

# Take the keys from these jobs, which have ended or are deleted, and pass them on. Return the queues of the jobs that have them now.
_RELEASE_KEYS = f"""create function {{s}}.release_keys(ids bigint[], deleted boolean) returns setof text {_HEAD} as {BODY}
  declare
    keys text[] := array(
      select distinct extras.key from {{s}}.extras where job_id = any(ids) and extras.key is not null order by extras.key);
  begin
    if keys = '{{}}' then
      return;
    end if;
    keys := {{s}}.lock_keys(keys);
    delete from {{s}}.key_waiters where key = any(keys) and job_id = any(ids);
    return query select {{s}}.pass_on_keys(array(
      select key from {{s}}.key_holders where key = any(keys) and job_id = any(ids) and (deleted or not {KEEPS_ITS_KEY})));
  end {BODY}"""

# Pass on the keys that no unfinished job holds: another program may have ended or deleted a job by plain SQL, or locked its row when
# it got the key, or the row of the key when it ended. A job that a limit holds back has its key too.
_PASS_ON_LOST_KEYS = f"""create function {{s}}.pass_on_lost_keys() returns setof text {_HEAD} as {BODY}
  declare
    keys constant text[] := array(
      select key from {{s}}.key_holders where not exists (
        select from {{s}}.jobs where jobs.id = key_holders.job_id and jobs.state < {SUCCEEDED}) and not {KEEPS_ITS_KEY}
      order by key for update skip locked);
  begin
    return query select {{s}}.pass_on_keys(keys);
    return query
      with moved as (
          update {{s}}.jobs set state = {READY}
          where state = {BLOCKED} and id = any(array(
            select jobs.id from {{s}}.key_holders join {{s}}.jobs on jobs.id = key_holders.job_id and jobs.state = {BLOCKED}
            where not exists (select from {{s}}.parents where link = {WAITS} and child = jobs.id)
              and not exists (select from {{s}}.held_back where held_back.job_id = jobs.id and held_back.age = jobs.age)
            for no key update of jobs skip locked))
          returning queue, tier),
        {_COUNT_MOVED}
  end {BODY}"""

# The job that has the key of a blocked job, as [id, state, extras]: `key_holder` of stores.shown reads it.
KEY_HOLDER = f"""
  (select json_build_array(key_holders.job_id, holder.state, its.text)::text
   from {{s}}.key_holders left join {{s}}.jobs as holder on holder.id = key_holders.job_id
   left join {{s}}.extras as its on its.job_id = holder.id
   where jobs.state = {BLOCKED} and key_holders.key = extras.key)"""

KEY_FUNCTIONS = (
    _TRY_TO_HOLD_ONE,
    _TRY_TO_HOLD,
    _WAIT_FOR_KEYS,
    _ACQUIRE_KEYS,
    _TRY_TO_ACQUIRE_KEYS,
    _LOCK_KEYS,
    _PASS_ON_KEYS,
    _RELEASE_KEYS,
    _PASS_ON_LOST_KEYS,
    """revoke execute on function {s}.try_to_hold_key(bigint[]), {s}.try_to_hold_keys(bigint[]), {s}.wait_for_keys(bigint[]),
      {s}.acquire_keys(bigint[]), {s}.try_to_acquire_keys(bigint[]), {s}.lock_keys(text[]), {s}.pass_on_keys(text[]), {s}.release_keys(bigint[], boolean),
      {s}.pass_on_lost_keys() from public""",
)
