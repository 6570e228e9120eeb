"""The SQL function by which a trigger, or a program in any language, enqueues: it checks a job as a client does."""

from __future__ import annotations

import re

import orjson
import psycopg
import pytest

from supervisor.client.new_jobs import checked
from supervisor.config.settings import Settings
from supervisor.errors import InvalidJob
from supervisor.stores.extras import NO_EXTRAS, extras_text
from supervisor.text.strict_json import NotJSON, decode
from tests.stores.factories import ON_POSTGRESQL, POLICY, next_due, put, take, take_one

pytestmark = ON_POSTGRESQL


def enqueue(factory, arguments, *parameters):
    return factory.sql(f"select {{s}}.enqueue({arguments})", *parameters).fetchone()[0]


def test_a_job_is_as_one_from_a_client(factory, store):
    id = enqueue(factory, "'mail', '{\"to\": [\"me\"]}'")
    assert factory.notified(store)
    (by_client,) = store.enqueue([checked(Settings(), "mail", {"to": ["me"]})])
    assert store.get(id) == {**store.get(by_client), "id": id}
    factory.check()
    assert take_one(store).id == id


def test_every_option_is_taken(factory, store):
    id = enqueue(
        factory,
        "'mail', queue => 'post', priority => 7, max_retries => 0, timeout => '90 s', headers => '{\"a\": 1}',"
        " at => to_timestamp(1)",
    )
    job = store.get(id)
    assert (job["queue"], job["priority"], job["max_retries"], job["headers"]) == ("post", 7, 0, {"a": 1})
    assert (job["payload"], job["state"], job["due_at"]) == (None, "ready", "1970-01-01T00:00:01.000000Z")
    (lease,) = take(store, queue="post")
    assert lease.policy == POLICY._replace(max_retries=0, timeout=90.0)


EXTRAS = [
    ("unique_key => 'a'", {"unique": "a"}),
    (
        "unique_key => 'a', unique_while => 'waiting', on_conflict => 'replace'",
        {"unique": "a", "unique_while": "waiting", "on_conflict": "replace"},
    ),
    ("unique_key => 'a', unique_while => '10m'", {"unique": "a", "unique_while": "10m"}),
    ("unique_key => 'a', unique_while => '1.5 seconds'", {"unique": "a", "unique_while": "1500ms"}),
    ("unique_key => 'a', unique_while => null, on_conflict => null", {"unique": "a"}),
    ("key => 'account:7', on_failure => 'hold'", {"key": "account:7", "on_failure": "hold"}),
    ("job_group => 'tenant'", {"group": "tenant"}),
    ("tags => '{b,a,b}'", {"tags": ["b", "a", "b"]}),
    ("tags => '{}', after => '{}'", {}),
    ("expires => '10 min'", {"expires": "10m"}),
]


@pytest.mark.parametrize(("arguments", "options"), EXTRAS)
def test_what_relates_a_job_to_others_is_taken_as_from_a_client(factory, store, arguments, options):
    id = enqueue(factory, f"'mail', {arguments}")
    row = checked(Settings(), "mail", **options)
    text = "select coalesce(max(text), '{}')::jsonb from {s}.extras where job_id = %s"
    assert factory.sql(text, id).fetchone()[0] == orjson.loads(extras_text(row.extras or NO_EXTRAS))
    job = store.get(id)
    store.delete([id])
    other = row._replace(extras=row.extras and row.extras._replace(unique=row.extras.unique and "b"))
    (by_client,) = store.enqueue([other])
    assert {**store.get(by_client), "id": id, "unique": job["unique"]} == job
    factory.check()


def test_parents_are_taken(factory, store):
    first, second = put(store, "mail", "mail")
    id = enqueue(factory, f"'mail', after => '{{{second},{first},{second}}}', on_parent_failed => 'run'")
    assert store.get(id)["after"] == [second, first]


