"""The functions in the schema of a PostgreSQL store by which programs in any language enqueue inside their own transactions.

They run with the rights of the store's owner. A role that is granted these and nothing else can enqueue, and neither read nor
change a job. When a store is migrated they are replaced, or their grants are given to their successor: so grants stay. See `connection.Names` for {s}, {jobs} and
{channel}.
"""

from __future__ import annotations

from supervisor.jobs import MAX_RETRIES, MAX_TAGS
from supervisor.stores.codes import BLOCKED, READY, SCHEDULED
from supervisor.stores.extras import MAX_PARENTS, UNFINISHED, WAITING
from supervisor.stores.postgres.connection import NOTIFY, NOW
from supervisor.text.names import MAX_NAME, NAME
from supervisor.text.strict_json import MAX_DEPTH, MAX_INTEGER
from supervisor.text.units import MAX_SECONDS

MAX_SCHEMA_BYTES = 50
"""PostgreSQL cuts names at 63 bytes, and the name of the channel is longer than that of the schema."""
BODY = f"${'body_' * 11}$"
"""The quote around the body of a function. It is longer than any name inside, so that no name ends the body."""
MAX_JSON_BYTES = 1_000_000
"""The default of `limits.payload`, which the database does not know."""

# The characters that Python's isprintable refuses, as far as people meet them.
_UNPRINTABLE = r"[\u0001-\u001f\u007f-\u00a0\u00ad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ue000-\uf8ff\ufeff\ufff9-\ufffb]"

# A transaction that notifies can't be prepared for a commit in two phases.
NOTIFY_UNLESS_OFF = f"""if current_setting('supervisor.notify', true) is distinct from 'off' then
      perform {NOTIFY};
    end if;"""

_CHECKED_NAME = f"""create or replace function {{s}}.checked_name(what text, value text) returns text language plpgsql immutable
  set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as {BODY}
  begin
    if value is null or length(value) not between 1 and {MAX_NAME} or value ~ '^ | $|{_UNPRINTABLE}' then
      raise exception using errcode = 'invalid_parameter_value',
        message = format('%s: expected {NAME}, got %L', what, left(value, 80));
    end if;
    return value;
  end {BODY}"""

# PostgreSQL's json accepts what JSON parsers refuse: numbers that are too large, and halves of surrogate pairs. The depth is how
# often the innermost brackets can be removed.
_CHECKED_JSON = rf"""create or replace function {{s}}.checked_json(what text, value json) returns text language plpgsql immutable
  set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as {BODY}
  declare
    written constant text := coalesce(value::text, 'null');
    bare text;
    number text;
    wrong text;
  begin
    if octet_length(written) > {MAX_JSON_BYTES} then
      wrong := format('%s bytes of JSON, expected at most {MAX_JSON_BYTES}', octet_length(written));
    end if;
    if wrong is null and written ~ '\\u[dD][89a-fA-F]' then
      bare := replace(written, '\\', '');
      bare := regexp_replace(bare, '\\u[dD][89abAB][0-9a-fA-F]{{2}}\\u[dD][c-fC-F][0-9a-fA-F]{{2}}', '', 'g');
      if bare ~ '\\u[dD][89a-fA-F]' then
        wrong := 'half of a surrogate pair is not valid Unicode';
      end if;
    end if;
    if wrong is null and (written ~ '[0-9]{{19}}|[0-9][eE]'
        or length(written) - length(translate(written, '[{{', '')) > {MAX_DEPTH}) then
      bare := regexp_replace(written, '"(?:[^"\\]|\\.)*"', '', 'g');
      for number in select hit[1] from regexp_matches(bare, '-?[0-9][0-9.eE+-]*', 'g') as hit loop
        if number ~ '[.eE]' then
          begin
            perform number::float8;
          exception when numeric_value_out_of_range then  -- or so near to zero that it is zero
            if number !~ '^-?0[.]|[eE]-' then
              wrong := format('%s is not a finite number', left(number, 40));
            end if;
          end;
        elsif length(number) > 20 or number::numeric not between {-MAX_INTEGER - 1} and {MAX_INTEGER} then
          wrong := format('%s is not a 64-bit integer', left(number, 40));
        end if;
        exit when wrong is not null;
      end loop;
      bare := regexp_replace(bare, '[^][{{}}]', '', 'g');
      for depth in 1..{MAX_DEPTH} loop
        exit when bare = '';
        bare := regexp_replace(bare, '\[\]|\{{\}}', '', 'g');
      end loop;
      if bare <> '' and wrong is null then
        wrong := 'nested deeper than {MAX_DEPTH}';
      end if;
    end if;
    if wrong is not null then
      raise exception using errcode = 'invalid_parameter_value', message = format('%s: %s', what, wrong);
    end if;
    return written;
  end {BODY}"""

