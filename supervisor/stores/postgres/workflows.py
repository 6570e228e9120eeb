"""Jobs that wait for their parents, in PostgreSQL: see `supervisor.stores.workflows`.

Whoever adds a link locks the row of the parent first, as whoever ends the parent does; whoever changes links of a child locks the row of the
child first. Both look with the next statement, which sees what was committed meanwhile. So a parent that ends while a child is added is
seen by one of both, and of two parents that end at once the second lets the child go on. Rows of jobs are locked in the order of their ids.
"""

from __future__ import annotations

from supervisor.parents import PARENTS
from supervisor.stores.codes import BLOCKED, CANCELLED, FAILED, IN_FLIGHT, READY, SCHEDULED, SUCCEEDED
from supervisor.stores.postgres.connection import NOW
from supervisor.stores.postgres.functions import BODY
from supervisor.stores.workflows import (
    CANCEL,
    CANCELLED_BY,
    DONE,
    IGNORED,
    KEEPS_ITS_UNIQUE_KEY,
    MAX_AT_ONCE,
    MAX_RESULTS,
    ON_FAILED,
    PARENT_FAILED,
    RUN,
    WAIT,
    WAITS,
    no_such_parent,
    waits_for_itself,
)

PARENT_TABLES = (
    f"""create table {{s}}.parents(child bigint, parent bigint, place int not null, on_failed smallint not null,
      link smallint not null default {WAITS}, primary key(child, parent))""",
    "create index children on {s}.parents(parent, child)",
    f"create index open_links on {{s}}.parents(child) where link = {WAITS}",
)

LOCK_MILLISECONDS = 500
"""The time for which the end of a job waits for the row of a child: longer than other ends take, shorter than the search for deadlocks."""

# All rows are found by ids, of which a planner that knows the tables of an hour ago may think that they are most of the rows.
_HEAD = f"""language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off as {BODY}"""
_IS_SUCCEEDED = f"coalesce((select state from {{s}}.jobs as it where it.id = parents.parent) = {SUCCEEDED}, false)"
# `link + 0` keeps a statement that finds the children of a parent from the index of all open links.
_CHILD_WAITS = f"link + 0 = {WAITS} and (select state from {{s}}.jobs as it where it.id = parents.child) = {BLOCKED}"
_CHANGED = """
      insert into {{s}}.counts(state, queue, tier, n)
      select change.state, queue, tier, sum(change.sign)
      from {rows}, (values ({before}, -1), ({after}, 1)) as change(state, sign) group by change.state, queue, tier"""


def _counted(rows: str, before: int, after: int) -> str:
    return _CHANGED.format(rows=rows, before=before, after=after)


# Lock the rows of these jobs that exist, and return them. A row that another session holds for long is left out: the repair of the store
# does what is due then.
_LOCK_CHILDREN = f"""create function {{s}}.lock_children(ids bigint[]) returns bigint[] language plpgsql security definer
  set search_path = pg_catalog, pg_temp set lock_timeout = '{LOCK_MILLISECONDS}ms' as {BODY}
  begin
    return array(select id from {{s}}.jobs where id = any(ids) order by id for no key update);
  exception when lock_not_available then
    return array(select id from {{s}}.jobs where id = any(ids) order by id for no key update skip locked);
  end {BODY}"""

# Another program may have put something else in the place of the headers.
_HEADERS_WITH = f"""create function {{s}}.headers_with(headers text, parents json) returns text language plpgsql immutable
  set search_path = pg_catalog, pg_temp as {BODY}
  begin
    return (
      select json_object_agg(key, value) from (
        select key, value from json_each(coalesce(headers, '{{}}')::json) where key <> '{PARENTS}'
        union all select '{PARENTS}', parents) as it)::text;
  exception when others then
    return json_build_object('{PARENTS}', parents)::text;
  end {BODY}"""

