SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA supervisor;
CREATE FUNCTION supervisor.acquire_keys(ids bigint[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  declare
    waiting bigint[];
  begin
    insert into "supervisor".key_holders(key, job_id)
      select key, min(job_id) from "supervisor".extras where job_id = any(ids) and key is not null group by key order by key
      on conflict (key) do update set job_id = key_holders.job_id;
    with it as (
      insert into "supervisor".key_waiters(key, job_id)
      select extras.key, extras.job_id from "supervisor".extras join "supervisor".key_holders on key_holders.key = extras.key
      where extras.job_id = any(ids) and extras.job_id <> key_holders.job_id
      on conflict do nothing returning job_id)
    select array_agg(job_id) from it into waiting;
    with moved as (
      update "supervisor".jobs set state = -1 where id = any(waiting) and state = 1 returning queue, tier)
    insert into "supervisor".counts(state, queue, tier, n)
      select change.state, queue, tier, sum(change.sign) from moved, (values (1, -1), (-1, 1)) as change(state, sign)
      group by change.state, queue, tier;
  end $$;
CREATE FUNCTION supervisor.cancel_children(ids bigint[], deleted boolean) RETURNS bigint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
  declare
    cancelled bigint[] := '{}';
    children bigint[];
    causes bigint[];
    locked bigint[];
    more bigint[];
  begin
    loop
      with recursive found(child, parent) as (
          select parents.child, parents.parent from "supervisor".parents
          where parents.parent = any(ids || cancelled) and link + 0 = 1 and (select state from "supervisor".jobs as it where it.id = parents.child) = -1 and not coalesce((select state from "supervisor".jobs as it where it.id = parents.parent) = 3, false)
            and (on_failed = 0 or (deleted and on_failed = 2 and parents.parent = any(ids)))
          union
          select its.child, its.parent from found cross join lateral (
            select child, parent from "supervisor".parents where parents.parent = found.child and on_failed = 0 and link + 0 = 1 and (select state from "supervisor".jobs as it where it.id = parents.child) = -1
            offset 0) as its),
        first as (
          select child, min(parent) as parent from (select * from found limit 10000) as it group by child)
      select array_agg(child order by child), array_agg(parent order by child) from first into children, causes;
      exit when children is null or cardinality(cancelled) >= 10000;
      locked := "supervisor".lock_children(children);
      exit when cardinality(locked) = 0;
      if cardinality(locked) < cardinality(children) then
        select array_agg(child), array_agg(parent) from unnest(children, causes) as it(child, parent) where child = any(locked)
          into children, causes;
      end if;
      with gone as (
          update "supervisor".jobs set state = 5, token = token + 1, finished_at = (select "supervisor".clock()), owner = null, lease_until = null
          from unnest(children, causes) as it(child, parent) where id = it.child and state = -1
          returning id, it.parent, queue, tier),
        counted as (
      insert into "supervisor".counts(state, queue, tier, n)
      select change.state, queue, tier, sum(change.sign)
      from gone, (values (-1, -1), (5, 1)) as change(state, sign) group by change.state, queue, tier),
        noted as (
          insert into "supervisor".attempts(job_id, at, record)
          select gone.id, (select "supervisor".clock()), json_build_object('attempt', 1, 'cause', 'parent_failed', 'type', 'ParentFailed',
            'message', format('its parent, job %s, %s', parent, case
              when jobs.id is null or (deleted and parent = any(ids)) then 'was deleted'
              when jobs.state = 4 then 'failed' else 'was cancelled' end), 'traceback', '', 'at', (select "supervisor".clock()))::text
          from gone left join "supervisor".jobs on jobs.id = gone.parent),
        linked as (
          update "supervisor".parents set link = case when parents.parent = gone.parent then 2 else 0 end
          from gone where parents.child = gone.id and link = 1)
      select array_agg(id) from gone into more;
      cancelled := cancelled || more;
    end loop;
    return cancelled;
  end $$;
CREATE FUNCTION supervisor.checked_choice(what text, value text, choices text[]) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  begin
    if coalesce(value = any(choices), true) then
      return nullif(value, choices[1]);
    end if;
    raise exception using errcode = 'invalid_parameter_value',
      message = format('%s: expected %s, got %L', what, array_to_string(choices, ' or '), value);
  end $$;
CREATE FUNCTION supervisor.checked_extras(unique_key text, unique_while text, on_conflict text, key text, on_failure text, job_group text, after bigint[], on_parent_failed text, tags text[], expires interval) RETURNS json
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  declare
    found json;
    wrong text;
  begin
    if after is not null and (cardinality(after) > 10000 or coalesce(0 >= any(after), true) or array_position(after, null) > 0) then
      wrong := 'after: expected a list of at most 10000 ids of jobs';
    elsif cardinality(tags) > 20 then
      wrong := 'tags: expected a list of at most 20 texts';
    elsif expires <= '0' then
      wrong := format('expires: expected an interval above 0, got %L', expires);
    end if;
    if wrong is not null then
      raise exception using errcode = 'invalid_parameter_value', message = wrong;
    end if;
    found := json_strip_nulls(json_build_object(
      'unique', case when unique_key is not null then "supervisor".checked_name('unique_key', unique_key) end,
      'unique_while', "supervisor".checked_while(unique_while),
      'on_conflict', "supervisor".checked_choice('on_conflict', on_conflict, '{skip,replace,reject}'),
      'key', case when key is not null then "supervisor".checked_name('key', key) end,
      'on_failure', "supervisor".checked_choice('on_failure', on_failure, '{pass,hold}'),
      'group', case when job_group is not null then "supervisor".checked_name('job_group', job_group) end,
      'after', (select json_agg(id order by place) from (
        select id, min(place) as place from unnest(after) with ordinality as it(id, place) group by id) as it),
      'on_parent_failed', "supervisor".checked_choice('on_parent_failed', on_parent_failed, '{cancel,run,wait}'),
      'tags', (select json_agg("supervisor".checked_name('tags', tag) order by place) from (
        select tag, min(place) as place from unnest(tags) with ordinality as it(tag, place) group by tag) as it),
      'expires', ("supervisor".checked_seconds('expires', expires) * 1000000)::bigint));
    wrong := case when found ->> 'unique' is null and found ->> 'unique_while' is not null then 'unique_while: expected unique_key with it'
      when found ->> 'unique' is null and found ->> 'on_conflict' is not null then 'on_conflict: expected unique_key with it'
      when found ->> 'key' is null and found ->> 'on_failure' is not null then 'on_failure: expected key with it'
      when found ->> 'after' is null and found ->> 'on_parent_failed' is not null then 'on_parent_failed: expected after with it' end;
    if wrong is not null then
      raise exception using errcode = 'invalid_parameter_value', message = wrong;
    end if;
    return case when found::text <> '{}' then found end;
  end $$;
CREATE FUNCTION supervisor.checked_json(what text, value json) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET standard_conforming_strings TO 'on'
    AS $$
  declare
    written constant text := coalesce(value::text, 'null');
    bare text;
    number text;
    wrong text;
  begin
    if octet_length(written) > 1000000 then
      wrong := format('%s bytes of JSON, expected at most 1000000', octet_length(written));
    end if;
    if wrong is null and written ~ '\\u[dD][89a-fA-F]' then
      bare := replace(written, '\\', '');
      bare := regexp_replace(bare, '\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}', '', 'g');
      if bare ~ '\\u[dD][89a-fA-F]' then
        wrong := 'half of a surrogate pair is not valid Unicode';
      end if;
    end if;
    if wrong is null and (written ~ '[0-9]{19}|[0-9][eE]'
        or length(written) - length(translate(written, '[{', '')) > 100) then
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
        elsif length(number) > 20 or number::numeric not between -9223372036854775808 and 9223372036854775807 then
          wrong := format('%s is not a 64-bit integer', left(number, 40));
        end if;
        exit when wrong is not null;
      end loop;
      bare := regexp_replace(bare, '[^][{}]', '', 'g');
      for depth in 1..100 loop
        exit when bare = '';
        bare := regexp_replace(bare, '\[\]|\{\}', '', 'g');
      end loop;
      if bare <> '' and wrong is null then
        wrong := 'nested deeper than 100';
      end if;
    end if;
    if wrong is not null then
      raise exception using errcode = 'invalid_parameter_value', message = format('%s: %s', what, wrong);
    end if;
    return written;
  end $$;
CREATE FUNCTION supervisor.checked_name(what text, value text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET standard_conforming_strings TO 'on'
    AS $_$
  begin
    if value is null or length(value) not between 1 and 255 or value ~ '^ | $|[\u0001-\u001f\u007f-\u00a0\u00ad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ue000-\uf8ff\ufeff\ufff9-\ufffb]' then
      raise exception using errcode = 'invalid_parameter_value',
        message = format('%s: expected a name of 1 to 255 printable characters without spaces around it, got %L', what, left(value, 80));
    end if;
    return value;
  end $_$;
CREATE FUNCTION supervisor.checked_seconds(what text, value interval) RETURNS double precision
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  begin
    if extract(epoch from value) not between 0 and 3153600000 then
      raise exception using errcode = 'invalid_parameter_value',
        message = format('%s: expected an interval from 0 to 36500 days, got %L', what, value);
    end if;
    return extract(epoch from value);
  end $$;
CREATE FUNCTION supervisor.checked_while(value text) RETURNS json
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  declare
    seconds float8;
  begin
    if coalesce(value in ('waiting', 'unfinished'), true) then
      return to_json(nullif(value, 'unfinished'));
    end if;
    begin
      seconds := extract(epoch from value::interval);
    exception when invalid_datetime_format or interval_field_overflow or datetime_field_overflow then
      seconds := null;
    end;
    if seconds > 0 and seconds <= 3153600000 then
      return to_json((seconds * 1000000)::bigint);
    end if;
    raise exception using errcode = 'invalid_parameter_value',
      message = format('unique_while: expected waiting, unfinished or a time such as 10m, got %L', value);
  end $$;
CREATE FUNCTION supervisor.clock() RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$select (extract(epoch from pg_catalog.statement_timestamp()) operator(pg_catalog.*) 1000000::numeric)::bigint$$;
CREATE FUNCTION supervisor.end_jobs(ids bigint[], deleted boolean) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
  begin
    update "supervisor".parents set link = 0 where link = 1 and child = any(ids);
    return query select "supervisor".release_keys(ids, deleted);
    return query select "supervisor".end_parents(ids, deleted);
  end $$;
CREATE FUNCTION supervisor.end_lost_parents() RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
  declare
    lost bigint[] := array(
      select distinct parent from "supervisor".parents where link + 0 = 1 and (select state from "supervisor".jobs as it where it.id = parents.child) = -1 and (
        on_failed <> 2 and exists (select from "supervisor".jobs where jobs.id = parents.parent and jobs.state >= 3)
        or coalesce((select state from "supervisor".jobs as it where it.id = parents.parent) = 3, false) or not exists (select from "supervisor".jobs where jobs.id = parents.parent))
      limit 10000);
  begin
    return query select "supervisor".end_parents(array(
      select it.id from unnest(lost) as it(id) where it.id not in (select id from "supervisor".jobs where id = any(lost))), true);
    lost := array(select id from "supervisor".jobs where id = any(lost) order by id for no key update skip locked);
    return query select "supervisor".end_parents(array(select id from "supervisor".jobs where id = any(lost) and state >= 3), false);
  end $$;
CREATE FUNCTION supervisor.end_parents(ids bigint[], deleted boolean) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
  declare
    ended bigint[];
    children bigint[];
  begin
    if not exists (select from "supervisor".parents where parent = any(ids) and link + 0 = 1) then
      return;
    end if;
    ended := ids || "supervisor".cancel_children(ids, deleted);
    children := "supervisor".lock_children(array(
      select distinct child from "supervisor".parents where parent = any(ended) and link + 0 = 1 and (select state from "supervisor".jobs as it where it.id = parents.child) = -1 and (on_failed = 1 or coalesce((select state from "supervisor".jobs as it where it.id = parents.parent) = 3, false))
      limit 10000));
    update "supervisor".parents set link = 0
      where child = any(children) and parent = any(ended) and link = 1 and (on_failed = 1 or coalesce((select state from "supervisor".jobs as it where it.id = parents.parent) = 3, false));
    return query select "supervisor".resume_children(children);
  end $$;
CREATE FUNCTION supervisor.enqueue(handler text, payload json DEFAULT 'null'::json, queue text DEFAULT 'default'::text, priority bigint DEFAULT 0, delay interval DEFAULT NULL::interval, at timestamp with time zone DEFAULT NULL::timestamp with time zone, max_retries integer DEFAULT NULL::integer, timeout interval DEFAULT NULL::interval, headers json DEFAULT NULL::json, unique_key text DEFAULT NULL::text, unique_while text DEFAULT 'unfinished'::text, on_conflict text DEFAULT 'skip'::text, key text DEFAULT NULL::text, on_failure text DEFAULT 'pass'::text, job_group text DEFAULT NULL::text, after bigint[] DEFAULT NULL::bigint[], on_parent_failed text DEFAULT 'cancel'::text, tags text[] DEFAULT NULL::text[], expires interval DEFAULT NULL::interval) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
    elsif max_retries not between 0 and 1000 then
      wrong := format('max_retries: expected a whole number from 0 to 1000, got %s', max_retries);
    elsif json_typeof(headers) not in ('object', 'null') then
      wrong := format('headers: expected an object, got %s', json_typeof(headers));
    end if;
    if wrong is not null then
      raise exception using errcode = 'invalid_parameter_value', message = wrong;
    end if;
    if max_retries is not null or timeout is not null then
      options := json_build_array(max_retries, "supervisor".checked_seconds('timeout', timeout), null)::text;
    end if;
    ids := "supervisor".put(json_build_array(json_build_object(
      'handler', "supervisor".checked_name('handler', handler),
      'queue', "supervisor".checked_name('queue', queue),
      'payload', "supervisor".checked_json('payload', payload),
      'headers', case when json_typeof(headers) = 'object' then "supervisor".checked_json('headers', headers) end,
      'priority', priority,
      'options', options,
      'delay', ("supervisor".checked_seconds('delay', delay) * 1000000)::bigint,
      'at', (extract(epoch from at) * 1000000)::bigint,
      'extras', "supervisor".checked_extras(unique_key, unique_while, on_conflict, key, on_failure, job_group, after,
        on_parent_failed, tags, expires))));
    if ids[1] = 0 then
      raise exception using errcode = 'unique_violation',
        message = format('job %s has the unique key %L: nothing was enqueued', ids[2], unique_key);
    elsif ids[1] < 0 then
      raise notice 'job % has the unique key % already: no job was added', -ids[1], quote_literal(unique_key);
    end if;
    return abs(ids[1]);
  end $$;
CREATE FUNCTION supervisor.forget_groups(most bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  declare
    first bigint;
  begin
    if not exists (select from "supervisor".turns) then
      return;
    end if;
    update "supervisor".turns set round = first.age from (
        select id, (
          select age from "supervisor".jobs where state = 1 and jobs.queue = turns.queue and tier = 0
            and jobs.priority = turns.priority and age > turns.round order by age, jobs.id limit 1) as age
        from "supervisor".turns for update skip locked) as first
      where turns.id = first.id and first.age is not null;
    first := (select min(id) + random() * greatest(0, max(id) + 1 - most - min(id)) from "supervisor".job_groups);
    delete from "supervisor".job_groups where id = any(array(
      select id from "supervisor".job_groups where id = any(array(
        select its.id from (select * from "supervisor".job_groups where id >= first order by id limit most) as its
        where not exists (
          select from "supervisor".turns where turns.queue = its.queue and turns.priority = its.priority
            and its.base + its.used > round * 720720 and not not exists (
        select from "supervisor".jobs where state = 1 and jobs.queue = turns.queue and tier = 0 and jobs.priority = turns.priority))))
      for update skip locked));
    delete from "supervisor".turns where id = any(array(
      select id from "supervisor".turns where not exists (
        select from "supervisor".jobs where state = 1 and jobs.queue = turns.queue and tier = 0 and jobs.priority = turns.priority) and not exists (
        select from "supervisor".job_groups where job_groups.queue = turns.queue and job_groups.priority = turns.priority)
      for update skip locked));
  end $$;
CREATE FUNCTION supervisor.free_turns(ids bigint[], had boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  begin
    if exists (select from "supervisor".turns) then
      perform "supervisor".use_turns(queue, priority, name, 0, -sum(coalesce((select ceil(720720 / shares) from "supervisor".group_shares
          where group_shares.queue = it.queue and group_shares.name = it.name), 720720)::bigint)::bigint)
      from (
        select jobs.queue, jobs.priority, coalesce(extras.text::json ->> 'group', '') as name
        from "supervisor".jobs left join "supervisor".extras on extras.job_id = jobs.id
        where jobs.id = any(ids) and (had or state + 0 = 1) and tier + 0 = 0) as it
      group by queue, priority, name;
    end if;
  end $$;
CREATE FUNCTION supervisor.give_results(ids bigint[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
  begin
    with its as (
        select parents.child, parents.place, jobs.id, jobs.state, jobs.result,
          coalesce(sum(octet_length(jobs.result)) over (partition by parents.child), 0) as size
        from "supervisor".parents join "supervisor".jobs on jobs.id = parents.parent where parents.child = any(ids)),
      given as (
        select child, jsonb_build_object('ids', jsonb_agg(id order by place),
          'failed', coalesce(jsonb_agg(id order by place) filter (where state <> 3), '[]'))
          || case when max(size) <= 1000000
            then jsonb_build_object('results', jsonb_agg(case when size <= 1000000 then result end order by place))
            else jsonb_build_object('bytes', max(size)) end as parents
        from its group by child)
    update "supervisor".jobs set headers = "supervisor".headers_with(jobs.headers, given.parents::json) from given where jobs.id = given.child;
  end $$;
CREATE FUNCTION supervisor.headers_with(headers text, parents json) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  begin
    return (
      select json_object_agg(key, value) from (
        select key, value from json_each(coalesce(headers, '{}')::json) where key <> 'supervisor.parents'
        union all select 'supervisor.parents', parents) as it)::text;
  exception when others then
    return json_build_object('supervisor.parents', parents)::text;
  end $$;
CREATE FUNCTION supervisor.inserted_by_sql() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
      begin
        if new.token not between 0 and 4611686018427387904 or new.expired_count not between 0 and 1073741824 then
          raise exception using errcode = 'check_violation',
            message = 'token: expected 0 to 4611686018427387904; expired_count: expected 0 to 1073741824';
        end if;
        if new.state = 1 and new.due_at > "supervisor".clock() then
          new.state = 0;
        end if;
        update "supervisor".jobs set age = new.id, state = new.state where id = new.id;
        insert into "supervisor".counts(state, queue, tier, n) values (new.state, new.queue, new.tier, 1);
        if current_setting('supervisor.notify', true) is distinct from 'off' then
      perform case when pg_notification_queue_usage() < 0.9 then pg_notify('supervisor.jobs', '')::text = '' else false end;
    end if;
        return null;
      end $$;
CREATE FUNCTION supervisor.inserted_takes_turn() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
      begin
        if exists (select from "supervisor".turns where queue = new.queue and priority = new.priority) then
          perform "supervisor".take_turns(array[new.id]);
        end if;
        return null;
      end $$;
CREATE FUNCTION supervisor.jobs_deleted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
      declare
        ids constant bigint[] := array(select id from gone);
      begin
        if exists (select from "supervisor".turns) then
          perform "supervisor".use_turns(queue, priority, name, 0, -sum(coalesce((select ceil(720720 / shares) from "supervisor".group_shares
          where group_shares.queue = it.queue and group_shares.name = it.name), 720720)::bigint)::bigint)
          from (
            select gone.queue, gone.priority, coalesce(extras.text::json ->> 'group', '') as name
            from gone left join "supervisor".extras on extras.job_id = gone.id where gone.state = 1 and gone.tier = 0) as it
          group by queue, priority, name;
        end if;
        delete from "supervisor".attempts where job_id = any(ids);
        delete from "supervisor".key_waiters using "supervisor".extras
          where extras.job_id = any(ids) and key_waiters.key = extras.key and key_waiters.job_id = extras.job_id;
        delete from "supervisor".parents where child = any(ids);
        delete from "supervisor".unique_jobs where unique_key in (
          select unique_key from "supervisor".unique_jobs
          where job_id = any(ids) and until is null and unique_key in (
            select text::json ->> 'unique' from "supervisor".extras where extras.job_id = any(ids))
          order by unique_key for update skip locked);
        delete from "supervisor".expiries using "supervisor".extras
          where extras.job_id = any(ids) and expiries.expires_at = extras.expires_at and expiries.job_id = extras.job_id;
        delete from "supervisor".extras where job_id = any(ids);
        delete from "supervisor".held_back where job_id = any(ids);
        delete from "supervisor".reports where job_id = any(ids);
        delete from "supervisor".snoozes where job_id = any(ids);
        delete from "supervisor".dead_letters where job_id = any(ids);
        insert into "supervisor".counts(state, queue, tier, n)
          select state, queue, tier, -count(*) from gone group by state, queue, tier;
        return null;
      end $$;
CREATE FUNCTION supervisor.jobs_due(ids bigint[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
        select "supervisor".acquire_keys(ids);
        select "supervisor".take_turns(ids);
      $$;
CREATE FUNCTION supervisor.jobs_ended(ids bigint[], deleted boolean) RETURNS SETOF text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
        delete from "supervisor".held_back where job_id = any(ids);
        select "supervisor".end_jobs(ids, deleted) $$;
CREATE FUNCTION supervisor.jobs_lost() RETURNS SETOF text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
        select "supervisor".pass_on_lost_keys() union all select "supervisor".end_lost_parents() $$;
CREATE FUNCTION supervisor.jobs_run_again(ids bigint[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$ select "supervisor".run_again(ids) $$;
CREATE FUNCTION supervisor.jobs_truncated() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
      begin
        delete from "supervisor".attempts;
        delete from "supervisor".extras;
        delete from "supervisor".key_holders;
        delete from "supervisor".key_waiters;
        delete from "supervisor".held_back;
        delete from "supervisor".limited_leases;
        delete from "supervisor".parents;
        delete from "supervisor".unique_jobs;
        delete from "supervisor".expiries;
        delete from "supervisor".turns;
        delete from "supervisor".job_groups;
        delete from "supervisor".reports;
        delete from "supervisor".snoozes;
        delete from "supervisor".dead_letters;
        delete from "supervisor".counts;
        return null;
      end $$;
CREATE FUNCTION supervisor.link_children(ids bigint[], jobs json) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
  declare
    parent_ids bigint[];
    missing bigint;
  begin
    insert into "supervisor".parents(child, parent, place, on_failed)
      select ids[job.place], abs(case when it.value::bigint < 0 then ids[-it.value::bigint] else it.value::bigint end), it.place,
        job.on_failed
      from (
        select place, value -> 'extras' -> 'after' as after, case value -> 'extras' ->> 'on_parent_failed'
          when 'run' then 1 when 'wait' then 2 else 0 end as on_failed
        from json_array_elements(jobs) with ordinality as it(value, place) offset 0) as job,
        json_array_elements_text(job.after) with ordinality as it(value, place)
      where ids[job.place] > 0
      on conflict do nothing;
    parent_ids := array(select distinct parent from "supervisor".parents where child = any(ids) order by parent);
    perform from "supervisor".jobs as it where it.id = any(parent_ids) order by it.id for no key update;
    select min(it.id) from unnest(parent_ids) as it(id) where it.id not in (select its.id from "supervisor".jobs as its where its.id = any(parent_ids))
      into missing;
    if missing is not null then
      raise exception using errcode = 'foreign_key_violation', message = replace('after: there is no job 0: it never existed, or was deleted or pruned', '0', missing::text);
    end if;
    update "supervisor".jobs as it set linked = true where it.id = any(parent_ids) and it.linked is not true;
    update "supervisor".extras set text = (text::jsonb || jsonb_build_object('after', its.after))::text
      from (select child, jsonb_agg(parent order by place) as after from "supervisor".parents where child = any(ids) group by child) as its
      where extras.job_id = its.child;
    perform "supervisor".end_parents(array(
      select it.id from "supervisor".jobs as it where it.id = any(parent_ids) and it.state >= 3), false);
  end $$;
CREATE FUNCTION supervisor.lock_children(ids bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '500ms'
    AS $$
  begin
    return array(select id from "supervisor".jobs where id = any(ids) order by id for no key update);
  exception when lock_not_available then
    return array(select id from "supervisor".jobs where id = any(ids) order by id for no key update skip locked);
  end $$;
CREATE FUNCTION supervisor.pass_on_keys(keys text[]) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  declare
    next bigint[];
  begin
    with first as (
        select it.key, first.job_id from unnest(keys) as it(key) cross join lateral (
          select job_id from "supervisor".key_waiters where key_waiters.key = it.key order by job_id limit 1) as first),
      passed as (
        update "supervisor".key_holders set job_id = first.job_id from first where key_holders.key = first.key),
      gone as (
        delete from "supervisor".key_waiters using first where key_waiters.key = first.key and key_waiters.job_id = first.job_id)
    select array_agg(job_id) from first into next;
    delete from "supervisor".key_holders where key = any(keys) and job_id <> all(coalesce(next, '{}'));
    return query
      with moved as (
          update "supervisor".jobs set state = 1
          where id = any(array(
            select id from "supervisor".jobs where id = any(next) and state = -1 for no key update skip locked))
          returning queue, tier),
        counted as (
          insert into "supervisor".counts(state, queue, tier, n)
          select change.state, queue, tier, sum(change.sign)
          from moved, (values (-1, -1), (1, 1)) as change(state, sign) group by change.state, queue, tier)
      select distinct queue from moved;
    if next is not null and exists (select from "supervisor".turns) then
      perform "supervisor".take_turns(next);
    end if;
  end $$;
CREATE FUNCTION supervisor.pass_on_lost_keys() RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  declare
    keys constant text[] := array(
      select key from "supervisor".key_holders where not exists (
        select from "supervisor".jobs where jobs.id = key_holders.job_id and jobs.state < 3) and not exists (
  select from "supervisor".jobs join "supervisor".extras on extras.job_id = jobs.id
  where jobs.id = key_holders.job_id and jobs.state = 4 and extras.text::json ->> 'on_failure' = 'hold')
      order by key for update);
  begin
    return query select "supervisor".pass_on_keys(keys);
    return query
      with moved as (
          update "supervisor".jobs set state = 1
          where state = -1 and id = any(array(
            select jobs.id from "supervisor".key_holders join "supervisor".jobs on jobs.id = key_holders.job_id and jobs.state = -1
            where not exists (select from "supervisor".parents where link = 1 and child = jobs.id)
            for no key update of jobs skip locked))
          returning queue, tier),
        counted as (
          insert into "supervisor".counts(state, queue, tier, n)
          select change.state, queue, tier, sum(change.sign)
          from moved, (values (-1, -1), (1, 1)) as change(state, sign) group by change.state, queue, tier)
      select distinct queue from moved;
  end $$;
CREATE FUNCTION supervisor.put(jobs json) RETURNS bigint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  declare
    written constant text := jobs::text;
    ids bigint[];
  begin
    ids := case when position('"unique"' in written) > 0 then "supervisor".put_unique(jobs) else "supervisor".put_new(jobs) end;
    if position('"after"' in written) > 0 and ids[1] <> 0 then
      perform "supervisor".link_children(ids, jobs);
    end if;
    return ids;
  end $$;
CREATE FUNCTION supervisor.put_new(jobs json) RETURNS bigint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  declare
    ids bigint[];
    ready bigint[];
    related boolean;
  begin
    with it as (
        select it.*, nextval((select pg_get_serial_sequence('"supervisor".jobs', 'id')::regclass)) as id, (select "supervisor".clock()) as now,
          coalesce((select "supervisor".clock()) + it.delay, it.at, (select "supervisor".clock())) as due
        from rows from (json_to_recordset($1::json) as (handler text, queue text, payload text, headers text, priority bigint,
            options text, delay bigint, at bigint, extras json)) with ordinality
          as it(handler, queue, payload, headers, priority, options, delay, at, extras, place)
        order by place),
      put as (
        insert into "supervisor".jobs(id, age, handler, queue, payload, headers, priority, options, due_at, created_at, state, linked)
        overriding system value
        select it.id, it.id, it.handler, it.queue, it.payload, it.headers, it.priority, it.options, it.due, it.now,
          case when json_array_length(it.extras -> 'after') > 0 then -1 when it.due > it.now then 0 else 1 end,
          case when it.extras ->> 'key' is not null then true when it.extras ->> 'group' is not null then false end
        from it
        returning jobs.id, jobs.queue, jobs.state, jobs.linked, exists (
          select from "supervisor".turns where turns.queue = jobs.queue and turns.priority = jobs.priority) as takes_turn),
      more as (
        insert into "supervisor".extras(job_id, key, expires_at, text)
        select it.id, it.extras ->> 'key', it.now + (it.extras ->> 'expires')::bigint, it.extras::text
        from it where it.extras is not null),
      expiring as (
        insert into "supervisor".expiries(expires_at, job_id)
        select it.now + (it.extras ->> 'expires')::bigint, it.id from it where it.extras ->> 'expires' is not null),
      counted as (
        insert into "supervisor".counts(state, queue, tier, n)
        select put.state, put.queue, 0, count(*) from put group by put.state, put.queue)
    select coalesce(array_agg(put.id order by put.id), '{}'),
      array_agg(put.id) filter (where put.state = 1), bool_or(put.linked is not null or put.takes_turn)
    from put into ids, ready, related;
    if related then
      perform "supervisor".jobs_due(ready);
    end if;
    if current_setting('supervisor.notify', true) is distinct from 'off' then
      perform case when pg_notification_queue_usage() < 0.9 then pg_notify('supervisor.jobs', '')::text = '' else false end;
    end if;
    return ids;
  end $_$;
CREATE FUNCTION supervisor.put_unique(batch json) RETURNS bigint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  declare
    ids bigint[];
    wanted text[];
    hows text[];
    durings text[];
    holders bigint[];
    firsts bigint[];
    numbers bigint[];
    refused record;
  begin
    select array_agg(extras ->> 'unique' order by place), array_agg(coalesce(extras ->> 'on_conflict', 'skip') order by place),
      array_agg(extras ->> 'unique_while' order by place)
      into wanted, hows, durings
      from rows from (json_to_recordset(batch) as (extras json)) with ordinality as it(extras, place);
    insert into "supervisor".unique_jobs(unique_key, job_id, below)
  select it.key, 0, 0 from (select distinct key from unnest(wanted::text[]) as it(key) where key is not null) as it
  order by it.key collate "C"
  on conflict (unique_key) do update set job_id = unique_jobs.job_id;
    perform from "supervisor".jobs where state < 2 and id in (
        select job_id from "supervisor".unique_jobs where unique_key = any(wanted) and (below = 2 or unique_key in (
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
          left join "supervisor".unique_jobs on unique_key = key and coalesce(unique_jobs.until > (select "supervisor".clock()),
  (select state from "supervisor".jobs where jobs.id = unique_jobs.job_id) < unique_jobs.below, false)) as it) as it;
    select place, holder into refused from unnest(holders, firsts, hows) with ordinality as it(holder, first, how, place)
      where how = 'reject' and (holder > 0 or first < place) order by place limit 1;
    if found then
      delete from "supervisor".unique_jobs where unique_key = any(wanted::text[]) and job_id = 0;
      return array[0, refused.holder, refused.place];
    end if;
    if numbers[cardinality(numbers)] < cardinality(numbers) then
      ids := "supervisor".put_new((
        select json_agg(job order by place) from json_array_elements(batch) with ordinality as one(job, place) where holders[place] = 0 and firsts[place] = place));
    else
      ids := "supervisor".put_new(batch);
    end if;
    update "supervisor".unique_jobs set job_id = ids[it.number], (below, until) = (select 
  case when it.during = 'waiting' then 2 else 3 end,
  case when it.during ~ '^[0-9]+$' then (select "supervisor".clock()) + it.during::bigint end)
      from unnest(wanted, holders, firsts, numbers, durings) with ordinality as it(key, holder, first, number, during, place)
      where unique_key = it.key and it.holder = 0 and it.first = it.place;
    ids := array(
      select case when holder > 0 then -holder when first < place then -ids[numbers[first]] else ids[numbers[place]] end
      from unnest(holders, firsts) with ordinality as it(holder, first, place) order by place);
    if 'replace' = any(hows) then
      perform "supervisor".replace_jobs((
        select json_agg(job order by id) from (
          select distinct on (-ids[place]) -ids[place] as id, job
          from json_array_elements(batch) with ordinality as one(job, place) where hows[place] = 'replace' and ids[place] < 0 order by -ids[place], place desc) as it),
        array(select distinct -ids[place] as id from generate_subscripts(ids, 1) as place
          where hows[place] = 'replace' and ids[place] < 0 order by id));
    end if;
    return ids;
  end $_$;
CREATE FUNCTION supervisor.queue_changed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
      begin
        insert into "supervisor".counts(state, queue, tier, n)
          values (old.state, old.queue, old.tier, -1), (new.state, new.queue, new.tier, 1);
        update "supervisor".held_back set queue = new.queue where job_id = new.id;
        if old.state = 1 and old.tier = 0 and (old.linked is not null or exists (select from "supervisor".turns)) then
          perform "supervisor".use_turns(queue, priority, name, 0, -coalesce((select ceil(720720 / shares) from "supervisor".group_shares
          where group_shares.queue = it.queue and group_shares.name = it.name), 720720)::bigint)
          from (
            select old.queue as queue, old.priority as priority, coalesce(extras.text::json ->> 'group', '') as name
            from (select) as one left join "supervisor".extras on extras.job_id = old.id) as it;
          perform "supervisor".take_turns(array[new.id]);
        end if;
        if current_setting('supervisor.notify', true) is distinct from 'off' then
      perform case when pg_notification_queue_usage() < 0.9 then pg_notify('supervisor.jobs', '')::text = '' else false end;
    end if;
        return null;
      end $$;
CREATE FUNCTION supervisor.reached_round(its_queue text, its_priority bigint, without bigint[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  declare
    before constant bigint := (select max(round) from "supervisor".turns where queue = its_queue and priority = its_priority);
    reached constant bigint := coalesce(
      (select age from "supervisor".jobs where state = 1 and queue = its_queue and priority = its_priority and tier = 0 and id <> all(without) and age >= coalesce(before, 0) order by age, id limit 1),
      pg_sequence_last_value(pg_get_serial_sequence('"supervisor".jobs', 'id')::regclass) - cardinality(without) + 1);
    held bigint[];
  begin
    if before is null then  -- jobs that wait since before have no group, and keep their places
      insert into "supervisor".job_groups(queue, priority, name, base, used)
        select its_queue, its_priority, '', (age + 1) * 720720, 0 from "supervisor".jobs where state = 1 and queue = its_queue and priority = its_priority and tier = 0 and id <> all(without) order by age desc limit 1;
      insert into "supervisor".turns(queue, priority, round) values (its_queue, its_priority, reached);
      return reached;
    end if;
    if reached >= before + 32 then
      held := array(select id from "supervisor".turns where queue = its_queue and priority = its_priority order by id for update skip locked);
      if held = '{}' then
        insert into "supervisor".turns(queue, priority, round) values (its_queue, its_priority, reached);
      else
        update "supervisor".turns set round = greatest(round, reached) where id = held[1];
        delete from "supervisor".turns where id = any(held[2:]);
      end if;
    end if;
    return greatest(before, reached);
  end $$;
CREATE FUNCTION supervisor.release_keys(ids bigint[], deleted boolean) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  declare
    keys constant text[] := array(
      select distinct extras.key from "supervisor".extras where job_id = any(ids) and extras.key is not null order by extras.key);
  begin
    perform from "supervisor".key_holders where key = any(keys) order by key for update;
    delete from "supervisor".key_waiters where key = any(keys) and job_id = any(ids);
    return query select "supervisor".pass_on_keys(array(
      select key from "supervisor".key_holders where key = any(keys) and job_id = any(ids) and (deleted or not exists (
  select from "supervisor".jobs join "supervisor".extras on extras.job_id = jobs.id
  where jobs.id = key_holders.job_id and jobs.state = 4 and extras.text::json ->> 'on_failure' = 'hold'))));
  end $$;
CREATE FUNCTION supervisor.replace_jobs(batch json, ids bigint[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  declare
    changed bigint[];
    freed bigint[];
  begin
    with it as (
        select ids[place] as id, it.*, (select "supervisor".clock()) as now, coalesce((select "supervisor".clock()) + it.delay, it.at, (select "supervisor".clock())) as due
        from rows from (json_to_recordset(batch) as (handler text, queue text, payload text, headers text, priority bigint,
          options text, delay bigint, at bigint, extras json)) with ordinality
          as it(handler, queue, payload, headers, priority, options, delay, at, extras, place)),
      old as materialized (
        select jobs.id, jobs.queue, jobs.tier, jobs.state from "supervisor".jobs where jobs.id = any(ids) and state < 2
        order by jobs.id for no key update),
      new as (
        update "supervisor".jobs set handler = it.handler, queue = it.queue, payload = it.payload, headers = it.headers,
          priority = it.priority, options = it.options, retries = 0, tier = 0, started_at = null,
          age = case jobs.tier when 1 then jobs.id else jobs.age end,
          due_at = case jobs.state when -1 then jobs.due_at else it.due end,
          state = case when jobs.state = -1 then -1 when it.due > it.now then 0 else 1 end
        from it join old on old.id = it.id where jobs.id = it.id
        returning jobs.id, jobs.state, jobs.queue, old.state as old_state, old.queue as old_queue, old.tier as old_tier),
      counted as (
        insert into "supervisor".counts(state, queue, tier, n)
        select old_state, queue, old_tier, -1 from new where queue = old_queue union all
        select state, queue, 0, 1 from new where queue = old_queue),
      gone as (
        delete from "supervisor".expiries using "supervisor".extras join new on new.id = extras.job_id
        where expiries.job_id = extras.job_id and expiries.expires_at = extras.expires_at),
      more as (
        update "supervisor".extras set expires_at = it.now + (it.extras ->> 'expires')::bigint,
          text = ((it.extras::jsonb - array['unique', 'key', 'on_failure', 'group', 'after', 'on_parent_failed']) || coalesce((
            select jsonb_object_agg(key, value) from jsonb_each(extras.text::jsonb) where key in ('unique', 'key', 'on_failure', 'group', 'after', 'on_parent_failed')), '{}'))::text
        from new join it on it.id = new.id where extras.job_id = new.id),
      expiring as (
        insert into "supervisor".expiries(expires_at, job_id)
        select it.now + (it.extras ->> 'expires')::bigint, it.id from it join new on new.id = it.id
        where it.extras ->> 'expires' is not null),
      unsnoozed as (
        delete from "supervisor".snoozes using new where snoozes.job_id = new.id),
      held as (
        update "supervisor".unique_jobs set job_id = it.id, (below, until) = (select 
  case when it.during = 'waiting' then 2 else 3 end,
  case when it.during ~ '^[0-9]+$' then (select "supervisor".clock()) + it.during::bigint end)
        from (select it.id, it.extras ->> 'unique' as key, it.extras ->> 'unique_while' as during
          from it join new on new.id = it.id) as it
        where unique_key = it.key)
    select array_agg(id) filter (where state = 1 and old_state <> 1),
      array_agg(id) filter (where state <> 1 and old_state = 1 and old_tier = 0) from new into changed, freed;
    if freed is not null then
      perform "supervisor".free_turns(freed, true);
    end if;
    if changed is not null then
      perform "supervisor".jobs_due(changed);
    end if;
    delete from "supervisor".job_tags where job_id = any(ids);
    insert into "supervisor".job_tags(job_id, tag)
      select job_id, tag from "supervisor".extras, json_array_elements_text(text::json -> 'tags') as its(tag) where job_id = any(ids)
      on conflict do nothing;
  end $_$;
CREATE FUNCTION supervisor.restore_children(ids bigint[]) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
  declare
    children bigint[];
  begin
    with recursive found(id) as (
      select child from "supervisor".parents join "supervisor".jobs on jobs.id = child and jobs.state = 5
      where parent = any(ids) and link = 2
      union
      select its.child from found cross join lateral (
        select child from "supervisor".parents where parents.parent = found.id and link = 2
          and (select state from "supervisor".jobs where jobs.id = parents.child) = 5 offset 0) as its)
    select array_agg(id order by id) from found into children;
    if children is null then
      return;
    end if;
    perform from "supervisor".jobs where id = any(children) or id in (select parent from "supervisor".parents where child = any(children))
      order by id for no key update;
    with moved as (
        update "supervisor".jobs set state = -1, finished_at = null where id = any(children) and state = 5
        returning id, queue, tier),
      counted as (
      insert into "supervisor".counts(state, queue, tier, n)
      select change.state, queue, tier, sum(change.sign)
      from moved, (values (5, -1), (-1, 1)) as change(state, sign) group by change.state, queue, tier)
    select array_agg(id) from moved into children;
    update "supervisor".parents set link = case when exists (
        select from "supervisor".jobs where jobs.id = parents.parent and jobs.state <> 3) then 1 else 0 end
      where child = any(children) and link <> 3;
    return query select "supervisor".end_parents(array(
      select distinct parent from "supervisor".parents join "supervisor".jobs on jobs.id = parent and jobs.state > 3
      where child = any(children) and link = 1), false);
    perform "supervisor".wait_again(array(select id from "supervisor".jobs where id = any(children) and state = -1));
  end $$;
CREATE FUNCTION supervisor.resume_children(ids bigint[]) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
  declare
    free constant bigint[] := array(
      select id from "supervisor".jobs where id = any(ids) and state = -1 and not exists (
        select from "supervisor".parents where link = 1 and child = jobs.id) order by id);
  begin
    perform "supervisor".give_results(free);
    with moved as (
        update "supervisor".jobs set state = case when due_at > (select "supervisor".clock()) then 0 else 1 end, due_at = greatest(due_at, (select "supervisor".clock()))
        where id = any(free) returning state, queue, tier)
    insert into "supervisor".counts(state, queue, tier, n)
      select state, queue, tier, count(*) from moved group by state, queue, tier
      union all select -1, queue, tier, -count(*) from moved group by queue, tier;
    perform "supervisor".jobs_due(array(select id from "supervisor".jobs where id = any(free) and state = 1));
    return query select distinct queue from "supervisor".jobs where id = any(free) and state = 1;
  end $$;
CREATE FUNCTION supervisor.run_again(ids bigint[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
  declare
    waiting bigint[];
  begin
    perform "supervisor".wait_again(ids);
    perform "supervisor".restore_children(ids);
    perform from "supervisor".jobs where id in (select parent from "supervisor".parents where child = any(ids)) order by id for no key update;
    update "supervisor".parents set link = coalesce((
        select case when state < 3 then 1 when state > 3 then 3 end
        from "supervisor".jobs where jobs.id = parents.parent), 0)
      where child = any(ids);
    with moved as (
        update "supervisor".jobs set state = -1 where id = any(ids) and state = 1 and exists (
          select from "supervisor".parents where link = 1 and child = jobs.id) returning id, queue, tier),
      counted as (
      insert into "supervisor".counts(state, queue, tier, n)
      select change.state, queue, tier, sum(change.sign)
      from moved, (values (1, -1), (-1, 1)) as change(state, sign) group by change.state, queue, tier)
    select array_agg(id) from moved into waiting;
    perform "supervisor".give_results(array(select id from unnest(ids) as it(id) where id <> all(coalesce(waiting, '{}'))));
    perform "supervisor".jobs_due(array(select id from unnest(ids) as it(id) where id <> all(coalesce(waiting, '{}'))));
  end $$;
CREATE FUNCTION supervisor.set_group_shares(queues text[], of_queues text[], names text[], shares double precision[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  begin
    delete from "supervisor".group_shares where queues is null or queue = any(queues);
    insert into "supervisor".group_shares(queue, name, shares)
      select * from unnest(of_queues, names, shares) order by 1, 2 on conflict (queue, name) do update set shares = excluded.shares;
  end $$;
CREATE FUNCTION supervisor.tagged() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
      begin
        insert into "supervisor".job_tags(job_id, tag)
          select new.job_id, tag from json_array_elements_text(new.text::json -> 'tags') as its(tag) on conflict do nothing;
        return null;
      end $$;
CREATE FUNCTION supervisor.take_turns(ids bigint[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  declare
    its record;
    reached bigint;
    last_queue text;
    last_priority bigint;
  begin
    for its in
      select queue, priority, name, array_agg(id order by due_at, id) as members,
        coalesce((select ceil(720720 / shares) from "supervisor".group_shares
          where group_shares.queue = it.queue and group_shares.name = it.name), 720720)::bigint as width
      from (
        select *, max(name) over (partition by queue, priority) <> '' as shared
        from (
          select jobs.id, due_at, queue, priority, coalesce(extras.text::json ->> 'group', '') as name
          from "supervisor".jobs left join "supervisor".extras on extras.job_id = jobs.id
          where jobs.id = any(ids) and state + 0 = 1 and tier + 0 = 0) as it) as it
      where shared or exists (
        select from "supervisor".turns where turns.queue = it.queue and turns.priority = it.priority)
      group by queue, priority, name order by queue, priority, name
    loop
      if its.queue is distinct from last_queue or its.priority is distinct from last_priority then
        reached := "supervisor".reached_round(its.queue, its.priority, ids);
        last_queue := its.queue;
        last_priority := its.priority;
      end if;
      update "supervisor".jobs set age = (its_start + (place - 1) * its.width) / 720720
        from unnest(its.members) with ordinality as it(its_id, place),
          "supervisor".use_turns(its.queue, its.priority, its.name, reached, its.width * cardinality(its.members)) as its_start
        where jobs.id = its_id;
    end loop;
  end $$;
CREATE FUNCTION supervisor.untagged() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
      begin
        delete from "supervisor".job_tags where job_id = old.job_id;
        return null;
      end $$;
CREATE FUNCTION supervisor.use_turns(its_queue text, its_priority bigint, its_name text, reached bigint, needed bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  declare
    held constant bigint[] := array(
      select id from "supervisor".job_groups where queue = its_queue and priority = its_priority and name = its_name order by id for update skip locked);
    its_base bigint := (select max(base) from "supervisor".job_groups where queue = its_queue and priority = its_priority and name = its_name);
    start bigint := its_base + (
      select sum(used) from "supervisor".job_groups where queue = its_queue and priority = its_priority and name = its_name and base = its_base);
    own bigint := 0;
  begin
    if start >= reached * 720720 then
      own := coalesce((select sum(used) from "supervisor".job_groups where id = any(held) and base = its_base), 0);
    else
      if needed < 0 then
        return null;
      end if;
      its_base := reached * 720720;
      start := its_base;
    end if;
    if held = '{}' then
      insert into "supervisor".job_groups(queue, priority, name, base, used)
        values (its_queue, its_priority, its_name, its_base, needed);
    else
      update "supervisor".job_groups set base = its_base, used = own + needed where id = held[1];
      delete from "supervisor".job_groups where id = any(held[2:]);
    end if;
    return start;
  end $$;
CREATE FUNCTION supervisor.wait_again(ids bigint[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
  begin
    perform from "supervisor".jobs where id in (select child from "supervisor".parents where parent = any(ids)) order by id for no key update;
    update "supervisor".parents set link = 0 where parent = any(ids) and link = 3;
    update "supervisor".parents set link = 1 where parent = any(ids) and link = 0
      and exists (select from "supervisor".jobs where jobs.id = parents.child and jobs.state = -1)
      and exists (select from "supervisor".parents as other where other.link = 1 and other.child = parents.child);
  end $$;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE supervisor.attempts (
    id bigint NOT NULL,
    job_id bigint NOT NULL,
    at bigint NOT NULL,
    record text NOT NULL
);
ALTER TABLE supervisor.attempts ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME supervisor.attempts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE supervisor.counts (
    n bigint NOT NULL,
    state smallint NOT NULL,
    tier smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C"
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY supervisor.counts REPLICA IDENTITY FULL;
CREATE TABLE supervisor.dead_letters (
    job_id bigint NOT NULL,
    state smallint NOT NULL,
    token bigint DEFAULT 0 NOT NULL,
    owner bigint,
    due_at bigint NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    accepted text DEFAULT '[]'::text NOT NULL COLLATE pg_catalog."C",
    owed text DEFAULT '[]'::text NOT NULL COLLATE pg_catalog."C",
    CONSTRAINT claimable_dead_letter CHECK ((((state >= 0) AND (state <= 2)) AND ((token >= 0) AND (token <= '6917529027641081856'::bigint)) AND ((tries >= 0) AND (tries <= 1073741824)) AND ((due_at >= '-2305843009213693952'::bigint) AND (due_at <= '2305843009213693952'::bigint)) AND (jsonb_typeof((owed)::jsonb) = 'array'::text) AND (jsonb_typeof((accepted)::jsonb) = 'array'::text)))
);
CREATE TABLE supervisor.expiries (
    expires_at bigint NOT NULL,
    job_id bigint NOT NULL
);
CREATE TABLE supervisor.extras (
    job_id bigint NOT NULL,
    key text COLLATE pg_catalog."C",
    expires_at bigint,
    text text NOT NULL,
    CONSTRAINT "json" CHECK (((text)::json IS NOT NULL))
);
CREATE TABLE supervisor.group_shares (
    queue text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    shares double precision NOT NULL
);
CREATE TABLE supervisor.held_back (
    job_id bigint NOT NULL,
    age bigint NOT NULL,
    priority bigint NOT NULL,
    tier smallint NOT NULL,
    handler text NOT NULL COLLATE pg_catalog."C",
    queue text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE supervisor.job_groups (
    id bigint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    priority bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    base bigint NOT NULL,
    used bigint NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');
ALTER TABLE supervisor.job_groups ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME supervisor.job_groups_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE supervisor.job_tags (
    job_id bigint NOT NULL,
    tag text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE supervisor.jobs (
    id bigint NOT NULL,
    age bigint,
    token bigint DEFAULT 0 NOT NULL,
    settled bigint,
    owner bigint,
    lease_until bigint,
    started_at bigint,
    due_at bigint DEFAULT supervisor.clock() NOT NULL,
    created_at bigint DEFAULT supervisor.clock() NOT NULL,
    finished_at bigint,
    priority bigint DEFAULT 0 NOT NULL,
    retries integer DEFAULT 0 NOT NULL,
    expired_count integer DEFAULT 0 NOT NULL,
    state smallint DEFAULT 1 NOT NULL,
    tier smallint DEFAULT 0 NOT NULL,
    queue text DEFAULT 'default'::text NOT NULL COLLATE pg_catalog."C",
    handler text NOT NULL,
    payload text,
    headers text,
    options text,
    policy text,
    result text,
    linked boolean,
    CONSTRAINT claimable CHECK ((((state >= '-1'::integer) AND (state <= 5)) AND (tier = ANY (ARRAY[0, 1])) AND ((retries >= 0) AND (retries <= 1000)) AND ((due_at >= '-1152921504606846976'::bigint) AND (due_at <= '1152921504606846976'::bigint)) AND ((created_at >= '-1152921504606846976'::bigint) AND (created_at <= '1152921504606846976'::bigint)) AND ((options IS NULL) OR COALESCE(((options)::jsonb @@ 'strict (((($.type() == "array" && $.size() == 3) && ($[0] == null || ($[0] >= 0 && $[0] <= 1000) && $[0].floor() == $[0])) && ($[1] == null || $[1] >= 0 && $[1] <= 3153600000)) && ($[2] == null || ((((((($[2].type() == "array" && $[2].size() == 4) && $[2][0] >= 0) && $[2][0] <= 3153600000) && $[2][1] >= 1) && $[2][1] <= 1000) && $[2][2] >= 0) && $[2][2] <= 3153600000) && (($[2][3] == "full" || $[2][3] == "none") || $[2][3] >= 0 && $[2][3] <= 3153600000)))'::jsonpath), false)))),
    CONSTRAINT leased CHECK (((state <> 2) OR ((owner IS NOT NULL) AND (lease_until IS NOT NULL))))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.05');
ALTER TABLE supervisor.jobs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME supervisor.jobs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE supervisor.key_holders (
    key text NOT NULL COLLATE pg_catalog."C",
    job_id bigint NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE supervisor.key_waiters (
    key text NOT NULL COLLATE pg_catalog."C",
    job_id bigint NOT NULL
);
CREATE TABLE supervisor.limited_leases (
    name text NOT NULL COLLATE pg_catalog."C",
    job_id bigint NOT NULL,
    token bigint NOT NULL
);
CREATE TABLE supervisor.limits (
    name text NOT NULL COLLATE pg_catalog."C",
    times text NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE supervisor.parents (
    child bigint NOT NULL,
    parent bigint NOT NULL,
    place integer NOT NULL,
    on_failed smallint NOT NULL,
    link smallint DEFAULT 1 NOT NULL
);
CREATE TABLE supervisor.queues (
    queue text NOT NULL COLLATE pg_catalog."C",
    paused boolean NOT NULL
);
CREATE TABLE supervisor.reports (
    job_id bigint NOT NULL,
    progress text,
    progress_at bigint,
    log text
)
WITH (fillfactor='70');
CREATE TABLE supervisor.schedules (
    name text NOT NULL COLLATE pg_catalog."C",
    handler text DEFAULT ''::text NOT NULL,
    timing text DEFAULT ''::text NOT NULL,
    since bigint NOT NULL,
    last bigint,
    outcome text DEFAULT ''::text NOT NULL,
    paused boolean DEFAULT false NOT NULL,
    last_job bigint
)
WITH (fillfactor='70');
CREATE TABLE supervisor.snoozes (
    job_id bigint NOT NULL,
    n integer NOT NULL,
    until bigint NOT NULL
)
WITH (fillfactor='70');
CREATE TABLE supervisor.supervisors (
    id bigint NOT NULL,
    owner text NOT NULL,
    host text NOT NULL,
    pid bigint NOT NULL,
    owner_lock text,
    state text NOT NULL,
    seen_at bigint NOT NULL,
    unseen_after bigint NOT NULL,
    idle integer DEFAULT 0 NOT NULL,
    workers text DEFAULT '[]'::text NOT NULL,
    sinks text DEFAULT '[]'::text NOT NULL,
    about text DEFAULT '{}'::text NOT NULL
)
WITH (fillfactor='50');
ALTER TABLE supervisor.supervisors ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME supervisor.supervisors_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE supervisor.turns (
    id bigint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    priority bigint NOT NULL,
    round bigint NOT NULL
)
WITH (fillfactor='50');
ALTER TABLE supervisor.turns ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME supervisor.turns_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE supervisor.unique_jobs (
    unique_key text NOT NULL COLLATE pg_catalog."C",
    job_id bigint NOT NULL,
    below smallint NOT NULL,
    until bigint
)
WITH (fillfactor='70');
CREATE TABLE supervisor.version (
    version integer NOT NULL
);
ALTER TABLE ONLY supervisor.version REPLICA IDENTITY FULL;
INSERT INTO supervisor.attempts OVERRIDING SYSTEM VALUE VALUES (1, 1, 1796073557285894, '{"cause":"exception","type":"ValueError","message":"no","traceback":"Traceback","attempt":1,"at":0,"exit_code":null,"signal":null,"peak_memory":null,"oom_suspected":false,"heartbeat_age":null,"stack":null,"stderr":null,"host":null,"pid":null}');
INSERT INTO supervisor.counts VALUES (4, 1, 0, 'default');
INSERT INTO supervisor.counts VALUES (-1, 1, 0, 'default');
INSERT INTO supervisor.counts VALUES (1, 2, 0, 'default');
INSERT INTO supervisor.counts VALUES (-3, 1, 0, 'default');
INSERT INTO supervisor.counts VALUES (3, -1, 0, 'default');
INSERT INTO supervisor.counts VALUES (-1, -1, 0, 'default');
INSERT INTO supervisor.counts VALUES (1, 5, 0, 'default');
INSERT INTO supervisor.counts VALUES (2, 1, 0, 'default');
INSERT INTO supervisor.counts VALUES (1, -1, 0, 'default');
INSERT INTO supervisor.counts VALUES (-1, 1, 0, 'default');
INSERT INTO supervisor.counts VALUES (3, 1, 0, 'default');
INSERT INTO supervisor.counts VALUES (1, 1, 0, 'default');
INSERT INTO supervisor.counts VALUES (1, -1, 0, 'default');
INSERT INTO supervisor.counts VALUES (1, 0, 0, 'default');
INSERT INTO supervisor.counts VALUES (-1, 2, 0, 'default');
INSERT INTO supervisor.counts VALUES (1, 0, 1, 'default');
INSERT INTO supervisor.expiries VALUES (1796080757242906, 12);
INSERT INTO supervisor.extras VALUES (5, 'k', NULL, '{"key":"k"}');
INSERT INTO supervisor.extras VALUES (6, 'k', NULL, '{"key":"k"}');
INSERT INTO supervisor.extras VALUES (7, NULL, NULL, '{"group":"a"}');
INSERT INTO supervisor.extras VALUES (8, NULL, NULL, '{"group":"a"}');
INSERT INTO supervisor.extras VALUES (9, NULL, NULL, '{"group":"b"}');
INSERT INTO supervisor.extras VALUES (10, NULL, NULL, '{"unique":"u"}');
INSERT INTO supervisor.extras VALUES (11, NULL, NULL, '{"after": [10]}');
INSERT INTO supervisor.extras VALUES (12, NULL, 1796080757242906, '{"tags":["t"],"expires":7200000000}');
INSERT INTO supervisor.held_back VALUES (2, 2, 0, 0, 'mail', 'default');
INSERT INTO supervisor.held_back VALUES (3, 3, 0, 0, 'mail', 'default');
INSERT INTO supervisor.job_groups OVERRIDING SYSTEM VALUE VALUES (2, 'default', 0, 'a', 3603600, 1441440);
INSERT INTO supervisor.job_groups OVERRIDING SYSTEM VALUE VALUES (3, 'default', 0, 'b', 3603600, 720720);
INSERT INTO supervisor.job_groups OVERRIDING SYSTEM VALUE VALUES (1, 'default', 0, '', 4324320, 720720);
INSERT INTO supervisor.job_tags VALUES (12, 't');
INSERT INTO supervisor.jobs OVERRIDING SYSTEM VALUE VALUES (2, 2, 0, NULL, NULL, NULL, NULL, 1796073557051196, 1796073557051196, NULL, 0, 0, 0, -1, 0, 'default', 'mail', '"1"', NULL, NULL, NULL, NULL, NULL);
INSERT INTO supervisor.jobs OVERRIDING SYSTEM VALUE VALUES (3, 3, 0, NULL, NULL, NULL, NULL, 1796073557051196, 1796073557051196, NULL, 0, 0, 0, -1, 0, 'default', 'mail', '"2"', NULL, NULL, NULL, NULL, NULL);
INSERT INTO supervisor.jobs OVERRIDING SYSTEM VALUE VALUES (4, 4, 1, NULL, NULL, NULL, NULL, 1796073557051196, 1796073557051196, 1796073557171714, 0, 0, 0, 5, 0, 'default', 'mail', '"3"', NULL, NULL, NULL, NULL, NULL);
INSERT INTO supervisor.jobs OVERRIDING SYSTEM VALUE VALUES (5, 5, 0, NULL, NULL, NULL, NULL, 1796073557187402, 1796073557187402, NULL, 0, 0, 0, 1, 0, 'default', 'work', '{}', NULL, NULL, NULL, NULL, true);
INSERT INTO supervisor.jobs OVERRIDING SYSTEM VALUE VALUES (6, 6, 0, NULL, NULL, NULL, NULL, 1796073557187402, 1796073557187402, NULL, 0, 0, 0, -1, 0, 'default', 'work', '{}', NULL, NULL, NULL, NULL, true);
INSERT INTO supervisor.jobs OVERRIDING SYSTEM VALUE VALUES (7, 5, 0, NULL, NULL, NULL, NULL, 1796073557196639, 1796073557196639, NULL, 0, 0, 0, 1, 0, 'default', 'work', '{}', NULL, NULL, NULL, NULL, false);
INSERT INTO supervisor.jobs OVERRIDING SYSTEM VALUE VALUES (8, 6, 0, NULL, NULL, NULL, NULL, 1796073557196639, 1796073557196639, NULL, 0, 0, 0, 1, 0, 'default', 'work', '{}', NULL, NULL, NULL, NULL, false);
INSERT INTO supervisor.jobs OVERRIDING SYSTEM VALUE VALUES (9, 5, 0, NULL, NULL, NULL, NULL, 1796073557196639, 1796073557196639, NULL, 0, 0, 0, 1, 0, 'default', 'work', '{}', NULL, NULL, NULL, NULL, false);
INSERT INTO supervisor.jobs OVERRIDING SYSTEM VALUE VALUES (11, 11, 0, NULL, NULL, NULL, NULL, 1796073557229519, 1796073557229519, NULL, 0, 0, 0, -1, 0, 'default', 'work', '{}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO supervisor.jobs OVERRIDING SYSTEM VALUE VALUES (10, 6, 0, NULL, NULL, NULL, NULL, 1796073557210749, 1796073557210749, NULL, 0, 0, 0, 1, 0, 'default', 'work', '{}', NULL, NULL, NULL, NULL, true);
INSERT INTO supervisor.jobs OVERRIDING SYSTEM VALUE VALUES (12, 12, 0, NULL, NULL, NULL, NULL, 1796077157242906, 1796073557242906, NULL, 0, 0, 0, 0, 0, 'default', 'work', '{}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO supervisor.jobs OVERRIDING SYSTEM VALUE VALUES (1, 1796073567282484, 1, 1, NULL, NULL, NULL, 1796073567282484, 1796073557051196, NULL, 0, 1, 0, 0, 1, 'default', 'mail', '"0"', NULL, NULL, '[3,[0.5,2.0,30.0,"full"],5.0,30.0]', NULL, NULL);
INSERT INTO supervisor.key_holders VALUES ('k', 5);
INSERT INTO supervisor.key_waiters VALUES ('k', 6);
INSERT INTO supervisor.limited_leases VALUES ('handler mail', 1, 1);
INSERT INTO supervisor.limits VALUES ('handler mail', '[[1796073557146157,1]]');
INSERT INTO supervisor.parents VALUES (11, 10, 1, 0, 1);
INSERT INTO supervisor.supervisors OVERRIDING SYSTEM VALUE VALUES (1, 'host-1-aaaaaaaaaaaaaaaa', 'host', 4711, '["e1ad1865-b884-4ce5-a021-7387281ae09a","net:[4026531833]","supervisor-9bf5b7e3ff2d491427b26f81b5a04d74"]', 'starting', 1796073557021835, 0, 0, '[]', '["file"]', '{}');
INSERT INTO supervisor.turns OVERRIDING SYSTEM VALUE VALUES (1, 'default', 0, 5);
INSERT INTO supervisor.unique_jobs VALUES ('u', 10, 3, NULL);
INSERT INTO supervisor.version VALUES (3);
SELECT pg_catalog.setval('supervisor.attempts_id_seq', 1, true);
SELECT pg_catalog.setval('supervisor.job_groups_id_seq', 3, true);
SELECT pg_catalog.setval('supervisor.jobs_id_seq', 12, true);
SELECT pg_catalog.setval('supervisor.supervisors_id_seq', 1, true);
SELECT pg_catalog.setval('supervisor.turns_id_seq', 1, true);
ALTER TABLE ONLY supervisor.attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY supervisor.dead_letters
    ADD CONSTRAINT dead_letters_pkey PRIMARY KEY (job_id);
ALTER TABLE ONLY supervisor.expiries
    ADD CONSTRAINT expiries_pkey PRIMARY KEY (expires_at, job_id);
ALTER TABLE ONLY supervisor.extras
    ADD CONSTRAINT extras_pkey PRIMARY KEY (job_id);
ALTER TABLE ONLY supervisor.group_shares
    ADD CONSTRAINT group_shares_pkey PRIMARY KEY (queue, name);
ALTER TABLE ONLY supervisor.held_back
    ADD CONSTRAINT held_back_pkey PRIMARY KEY (job_id);
ALTER TABLE ONLY supervisor.job_groups
    ADD CONSTRAINT job_groups_pkey PRIMARY KEY (id);
ALTER TABLE ONLY supervisor.job_tags
    ADD CONSTRAINT job_tags_pkey PRIMARY KEY (job_id, tag);
ALTER TABLE ONLY supervisor.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY supervisor.key_holders
    ADD CONSTRAINT key_holders_pkey PRIMARY KEY (key);
ALTER TABLE ONLY supervisor.key_waiters
    ADD CONSTRAINT key_waiters_pkey PRIMARY KEY (key, job_id);
ALTER TABLE ONLY supervisor.limited_leases
    ADD CONSTRAINT limited_leases_pkey PRIMARY KEY (name, job_id);
ALTER TABLE ONLY supervisor.limits
    ADD CONSTRAINT limits_pkey PRIMARY KEY (name);
ALTER TABLE ONLY supervisor.parents
    ADD CONSTRAINT parents_pkey PRIMARY KEY (child, parent);
ALTER TABLE ONLY supervisor.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (queue);
ALTER TABLE ONLY supervisor.reports
    ADD CONSTRAINT reports_pkey PRIMARY KEY (job_id);
ALTER TABLE ONLY supervisor.schedules
    ADD CONSTRAINT schedules_pkey PRIMARY KEY (name);
ALTER TABLE ONLY supervisor.snoozes
    ADD CONSTRAINT snoozes_pkey PRIMARY KEY (job_id);
ALTER TABLE ONLY supervisor.supervisors
    ADD CONSTRAINT supervisors_owner_key UNIQUE (owner);
ALTER TABLE ONLY supervisor.supervisors
    ADD CONSTRAINT supervisors_pkey PRIMARY KEY (id);
ALTER TABLE ONLY supervisor.turns
    ADD CONSTRAINT turns_pkey PRIMARY KEY (id);
ALTER TABLE ONLY supervisor.unique_jobs
    ADD CONSTRAINT unique_jobs_pkey PRIMARY KEY (unique_key);
CREATE INDEX attempts_of ON supervisor.attempts USING btree (job_id, id);
CREATE INDEX blocked ON supervisor.jobs USING btree (id) WHERE (state = '-1'::integer);
CREATE INDEX children ON supervisor.parents USING btree (parent, child);
CREATE INDEX counts_by_queue ON supervisor.counts USING btree (state, queue, tier);
CREATE INDEX held_back_lines ON supervisor.held_back USING btree (handler, queue, tier, priority DESC, age, job_id);
CREATE UNIQUE INDEX held_by ON supervisor.key_holders USING btree (job_id);
CREATE INDEX in_flight ON supervisor.jobs USING btree (owner) WHERE (state = 2);
CREATE INDEX job_groups_by_name ON supervisor.job_groups USING btree (queue, priority, name);
CREATE INDEX jobs_by_tag ON supervisor.job_tags USING btree (tag, job_id);
CREATE INDEX open_links ON supervisor.parents USING btree (child) WHERE (link = 1);
CREATE INDEX pending_dead_letters ON supervisor.dead_letters USING btree (hashtextextended((owed || accepted), (0)::bigint), due_at, job_id) WHERE (state = 1);
CREATE INDEX ready ON supervisor.jobs USING btree (queue, tier, priority DESC, age, id) WHERE (state = 1);
CREATE INDEX scheduled ON supervisor.jobs USING btree (due_at, id) WHERE (state = 0);
CREATE INDEX terminal ON supervisor.jobs USING btree (state, finished_at) WHERE (state >= 3);
CREATE INDEX turns_by_queue ON supervisor.turns USING btree (queue, priority);
CREATE INDEX unique_until ON supervisor.unique_jobs USING btree (until) WHERE (until IS NOT NULL);
CREATE TRIGGER inserted_by_sql AFTER INSERT ON supervisor.jobs FOR EACH ROW WHEN ((new.age IS NULL)) EXECUTE FUNCTION supervisor.inserted_by_sql();
CREATE TRIGGER inserted_takes_turn AFTER INSERT ON supervisor.jobs FOR EACH ROW WHEN ((new.age IS NULL)) EXECUTE FUNCTION supervisor.inserted_takes_turn();
CREATE TRIGGER jobs_deleted AFTER DELETE ON supervisor.jobs REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION supervisor.jobs_deleted();
CREATE TRIGGER jobs_truncated AFTER TRUNCATE ON supervisor.jobs FOR EACH STATEMENT EXECUTE FUNCTION supervisor.jobs_truncated();
CREATE TRIGGER queue_changed AFTER UPDATE OF queue ON supervisor.jobs FOR EACH ROW WHEN ((old.queue IS DISTINCT FROM new.queue)) EXECUTE FUNCTION supervisor.queue_changed();
CREATE TRIGGER tagged AFTER INSERT ON supervisor.extras FOR EACH ROW WHEN ((POSITION(('"tags"'::text) IN (new.text)) > 0)) EXECUTE FUNCTION supervisor.tagged();
CREATE TRIGGER untagged AFTER DELETE ON supervisor.extras FOR EACH ROW WHEN ((POSITION(('"tags"'::text) IN (old.text)) > 0)) EXECUTE FUNCTION supervisor.untagged();
REVOKE ALL ON FUNCTION supervisor.acquire_keys(ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.cancel_children(ids bigint[], deleted boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.checked_choice(what text, value text, choices text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.checked_extras(unique_key text, unique_while text, on_conflict text, key text, on_failure text, job_group text, after bigint[], on_parent_failed text, tags text[], expires interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.checked_json(what text, value json) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.checked_name(what text, value text) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.checked_seconds(what text, value interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.checked_while(value text) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.clock() FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.end_jobs(ids bigint[], deleted boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.end_lost_parents() FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.end_parents(ids bigint[], deleted boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.enqueue(handler text, payload json, queue text, priority bigint, delay interval, at timestamp with time zone, max_retries integer, timeout interval, headers json, unique_key text, unique_while text, on_conflict text, key text, on_failure text, job_group text, after bigint[], on_parent_failed text, tags text[], expires interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.forget_groups(most bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.free_turns(ids bigint[], had boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.give_results(ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.headers_with(headers text, parents json) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.inserted_by_sql() FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.inserted_takes_turn() FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.jobs_deleted() FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.jobs_due(ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.jobs_ended(ids bigint[], deleted boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.jobs_lost() FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.jobs_run_again(ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.jobs_truncated() FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.link_children(ids bigint[], jobs json) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.lock_children(ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.pass_on_keys(keys text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.pass_on_lost_keys() FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.put(jobs json) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.put_new(jobs json) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.put_unique(batch json) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.queue_changed() FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.reached_round(its_queue text, its_priority bigint, without bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.release_keys(ids bigint[], deleted boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.replace_jobs(batch json, ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.restore_children(ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.resume_children(ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.run_again(ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.set_group_shares(queues text[], of_queues text[], names text[], shares double precision[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.tagged() FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.take_turns(ids bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.untagged() FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.use_turns(its_queue text, its_priority bigint, its_name text, reached bigint, needed bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION supervisor.wait_again(ids bigint[]) FROM PUBLIC;
GRANT SELECT ON TABLE supervisor.turns TO PUBLIC;
GRANT SELECT ON TABLE supervisor.version TO PUBLIC;
