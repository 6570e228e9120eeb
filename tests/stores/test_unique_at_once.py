"""Many programs enqueue the same unique key at once: one job, whoever is first, and whoever fails or is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial

import psycopg
import pytest

from supervisor import Client, ExistingId, JobExists
from supervisor.config.settings import Settings, StoreSettings
from supervisor.jobs import JobState
from supervisor.stores.extras import UNFINISHED, WAITING, Extras
from supervisor.stores.records import EnqueueRow
from tests.stores.at_once import all_at_once, beside
from tests.stores.factories import IN_SQL, ON_POSTGRESQL, success, take, take_one

PROGRAMS = 100
# Each child is a program with a connection of its own. They all begin when the end of the pipe is closed.
PROGRAM = """
import os, sys, time
from pathlib import Path
from supervisor.errors import StoreUnavailable
from supervisor.stores.extras import ExistingId, Extras
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.records import EnqueueRow
from supervisor.stores.sqlite.store import SqliteStore

kind, place, schema, programs = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])

def opened():
    return SqliteStore(Path(place)) if kind == "sqlite" else PostgresStore(place, schema=schema)

def enqueue():
    row = EnqueueRow("mail", "{}", extras=Extras(unique="report:42"))
    deadline = time.monotonic() + 50
    while True:
        try:
            store = opened()
            (id,) = store.enqueue([row])
            return f"{id} {'there' if isinstance(id, ExistingId) else 'new'}\\n"
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)

begin, started = os.pipe()
for _ in range(programs):
    if os.fork() == 0:
        os.close(started)
        os.read(begin, 1)
        os.write(1, enqueue().encode())
        os._exit(0)
os.close(started)
for _ in range(programs):
    _, status = os.wait()
    assert status == 0, status
