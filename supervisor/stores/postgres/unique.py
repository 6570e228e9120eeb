"""Unique keys in PostgreSQL: see `supervisor.stores.unique`.

Whoever asks for keys locks their rows in `unique_jobs` first, in the order of the keys, and looks at the jobs with the next statement,
which sees what was committed meanwhile. So of programs that enqueue the same key at once each waits for the one before, and finds
its job; if that one rolls back, the next one has the key.
"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.stores.codes import BLOCKED, IN_FLIGHT, READY, SCHEDULED, SUCCEEDED
from supervisor.stores.extras import UNFINISHED, WAITING
from supervisor.stores.postgres.connection import NOW, Connection, array
from supervisor.stores.postgres.functions import BODY
from supervisor.stores.unique import KEPT_BY_REPLACE, KEPT_WITHOUT_KEY, held_by

UNIQUE_TABLES = (
    """create table {s}.unique_jobs(
      unique_key text collate "C" primary key, job_id bigint not null, below smallint not null, until bigint)
    with (fillfactor = 70)""",
    "create index unique_until on {s}.unique_jobs(until) where until is not null",
)
# For the trigger that runs after jobs are deleted. A key that is taken for a time stays so. A row that another session has locked
# stays too: that session gives the key to another job, or `repair` removes it.
FORGET_DELETED = """delete from {s}.unique_jobs where unique_key in (
          select unique_key from {s}.unique_jobs
          where job_id = any(ids) and until is null and unique_key in (
            select text::json ->> 'unique' from {s}.extras where extras.job_id = any(ids))
          order by unique_key for update skip locked)"""

HOLDS = f"""coalesce(unique_jobs.until > {NOW},
  (select state from {{s}}.jobs where jobs.id = unique_jobs.job_id) < unique_jobs.below, false)"""
LOCK = """
  insert into {s}.unique_jobs(unique_key, job_id, below)
  select it.key, 0, 0 from (select distinct key from unnest(%s::text[]) as it(key) where key is not null) as it
  order by it.key collate "C"
  on conflict (unique_key) do update set job_id = unique_jobs.job_id"""
FORGET_NOBODY = "delete from {s}.unique_jobs where unique_key = any(%s::text[]) and job_id = 0"
_HOLD = f"""
  case when it.during = '{WAITING}' then {IN_FLIGHT} else {SUCCEEDED} end,
  case when it.during ~ '^[0-9]+$' then {NOW} + it.during::bigint end"""
_JOBS = "json_array_elements(batch) with ordinality as one(job, place)"

# Enqueue these jobs, as `put` does. Of a job with a unique key that another one has the id of that one is returned, negated. If such
# a job is to be rejected, nothing is enqueued, and 0 is returned, with the id of the other job (0: a row before it) and its place.
# Behind the ids of all jobs, 0 and the ids of those follow that were replaced, if there are any.
# The variables are by place, null for a job without a key: `wanted`, its key; `holders`, the job that has the key, or 0; `firsts`,
# the first place with the key; `numbers`, the number of new jobs up to this one.
_PUT_UNIQUE = f"""create function {{s}}.put_unique(batch json) returns bigint[] language plpgsql security definer
  set search_path = pg_catalog, pg_temp as {BODY}
  declare
    ids bigint[];
    wanted text[];
    hows text[];
    durings text[];
    holders bigint[];
    firsts bigint[];
    numbers bigint[];
    replaced bigint[];
    refused record;
  begin
    select array_agg(extras ->> 'unique' order by place), array_agg(coalesce(extras ->> 'on_conflict', 'skip') order by place),
      array_agg(extras ->> 'unique_while' order by place)
      into wanted, hows, durings
      from rows from (json_to_recordset(batch) as (extras json)) with ordinality as it(extras, place);
    {LOCK.strip() % "wanted"};
    perform from {{s}}.jobs where state < {IN_FLIGHT} and id in (
        select job_id from {{s}}.unique_jobs where unique_key = any(wanted) and (below = {IN_FLIGHT} or unique_key in (
          select key from unnest(wanted, hows) as it(key, how) where how = 'replace')))
      order by id for no key update;
    select array_agg(holder order by place), array_agg(first order by place), array_agg(number order by place)
      into holders, firsts, numbers
      from (
        select *, sum((holder = 0 and first = place)::int) over (order by place) as number
        from (
          select place, coalesce(job_id, 0) as holder,
            case when key is null then place else min(place) over (partition by key) end as first
          from unnest(wanted) with ordinality as it(key, place)
          left join {{s}}.unique_jobs on unique_key = key and {HOLDS}) as it) as it;
    select place, holder into refused from unnest(holders, firsts, hows) with ordinality as it(holder, first, how, place)
      where how = 'reject' and (holder > 0 or first < place) order by place limit 1;
    if found then
      {FORGET_NOBODY % "wanted"};
      return array[0, refused.holder, refused.place];
    end if;
    if numbers[cardinality(numbers)] < cardinality(numbers) then
      ids := {{s}}.put_new((
        select json_agg(job order by place) from {_JOBS} where holders[place] = 0 and firsts[place] = place));
    else
      ids := {{s}}.put_new(batch);
    end if;
    update {{s}}.unique_jobs set job_id = ids[it.number], (below, until) = (select {_HOLD})
      from unnest(wanted, holders, firsts, numbers, durings) with ordinality as it(key, holder, first, number, during, place)
      where unique_key = it.key and it.holder = 0 and it.first = it.place;
    ids := array(
      select case when holder > 0 then -holder when first < place then -ids[numbers[first]] else ids[numbers[place]] end
      from unnest(holders, firsts) with ordinality as it(holder, first, place) order by place);
    replaced := array(
      select id from {{s}}.jobs where state < {IN_FLIGHT} and id in (
        select -it.id from unnest(ids, hows) as it(id, how) where how = 'replace' and it.id < 0)
      order by id for no key update);
    if replaced <> '{{}}' then
      perform {{s}}.replace_jobs((
        select json_agg(job order by id) from (
          select distinct on (-ids[place]) -ids[place] as id, job
          from {_JOBS} where hows[place] = 'replace' and -ids[place] = any(replaced) order by -ids[place], place desc) as it),
        replaced);
      ids := ids || 0::bigint || replaced;
    end if;
    return ids;
  end {BODY}"""

_KEPT_NAMES, _KEPT_NAMES_WITHOUT_KEY = (
    ", ".join(f"'{name}'" for name in names) for names in (KEPT_BY_REPLACE, KEPT_WITHOUT_KEY)
)
_KEPT = f"case when it.extras ->> 'key' is null then array[{_KEPT_NAMES_WITHOUT_KEY}] else array[{_KEPT_NAMES}] end"
# Change the jobs with these ids, which are in order, into these rows; they wait to be claimed, and their rows are locked. A job that a
# limit holds back leaves its line, and is ready first. One that is to wait for parents leaves its key; `link_children` links it. The
# trigger `queue_changed` frees the turn of a job that gets another queue.
_REPLACE_JOBS = f"""create function {{s}}.replace_jobs(batch json, ids bigint[]) returns void language plpgsql security definer
  set search_path = pg_catalog, pg_temp as {BODY}
  declare
    changed bigint[];
    children constant bigint[] := array(
      select ids[place] from rows from (json_to_recordset(batch) as (extras json)) with ordinality as it(extras, place)
      where json_array_length(extras -> 'after') > 0);
    wait_for_keys bigint[];
  begin
    with left_line as (
        delete from {{s}}.held_back using {{s}}.jobs
        where job_id = any(ids) and jobs.id = job_id and jobs.age = held_back.age and jobs.state = {BLOCKED} returning job_id),
      moved as (
        update {{s}}.jobs set state = {READY} from left_line where id = job_id returning queue, tier)
    insert into {{s}}.counts(state, queue, tier, n)
      select change.state, queue, tier, change.sign from moved, (values ({BLOCKED}, -1), ({READY}, 1)) as change(state, sign);
    delete from {{s}}.parents where child = any(ids);
    if children <> '{{}}' then
      perform from {{s}}.key_holders where key in (select extras.key from {{s}}.extras where extras.job_id = any(children))
        order by key for update;
      perform {{s}}.release_keys(children, true);
    end if;
    wait_for_keys := array(
      select extras.job_id from {{s}}.extras join {{s}}.key_waiters
        on key_waiters.key = extras.key and key_waiters.job_id = extras.job_id
      where extras.job_id = any(ids));
    perform {{s}}.free_turns(array(
      select jobs.id from rows from (json_to_recordset(batch) as (queue text, delay bigint, at bigint)) with ordinality
        as it(queue, delay, at, place) join {{s}}.jobs on jobs.id = ids[place] and jobs.queue = it.queue
      where coalesce({NOW} + it.delay, it.at, 0) > {NOW} or jobs.id = any(children)), false);
    with it as (
        select ids[place] as id, it.*, {NOW} as now, coalesce({NOW} + it.delay, it.at, {NOW}) as due
        from rows from (json_to_recordset(batch) as (handler text, queue text, payload text, headers text, priority bigint,
          options text, delay bigint, at bigint, extras json)) with ordinality
          as it(handler, queue, payload, headers, priority, options, delay, at, extras, place)),
      old as materialized (
        select jobs.id, jobs.queue, jobs.tier, jobs.state from {{s}}.jobs where jobs.id = any(ids)
        order by jobs.id for no key update),
      new as (
        update {{s}}.jobs set handler = it.handler, queue = it.queue, payload = it.payload, headers = it.headers,
          priority = it.priority, options = it.options, retries = 0, tier = 0, started_at = null,
          age = case jobs.tier when 1 then jobs.id else jobs.age end,
          due_at = case when jobs.id = any(wait_for_keys) then jobs.due_at else it.due end,
          state = case when jobs.id = any(children || wait_for_keys) then {BLOCKED} when it.due > it.now then {SCHEDULED} else {READY} end
        from it join old on old.id = it.id where jobs.id = it.id
        returning jobs.id, jobs.state, jobs.queue, old.state as old_state, old.queue as old_queue, old.tier as old_tier),
      counted as (
        insert into {{s}}.counts(state, queue, tier, n)
        select old_state, queue, old_tier, -1 from new where queue = old_queue union all
        select state, queue, 0, 1 from new where queue = old_queue),
      gone as (
        delete from {{s}}.expiries using {{s}}.extras join new on new.id = extras.job_id
        where expiries.job_id = extras.job_id and expiries.expires_at = extras.expires_at),
      more as (
        update {{s}}.extras set expires_at = it.now + (it.extras ->> 'expires')::bigint,
          text = ((it.extras::jsonb - ({_KEPT})) || coalesce((
            select jsonb_object_agg(key, value) from jsonb_each(extras.text::jsonb) where key = any({_KEPT})), '{{}}'))::text
        from new join it on it.id = new.id where extras.job_id = new.id),
      expiring as (
        insert into {{s}}.expiries(expires_at, job_id)
        select it.now + (it.extras ->> 'expires')::bigint, it.id from it join new on new.id = it.id
        where it.extras ->> 'expires' is not null),
      unsnoozed as (
        delete from {{s}}.snoozes using new where snoozes.job_id = new.id),
      held as (
        update {{s}}.unique_jobs set job_id = it.id, (below, until) = (select {_HOLD})
        from (select it.id, it.extras ->> 'unique' as key, it.extras ->> 'unique_while' as during
          from it join new on new.id = it.id) as it
        where unique_key = it.key)
    select array_agg(id) filter (where state = {READY} and old_state <> {READY}) from new into changed;
    if changed is not null then
      perform {{s}}.jobs_due(changed);
    end if;
    delete from {{s}}.job_tags where job_id = any(ids);
    insert into {{s}}.job_tags(job_id, tag)
      select job_id, tag from {{s}}.extras, json_array_elements_text(text::json -> 'tags') as its(tag) where job_id = any(ids)
      on conflict do nothing;
  end {BODY}"""
# Give their keys to these ended jobs, which are to run again, but keep those that were taken for a time. Return the jobs that may not
# run, their keys, and the unfinished jobs that have these.
_RETAKE = f"""create function {{s}}.retake_unique_keys(ids bigint[]) returns table(refused bigint, its_key text, holder bigint)
  language plpgsql security definer set search_path = pg_catalog, pg_temp as {BODY}
  declare
    wanted constant text[] := array(
      select distinct text::json ->> 'unique' from {{s}}.extras where job_id = any(ids) and text::json ->> 'unique' is not null);
  begin
    if wanted = '{{}}' then
      return;
    end if;
    {LOCK.strip() % "wanted"};
    return query
      with its as materialized (
          select it.id, it.place, text::json ->> 'unique' as key, coalesce(text::json ->> 'unique_while', '{UNFINISHED}') as during
          from unnest(ids) with ordinality as it(id, place) join {{s}}.extras on job_id = it.id
          where text::json ->> 'unique' is not null),
        given as materialized (
          select its.id, its.key, its.during, coalesce((
              select unique_jobs.job_id from {{s}}.unique_jobs join {{s}}.jobs on jobs.id = unique_jobs.job_id
              where unique_key = its.key and jobs.state < {SUCCEEDED} and {HOLDS}),
            first_value(its.id) over (partition by its.key order by its.place)) as to_job
          from its),
        taken as (
          update {{s}}.unique_jobs set job_id = it.id, (below, until) = (select {_HOLD})
          from given as it where unique_key = it.key and it.to_job = it.id and it.during !~ '^[0-9]+$')
      select given.id, given.key, given.to_job from given where given.to_job <> given.id;
    {FORGET_NOBODY % "wanted"};
  end {BODY}"""
UNIQUE_FUNCTIONS = (
    _REPLACE_JOBS,
    _PUT_UNIQUE,
    _RETAKE,
    """revoke execute on function {s}.put_unique(json), {s}.replace_jobs(json, bigint[]), {s}.retake_unique_keys(bigint[])
      from public""",
)

RETAKE = "select * from {s}.retake_unique_keys($1::bigint[])"
PRUNE = f"""
  delete from {{s}}.unique_jobs where unique_key in (
    select unique_key from {{s}}.unique_jobs where until <= {NOW} order by until limit $1 for update skip locked)"""
FORGET_LOST = """
  delete from {s}.unique_jobs where unique_key in (
    select unique_key from {s}.unique_jobs
    where until is null and not exists (select from {s}.jobs where jobs.id = unique_jobs.job_id)
    order by unique_key for update skip locked)"""


class UniqueKeys:
    """All calls are made inside the transaction that changes the jobs, whose rows are locked."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def retake(self, ids: Sequence[int]) -> dict[int, str]:
        """Give the keys to these ended jobs, which are to run again. Return why some may not."""
        return {id: held_by(key, holder) for id, key, holder in self._connection.rows(RETAKE, array(ids))}

    def prune(self, limit: int) -> None:
        """Forget keys whose time is over."""
        self._connection.later(PRUNE, limit)

    def repair(self) -> None:
        """Forget keys of jobs that do not exist."""
        self._connection.later(FORGET_LOST)