def test_an_existing_job_is_returned_and_noticed(factory, store):
    notices = []
    factory.admin.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    first = enqueue(factory, "'mail', unique_key => 'a'")
    assert notices == []
    assert enqueue(factory, "'mail', unique_key => 'a'") == first
    assert notices == [f"job {first} has the unique key 'a' already: no job was added"]
    notices.clear()
    replacing = "'mail', unique_key => 'a', on_conflict => 'replace'"
    assert enqueue(factory, replacing) == first
    take_one(store)
    assert enqueue(factory, replacing) == first
    assert notices == [
        f"job {first} has the unique key 'a' already: it was replaced",
        f"job {first} has the unique key 'a' already: it was not replaced, since it has been claimed or has ended, and no job was"
        " added",
    ]
    with pytest.raises(
        psycopg.errors.UniqueViolation, match=f"job {first} has the unique key 'a': nothing was enqueued"
    ):
        enqueue(factory, "'mail', unique_key => 'a', on_conflict => 'reject'")
    assert [job["id"] for job in store.list_jobs()] == [first]


def test_a_timeout_of_zero_is_no_limit(factory, store):
    enqueue(factory, "'mail', timeout => '0'")
    assert take_one(store).policy == POLICY._replace(timeout=None)


def test_a_delayed_job_waits(factory, store):
    id = enqueue(factory, "'mail', delay => '1.5 s'")
    assert (store.get(id)["state"], next_due(store)) == ("scheduled", 1.5)
    factory.check()


def test_from_a_trigger_the_job_goes_with_the_row(factory, store):
    factory.sql("create table {s}.orders(id int, note text)")
    factory.sql(
        """create function {s}.ordered() returns trigger language plpgsql as
          $$ begin perform {s}.enqueue('confirm', to_json(new)); return null; end $$"""
    )
    factory.sql("create trigger ordered after insert on {s}.orders for each row execute function {s}.ordered()")
    with psycopg.connect(factory.server.url) as theirs:
        theirs.execute(f"insert into \"{factory.schema}\".orders values (1, 'a')")
        theirs.rollback()
        assert [*store.list_jobs()] == []
        theirs.execute(f"insert into \"{factory.schema}\".orders values (2, 'b')")
    assert [job["payload"] for job in store.list_jobs()] == [{"id": 2, "note": "b"}]


NAMES = ["a", "a b", "é", "x" * 255, "", " a", "a ", "a\nb", "x" * 256, "\u00a0", "a\u200bb", "\x7f", "a\u2028"]


def refusal(factory, arguments, *parameters):
    """The error without the value that was refused; None if the job was taken."""
    try:
        enqueue(factory, arguments, *parameters)
    except psycopg.errors.InvalidParameterValue as error:
        return error.diag.message_primary.partition(", got")[0]
    return None


@pytest.mark.parametrize("what", ["handler", "queue"])
def test_names_are_taken_as_by_a_client(factory, store, what):
    for name in NAMES:
        names = {"handler": "mail", "queue": "default"} | {what: name}
        error = refusal(factory, "handler => %s, queue => %s", *names.values())
        try:
            checked(Settings(), names["handler"], queue=names["queue"])
        except InvalidJob as expected:
            assert error == str(expected).partition(", got")[0], repr(name)
        else:
            assert error is None, repr(name)
            assert next(store.list_jobs(limit=1))[what] == name


TEXTS = [
    "null", "1E5", "1e308", "-0.0", "1e-999", "1E+00100", "0.1234567890123456789012", '"1e999 9999999999999999999999"',
    "9223372036854775807", "-9223372036854775808", '"\\u0000"', '"\\ud83d\\ude00"', '"\\\\ud800"', '"\\\\\\ud83d\\ude00"',
    "[" * 100 + "]" * 100, "[[]]" + " " * 100, '"' + "[{" * 200 + '"', '{"a\\"[": [{"b": [1, 2.5e3, true]}]}',
    "[" + "[]," * 300 + "{}]", "1e999", "-1.5E0400", "[1, 1e400]", "9223372036854775808", "-9223372036854775809",
    "123456789012345678901234567890", '{"9999999999999999999999": 9999999999999999999999}', '"\\ud800"', '"\\ude00\\ud83d"',
    '["\\uD83D\\u0041"]', "[" * 101 + "]" * 101, '{"a":' * 101 + "1" + "}" * 101, "[" * 60 + '{"a":' * 41 + "[]" + "}" * 41 + "]" * 60,
]  # fmt: skip


