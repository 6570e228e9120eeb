pragma application_id = 1246975537;
pragma user_version = 3;
BEGIN TRANSACTION;
CREATE TABLE attempts(id integer primary key, job_id int not null, record text not null);
INSERT INTO "attempts" VALUES(1,1,'{"cause":"exception","type":"ValueError","message":"no","traceback":"Traceback","attempt":1,"at":1790000000000000,"exit_code":null,"signal":null,"peak_memory":null,"oom_suspected":false,"heartbeat_age":null,"stack":null,"stderr":null,"host":null,"pid":null}');
CREATE TABLE counts(state int, queue text, tier int, n int not null, primary key(state, queue, tier)) without rowid;
INSERT INTO "counts" VALUES(-1,'default',0,4);
INSERT INTO "counts" VALUES(0,'default',0,1);
INSERT INTO "counts" VALUES(0,'default',1,1);
INSERT INTO "counts" VALUES(1,'default',0,5);
INSERT INTO "counts" VALUES(2,'default',0,0);
INSERT INTO "counts" VALUES(5,'default',0,1);
CREATE TABLE dead_letters(
      job_id integer primary key,
      state int not null check (state in (0, 1, 2)),
      token int not null default 0 check (typeof(token) = 'integer' and token between 0 and 6917529027641081856),
      owner int,
      due_at int not null check (typeof(due_at) = 'integer' and due_at between -2305843009213693952 and 2305843009213693952),
      tries int not null default 0 check (typeof(tries) = 'integer' and tries between 0 and 1073741824),
      owed text not null default '[]' check (iif(typeof(owed) = 'text' and json_valid(owed), json_type(owed) = 'array', 0)),
      accepted text not null default '[]' check (iif(typeof(accepted) = 'text' and json_valid(accepted), json_type(accepted) = 'array', 0)));
CREATE TABLE expiries(expires_at int, job_id int, primary key(expires_at, job_id)) without rowid;
INSERT INTO "expiries" VALUES(1790007200000000,12);
CREATE TABLE extras(
      job_id integer primary key, key text, expires_at int, text text not null check (json_valid(text)));
INSERT INTO "extras" VALUES(5,'k',NULL,'{"key":"k"}');
INSERT INTO "extras" VALUES(6,'k',NULL,'{"key":"k"}');
INSERT INTO "extras" VALUES(7,NULL,NULL,'{"group":"a"}');
INSERT INTO "extras" VALUES(8,NULL,NULL,'{"group":"a"}');
INSERT INTO "extras" VALUES(9,NULL,NULL,'{"group":"b"}');
INSERT INTO "extras" VALUES(10,NULL,NULL,'{"unique":"u"}');
INSERT INTO "extras" VALUES(11,NULL,NULL,'{"after":[10]}');
INSERT INTO "extras" VALUES(12,NULL,1790007200000000,'{"tags":["t"],"expires":7200000000}');
CREATE TABLE group_shares(queue text, name text, shares real not null, primary key(queue, name)) without rowid;
CREATE TABLE held_back(handler text, queue text, tier int, priority int, age int, job_id int,
      primary key(handler, queue, tier, priority desc, age, job_id)) without rowid;
INSERT INTO "held_back" VALUES('mail','default',0,0,2,2);
INSERT INTO "held_back" VALUES('mail','default',0,0,3,3);
CREATE TABLE job_groups(
      queue text, priority int, name text, position int not null, primary key(queue, priority, name)) without rowid;
INSERT INTO "job_groups" VALUES('default',0,'b',4324320);
INSERT INTO "job_groups" VALUES('default',0,'',5045040);
INSERT INTO "job_groups" VALUES('default',0,'a',5045040);
CREATE TABLE job_tags(job_id int not null, tag text not null, primary key(job_id, tag)) without rowid;
INSERT INTO "job_tags" VALUES(12,'t');
CREATE TABLE jobs(
      id integer primary key autoincrement,
      handler text not null,
      queue text not null default 'default',
      payload text,
      headers text,
      priority int not null default 0,
      state int not null default 1,
      tier int not null default 0,
      age int,
      token int not null default 0,
      settled int,
      owner int,
      lease_until int,
      started_at int,
      due_at int not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
      created_at int not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
      finished_at int,
      retries int not null default 0,
      expired_count int not null default 0,
      policy int,
      options text,
      result text);