_CHECKED_SECONDS = f"""create or replace function {{s}}.checked_seconds(what text, value interval) returns float8 language plpgsql immutable
  set search_path = pg_catalog, pg_temp as {BODY}
  begin
    if extract(epoch from value) not between 0 and {MAX_SECONDS:.0f} then
      raise exception using errcode = 'invalid_parameter_value',
        message = format('%s: expected an interval from 0 to {MAX_SECONDS / 86_400:.0f} days, got %L', what, value);
    end if;
    return extract(epoch from value);
  end {BODY}"""

# Jobs that were checked, by a client or by `enqueue` below, are inserted by one statement, whose $1 is a list of `values_of`.
INSERT_JOBS = f"""
    with it as (
        select it.*, nextval((select pg_get_serial_sequence({{jobs}}, 'id')::regclass)) as id, {NOW} as now,
          coalesce({NOW} + it.delay, it.at, {NOW}) as due
        from rows from (json_to_recordset($1::json) as (handler text, queue text, payload text, headers text, priority bigint,
            options text, delay bigint, at bigint, extras json)) with ordinality
          as it(handler, queue, payload, headers, priority, options, delay, at, extras, place)
        order by place),
      put as (
        insert into {{s}}.jobs(id, age, handler, queue, payload, headers, priority, options, due_at, created_at, state, linked)
        overriding system value
        select it.id, it.id, it.handler, it.queue, it.payload, it.headers, it.priority, it.options, it.due, it.now,
          case when json_array_length(it.extras -> 'after') > 0 then {BLOCKED} when it.due > it.now then {SCHEDULED} else {READY} end,
          case when it.extras ->> 'key' is not null then true when it.extras ->> 'group' is not null then false end
        from it
        returning jobs.id, jobs.queue, jobs.state, jobs.linked, exists (
          select from {{s}}.turns where turns.queue = jobs.queue and turns.priority = jobs.priority) as takes_turn),
      more as (
        insert into {{s}}.extras(job_id, key, expires_at, text)
        select it.id, it.extras ->> 'key', it.now + (it.extras ->> 'expires')::bigint, it.extras::text
        from it where it.extras is not null),
      expiring as (
        insert into {{s}}.expiries(expires_at, job_id)
        select it.now + (it.extras ->> 'expires')::bigint, it.id from it where it.extras ->> 'expires' is not null),
      counted as (
        insert into {{s}}.counts(state, queue, tier, n)
        select put.state, put.queue, 0, count(*) from put group by put.state, put.queue)
    select coalesce(array_agg(put.id order by put.id), '{{}}'),
      array_agg(put.id) filter (where put.state = {READY}), bool_or(put.linked is not null or put.takes_turn)
    from put"""
_PUT_NEW = f"""create or replace function {{s}}.put_new(jobs json) returns bigint[] language plpgsql security definer
  set search_path = pg_catalog, pg_temp as {BODY}
  declare
    ids bigint[];
    ready bigint[];
    related boolean;
  begin
    {INSERT_JOBS.strip()} into ids, ready, related;
    if related then
      perform {{s}}.jobs_due(ready);
    end if;
    {NOTIFY_UNLESS_OFF}
    return ids;
  end {BODY}"""
# The text may also be in a payload.
_PUT = f"""create or replace function {{s}}.put(jobs json) returns bigint[] language plpgsql security definer
  set search_path = pg_catalog, pg_temp as {BODY}
  declare
    written constant text := jobs::text;
    ids bigint[];
  begin
    ids := case when position('"unique"' in written) > 0 then {{s}}.put_unique(jobs) else {{s}}.put_new(jobs) end;
    if position('"after"' in written) > 0 and ids[1] <> 0 then
      perform {{s}}.link_children(ids, jobs);
    end if;
    return ids;
  end {BODY}"""

_CHECKED_CHOICE = f"""create or replace function {{s}}.checked_choice(what text, value text, choices text[]) returns text
  language plpgsql immutable set search_path = pg_catalog, pg_temp as {BODY}
  begin
    if coalesce(value = any(choices), true) then
      return nullif(value, choices[1]);
    end if;
    raise exception using errcode = 'invalid_parameter_value',
      message = format('%s: expected %s, got %L', what, array_to_string(choices, ' or '), value);
  end {BODY}"""