"""


def row(unique="report:42", payload="{}", how="skip", during=UNFINISHED):
    return EnqueueRow("mail", payload, extras=Extras(unique, during, how))


@pytest.fixture
def other(factory, store):
    return factory.joined("two")


@IN_SQL
@pytest.mark.parametrize("used", [False, True])
def test_one_hundred_programs_at_once_get_one_job(factory, store, used):
    """Also if a job had the key before."""
    if used:
        store.enqueue([row()])
        store.settle([success(take_one(store))])
    place = str(getattr(factory, "path", None) or factory.server.url)
    arguments = (type(store).__name__[:6].lower(), place, getattr(factory, "schema", ""), str(PROGRAMS))
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as ran:
        try:
            out, errors = ran.communicate(timeout=55)
        except BaseException:
            os.killpg(ran.pid, signal.SIGKILL)
            raise
    assert ran.returncode == 0, errors
    answers = [line.split() for line in out.splitlines()]
    (job,) = store.list_jobs(state=JobState.READY)
    assert {int(id) for id, _ in answers} == {job["id"]} and len(answers) == PROGRAMS
    assert [how for _, how in answers].count("new") == 1
    factory.check()


@ON_POSTGRESQL
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("used", [False, True])
def test_an_enqueue_waits_for_the_one_before(factory, store, other, used, commits):
    found = []
    if used:
        store.enqueue([row()])
        store.settle([success(take_one(store))])
    try:
        with store.transaction():
            (first,) = store.enqueue([row()])
            thread = beside(factory, lambda: found.extend(other.enqueue([row()])))
            if not commits:
                raise RuntimeError
    except RuntimeError:
        pass
    thread.join()
    (id,) = found
    assert isinstance(id, ExistingId) == commits and (id == first) == commits
    assert [job["id"] for job in store.list_jobs(state=JobState.READY)] == [id]
    factory.check()


@ON_POSTGRESQL
def test_batches_with_the_same_keys_in_another_order_do_not_block_each_other(factory, store, other):
    keys, others = [f"key {n}" for n in range(50)], [f"other {n}" for n in range(2000)]
    found = []

    def use(own, keys):
        for _ in range(10):
            found.extend(own.enqueue([row(key) for key in keys]))

    all_at_once(partial(use, store, keys), partial(use, other, [*others, *keys[::-1]]))
    assert len(found) == 10 * 2100 and len({*map(int, found)}) == 2050


@ON_POSTGRESQL
@pytest.mark.parametrize(("during", "new"), [(WAITING, True), (UNFINISHED, False)])
def test_a_replace_that_comes_as_the_job_is_claimed(factory, store, other, during, new):
    """The payload is not lost: the job has it before it starts, or there is another job if its key is free by then."""
    (first,) = store.enqueue([row(payload="1", during=during)])
    found = []
    with store.transaction():
        lease = take_one(store)
        store.held()
        thread = beside(factory, lambda: found.extend(other.enqueue([row(payload="2", how="replace", during=during)])))
    thread.join()
    assert lease.payload == "1" and (found != [first]) == new
    assert [store.get(id)["payload"] for id in found] == [2 if new else 1]
    factory.check()


@ON_POSTGRESQL
def test_a_job_does_not_start_before_the_data_of_whom_it_serves_too_are_committed(factory, store):
    """It was enqueued before, and does their work as well: so it must see what they have written."""
    jobs = Client(Settings(store=StoreSettings(url=factory.server.url, options={"schema": factory.schema})))
    first = jobs.enqueue("mail", unique="report:42", unique_while=WAITING)
    with jobs, psycopg.connect(factory.server.url) as theirs:
        assert jobs.enqueue("mail", unique="report:42", unique_while=WAITING, connection=theirs) == first
        assert take(store) == []
        theirs.commit()
        assert take_one(store).id == first


@ON_POSTGRESQL
def test_in_a_transaction_of_the_caller(factory, store):
    jobs = Client(Settings(store=StoreSettings(url=factory.server.url, options={"schema": factory.schema})))
    with jobs, psycopg.connect(factory.server.url) as theirs:
        theirs.execute("create temporary table orders(id int)")
        first = jobs.enqueue("mail", unique="report:42", connection=theirs)
        assert not isinstance(first, ExistingId)
        assert isinstance(jobs.enqueue("mail", unique="report:42", connection=theirs), ExistingId)
        for how in ("skip", "replace"):
            found = jobs.enqueue("mail", unique="report:42", on_conflict=how, connection=theirs)
            assert isinstance(found, ExistingId) and found.replaced == (how == "replace")
        with pytest.raises(JobExists) as caught:
            jobs.enqueue_many(
                [{"handler": "mail"}, {"handler": "mail", "unique": "report:42", "on_conflict": "reject"}],
                connection=theirs,
            )
        assert caught.value.id == first
        theirs.execute("insert into orders values (1)")  # the transaction goes on
        theirs.rollback()
        assert [*store.list_jobs()] == []
        second = jobs.enqueue("mail", unique="report:42", connection=theirs)
        theirs.commit()
        assert second > first and [job["id"] for job in store.list_jobs()] == [second]
    factory.check()


@ON_POSTGRESQL
def test_a_repeatable_read_of_the_caller_adds_no_second_job(factory, store):
    jobs = Client(Settings(store=StoreSettings(url=factory.server.url, options={"schema": factory.schema})))
    with jobs, psycopg.connect(factory.server.url) as theirs:
        theirs.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        theirs.execute("select 1")
        first = jobs.enqueue("mail", unique="report:42")
        with pytest.raises(psycopg.errors.SerializationFailure):
            jobs.enqueue("mail", unique="report:42", connection=theirs)
        theirs.rollback()
        assert jobs.enqueue("mail", unique="report:42", connection=theirs) == first


@ON_POSTGRESQL
def test_an_ended_job_is_deleted_while_another_session_holds_its_key(factory, store, other):
    (first,) = store.enqueue([row()])
    store.settle([success(take_one(store))])
    with store.transaction():
        (second,) = store.enqueue([row()])
        other.delete([first])
    assert store.enqueue([row()]) == [second]


@IN_SQL
def test_keys_of_jobs_that_other_programs_have_lost_are_forgotten(factory, store):
    factory.sql("insert into {s}.unique_jobs(unique_key, job_id, below) values ('gone', 4711, 3)")
    (there,) = store.enqueue([row("there")])
    store.repair()
    assert [(key, id) for key, id in factory.sql("select unique_key, job_id from {s}.unique_jobs")] == [
        ("there", there)
    ]