# Give these jobs, whose rows are locked, the results of their parents. They are not read if they are too large together.
_GIVE_RESULTS = f"""create function {{s}}.give_results(ids bigint[]) returns void {_HEAD}
  begin
    with its as (
        select parents.child, parents.place, parents.parent as id, coalesce(jobs.state, {CANCELLED}) as state, jobs.result,
          coalesce(sum(octet_length(jobs.result)) over (partition by parents.child), 0) as size
        from {{s}}.parents left join {{s}}.jobs on jobs.id = parents.parent where parents.child = any(ids)),
      given as (
        select child, jsonb_build_object('ids', jsonb_agg(id order by place),
          'failed', coalesce(jsonb_agg(id order by place) filter (where state <> {SUCCEEDED}), '[]'))
          || case when max(size) <= {MAX_RESULTS}
            then jsonb_build_object('results', jsonb_agg(case when size <= {MAX_RESULTS} then result end order by place))
            else jsonb_build_object('bytes', max(size)) end as parents
        from its group by child)
    update {{s}}.jobs set headers = {{s}}.headers_with(jobs.headers, given.parents::json) from given where jobs.id = given.child;
  end {BODY}"""

# Let those of these jobs go on, whose rows are locked, that wait for no parent any more. Return the queues of those that are ready or
# scheduled.
_RESUME_CHILDREN = f"""create function {{s}}.resume_children(ids bigint[]) returns setof text {_HEAD}
  declare
    free constant bigint[] := array(
      select id from {{s}}.jobs where id = any(ids) and state = {BLOCKED} and not exists (
        select from {{s}}.parents where link = {WAITS} and child = jobs.id) order by id);
  begin
    perform {{s}}.give_results(free);
    with moved as (
        update {{s}}.jobs set state = case when due_at > {NOW} then {SCHEDULED} else {READY} end, due_at = greatest(due_at, {NOW})
        where id = any(free) returning state, queue, tier)
    insert into {{s}}.counts(state, queue, tier, n)
      select state, queue, tier, count(*) from moved group by state, queue, tier
      union all select {BLOCKED}, queue, tier, -count(*) from moved group by queue, tier;
    perform {{s}}.jobs_due_here(array(select id from {{s}}.jobs where id = any(free) and state = {READY}));
    return query select distinct queue from {{s}}.jobs where id = any(free) and state in ({READY}, {SCHEDULED});
  end {BODY}"""

# Cancel the children of these jobs that can't go on since these have ended, or are deleted, and the children of those. Return the jobs
# that were cancelled. A child may have been added to one of them before its row was locked, so look again until there is none.
_CANCEL_CHILDREN = f"""create function {{s}}.cancel_children(ids bigint[], deleted boolean) returns bigint[] {_HEAD}
  declare
    cancelled bigint[] := '{{}}';
    children bigint[];
    causes bigint[];
    locked bigint[];
    more bigint[];
  begin
    loop
      with recursive found(child, parent) as (
          select parents.child, parents.parent from {{s}}.parents
          where parents.parent = any(ids || cancelled) and {_CHILD_WAITS} and not {_IS_SUCCEEDED}
            and (on_failed = {CANCEL} or (deleted and on_failed = {WAIT} and parents.parent = any(ids)))
          union
          select its.child, its.parent from found cross join lateral (
            select child, parent from {{s}}.parents where parents.parent = found.child and on_failed = {CANCEL} and {_CHILD_WAITS}
            offset 0) as its),
        first as (
          select child, min(parent) as parent from (select * from found limit {MAX_AT_ONCE}) as it group by child)
      select array_agg(child order by child), array_agg(parent order by child) from first into children, causes;
      exit when children is null or cardinality(cancelled) >= {MAX_AT_ONCE};
      locked := {{s}}.lock_children(children);
      exit when cardinality(locked) = 0;
      if cardinality(locked) < cardinality(children) then
        select array_agg(child), array_agg(parent) from unnest(children, causes) as it(child, parent) where child = any(locked)
          into children, causes;
      end if;
      with gone as (
          update {{s}}.jobs set state = {CANCELLED}, token = token + 1, finished_at = {NOW}, owner = null, lease_until = null
          from unnest(children, causes) as it(child, parent) where id = it.child and state = {BLOCKED}
          returning id, it.parent, queue, tier),
        counted as ({_counted("gone", BLOCKED, CANCELLED)}),
        noted as (
          insert into {{s}}.attempts(job_id, at, record)
          select gone.id, {NOW}, json_build_object('attempt', 1, 'cause', '{PARENT_FAILED}', 'type', 'ParentFailed',
            'message', format('its parent, job %s, %s', parent, case
              when jobs.id is null or (deleted and parent = any(ids)) then 'was deleted'
              when jobs.state = {FAILED} then 'failed' else 'was cancelled' end), 'traceback', '', 'at', {NOW})::text
          from gone left join {{s}}.jobs on jobs.id = gone.parent),
        linked as (
          update {{s}}.parents set link = case when parents.parent = gone.parent then {CANCELLED_BY} else {DONE} end
          from gone where parents.child = gone.id and link = {WAITS})
      select array_agg(id) from gone into more;
      cancelled := cancelled || more;
    end loop;
    return cancelled;
  end {BODY}"""