# Return a state of the job that has the key, or microseconds; null for the default.
_CHECKED_WHILE = f"""create or replace function {{s}}.checked_while(value text) returns json language plpgsql immutable
  set search_path = pg_catalog, pg_temp as {BODY}
  declare
    seconds float8;
  begin
    if coalesce(value in ('{WAITING}', '{UNFINISHED}'), true) then
      return to_json(nullif(value, '{UNFINISHED}'));
    end if;
    begin
      seconds := extract(epoch from value::interval);
    exception when invalid_datetime_format or interval_field_overflow or datetime_field_overflow then
      seconds := null;
    end;
    if seconds > 0 and seconds <= {MAX_SECONDS:.0f} then
      return to_json((seconds * 1000000)::bigint);
    end if;
    raise exception using errcode = 'invalid_parameter_value',
      message = format('unique_while: expected {WAITING}, {UNFINISHED} or a time such as 10m, got %L', value);
  end {BODY}"""

# Return the extras of a job in JSON, null if it has none: see `supervisor.stores.extras`. `enqueue` has the same arguments.
_CHECKED_EXTRAS = f"""create or replace function {{s}}.checked_extras(unique_key text, unique_while text, on_conflict text, key text,
    on_failure text, job_group text, after bigint[], on_parent_failed text, tags text[], expires interval)
  returns json language plpgsql immutable set search_path = pg_catalog, pg_temp as {BODY}
  declare
    found json;
    wrong text;
  begin
    if after is not null and (cardinality(after) > {MAX_PARENTS} or coalesce(0 >= any(after), true) or array_position(after, null) > 0) then
      wrong := 'after: expected a list of at most {MAX_PARENTS} ids of jobs';
    elsif cardinality(tags) > {MAX_TAGS} then
      wrong := 'tags: expected a list of at most {MAX_TAGS} texts';
    elsif expires <= '0' then
      wrong := format('expires: expected an interval above 0, got %L', expires);
    end if;
    if wrong is not null then
      raise exception using errcode = 'invalid_parameter_value', message = wrong;
    end if;
    found := json_strip_nulls(json_build_object(
      'unique', case when unique_key is not null then {{s}}.checked_name('unique_key', unique_key) end,
      'unique_while', {{s}}.checked_while(unique_while),
      'on_conflict', {{s}}.checked_choice('on_conflict', on_conflict, '{{skip,replace,reject}}'),
      'key', case when key is not null then {{s}}.checked_name('key', key) end,
      'on_failure', {{s}}.checked_choice('on_failure', on_failure, '{{pass,hold}}'),
      'group', case when job_group is not null then {{s}}.checked_name('job_group', job_group) end,
      'after', (select json_agg(id order by place) from (
        select id, min(place) as place from unnest(after) with ordinality as it(id, place) group by id) as it),
      'on_parent_failed', {{s}}.checked_choice('on_parent_failed', on_parent_failed, '{{cancel,run,wait}}'),
      'tags', (select json_agg({{s}}.checked_name('tags', tag) order by place) from (
        select tag, min(place) as place from unnest(tags) with ordinality as it(tag, place) group by tag) as it),
      'expires', ({{s}}.checked_seconds('expires', expires) * 1000000)::bigint));
    wrong := case when found ->> 'unique' is null and found ->> 'unique_while' is not null then 'unique_while: expected unique_key with it'
      when found ->> 'unique' is null and found ->> 'on_conflict' is not null then 'on_conflict: expected unique_key with it'
      when found ->> 'key' is null and found ->> 'on_failure' is not null then 'on_failure: expected key with it'
      when found ->> 'after' is null and found ->> 'on_parent_failed' is not null then 'on_parent_failed: expected after with it' end;
    if wrong is not null then
      raise exception using errcode = 'invalid_parameter_value', message = wrong;
    end if;
    return case when found::text <> '{{}}' then found end;
  end {BODY}"""

ENQUEUE_TYPES = """text, json, text, bigint, interval, timestamptz, int, interval, json, text, text, text, text, text, text, bigint[], text,
    text[], interval"""
