pragma application_id = 1246975537;
pragma user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE attempts(id integer primary key, job_id int not null, record text not null);
INSERT INTO "attempts" VALUES(1,1,'{"cause":"exception","type":"ValueError","message":"no","traceback":"trace","attempt":1,"at":1790000000000000,"exit_code":null,"signal":null,"peak_memory":null,"oom_suspected":false,"heartbeat_age":null,"stack":null,"stderr":null,"host":"host","pid":9}');
INSERT INTO "attempts" VALUES(2,7,'{"cause":"exception","type":"ValueError","message":"no","traceback":"trace","attempt":1,"at":1790000000000000,"exit_code":null,"signal":null,"peak_memory":null,"oom_suspected":false,"heartbeat_age":null,"stack":null,"stderr":null,"host":"host","pid":9}');
INSERT INTO "attempts" VALUES(3,2,'{"cause":"exception","type":"ValueError","message":"no","traceback":"trace","attempt":1,"at":1790000000000000,"exit_code":null,"signal":null,"peak_memory":null,"oom_suspected":false,"heartbeat_age":null,"stack":null,"stderr":null,"host":"host","pid":9}');
CREATE TABLE counts(state int, queue text, tier int, n int not null, primary key(state, queue, tier)) without rowid;
INSERT INTO "counts" VALUES(0,'default',0,1);
INSERT INTO "counts" VALUES(0,'default',1,1);
INSERT INTO "counts" VALUES(1,'default',0,0);
INSERT INTO "counts" VALUES(1,'slow',0,2);
INSERT INTO "counts" VALUES(2,'default',0,1);
INSERT INTO "counts" VALUES(2,'slow',0,0);
INSERT INTO "counts" VALUES(3,'default',0,1);
INSERT INTO "counts" VALUES(4,'default',0,1);
INSERT INTO "counts" VALUES(4,'slow',0,1);
INSERT INTO "counts" VALUES(5,'slow',0,1);
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
      lapses int not null default 0,
      policy int,
      options text,
      result text);