INSERT INTO "jobs" VALUES(1,'mail','default','"0"',NULL,0,0,1,1790000010000000,1,1,NULL,NULL,NULL,1790000010000000,1790000000000000,NULL,1,0,5945984916879545099,NULL,NULL);
INSERT INTO "jobs" VALUES(2,'mail','default','"1"',NULL,0,-1,0,2,0,NULL,NULL,NULL,NULL,1790000000000000,1790000000000000,NULL,0,0,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(3,'mail','default','"2"',NULL,0,-1,0,3,0,NULL,NULL,NULL,NULL,1790000000000000,1790000000000000,NULL,0,0,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(4,'mail','default','"3"',NULL,0,5,0,4,1,NULL,NULL,NULL,NULL,1790000000000000,1790000000000000,1790000000000000,0,0,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(5,'work','default','{}',NULL,0,1,0,5,0,NULL,NULL,NULL,NULL,1790000000000000,1790000000000000,NULL,0,0,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(6,'work','default','{}',NULL,0,-1,0,6,0,NULL,NULL,NULL,NULL,1790000000000000,1790000000000000,NULL,0,0,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(7,'work','default','{}',NULL,0,1,0,5,0,NULL,NULL,NULL,NULL,1790000000000000,1790000000000000,NULL,0,0,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(8,'work','default','{}',NULL,0,1,0,6,0,NULL,NULL,NULL,NULL,1790000000000000,1790000000000000,NULL,0,0,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(9,'work','default','{}',NULL,0,1,0,5,0,NULL,NULL,NULL,NULL,1790000000000000,1790000000000000,NULL,0,0,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(10,'work','default','{}',NULL,0,1,0,6,0,NULL,NULL,NULL,NULL,1790000000000000,1790000000000000,NULL,0,0,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(11,'work','default','{}',NULL,0,-1,0,11,0,NULL,NULL,NULL,NULL,1790000000000000,1790000000000000,NULL,0,0,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(12,'work','default','{}',NULL,0,0,0,12,0,NULL,NULL,NULL,NULL,1790003600000000,1790000000000000,NULL,0,0,NULL,NULL,NULL);
CREATE TABLE key_holders(key text primary key, job_id int not null) without rowid;
INSERT INTO "key_holders" VALUES('k',5);
CREATE TABLE key_waiters(key text not null, job_id int not null, primary key(key, job_id)) without rowid;
INSERT INTO "key_waiters" VALUES('k',6);
CREATE TABLE limited_leases(name text, job_id int, token int not null, primary key(name, job_id)) without rowid;
INSERT INTO "limited_leases" VALUES('handler mail',1,1);
CREATE TABLE limits(name text primary key, times text not null) without rowid;
INSERT INTO "limits" VALUES('handler mail','[[1790000000000000,1]]');
CREATE TABLE parents(child int not null, parent int not null, place int not null, on_failed int not null,
      link int not null default 1, primary key(child, parent)) without rowid;
INSERT INTO "parents" VALUES(11,10,0,0,1);
CREATE TABLE payloads(job_id integer primary key, payload text, headers text);
CREATE TABLE policies(id integer primary key, policy text not null unique);
INSERT INTO "policies" VALUES(5945984916879545099,'[3,[0.5,2.0,30.0,"full"],5.0,30.0]');
CREATE TABLE queues(queue text primary key, paused int not null) without rowid;
CREATE TABLE reports(job_id integer primary key, progress text, progress_at int, log text);
CREATE TABLE schedules(
      name text primary key,
      handler text not null default '',
      timing text not null default '',
      since int not null check (typeof(since) = 'integer' and since between -2305843009213693952 and 2305843009213693952),
      last int check (last is null or (typeof(last) = 'integer' and last between -2305843009213693952 and 2305843009213693952)),
      outcome text not null default '',
      paused int not null default 0 check (paused in (0, 1)),
      last_job int check (last_job is null or typeof(last_job) = 'integer')) without rowid;
CREATE TABLE snoozes(job_id integer primary key, n int not null, until int not null);
CREATE TABLE supervisors(
      id integer primary key autoincrement,
      owner text not null unique,
      host text not null,
      pid int not null,
      state text not null,
      seen_at int not null,
      idle int not null default 0,
      workers text not null default '[]',
      sinks text not null default '[]',
      about text not null default '{}');
CREATE TABLE turns(queue text, priority int, round int not null, primary key(queue, priority)) without rowid;
INSERT INTO "turns" VALUES('default',0,5);
CREATE TABLE unique_jobs(unique_key text primary key, job_id int not null, below int not null, until int) without rowid;
INSERT INTO "unique_jobs" VALUES('u',10,3,NULL);
CREATE INDEX ready on jobs(queue, tier, priority desc, age) where state = 1;
CREATE INDEX scheduled on jobs(due_at) where state = 0;
CREATE INDEX in_flight on jobs(owner, lease_until) where state = 2;
CREATE INDEX blocked on jobs(id) where state = -1;
CREATE INDEX terminal on jobs(state, finished_at) where state >= 3;
CREATE TRIGGER inserted_by_sql after insert on jobs when new.age is null begin
      select raise(abort, 'jobs.handler: expected text') where (typeof(new.handler) = 'text') is not true;
      select raise(abort, 'jobs.queue: expected text') where (typeof(new.queue) = 'text') is not true;
      select raise(abort, 'jobs.priority: expected a whole number') where (typeof(new.priority) = 'integer') is not true;
      select raise(abort, 'jobs.state: expected a whole number from -1 to 5') where (new.state in (-1, 0, 1, 2, 3, 4, 5)) is not true;
      select raise(abort, 'jobs.owner: expected a whole number, and lease_until with it, for a job in flight') where (new.state != 2 or (typeof(new.owner) = 'integer' and typeof(new.lease_until) = 'integer')) is not true;
      select raise(abort, 'jobs.tier: expected 0 or 1') where (new.tier in (0, 1)) is not true;
      select raise(abort, 'jobs.token: expected a whole number from 0 to 4611686018427387904') where (typeof(new.token) = 'integer' and new.token between 0 and 4611686018427387904) is not true;
      select raise(abort, 'jobs.retries: expected a whole number from 0 to 1000') where (typeof(new.retries) = 'integer' and new.retries between 0 and 1000) is not true;
      select raise(abort, 'jobs.expired_count: expected a whole number from 0 to 1073741824') where (typeof(new.expired_count) = 'integer' and new.expired_count between 0 and 1073741824) is not true;
      select raise(abort, 'jobs.due_at: expected microseconds since the epoch, up to 36,500 years from it') where (typeof(new.due_at) = 'integer' and new.due_at between -1152921504606846976 and 1152921504606846976) is not true;
      select raise(abort, 'jobs.created_at: expected microseconds since the epoch, up to 36,500 years from it') where (typeof(new.created_at) = 'integer' and new.created_at between -1152921504606846976 and 1152921504606846976) is not true;
      select raise(abort, 'jobs.options: expected [max_retries, timeout, backoff] in JSON') where (new.options is null or iif(json_valid(new.options), json_array_length(new.options) = 3
        and (json_type(new.options, '$[0]') = 'null' or (json_type(new.options, '$[0]') in ('integer') and json_extract(new.options, '$[0]') between 0 and 1000))
        and (json_type(new.options, '$[1]') = 'null' or (json_type(new.options, '$[1]') in ('integer', 'real') and json_extract(new.options, '$[1]') between 0 and 3153600000))
        and (json_type(new.options, '$[2]') = 'null' or (json_array_length(new.options, '$[2]') = 4
          and (json_type(new.options, '$[2][0]') in ('integer', 'real') and json_extract(new.options, '$[2][0]') between 0 and 3153600000) and (json_type(new.options, '$[2][1]') in ('integer', 'real') and json_extract(new.options, '$[2][1]') between 1 and 1000) and (json_type(new.options, '$[2][2]') in ('integer', 'real') and json_extract(new.options, '$[2][2]') between 0 and 3153600000)
          and (json_extract(new.options, '$[2][3]') in ('full', 'none') or (json_type(new.options, '$[2][3]') in ('integer', 'real') and json_extract(new.options, '$[2][3]') between 0 and 3153600000)))), 0)) is not true;
      insert into payloads
        select new.id, new.payload, iif(coalesce(length(new.headers), 0) > 500, new.headers, null) where (coalesce(length(new.payload), 0) > 500 or coalesce(length(new.headers), 0) > 500);
      update jobs set age = id, state = iif(new.state = 1 and new.due_at > cast((julianday('now') - 2440587.5) * 86400000000 as integer), 0, new.state), payload = iif((coalesce(length(new.payload), 0) > 500 or coalesce(length(new.headers), 0) > 500), null, payload),
        headers = iif(coalesce(length(new.headers), 0) > 500, null, headers) where id = new.id;
      insert into counts values (iif(new.state = 1 and new.due_at > cast((julianday('now') - 2440587.5) * 86400000000 as integer), 0, new.state), new.queue, new.tier, 1)
        on conflict(state, queue, tier) do update set n = n + 1;
      insert into job_groups(queue, priority, name, position)
        select queue, priority, coalesce((select json_extract(text, '$.group') from extras where job_id = new.id), ''), cast(720720 / coalesce((select shares from group_shares where group_shares.queue = new.queue and group_shares.name = coalesce((select json_extract(text, '$.group') from extras where job_id = new.id), '')), 1) + 0.999999 as integer) + max(
          720720 * max(round, coalesce((
            select age from jobs where state = 1 and queue = new.queue and priority = new.priority and tier = 0 and age >= round and id != new.id
            order by age limit 1), 0)),
          coalesce((select position from job_groups where queue = new.queue and priority = new.priority and name = coalesce((select json_extract(text, '$.group') from extras where job_id = new.id), '')), 0))
        from turns where queue = new.queue and priority = new.priority and exists (select 1 from jobs where id = new.id and state = 1 and tier = 0)
        on conflict(queue, priority, name) do update set position = excluded.position;
      update jobs set age = (select (position - cast(720720 / coalesce((select shares from group_shares where group_shares.queue = new.queue and group_shares.name = coalesce((select json_extract(text, '$.group') from extras where job_id = new.id), '')), 1) + 0.999999 as integer)) / 720720 from job_groups where queue = new.queue and priority = new.priority and name = coalesce((select json_extract(text, '$.group') from extras where job_id = new.id), ''))
        where id = new.id and exists (select 1 from jobs where id = new.id and state = 1 and tier = 0) and exists (select 1 from turns where queue = new.queue and priority = new.priority);
    end;
CREATE TRIGGER updated_by_sql before update of handler, queue, priority, created_at, options on jobs begin
      select raise(abort, 'jobs.handler: expected text') where (typeof(new.handler) = 'text') is not true;
      select raise(abort, 'jobs.queue: expected text') where (typeof(new.queue) = 'text') is not true;
      select raise(abort, 'jobs.priority: expected a whole number') where (typeof(new.priority) = 'integer') is not true;
      select raise(abort, 'jobs.created_at: expected microseconds since the epoch, up to 36,500 years from it') where (typeof(new.created_at) = 'integer' and new.created_at between -1152921504606846976 and 1152921504606846976) is not true;
      select raise(abort, 'jobs.options: expected [max_retries, timeout, backoff] in JSON') where (new.options is null or iif(json_valid(new.options), json_array_length(new.options) = 3
        and (json_type(new.options, '$[0]') = 'null' or (json_type(new.options, '$[0]') in ('integer') and json_extract(new.options, '$[0]') between 0 and 1000))
        and (json_type(new.options, '$[1]') = 'null' or (json_type(new.options, '$[1]') in ('integer', 'real') and json_extract(new.options, '$[1]') between 0 and 3153600000))
        and (json_type(new.options, '$[2]') = 'null' or (json_array_length(new.options, '$[2]') = 4
          and (json_type(new.options, '$[2][0]') in ('integer', 'real') and json_extract(new.options, '$[2][0]') between 0 and 3153600000) and (json_type(new.options, '$[2][1]') in ('integer', 'real') and json_extract(new.options, '$[2][1]') between 1 and 1000) and (json_type(new.options, '$[2][2]') in ('integer', 'real') and json_extract(new.options, '$[2][2]') between 0 and 3153600000)
          and (json_extract(new.options, '$[2][3]') in ('full', 'none') or (json_type(new.options, '$[2][3]') in ('integer', 'real') and json_extract(new.options, '$[2][3]') between 0 and 3153600000)))), 0)) is not true;
    end;
CREATE TRIGGER queue_changed after update of queue on jobs begin
      update held_back set queue = new.queue where handler = old.handler and queue = old.queue and tier = old.tier
        and priority = old.priority and age = old.age and job_id = old.id;
      update job_groups set position = position - cast(720720 / coalesce((select shares from group_shares where group_shares.queue = old.queue and group_shares.name = job_groups.name), 1) + 0.999999 as integer)
        where old.state = 1 and old.tier = 0 and queue = old.queue and priority = old.priority and name = coalesce((select json_extract(text, '$.group') from extras where job_id = old.id), '') and old.queue is not new.queue;
      update counts set n = n - 1 where state = old.state and queue = old.queue and tier = old.tier;
      insert into counts values (new.state, new.queue, new.tier, 1) on conflict(state, queue, tier) do update set n = n + 1;
      insert into job_groups(queue, priority, name, position)
        select queue, priority, coalesce((select json_extract(text, '$.group') from extras where job_id = new.id), ''), cast(720720 / coalesce((select shares from group_shares where group_shares.queue = new.queue and group_shares.name = coalesce((select json_extract(text, '$.group') from extras where job_id = new.id), '')), 1) + 0.999999 as integer) + max(
          720720 * max(round, coalesce((
            select age from jobs where state = 1 and queue = new.queue and priority = new.priority and tier = 0 and age >= round and id != new.id
            order by age limit 1), 0)),
          coalesce((select position from job_groups where queue = new.queue and priority = new.priority and name = coalesce((select json_extract(text, '$.group') from extras where job_id = new.id), '')), 0))
        from turns where queue = new.queue and priority = new.priority and old.queue is not new.queue and exists (select 1 from jobs where id = new.id and state = 1 and tier = 0)
        on conflict(queue, priority, name) do update set position = excluded.position;
      update jobs set age = (select (position - cast(720720 / coalesce((select shares from group_shares where group_shares.queue = new.queue and group_shares.name = coalesce((select json_extract(text, '$.group') from extras where job_id = new.id), '')), 1) + 0.999999 as integer)) / 720720 from job_groups where queue = new.queue and priority = new.priority and name = coalesce((select json_extract(text, '$.group') from extras where job_id = new.id), ''))
        where id = new.id and old.queue is not new.queue and exists (select 1 from jobs where id = new.id and state = 1 and tier = 0) and exists (select 1 from turns where queue = new.queue and priority = new.priority);
    end;
CREATE TRIGGER job_deleted after delete on jobs begin
      delete from held_back where handler = old.handler and queue = old.queue and tier = old.tier
        and priority = old.priority and age = old.age and job_id = old.id;
      update job_groups set position = position - cast(720720 / coalesce((select shares from group_shares where group_shares.queue = old.queue and group_shares.name = job_groups.name), 1) + 0.999999 as integer)
        where old.state = 1 and old.tier = 0 and queue = old.queue and priority = old.priority and name = coalesce((select json_extract(text, '$.group') from extras where job_id = old.id), '');
      delete from payloads where job_id = old.id;
      delete from key_waiters
        where key = (select key from extras where job_id = old.id) and job_id = old.id;
      delete from parents where child = old.id;
      delete from unique_jobs where job_id = old.id and until is null and unique_key = (
        select iif(json_valid(text), json_extract(text, '$.unique'), null) from extras where job_id = old.id);
      delete from expiries
        where expires_at = (select expires_at from extras where job_id = old.id) and job_id = old.id;
      delete from extras where job_id = old.id;
      delete from attempts where job_id = old.id;
      delete from reports where job_id = old.id;
      delete from snoozes where job_id = old.id;
      delete from dead_letters where job_id = old.id;
      update counts set n = n - 1 where state = old.state and queue = old.queue and tier = old.tier;
    end;
CREATE INDEX attempts_of on attempts(job_id);
CREATE INDEX jobs_by_tag on job_tags(tag, job_id);
CREATE TRIGGER tagged after insert on extras when json_type(new.text, '$.tags') = 'array' begin
      insert or ignore into job_tags(job_id, tag)
        select new.job_id, value from json_each(new.text, '$.tags') where type = 'text';
    end;
CREATE TRIGGER untagged after delete on extras when json_type(old.text, '$.tags') = 'array' begin
      delete from job_tags where job_id = old.job_id;
    end;
CREATE UNIQUE INDEX held_by on key_holders(job_id);
CREATE INDEX children on parents(parent);
CREATE INDEX open_links on parents(child) where link = 1;
CREATE INDEX unique_until on unique_jobs(until) where until is not null;
CREATE INDEX job_groups_by_position on job_groups(queue, priority, position);
CREATE INDEX pending_dead_letters on dead_letters(owed || accepted, due_at)
      where state = 1;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',12);
INSERT INTO "sqlite_sequence" VALUES('supervisors',1);
COMMIT;
