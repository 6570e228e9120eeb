"""Jobs are found by a tag, through an index, and by the value of a header."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

from supervisor.jobs import JobState
from supervisor.stores.by_filter import COMMANDS, change_all, find_all
from supervisor.stores.extras import Extras
from supervisor.stores.records import EnqueueRow
from supervisor.stores.search import JobFilter, SearchLimits
from tests.stores.factories import IN_SQL, dead, make_dead, put, states, success, take
from tests.stores.test_search import all_pages, found


def tagged(store, *tags, n=1, **options):
    return store.enqueue([EnqueueRow("mail", "{}", extras=Extras(tags=tags), **options)] * n)


def with_headers(store, *headers, **options):
    return store.enqueue([EnqueueRow("mail", "{}", headers=text, **options) for text in headers])


def test_jobs_are_found_by_a_tag_and_the_rest_of_the_filter(store):
    (both,) = tagged(store, "eu", "bulk")
    (eu,) = tagged(store, "eu", queue="post")
    put(store, "mail")
    assert found(store, tag="eu") == [eu, both]
    assert found(store, tag="bulk") == [both]
    assert found(store, tag="eu", queue="post", handler="mail") == [eu]
    assert found(store, tag="eu", state=JobState.FAILED) == found(store, tag="e") == found(store, tag="EU") == []
    assert store.get(both)["tags"] == ["eu", "bulk"]


def test_ended_jobs_and_dead_letters_are_found_by_a_tag(store):
    first, second, third = tagged(store, "eu", n=3)
    leases = {lease.id: lease for lease in take(store)}
    make_dead(store, "other")
    store.settle([success(leases[first]), dead(leases[second]), dead(leases[third])])
    assert found(store, tag="eu", state=JobState.FAILED) == [third, second]
    assert found(store, tag="eu", dead_letter="pending") == [third, second]
    assert found(store, tag="eu", state=JobState.SUCCEEDED) == [first]
    assert found(store, tag="eu", error="valueerror") == [third, second]


@pytest.mark.parametrize("state", [None, JobState.READY])
def test_pages_by_a_tag_have_each_job_once(store, state):
    ids = []
    for _ in range(5):
        ids += tagged(store, "eu")
        tagged(store, "us")
    assert all_pages(store, 2, tag="eu", state=state) == (ids[::-1], 3)
    limits = SearchLimits(looked=2)
    assert all_pages(store, 10, limits, tag="eu", state=state)[0] == ids[::-1]


def test_jobs_are_found_by_a_tag_and_the_time_of_their_creation(factory, store):
    old = tagged(store, "eu")
    factory.clock.step(3600)
    at = factory.clock.microseconds
    new = tagged(store, "eu")
    assert (found(store, tag="eu", since=at), found(store, tag="eu", until=at)) == (new, old)


def test_a_tag_is_gone_with_its_job(store, factory):
    kept, deleted = tagged(store, "eu", n=2)
    store.delete([deleted])
    assert found(store, tag="eu") == [kept]
    factory.check()


@IN_SQL
def test_the_index_has_no_tags_of_jobs_that_are_gone(store, factory):
    ids = tagged(store, "eu", "us", n=3)
    store.delete(ids[:2])
    assert [*factory.sql("select job_id, tag from {s}.job_tags order by 1, 2")] == [(ids[2], "eu"), (ids[2], "us")]
    factory.sql("delete from {s}.jobs")
    assert [*factory.sql("select job_id from {s}.job_tags")] == []


@IN_SQL
def test_extras_that_are_no_json_are_refused_since_their_job_could_not_be_deleted(store, factory):
    (id,) = put(store)
    with pytest.raises((sqlite3.Error, psycopg.Error)):
        factory.sql(f"insert into {{s}}.extras(job_id, text) values ({id}, 'no json')")
    factory.sql(f"insert into {{s}}.extras(job_id, text) values ({id}, '[1]')")
    assert found(store, tag="1") == []
    store.delete([id])
    assert [*factory.sql("select job_id from {s}.extras")] == []


def test_commands_take_a_tag_and_a_header(store):
    tags = tagged(store, "eu", n=3)
    headers = with_headers(store, '{"tenant": "7"}', '{"tenant": "8"}')
    for where, n in ((JobFilter(tag="eu"), 3), (JobFilter(header=("tenant", "7")), 1)):
        jobs = find_all(lambda ask: ask(store), COMMANDS["cancel"], where, None)
        assert change_all(lambda ask: ask(store), COMMANDS["cancel"], where, jobs) == (n, {})
    assert states(store, [*tags, *headers]) == ["cancelled"] * 4 + ["ready"]


def test_jobs_are_found_by_the_value_of_a_header(store):
    text, number, flag, nothing, nested = with_headers(
        store, '{"tenant": "7", "a": "=\\u00e9"}', '{"tenant": 7}', '{"tenant": true}', '{"tenant": null}', '{"tenant": {"id": 7}}',
    )  # fmt: skip
    put(store)
    assert found(store, header=("tenant", "7")) == [number, text]
    assert found(store, header=("tenant", "true")) == [flag]
    assert found(store, header=("a", "=é")) == [text]
    assert found(store, header=("tenant", '{"id":7}')) == [nested]
    assert found(store, header=("tenant", "null")) == [nothing]
    assert found(store, header=("tenant", "")) == found(store, header=("Tenant", "7")) == []
    assert found(store, header=("Tenant", "null")) == found(store, header=("tenant", '"7"')) == []


@pytest.mark.parametrize(
    "factory", ["memory", "sqlite", "postgresql"], indirect=True
)  # in a record of Kafka all are texts
def test_the_value_of_a_header_that_is_no_text_is_compared_as_json(store):
    nested, number, odd = with_headers(
        store, '{"nest": {"a": 1, "b": [2, null]}, "n": 7}', '{"n": 7.0, "nest": [{"b": 1, "a": "é"}]}', '{"n": "{1", "nest": "null"}'
    )  # fmt: skip
    for text in ('{"a": 1, "b": [2, null]}', '{"b":[2,null],"a":1}', ' {"a":1,\n"b":[2,null]}'):
        assert found(store, header=("nest", text)) == [nested]
    assert found(store, header=("nest", '[{"a": "\\u00e9", "b": 1}]')) == [number]
    assert found(store, header=("nest", '{"a": 1}')) == found(store, header=("nest", '{"a": 1, "b": [null, 2]}')) == []
    assert found(store, header=("n", " 7")) == [nested]
    assert found(store, header=("n", "7.0")) == [number]
    assert found(store, header=("n", "{1")) == found(store, header=("nest", "null")) == [odd]


def test_long_headers_are_found_too(store):
    (long,) = with_headers(store, '{"tenant": "7", "x": "' + "y" * 5000 + '"}')
    assert found(store, header=("tenant", "7"), queue="default") == [long]
    assert found(store, header=("tenant", "7"), text="yyy") == [long]


def test_a_search_by_a_header_goes_on_where_it_stopped(store):
    (wanted,) = with_headers(store, '{"tenant": "7"}')
    with_headers(store, *['{"tenant": "8"}'] * 9)
    limits = SearchLimits(searched=4, batch=2)
    page = store.find_jobs(JobFilter(header=("tenant", "7")), limits=limits)
    assert (page.ids, page.searched, page.complete) == ([], 4, False)
    assert all_pages(store, 10, limits, header=("tenant", "7")) == ([wanted], 3)


@IN_SQL
def test_headers_of_another_program_may_be_no_json(store, factory):
    put(store)
    factory.sql("update {s}.jobs set headers = '[1]'")
    assert found(store, header=("tenant", "7")) == []
    factory.sql("update {s}.jobs set headers = 'x'")
    assert found(store, header=("tenant", "7")) == []