# Let the jobs go on that wait for these, which have ended, or are deleted; their rows are locked. Return the queues of those that are ready
# or scheduled.
_END_PARENTS = f"""create function {{s}}.end_parents(ids bigint[], deleted boolean) returns setof text {_HEAD}
  declare
    ended bigint[];
    children bigint[];
  begin
    if not exists (select from {{s}}.parents where parent = any(ids) and link + 0 = {WAITS}) then
      return;
    end if;
    ended := ids || {{s}}.cancel_children(ids, deleted);
    children := {{s}}.lock_children(array(
      select distinct child from {{s}}.parents where parent = any(ended) and {_CHILD_WAITS} and (on_failed = {RUN} or {_IS_SUCCEEDED})
      limit {MAX_AT_ONCE}));
    update {{s}}.parents set link = {DONE}
      where child = any(children) and parent = any(ended) and link = {WAITS} and (on_failed = {RUN} or {_IS_SUCCEEDED});
    return query select {{s}}.resume_children(children);
  end {BODY}"""

_END_JOBS = f"""create function {{s}}.end_jobs(ids bigint[], deleted boolean) returns setof text {_HEAD}
  begin
    update {{s}}.parents set link = {DONE} where link = {WAITS} and child = any(ids);
    return query select {{s}}.release_keys(ids, deleted);
    return query select {{s}}.end_parents(ids, deleted);
  end {BODY}"""

# Refuse a job of these, which were replaced, that waits for itself, through the jobs that it waits for. The jobs on the way that may be
# replaced too are locked, so that another transaction does not close the circle.
_REFUSE_CIRCLES = f"""create function {{s}}.refuse_circles(ids bigint[]) returns void {_HEAD}
  declare
    known bigint[] := '{{}}';
    ancestors bigint[];
    wrong bigint;
  begin
    loop
      with recursive found(child, parent) as (
        select child, parent from {{s}}.parents where child = any(ids)
        union
        select found.child, its.parent from found cross join lateral (
          select parent from {{s}}.parents where parents.child = found.parent offset 0) as its)
      select array_agg(distinct parent order by parent), min(child) filter (where child = parent) from found into ancestors, wrong;
      if wrong is not null then
        raise exception using errcode = 'invalid_foreign_key', message = replace('{waits_for_itself(0)}', '0', wrong::text);
      end if;
      exit when ancestors is null or ancestors <@ known;
      perform from {{s}}.jobs where id = any(ancestors) and state < {IN_FLIGHT} order by id for no key update;
      known := ancestors;
    end loop;
  end {BODY}"""

