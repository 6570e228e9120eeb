--
-- PostgreSQL database dump
--

\restrict LkA2lwUeXffJxsqfyRRTtPcyBT1AOTfGVWqliR7lJiy1HsB4SBDqa3BNLYoNt1U

-- Dumped from database version 18.6
-- Dumped by pg_dump version 18.6

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

--
-- Name: supervisor; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA supervisor;


--
-- Name: checked_json(text, json); Type: FUNCTION; Schema: supervisor; Owner: -
--

CREATE FUNCTION supervisor.checked_json(what text, value json) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
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


--
-- Name: checked_name(text, text); Type: FUNCTION; Schema: supervisor; Owner: -
--

CREATE FUNCTION supervisor.checked_name(what text, value text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  begin
    if value is null or length(value) not between 1 and 255 or value ~ '^ | $|[\u0001-\u001f\u007f-\u00a0\u00ad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ue000-\uf8ff\ufeff\ufff9-\ufffb]' then
      raise exception using errcode = 'invalid_parameter_value',
        message = format('%s: expected a name of 1 to 255 printable characters, got %L', what, left(value, 80));
    end if;
    return value;
  end $_$;


--
-- Name: checked_seconds(text, interval); Type: FUNCTION; Schema: supervisor; Owner: -
--

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


--
-- Name: clock(); Type: FUNCTION; Schema: supervisor; Owner: -
--

CREATE FUNCTION supervisor.clock() RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$select (extract(epoch from pg_catalog.statement_timestamp()) operator(pg_catalog.*) 1000000::numeric)::bigint$$;


--
-- Name: enqueue(text, json, text, bigint, interval, timestamp with time zone, integer, interval, json); Type: FUNCTION; Schema: supervisor; Owner: -
--

CREATE FUNCTION supervisor.enqueue(handler text, payload json DEFAULT 'null'::json, queue text DEFAULT 'default'::text, priority bigint DEFAULT 0, delay interval DEFAULT NULL::interval, at timestamp with time zone DEFAULT NULL::timestamp with time zone, max_retries integer DEFAULT NULL::integer, timeout interval DEFAULT NULL::interval, headers json DEFAULT NULL::json) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  declare
    wrong text;
    options text;
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
    return ("supervisor".put(json_build_array(json_build_object(
      'handler', "supervisor".checked_name('handler', handler),
      'queue', "supervisor".checked_name('queue', queue),
      'payload', "supervisor".checked_json('payload', payload),
      'headers', case when json_typeof(headers) = 'object' then "supervisor".checked_json('headers', headers) end,
      'priority', priority,
      'options', options,
      'delay', ("supervisor".checked_seconds('delay', delay) * 1000000)::bigint,
      'at', (extract(epoch from at) * 1000000)::bigint))))[1];
  end $$;


--
-- Name: put(json); Type: FUNCTION; Schema: supervisor; Owner: -
--

CREATE FUNCTION supervisor.put(jobs json) RETURNS bigint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  declare
    now constant bigint := "supervisor".clock();
    ids bigint[];
  begin
    with it as (
        select it.*, nextval((select pg_get_serial_sequence('"supervisor".jobs', 'id')::regclass)) as id, coalesce(now + it.delay, it.at, now) as due
        from rows from (json_to_recordset(jobs) as (handler text, queue text, payload text, headers text, priority bigint,
          options text, delay bigint, at bigint)) with ordinality
          as it(handler, queue, payload, headers, priority, options, delay, at, place) order by place),
      put as (
        insert into "supervisor".jobs(id, age, handler, queue, payload, headers, priority, options, due_at, created_at, state)
        select it.id, it.id, it.handler, it.queue, it.payload, it.headers, it.priority, it.options, it.due, now,
          case when it.due > now then 0 else 1 end from it
        returning jobs.id, jobs.queue, jobs.state),
      counted as (
        insert into "supervisor".counts(state, queue, tier, n) select put.state, put.queue, 0, count(*) from put
        group by put.state, put.queue)
    select coalesce(array_agg(put.id order by put.id), '{}') into ids from put;
    perform pg_notify('supervisor.bell', '');
    return ids;
  end $$;


--
-- Name: put_by_hand(); Type: FUNCTION; Schema: supervisor; Owner: -
--

CREATE FUNCTION supervisor.put_by_hand() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  begin
    if new.token not between 0 and 4611686018427387904 or new.lapses not between 0 and 1073741824 then
      raise exception using errcode = 'check_violation',
        message = 'token: expected 0 to 4611686018427387904; lapses: expected 0 to 1073741824';
    end if;
    if new.state = 1 and new.due_at > "supervisor".clock() then
      new.state = 0;
    end if;
    update "supervisor".jobs set age = new.id, state = new.state where id = new.id;
    insert into "supervisor".counts(state, queue, tier, n) values (new.state, new.queue, new.tier, 1);
    perform pg_notify('supervisor.bell', '');
    return null;
  end $$;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: attempts; Type: TABLE; Schema: supervisor; Owner: -
--

CREATE TABLE supervisor.attempts (
    id bigint NOT NULL,
    job_id bigint NOT NULL,
    at bigint NOT NULL,
    record text NOT NULL
);


--
-- Name: attempts_id_seq; Type: SEQUENCE; Schema: supervisor; Owner: -
--

ALTER TABLE supervisor.attempts ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME supervisor.attempts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: counts; Type: TABLE; Schema: supervisor; Owner: -
--

CREATE TABLE supervisor.counts (
    n bigint NOT NULL,
    state smallint NOT NULL,
    tier smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C"
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');


--
-- Name: jobs; Type: TABLE; Schema: supervisor; Owner: -
--

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
    lapses integer DEFAULT 0 NOT NULL,
    state smallint DEFAULT 1 NOT NULL,
    tier smallint DEFAULT 0 NOT NULL,
    queue text DEFAULT 'default'::text NOT NULL COLLATE pg_catalog."C",
    handler text NOT NULL,
    payload text,
    headers text,
    options text,
    policy text,
    result text,
    CONSTRAINT claimable CHECK ((((state >= 0) AND (state <= 5)) AND (tier = ANY (ARRAY[0, 1])) AND ((retries >= 0) AND (retries <= 1000)) AND ((due_at >= '-1152921504606846976'::bigint) AND (due_at <= '1152921504606846976'::bigint)) AND ((created_at >= '-1152921504606846976'::bigint) AND (created_at <= '1152921504606846976'::bigint)) AND ((options IS NULL) OR COALESCE(((options)::jsonb @@ 'strict (((($.type() == "array" && $.size() == 3) && ($[0] == null || ($[0] >= 0 && $[0] <= 1000) && $[0].floor() == $[0])) && ($[1] == null || $[1] >= 0 && $[1] <= 3153600000)) && ($[2] == null || ((((((($[2].type() == "array" && $[2].size() == 4) && $[2][0] >= 0) && $[2][0] <= 3153600000) && $[2][1] >= 1) && $[2][1] <= 1000) && $[2][2] >= 0) && $[2][2] <= 3153600000) && (($[2][3] == "full" || $[2][3] == "none") || $[2][3] >= 0 && $[2][3] <= 3153600000)))'::jsonpath), false))))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.05');


--
-- Name: jobs_id_seq; Type: SEQUENCE; Schema: supervisor; Owner: -
--

ALTER TABLE supervisor.jobs ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME supervisor.jobs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: letters; Type: TABLE; Schema: supervisor; Owner: -
--

CREATE TABLE supervisor.letters (
    job_id bigint NOT NULL,
    state smallint NOT NULL,
    token bigint DEFAULT 0 NOT NULL,
    owner bigint,
    due_at bigint NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    accepted text DEFAULT '[]'::text NOT NULL
);


--
-- Name: queues; Type: TABLE; Schema: supervisor; Owner: -
--

CREATE TABLE supervisor.queues (
    queue text NOT NULL COLLATE pg_catalog."C",
    paused boolean NOT NULL
);


--
-- Name: supervisors; Type: TABLE; Schema: supervisor; Owner: -
--

CREATE TABLE supervisor.supervisors (
    id bigint NOT NULL,
    owner text NOT NULL,
    host text NOT NULL,
    pid bigint NOT NULL,
    place text,
    state text NOT NULL,
    seen_at bigint NOT NULL,
    unseen_after bigint NOT NULL,
    idle integer DEFAULT 0 NOT NULL,
    workers text DEFAULT '[]'::text NOT NULL
)
WITH (fillfactor='50');


--
-- Name: supervisors_id_seq; Type: SEQUENCE; Schema: supervisor; Owner: -
--

ALTER TABLE supervisor.supervisors ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME supervisor.supervisors_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: version; Type: TABLE; Schema: supervisor; Owner: -
--

CREATE TABLE supervisor.version (
    version integer NOT NULL
);


--
-- Data for Name: attempts; Type: TABLE DATA; Schema: supervisor; Owner: -
--

INSERT INTO supervisor.attempts OVERRIDING SYSTEM VALUE VALUES (1, 1, 1795962712075314, '{"cause":"exception","type":"ValueError","message":"no","traceback":"trace","attempt":1,"at":0,"exit_code":null,"signal":null,"peak_memory":null,"oom_suspected":false,"heartbeat_age":null,"stack":null,"stderr":null,"host":"host","pid":9}');
INSERT INTO supervisor.attempts OVERRIDING SYSTEM VALUE VALUES (2, 7, 1795962712075314, '{"cause":"exception","type":"ValueError","message":"no","traceback":"trace","attempt":1,"at":0,"exit_code":null,"signal":null,"peak_memory":null,"oom_suspected":false,"heartbeat_age":null,"stack":null,"stderr":null,"host":"host","pid":9}');
INSERT INTO supervisor.attempts OVERRIDING SYSTEM VALUE VALUES (3, 2, 1795962712083152, '{"cause":"exception","type":"ValueError","message":"no","traceback":"trace","attempt":1,"at":0,"exit_code":null,"signal":null,"peak_memory":null,"oom_suspected":false,"heartbeat_age":null,"stack":null,"stderr":null,"host":"host","pid":9}');


--
-- Data for Name: counts; Type: TABLE DATA; Schema: supervisor; Owner: -
--

INSERT INTO supervisor.counts VALUES (4, 1, 0, 'default');
INSERT INTO supervisor.counts VALUES (4, 1, 0, 'slow');
INSERT INTO supervisor.counts VALUES (1, 0, 0, 'default');
INSERT INTO supervisor.counts VALUES (-3, 1, 0, 'default');
INSERT INTO supervisor.counts VALUES (3, 2, 0, 'default');
INSERT INTO supervisor.counts VALUES (-3, 2, 0, 'default');
INSERT INTO supervisor.counts VALUES (1, 3, 0, 'default');
INSERT INTO supervisor.counts VALUES (1, 4, 0, 'default');
INSERT INTO supervisor.counts VALUES (1, 0, 1, 'default');
INSERT INTO supervisor.counts VALUES (-2, 1, 0, 'slow');
INSERT INTO supervisor.counts VALUES (2, 2, 0, 'slow');
INSERT INTO supervisor.counts VALUES (-1, 2, 0, 'slow');
INSERT INTO supervisor.counts VALUES (1, 4, 0, 'slow');
INSERT INTO supervisor.counts VALUES (-1, 1, 0, 'slow');
INSERT INTO supervisor.counts VALUES (1, 5, 0, 'slow');
INSERT INTO supervisor.counts VALUES (-1, 2, 0, 'slow');
INSERT INTO supervisor.counts VALUES (1, 1, 0, 'slow');
INSERT INTO supervisor.counts VALUES (-1, 1, 0, 'default');
INSERT INTO supervisor.counts VALUES (1, 2, 0, 'default');


--
-- Data for Name: jobs; Type: TABLE DATA; Schema: supervisor; Owner: -
--

INSERT INTO supervisor.jobs VALUES (4, 4, 0, NULL, NULL, NULL, NULL, 1795962712062270, 1795962712062270, NULL, 1, 0, 0, 1, 0, 'slow', 'mail', '{"n":4}', NULL, NULL, NULL, NULL);
INSERT INTO supervisor.jobs VALUES (9, 9, 0, NULL, NULL, NULL, NULL, 1795966312064548, 1795962712064548, NULL, 0, 0, 0, 0, 0, 'default', 'later', 'null', NULL, NULL, NULL, NULL);
INSERT INTO supervisor.jobs VALUES (5, 5, 1, 1, NULL, NULL, 1795962711822944, 1795962712062270, 1795962712062270, 1795962712072944, 2, 0, 0, 3, 0, 'default', 'mail', '{"n":5}', NULL, NULL, '[3,[0.5,2.0,30.0,"full"],300.0,30.0]', '{"ok":true}');
INSERT INTO supervisor.jobs VALUES (1, 1, 1, 1, NULL, NULL, 1795962711574232, 1795962712062270, 1795962712062270, 1795962712074232, 1, 0, 0, 4, 0, 'default', 'mail', '{"n":1}', '{"trace":"x"}', NULL, '[3,[0.5,2.0,30.0,"full"],300.0,30.0]', NULL);
INSERT INTO supervisor.jobs VALUES (7, 1795962772074232, 1, 1, NULL, NULL, 1795962711574232, 1795962772074232, 1795962712062270, NULL, 1, 1, 0, 0, 1, 'default', 'mail', '{"n":7}', NULL, NULL, '[3,[0.5,2.0,30.0,"full"],300.0,30.0]', NULL);
INSERT INTO supervisor.jobs VALUES (2, 2, 1, 1, NULL, NULL, 1795962711582431, 1795962712062270, 1795962712062270, 1795962712082431, 2, 0, 0, 4, 0, 'slow', 'mail', '{"n":2}', NULL, '[0,null,null]', '[3,[0.5,2.0,30.0,"full"],300.0,30.0]', NULL);
INSERT INTO supervisor.jobs VALUES (6, 6, 1, NULL, NULL, NULL, NULL, 1795962712062270, 1795962712062270, 1795962712094892, 0, 0, 0, 5, 0, 'slow', 'mail', '{"n":6}', NULL, NULL, NULL, NULL);
INSERT INTO supervisor.jobs VALUES (8, 8, 1, NULL, NULL, NULL, NULL, 1795962712062270, 1795962712062270, NULL, 2, 0, 1, 1, 0, 'slow', 'mail', '{"n":8}', NULL, NULL, '[3,[0.5,2.0,30.0,"full"],300.0,30.0]', NULL);
INSERT INTO supervisor.jobs VALUES (3, 3, 1, NULL, 2, 1795963312123355, NULL, 1795962712062270, 1795962712062270, NULL, 0, 0, 0, 2, 0, 'default', 'mail', '{"n":3}', NULL, '[null,null,[1.0,2.0,8.0,"none"]]', '[3,[0.5,2.0,30.0,"full"],300.0,30.0]', NULL);


--
-- Data for Name: letters; Type: TABLE DATA; Schema: supervisor; Owner: -
--

INSERT INTO supervisor.letters VALUES (1, 2, 1, 1, 1795962772087342, 1, '["file"]');
INSERT INTO supervisor.letters VALUES (2, 1, 1, 1, 1795962717092619, 1, '["file"]');


--
-- Data for Name: queues; Type: TABLE DATA; Schema: supervisor; Owner: -
--

INSERT INTO supervisor.queues VALUES ('slow', true);


--
-- Data for Name: supervisors; Type: TABLE DATA; Schema: supervisor; Owner: -
--

INSERT INTO supervisor.supervisors OVERRIDING SYSTEM VALUE VALUES (1, 'host-1-aaaaaaaaaaaaaaaa', 'host', 1, '["5712bcc3-3592-4c48-8f99-2ccc14877a99","net:[4026531833]","supervisor-9bf5b7e3ff2d491427b26f81b5a04d74"]', 'starting', 1795962712054100, 1795966312054100, 0, '[]');
INSERT INTO supervisor.supervisors OVERRIDING SYSTEM VALUE VALUES (2, 'host-2-bbbbbbbbbbbbbbbb', 'host', 2, '["5712bcc3-3592-4c48-8f99-2ccc14877a99","net:[4026531833]","supervisor-7ecd483acc833c1f18764b01e6685fac"]', 'starting', 1795962712107370, 1795966312107370, 0, '[]');


--
-- Data for Name: version; Type: TABLE DATA; Schema: supervisor; Owner: -
--

INSERT INTO supervisor.version VALUES (1);


--
-- Name: attempts_id_seq; Type: SEQUENCE SET; Schema: supervisor; Owner: -
--

SELECT pg_catalog.setval('supervisor.attempts_id_seq', 3, true);


--
-- Name: jobs_id_seq; Type: SEQUENCE SET; Schema: supervisor; Owner: -
--

SELECT pg_catalog.setval('supervisor.jobs_id_seq', 9, true);


--
-- Name: supervisors_id_seq; Type: SEQUENCE SET; Schema: supervisor; Owner: -
--

SELECT pg_catalog.setval('supervisor.supervisors_id_seq', 2, true);


--
-- Name: attempts attempts_pkey; Type: CONSTRAINT; Schema: supervisor; Owner: -
--

ALTER TABLE ONLY supervisor.attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (id);


--
-- Name: jobs jobs_pkey; Type: CONSTRAINT; Schema: supervisor; Owner: -
--

ALTER TABLE ONLY supervisor.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);


--
-- Name: letters letters_pkey; Type: CONSTRAINT; Schema: supervisor; Owner: -
--

ALTER TABLE ONLY supervisor.letters
    ADD CONSTRAINT letters_pkey PRIMARY KEY (job_id);


--
-- Name: queues queues_pkey; Type: CONSTRAINT; Schema: supervisor; Owner: -
--

ALTER TABLE ONLY supervisor.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (queue);


--
-- Name: supervisors supervisors_owner_key; Type: CONSTRAINT; Schema: supervisor; Owner: -
--

ALTER TABLE ONLY supervisor.supervisors
    ADD CONSTRAINT supervisors_owner_key UNIQUE (owner);


--
-- Name: supervisors supervisors_pkey; Type: CONSTRAINT; Schema: supervisor; Owner: -
--

ALTER TABLE ONLY supervisor.supervisors
    ADD CONSTRAINT supervisors_pkey PRIMARY KEY (id);


--
-- Name: attempts_of; Type: INDEX; Schema: supervisor; Owner: -
--

CREATE INDEX attempts_of ON supervisor.attempts USING btree (job_id, id);


--
-- Name: in_flight; Type: INDEX; Schema: supervisor; Owner: -
--

CREATE INDEX in_flight ON supervisor.jobs USING btree (owner) WHERE (state = 2);


--
-- Name: pending_letters; Type: INDEX; Schema: supervisor; Owner: -
--

CREATE INDEX pending_letters ON supervisor.letters USING btree (due_at, job_id) WHERE (state = 1);


--
-- Name: ready; Type: INDEX; Schema: supervisor; Owner: -
--

CREATE INDEX ready ON supervisor.jobs USING btree (queue, tier, priority DESC, age, id) WHERE (state = 1);


--
-- Name: scheduled; Type: INDEX; Schema: supervisor; Owner: -
--

CREATE INDEX scheduled ON supervisor.jobs USING btree (due_at, id) WHERE (state = 0);


--
-- Name: terminal; Type: INDEX; Schema: supervisor; Owner: -
--

CREATE INDEX terminal ON supervisor.jobs USING btree (state, finished_at) WHERE (state >= 3);


--
-- Name: jobs put_by_hand; Type: TRIGGER; Schema: supervisor; Owner: -
--

CREATE TRIGGER put_by_hand AFTER INSERT ON supervisor.jobs FOR EACH ROW WHEN ((new.age IS NULL)) EXECUTE FUNCTION supervisor.put_by_hand();


--
-- Name: FUNCTION checked_json(what text, value json); Type: ACL; Schema: supervisor; Owner: -
--

REVOKE ALL ON FUNCTION supervisor.checked_json(what text, value json) FROM PUBLIC;


--
-- Name: FUNCTION checked_name(what text, value text); Type: ACL; Schema: supervisor; Owner: -
--

REVOKE ALL ON FUNCTION supervisor.checked_name(what text, value text) FROM PUBLIC;


--
-- Name: FUNCTION checked_seconds(what text, value interval); Type: ACL; Schema: supervisor; Owner: -
--

REVOKE ALL ON FUNCTION supervisor.checked_seconds(what text, value interval) FROM PUBLIC;


--
-- Name: FUNCTION clock(); Type: ACL; Schema: supervisor; Owner: -
--

REVOKE ALL ON FUNCTION supervisor.clock() FROM PUBLIC;


--
-- Name: FUNCTION enqueue(handler text, payload json, queue text, priority bigint, delay interval, at timestamp with time zone, max_retries integer, timeout interval, headers json); Type: ACL; Schema: supervisor; Owner: -
--

REVOKE ALL ON FUNCTION supervisor.enqueue(handler text, payload json, queue text, priority bigint, delay interval, at timestamp with time zone, max_retries integer, timeout interval, headers json) FROM PUBLIC;


--
-- Name: FUNCTION put(jobs json); Type: ACL; Schema: supervisor; Owner: -
--

REVOKE ALL ON FUNCTION supervisor.put(jobs json) FROM PUBLIC;


--
-- Name: FUNCTION put_by_hand(); Type: ACL; Schema: supervisor; Owner: -
--

REVOKE ALL ON FUNCTION supervisor.put_by_hand() FROM PUBLIC;


--
-- PostgreSQL database dump complete
--

\unrestrict LkA2lwUeXffJxsqfyRRTtPcyBT1AOTfGVWqliR7lJiy1HsB4SBDqa3BNLYoNt1U