INSERT INTO "jobs" VALUES(1,'mail','default','{"n":1}','{"trace":"x"}',1,4,0,1,1,1,NULL,NULL,1789999999500000,1790000000000000,1790000000000000,1790000000000000,0,0,1,NULL,NULL);
INSERT INTO "jobs" VALUES(2,'mail','slow','{"n":2}',NULL,2,4,0,2,1,1,NULL,NULL,1789999999500000,1790000000000000,1790000000000000,1790000000000000,0,0,1,'[0,null,null]',NULL);
INSERT INTO "jobs" VALUES(3,'mail','default','{"n":3}',NULL,0,2,0,3,1,NULL,2,1790001301000000,NULL,1790000000000000,1790000000000000,NULL,0,0,1,'[null,null,[1.0,2.0,8.0,"none"]]',NULL);
INSERT INTO "jobs" VALUES(4,'mail','slow','{"n":4}',NULL,1,1,0,4,0,NULL,NULL,NULL,NULL,1790000000000000,1790000000000000,NULL,0,0,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(5,'mail','default','{"n":5}',NULL,2,3,0,5,1,1,NULL,NULL,1789999999750000,1790000000000000,1790000000000000,1790000000000000,0,0,1,NULL,'{"ok":true}');
INSERT INTO "jobs" VALUES(6,'mail','slow','{"n":6}',NULL,0,5,0,6,1,NULL,NULL,NULL,NULL,1790000000000000,1790000000000000,1790000000000000,0,0,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(7,'mail','default','{"n":7}',NULL,1,0,1,1790000060000000,1,1,NULL,NULL,1789999999500000,1790000060000000,1790000000000000,NULL,1,0,1,NULL,NULL);
INSERT INTO "jobs" VALUES(8,'mail','slow','{"n":8}',NULL,2,1,0,8,1,NULL,NULL,NULL,NULL,1790000000000000,1790000000000000,NULL,0,1,1,NULL,NULL);
INSERT INTO "jobs" VALUES(9,'later','default','null',NULL,0,0,0,9,0,NULL,NULL,NULL,NULL,1790003600000000,1790000000000000,NULL,0,0,NULL,NULL,NULL);
CREATE TABLE letters(
      job_id integer primary key,
      state int not null,
      token int not null default 0,
      owner int,
      due_at int not null,
      tries int not null default 0,
      accepted text not null default '[]');
INSERT INTO "letters" VALUES(1,2,1,1,1790000060000000,1,'["file"]');
INSERT INTO "letters" VALUES(2,1,1,1,1790000005000000,1,'["file"]');
CREATE TABLE policies(id integer primary key, policy text not null unique);
INSERT INTO "policies" VALUES(1,'[3,[0.5,2.0,30.0,"full"],300.0,30.0]');
CREATE TABLE queues(queue text primary key, paused int not null) without rowid;
INSERT INTO "queues" VALUES('slow',1);
CREATE TABLE supervisors(
      id integer primary key autoincrement,
      owner text not null unique,
      host text not null,
      pid int not null,
      state text not null,
      seen_at int not null,
      idle int not null default 0,
      workers text not null default '[]');
INSERT INTO "supervisors" VALUES(1,'host-1-aaaaaaaaaaaaaaaa','host',1,'starting',1790000000000000,0,'[]');
INSERT INTO "supervisors" VALUES(2,'host-2-bbbbbbbbbbbbbbbb','host',2,'starting',1790000700000000,0,'[]');
CREATE INDEX ready on jobs(queue, tier, priority desc, age) where state = 1;
CREATE INDEX scheduled on jobs(due_at) where state = 0;
CREATE INDEX in_flight on jobs(owner, lease_until) where state = 2;
CREATE INDEX terminal on jobs(state, finished_at) where state >= 3;
CREATE TRIGGER put_by_hand after insert on jobs when new.age is null begin
      select raise(abort, 'jobs.handler: expected text') where (typeof(new.handler) = 'text') is not true;
      select raise(abort, 'jobs.queue: expected text') where (typeof(new.queue) = 'text') is not true;
      select raise(abort, 'jobs.priority: expected a whole number') where (typeof(new.priority) = 'integer') is not true;
      select raise(abort, 'jobs.state: expected a whole number from 0 to 5') where (new.state in (0, 1, 2, 3, 4, 5)) is not true;
      select raise(abort, 'jobs.tier: expected 0 or 1') where (new.tier in (0, 1)) is not true;
      select raise(abort, 'jobs.token: expected a whole number from 0 to 4611686018427387904') where (typeof(new.token) = 'integer' and new.token between 0 and 4611686018427387904) is not true;
      select raise(abort, 'jobs.retries: expected a whole number from 0 to 1000') where (typeof(new.retries) = 'integer' and new.retries between 0 and 1000) is not true;
      select raise(abort, 'jobs.lapses: expected a whole number from 0 to 1073741824') where (typeof(new.lapses) = 'integer' and new.lapses between 0 and 1073741824) is not true;
      select raise(abort, 'jobs.due_at: expected microseconds since the epoch, up to 36,500 years from it') where (typeof(new.due_at) = 'integer' and new.due_at between -1152921504606846976 and 1152921504606846976) is not true;
      select raise(abort, 'jobs.created_at: expected microseconds since the epoch, up to 36,500 years from it') where (typeof(new.created_at) = 'integer' and new.created_at between -1152921504606846976 and 1152921504606846976) is not true;
      select raise(abort, 'jobs.options: expected [max_retries, timeout, backoff] in JSON') where (new.options is null or iif(json_valid(new.options), json_array_length(new.options) = 3
        and (json_type(new.options, '$[0]') = 'null' or (json_type(new.options, '$[0]') in ('integer') and json_extract(new.options, '$[0]') between 0 and 1000))
        and (json_type(new.options, '$[1]') = 'null' or (json_type(new.options, '$[1]') in ('integer', 'real') and json_extract(new.options, '$[1]') between 0 and 3153600000))
        and (json_type(new.options, '$[2]') = 'null' or (json_array_length(new.options, '$[2]') = 4
          and (json_type(new.options, '$[2][0]') in ('integer', 'real') and json_extract(new.options, '$[2][0]') between 0 and 3153600000) and (json_type(new.options, '$[2][1]') in ('integer', 'real') and json_extract(new.options, '$[2][1]') between 1 and 1000) and (json_type(new.options, '$[2][2]') in ('integer', 'real') and json_extract(new.options, '$[2][2]') between 0 and 3153600000)
          and (json_extract(new.options, '$[2][3]') in ('full', 'none') or (json_type(new.options, '$[2][3]') in ('integer', 'real') and json_extract(new.options, '$[2][3]') between 0 and 3153600000)))), 0)) is not true;
      update jobs set age = id where id = new.id;
      insert into counts values (new.state, new.queue, new.tier, 1)
        on conflict(state, queue, tier) do update set n = n + 1;
    end;
CREATE TRIGGER changed_by_hand before update of handler, queue, priority, created_at, options on jobs begin
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
CREATE INDEX attempts_of on attempts(job_id);
CREATE INDEX pending_letters on letters(due_at) where state = 1;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',9);
INSERT INTO "sqlite_sequence" VALUES('supervisors',2);
COMMIT;