# Let those of these jobs wait for their parents that have any: `jobs` is what `put` was called with, `ids` is what `put_unique` has
# answered. For a job that was replaced its last row counts.
_LINK_CHILDREN = f"""create function {{s}}.link_children(ids bigint[], jobs json) returns void {_HEAD}
  declare
    parent_ids bigint[];
    replaced constant bigint[] := coalesce(ids[array_position(ids, 0::bigint) + 1:], '{{}}');
    missing bigint;
    its_key text;
  begin
    insert into {{s}}.parents(child, parent, place, on_failed)
      select abs(ids[job.place]), abs(case when it.value::bigint < 0 then ids[-it.value::bigint] else it.value::bigint end), it.place,
        job.on_failed
      from (
        select distinct on (abs(ids[place])) place, value -> 'extras' -> 'after' as after, case value -> 'extras' ->> 'on_parent_failed'
          when 'run' then {ON_FAILED["run"]} when 'wait' then {ON_FAILED["wait"]} else {ON_FAILED["cancel"]} end as on_failed
        from json_array_elements(jobs) with ordinality as it(value, place)
        where ids[place] > 0 or (value -> 'extras' ->> 'on_conflict' = 'replace' and -ids[place] = any(replaced))
        order by abs(ids[place]), place desc offset 0) as job,
        json_array_elements_text(job.after) with ordinality as it(value, place)
      on conflict do nothing;
    parent_ids := array(select distinct parent from {{s}}.parents where child = any(ids) order by parent);
    perform from {{s}}.jobs as it where it.id = any(parent_ids) order by it.id for no key update;
    select min(it.id) from unnest(parent_ids) as it(id) where it.id not in (select its.id from {{s}}.jobs as its where its.id = any(parent_ids))
      into missing;
    if missing is not null then
      select unique_key from {{s}}.unique_jobs where job_id = missing and until > {NOW} limit 1 into its_key;
      raise exception using errcode = 'foreign_key_violation', message = case when its_key is null
        then replace('{no_such_parent(0)}', '0', missing::text) else format('{KEEPS_ITS_UNIQUE_KEY}', missing, quote_literal(its_key)) end;
    end if;
    if replaced <> '{{}}' then
      perform {{s}}.refuse_circles(replaced);
    end if;
    update {{s}}.jobs as it set linked = true where it.id = any(parent_ids) and it.linked is not true;
    update {{s}}.extras set text = (text::jsonb || jsonb_build_object('after', its.after))::text
      from (select child, jsonb_agg(parent order by place) as after from {{s}}.parents where child = any(ids) group by child) as its
      where extras.job_id = its.child;
    perform {{s}}.end_parents(array(
      select it.id from {{s}}.jobs as it where it.id = any(parent_ids) and it.state >= {SUCCEEDED}), false);
  end {BODY}"""

# Let children that are still blocked wait for these jobs, which are going to run again.
_WAIT_AGAIN = f"""create function {{s}}.wait_again(ids bigint[]) returns void {_HEAD}
  begin
    perform from {{s}}.jobs where id in (select child from {{s}}.parents where parent = any(ids)) order by id for no key update;
    update {{s}}.parents set link = {DONE} where parent = any(ids) and link = {IGNORED};
    update {{s}}.parents set link = {WAITS} where parent = any(ids) and link = {DONE}
      and exists (select from {{s}}.jobs where jobs.id = parents.child and jobs.state = {BLOCKED})
      and exists (select from {{s}}.parents as other where other.link = {WAITS} and other.child = parents.child);
  end {BODY}"""

# Let the jobs wait again that were cancelled because of these, which are ready again. A job whose unique key another one has stays
# cancelled, and so do its own children.
_RESTORE_CHILDREN = f"""create function {{s}}.restore_children(ids bigint[]) returns setof text {_HEAD}
  declare
    children bigint[];
  begin
    with recursive found(id) as (
      select child from {{s}}.parents join {{s}}.jobs on jobs.id = child and jobs.state = {CANCELLED}
      where parent = any(ids) and link = {CANCELLED_BY}
      union
      select its.child from found cross join lateral (
        select child from {{s}}.parents where parents.parent = found.id and link = {CANCELLED_BY}
          and (select state from {{s}}.jobs where jobs.id = parents.child) = {CANCELLED} offset 0) as its)
    select array_agg(id order by id) from found into children;
    if children is null then
      return;
    end if;
    perform from {{s}}.jobs where id = any(children) or id in (select parent from {{s}}.parents where child = any(children))
      order by id for no key update;
    children := array(select id from {{s}}.jobs where id = any(children) and state = {CANCELLED} order by id);
    children := array(
      select id from unnest(children) as it(id) where id not in (select refused from {{s}}.retake_unique_keys(children)));
    with moved as (
        update {{s}}.jobs set state = {BLOCKED}, finished_at = null where id = any(children)
        returning id, queue, tier),
      counted as ({_counted("moved", CANCELLED, BLOCKED)})
    select array_agg(id) from moved into children;
    update {{s}}.parents set link = case when exists (
        select from {{s}}.jobs where jobs.id = parents.parent and jobs.state <> {SUCCEEDED}) then {WAITS} else {DONE} end
      where child = any(children) and link <> {IGNORED};
    return query select {{s}}.end_parents(array(
      select distinct parent from {{s}}.parents join {{s}}.jobs on jobs.id = parent and jobs.state > {SUCCEEDED}
      where child = any(children) and link = {WAITS}), false);
    perform {{s}}.wait_again(array(select id from {{s}}.jobs where id = any(children) and state = {BLOCKED}));
  end {BODY}"""

