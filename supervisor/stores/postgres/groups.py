"""The turns of groups in PostgreSQL: see `supervisor.stores.groups`.

Nobody waits for a row of these tables, since programs enqueue inside transactions of their own, which may be long. Each transaction
changes rows that no other one has locked, or adds a row. So a group may have several rows, and so may a queue in `turns`: the round
that was reached is the highest one. The position of a group is the highest `base` and, of all rows with this base, `used`: so what
transactions use at the same time adds up, though they give jobs the same rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.stores.codes import READY
from supervisor.stores.groups import NO_GROUP, UNIT, Shares
from supervisor.stores.postgres.connection import Connection, array
from supervisor.stores.postgres.functions import BODY

LAG = 32
"""The rounds by which `turns` may be behind: it is written seldom."""

# `turns` has no name of a group in it, and every role that enqueues reads it.
GROUP_TABLES = (
    """create table {s}.turns(
      id bigint generated always as identity primary key,
      queue text collate "C" not null,
      priority bigint not null,
      round bigint not null)
    with (fillfactor = 50)""",
    "create index turns_by_queue on {s}.turns(queue, priority)",
    "grant select on {s}.turns to public",
    """create table {s}.job_groups(
      id bigint generated always as identity primary key,
      queue text collate "C" not null,
      priority bigint not null,
      name text collate "C" not null,
      base bigint not null,
      used bigint not null)
    with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0)""",
    "create index job_groups_by_name on {s}.job_groups(queue, priority, name)",
    """create table {s}.group_shares(
      queue text collate "C", name text collate "C", shares float8 not null, primary key(queue, name))""",
)

_SAME = "queue = its_queue and priority = its_priority"
_WAITING = f"""from {{s}}.jobs where state = {READY} and {_SAME} and tier = 0 and id <> all(without)"""
# Return the round that the jobs of a queue and priority have reached, and keep it. The jobs `without` have no turn yet.
_REACH = f"""create or replace function {{s}}.reached_round(its_queue text, its_priority bigint, without bigint[])
  returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as {BODY}
  declare
    before constant bigint := (select max(round) from {{s}}.turns where {_SAME});
    reached constant bigint := coalesce(
      (select age {_WAITING} and age >= coalesce(before, 0) order by age, id limit 1),
      pg_sequence_last_value(pg_get_serial_sequence({{jobs}}, 'id')::regclass) - cardinality(without) + 1);
    held bigint[];
  begin
    if before is null then  -- jobs that wait since before have no group, and keep their places
      insert into {{s}}.job_groups(queue, priority, name, base, used)
        select its_queue, its_priority, '{NO_GROUP}', (age + 1) * {UNIT}, 0 {_WAITING} order by age desc limit 1;
      insert into {{s}}.turns(queue, priority, round) values (its_queue, its_priority, reached);
      return reached;
    end if;
    if reached >= before + {LAG} then
      held := array(select id from {{s}}.turns where {_SAME} order by id for update skip locked);
      if held = '{{}}' then
        insert into {{s}}.turns(queue, priority, round) values (its_queue, its_priority, reached);
      else
        update {{s}}.turns set round = greatest(round, reached) where id = held[1];
        delete from {{s}}.turns where id = any(held[2:]);
      end if;
    end if;
    return greatest(before, reached);
  end {BODY}"""

# Let jobs of a group take the turns that they need, and return the start of the first one. If they need fewer than none, these are free again.
_USE = f"""create or replace function {{s}}.use_turns(its_queue text, its_priority bigint, its_name text, reached bigint, needed bigint)
  returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as {BODY}
  declare
    held constant bigint[] := array(
      select id from {{s}}.job_groups where {_SAME} and name = its_name order by id for update skip locked);
    its_base bigint := (select max(base) from {{s}}.job_groups where {_SAME} and name = its_name);
    start bigint := its_base + (
      select sum(used) from {{s}}.job_groups where {_SAME} and name = its_name and base = its_base);
    own bigint := 0;
  begin
    if start >= reached * {UNIT} then
      own := coalesce((select sum(used) from {{s}}.job_groups where id = any(held) and base = its_base), 0);
    else
      if needed < 0 then
        return null;
      end if;
      its_base := reached * {UNIT};
      start := its_base;
    end if;
    if held = '{{}}' then
      insert into {{s}}.job_groups(queue, priority, name, base, used)
        values (its_queue, its_priority, its_name, its_base, needed);
    else
      update {{s}}.job_groups set base = its_base, used = own + needed where id = held[1];
      delete from {{s}}.job_groups where id = any(held[2:]);
    end if;
    return start;
  end {BODY}"""

_NAME = f"coalesce(extras.text::json ->> 'group', '{NO_GROUP}')"
_WIDTH = f"""coalesce((select ceil({UNIT} / shares) from {{s}}.group_shares
          where group_shares.queue = it.queue and group_shares.name = it.name), {UNIT})::bigint"""
# Give those of these jobs a turn that are ready and fresh, and share a queue by groups. `state + 0` keeps it from the index of ready jobs.
_TAKE = f"""create or replace function {{s}}.take_turns(ids bigint[]) returns void language plpgsql security definer
  set search_path = pg_catalog, pg_temp as {BODY}
  declare
    its record;
    reached bigint;
    last_queue text;
    last_priority bigint;
  begin
    for its in
      select queue, priority, name, array_agg(id order by due_at, id) as members,
        {_WIDTH} as width
      from (
        select *, max(name) over (partition by queue, priority) <> '{NO_GROUP}' as shared
        from (
          select jobs.id, due_at, queue, priority, {_NAME} as name
          from {{s}}.jobs left join {{s}}.extras on extras.job_id = jobs.id
          where jobs.id = any(ids) and state + 0 = {READY} and tier + 0 = 0) as it) as it
      where shared or exists (
        select from {{s}}.turns where turns.queue = it.queue and turns.priority = it.priority)
      group by queue, priority, name order by queue, priority, name
    loop
      if its.queue is distinct from last_queue or its.priority is distinct from last_priority then
        reached := {{s}}.reached_round(its.queue, its.priority, ids);
        last_queue := its.queue;
        last_priority := its.priority;
      end if;
      update {{s}}.jobs set age = (its_start + (place - 1) * its.width) / {UNIT}
        from unnest(its.members) with ordinality as it(its_id, place),
          {{s}}.use_turns(its.queue, its.priority, its.name, reached, its.width * cardinality(its.members)) as its_start
        where jobs.id = its_id;
    end loop;
  end {BODY}"""

_NONE_WAITS = f"""not exists (
        select from {{s}}.jobs where state = {READY} and jobs.queue = turns.queue and tier = 0 and jobs.priority = turns.priority)"""
# Free the turns of those of these jobs that wait for them, and are about to be cancelled; if they `had` them, of all of them.
_FREE = f"""create or replace function {{s}}.free_turns(ids bigint[], had boolean) returns void language plpgsql security definer
  set search_path = pg_catalog, pg_temp as {BODY}
  begin
    if exists (select from {{s}}.turns) then
      perform {{s}}.use_turns(queue, priority, name, 0, -sum({_WIDTH})::bigint)
      from (
        select jobs.queue, jobs.priority, {_NAME} as name
        from {{s}}.jobs left join {{s}}.extras on extras.job_id = jobs.id
        where jobs.id = any(ids) and (had or state + 0 = {READY}) and tier + 0 = 0) as it
      group by queue, priority, name;
    end if;
  end {BODY}"""
# For the trigger of jobs that are deleted: the rows `gone`.
FREE_TURNS_OF_GONE = f"""if exists (select from {{s}}.turns) then
          perform {{s}}.use_turns(queue, priority, name, 0, -sum({_WIDTH})::bigint)
          from (
            select gone.queue, gone.priority, {_NAME} as name
            from gone left join {{s}}.extras on extras.job_id = gone.id where gone.state = {READY} and gone.tier = 0) as it
          group by queue, priority, name;
        end if;"""
# For the trigger of a job that is moved to another queue.
MOVE_TURN = f"""if old.state = {READY} and old.tier = 0 and (old.linked is not null or exists (select from {{s}}.turns)) then
          perform {{s}}.use_turns(queue, priority, name, 0, -{_WIDTH})
          from (
            select old.queue as queue, old.priority as priority, {_NAME} as name
            from (select) as one left join {{s}}.extras on extras.job_id = old.id) as it;
          perform {{s}}.take_turns(array[new.id]);
        end if;"""

# Remove what no longer counts, among `most` groups from a random one on: a group that is not ahead of the round that was reached would
# start from there anyway, and so would all groups if no job waits.
_FORGET = f"""create or replace function {{s}}.forget_groups(most bigint) returns void language plpgsql security definer
  set search_path = pg_catalog, pg_temp as {BODY}
  declare
    first bigint;
  begin
    if not exists (select from {{s}}.turns) then
      return;
    end if;
    update {{s}}.turns set round = first.age from (
        select id, (
          select age from {{s}}.jobs where state = {READY} and jobs.queue = turns.queue and tier = 0
            and jobs.priority = turns.priority and age > turns.round order by age, jobs.id limit 1) as age
        from {{s}}.turns for update skip locked) as first
      where turns.id = first.id and first.age is not null;
    first := (select min(id) + random() * greatest(0, max(id) + 1 - most - min(id)) from {{s}}.job_groups);
    delete from {{s}}.job_groups where id = any(array(
      select id from {{s}}.job_groups where id = any(array(
        select its.id from (select * from {{s}}.job_groups where id >= first order by id limit most) as its
        where not exists (
          select from {{s}}.turns where turns.queue = its.queue and turns.priority = its.priority
            and its.base + its.used > round * {UNIT} and not {_NONE_WAITS})))
      for update skip locked));
    delete from {{s}}.turns where id = any(array(
      select id from {{s}}.turns where {_NONE_WAITS} and not exists (
        select from {{s}}.job_groups where job_groups.queue = turns.queue and job_groups.priority = turns.priority)
      for update skip locked));
  end {BODY}"""

# Set the shares of all groups of these queues, of all queues if it is null, to those of the rows (queue, name, shares).
_SET_SHARES = f"""create or replace function {{s}}.set_group_shares(queues text[], of_queues text[], names text[], shares float8[])
  returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as {BODY}
  begin
    delete from {{s}}.group_shares where queues is null or queue = any(queues);
    insert into {{s}}.group_shares(queue, name, shares)
      select * from unnest(of_queues, names, shares) order by 1, 2 on conflict (queue, name) do update set shares = excluded.shares;
  end {BODY}"""

GROUP_FUNCTIONS = (
    _REACH,
    _USE,
    _TAKE,
    _FREE,
    _FORGET,
    _SET_SHARES,
    """revoke execute on function {s}.reached_round(text, bigint, bigint[]), {s}.take_turns(bigint[]),
      {s}.use_turns(text, bigint, text, bigint, bigint), {s}.free_turns(bigint[], boolean), {s}.forget_groups(bigint),
      {s}.set_group_shares(text[], text[], text[], float8[]) from public""",
)
# A job that another program inserts by plain SQL has no group, and takes turns with those that have one.
GROUP_TRIGGERS = (
    f"""create or replace function {{s}}.inserted_takes_turn() returns trigger language plpgsql security definer
      set search_path = pg_catalog, pg_temp as {BODY}
      begin
        if exists (select from {{s}}.turns where queue = new.queue and priority = new.priority) then
          perform {{s}}.take_turns(array[new.id]);
        end if;
        return null;
      end {BODY}""",
    """create trigger inserted_takes_turn after insert on {s}.jobs for each row when (new.age is null)
      execute function {s}.inserted_takes_turn()""",
    "revoke execute on function {s}.inserted_takes_turn() from public",
)

FREE = "select {s}.free_turns($1::bigint[], $2)"
FORGET = "select {s}.forget_groups($1)"
SET_SHARES = "select {s}.set_group_shares($1::text[], $2::text[], $3::text[], $4::float8[])"


class Groups:
    """The positions and shares of groups."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def free_turns(self, ids: Sequence[int], *, had: bool = False) -> None:
        """Free the turns of those of these jobs that wait for them, and are about to be cancelled. Jobs that `had` them have been
        cancelled."""
        if ids:
            self._connection.later(FREE, array(ids), had)

    def forget_idle(self, limit: int) -> None:
        """Remove what no longer counts, of `limit` groups at most."""
        self._connection.run(FORGET, limit)

    def set_shares(self, shares: Shares, queues: frozenset[str] | None) -> None:
        """Set the shares of all groups of these queues, of all queues if it is None."""
        rows = [(queue, name, n) for queue, of in shares.items() for name, n in of.items()]
        columns = map(list, zip(*rows, strict=True)) if rows else ([], [], [])
        with self._connection.transaction():
            self._connection.run(SET_SHARES, None if queues is None else list(queues), *columns)