_ENQUEUE = f"""create or replace function {{s}}.enqueue(handler text, payload json default 'null', queue text default 'default',
    priority bigint default 0, delay interval default null, at timestamptz default null, max_retries int default null,
    timeout interval default null, headers json default null, unique_key text default null,
    unique_while text default '{UNFINISHED}', on_conflict text default 'skip', key text default null,
    on_failure text default 'pass', job_group text default null, after bigint[] default null,
    on_parent_failed text default 'cancel', tags text[] default null, expires interval default null)
  returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as {BODY}
  declare
    wrong text;
    options text;
    ids bigint[];
  begin
    if delay is not null and at is not null then
      wrong := 'delay and at: expected at most one of them';
    elsif at not between '0001-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then
      wrong := format('at: expected a time in the years 1 to 9999, got %L', at);
    elsif priority is null then
      wrong := 'priority: expected a whole number, got NULL';
    elsif max_retries not between 0 and {MAX_RETRIES} then
      wrong := format('max_retries: expected a whole number from 0 to {MAX_RETRIES}, got %s', max_retries);
    elsif json_typeof(headers) not in ('object', 'null') then
      wrong := format('headers: expected an object, got %s', json_typeof(headers));
    end if;
    if wrong is not null then
      raise exception using errcode = 'invalid_parameter_value', message = wrong;
    end if;
    if max_retries is not null or timeout is not null then
      options := json_build_array(max_retries, {{s}}.checked_seconds('timeout', timeout), null)::text;
    end if;
    ids := {{s}}.put(json_build_array(json_build_object(
      'handler', {{s}}.checked_name('handler', handler),
      'queue', {{s}}.checked_name('queue', queue),
      'payload', {{s}}.checked_json('payload', payload),
      'headers', case when json_typeof(headers) = 'object' then {{s}}.checked_json('headers', headers) end,
      'priority', priority,
      'options', options,
      'delay', ({{s}}.checked_seconds('delay', delay) * 1000000)::bigint,
      'at', (extract(epoch from at) * 1000000)::bigint,
      'extras', {{s}}.checked_extras(unique_key, unique_while, on_conflict, key, on_failure, job_group, after,
        on_parent_failed, tags, expires))));
    if ids[1] = 0 then
      raise exception using errcode = 'unique_violation',
        message = format('job %s has the unique key %L: nothing was enqueued', ids[2], unique_key);
    elsif ids[1] < 0 then
      raise notice 'job % has the unique key % already: %', -ids[1], quote_literal(unique_key),
        case when ids[2] = 0 then 'it was replaced'
          when on_conflict = 'replace' then 'it was not replaced, since it has been claimed or has ended, and no job was added'
          else 'no job was added' end;
    end if;
    return abs(ids[1]);
  end {BODY}"""

FUNCTIONS = (
    _CHECKED_NAME,
    _CHECKED_JSON,
    _CHECKED_SECONDS,
    _PUT_NEW,
    _PUT,
    _CHECKED_CHOICE,
    _CHECKED_WHILE,
    _CHECKED_EXTRAS,
    _ENQUEUE,
    f"""revoke execute on function {{s}}.checked_name(text, text), {{s}}.checked_json(text, json),
      {{s}}.checked_seconds(text, interval), {{s}}.checked_choice(text, text, text[]), {{s}}.checked_while(text),
      {{s}}.checked_extras(text, text, text, text, text, text, bigint[], text, text[], interval), {{s}}.put_new(json),
      {{s}}.put(json), {{s}}.enqueue({ENQUEUE_TYPES}) from public""",
)

# The function of an older version has fewer arguments: a call would fit both of them. Roles that may execute that one may execute
# the new one.
DROP_OLD_ENQUEUE = f"""
  do {BODY}
    declare
      new constant oid := '{{s}}.enqueue({ENQUEUE_TYPES})'::regprocedure;
      old record;
      granted record;
    begin
      for old in select oid::regprocedure as name, proacl from pg_proc
          where pronamespace = (select pronamespace from pg_proc where oid = new) and proname = 'enqueue' and oid <> new loop
        for granted in select case grantee when 0 then 'public' else quote_ident(pg_get_userbyid(grantee)) end as role,
            case when is_grantable then ' with grant option' else '' end as option
            from aclexplode(old.proacl) where grantee <> (select proowner from pg_proc where oid = new) loop
          execute format('grant execute on function %s to %s%s', new::regprocedure, granted.role, granted.option);
        end loop;
        execute format('drop function %s', old.name);
      end loop;
    end {BODY}"""