# These jobs are ready again: block those that have to wait for parents, and let their children wait for them again.
_RUN_AGAIN = f"""create function {{s}}.run_again(ids bigint[]) returns void {_HEAD}
  declare
    waiting bigint[];
  begin
    perform {{s}}.wait_again(ids);
    perform {{s}}.restore_children(ids);
    perform from {{s}}.jobs where id in (select parent from {{s}}.parents where child = any(ids)) order by id for no key update;
    update {{s}}.parents set link = coalesce((
        select case when state < {SUCCEEDED} then {WAITS} when state > {SUCCEEDED} then {IGNORED} end
        from {{s}}.jobs where jobs.id = parents.parent), {DONE})
      where child = any(ids);
    with moved as (
        update {{s}}.jobs set state = {BLOCKED} where id = any(ids) and state = {READY} and exists (
          select from {{s}}.parents where link = {WAITS} and child = jobs.id) returning id, queue, tier),
      counted as ({_counted("moved", READY, BLOCKED)})
    select array_agg(id) from moved into waiting;
    perform {{s}}.give_results(array(select id from unnest(ids) as it(id) where id <> all(coalesce(waiting, '{{}}'))));
    perform {{s}}.jobs_due_here(array(select id from unnest(ids) as it(id) where id <> all(coalesce(waiting, '{{}}'))));
  end {BODY}"""

# Another program may have ended or deleted a parent by plain SQL; and a transaction leaves out what is too much for it.
_END_LOST_PARENTS = f"""create function {{s}}.end_lost_parents() returns setof text {_HEAD}
  declare
    lost bigint[] := array(
      select distinct parent from {{s}}.parents where {_CHILD_WAITS} and (
        on_failed <> {WAIT} and exists (select from {{s}}.jobs where jobs.id = parents.parent and jobs.state >= {SUCCEEDED})
        or {_IS_SUCCEEDED} or not exists (select from {{s}}.jobs where jobs.id = parents.parent))
      limit {MAX_AT_ONCE});
  begin
    return query select {{s}}.end_parents(array(
      select it.id from unnest(lost) as it(id) where it.id not in (select id from {{s}}.jobs where id = any(lost))), true);
    lost := array(select id from {{s}}.jobs where id = any(lost) order by id for no key update skip locked);
    return query select {{s}}.end_parents(array(select id from {{s}}.jobs where id = any(lost) and state >= {SUCCEEDED}), false);
  end {BODY}"""

PARENT_FUNCTIONS = (
    _LOCK_CHILDREN,
    _HEADERS_WITH,
    _GIVE_RESULTS,
    _RESUME_CHILDREN,
    _CANCEL_CHILDREN,
    _END_PARENTS,
    _END_JOBS,
    _REFUSE_CIRCLES,
    _LINK_CHILDREN,
    _WAIT_AGAIN,
    _RESTORE_CHILDREN,
    _RUN_AGAIN,
    _END_LOST_PARENTS,
    """revoke execute on function {s}.lock_children(bigint[]), {s}.headers_with(text, json), {s}.give_results(bigint[]), {s}.resume_children(bigint[]),
      {s}.cancel_children(bigint[], boolean), {s}.end_parents(bigint[], boolean), {s}.end_jobs(bigint[], boolean),
      {s}.link_children(bigint[], json), {s}.refuse_circles(bigint[]), {s}.wait_again(bigint[]), {s}.restore_children(bigint[]), {s}.run_again(bigint[]), {s}.end_lost_parents()
      from public""",
)