def test_json_that_a_worker_could_not_load_is_refused_and_nothing_else(factory, store):
    for text in TEXTS:
        error = refusal(factory, "'mail', %s", text)
        try:
            value = decode(text)
        except NotJSON:
            assert re.match("payload: .*(finite|64-bit|deeper|surrogate)", error or ""), text
        else:
            assert error is None, text
            assert next(store.list_jobs(limit=1))["payload"] == value


WRONG = [
    ("null", "handler: expected a name of 1 to 255 printable characters without spaces around it, got NULL"),
    ("'m', queue => null", "queue: expected a name"),
    ("'m', to_json(repeat('x', 999999))", "payload: 1000001 bytes of JSON, expected at most 1000000"),
    ("'m', headers => '{\"a\": 1e999}'", "headers: 1e999 is not a finite number"),
    ("'m', headers => '[]'", "headers: expected an object, got array"),
    ("'m', priority => null", "priority: expected a whole number"),
    ("'m', delay => '-1 s'", "delay: expected an interval from 0 to 36500 days"),
    ("'m', delay => '101 years'", "delay: expected an interval"),
    ("'m', timeout => '-1 s'", "timeout: expected an interval"),
    ("'m', at => 'infinity'", "at: expected a time in the years 1 to 9999"),
    ("'m', at => '20000-01-01'", "at: expected a time"),
    ("'m', at => now(), delay => '1 s'", "delay and at: expected at most one"),
    ("'m', max_retries => 1001", "max_retries: expected a whole number from 0 to 1000, got 1001"),
    ("'m', max_retries => -1", "max_retries: expected"),
    ("'m', unique_key => ''", "unique_key: expected a name of 1 to 255"),
    (
        "'m', unique_key => 'a', unique_while => 'often'",
        "unique_while: expected waiting, unfinished or a time such as 10m, got 'often'",
    ),
    ("'m', unique_key => 'a', unique_while => '0'", "unique_while: expected waiting, unfinished or a time"),
    ("'m', unique_key => 'a', on_conflict => 'x'", "on_conflict: expected skip or replace or reject, got 'x'"),
    ("'m', unique_while => 'waiting'", "unique_while: expected unique_key with it"),
    ("'m', on_conflict => 'reject'", "on_conflict: expected unique_key with it"),
    ("'m', on_failure => 'hold'", "on_failure: expected key with it"),
    ("'m', key => 'a', on_failure => 'x'", "on_failure: expected pass or hold, got 'x'"),
    ("'m', job_group => ' a'", "job_group: expected a name"),
    ("'m', on_parent_failed => 'run'", "on_parent_failed: expected after with it"),
    ("'m', after => '{0}'", "after: expected a list of at most 10000 ids of jobs"),
    ("'m', after => '{1,null}'", "after: expected a list"),
    ("'m', after => array(select generate_series(1, 10001))", "after: expected a list"),
    ("'m', tags => '{\"\"}'", "tags: expected a name"),
    (
        "'m', tags => array(select i::text from generate_series(1, 21) as i)",
        "tags: expected a list of at most 20 texts",
    ),
    ("'m', expires => '0'", "expires: expected an interval above 0"),
    ("'m', expires => '101 years'", "expires: expected an interval from 0 to 36500 days"),
]


def test_an_error_names_the_argument_that_is_wrong(factory, store):
    for arguments, error in WRONG:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=error):
            enqueue(factory, arguments)
    assert [*store.list_jobs()] == []


def test_a_role_needs_two_grants_and_gets_nothing_more(factory, store):
    role = f'"app {factory.schema}"'
    factory.admin.execute(f"create role {role}")
    try:
        factory.sql(f"grant usage on schema {{s}} to {role}")
        factory.sql(f"set role {role}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            enqueue(factory, "'mail'")
        factory.sql("reset role")
        factory.sql(f"grant execute on function {{s}}.enqueue to {role}")
        factory.sql(f"set role {role}")
        id = enqueue(factory, "'mail'")
        for sql in ("select 1 from {s}.jobs", "select {s}.put('[]')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                factory.sql(sql)
        factory.sql("reset role")
        assert store.get(id)["state"] == "ready"
    finally:
        factory.sql("reset role")
        factory.admin.execute(f"drop owned by {role}; drop role {role}")
