"""Every hot statement goes through the index made for it, whatever else is in the table."""

from __future__ import annotations

import pytest

from supervisor.stores.codes import PENDING
from supervisor.stores.postgres import claim as claims
from supervisor.stores.postgres import dead_letters as dead_letters
from supervisor.stores.postgres import operator as verbs
from supervisor.stores.postgres import queries as asking
from supervisor.stores.postgres import row_locks as locks
from supervisor.stores.postgres import settle as settles
from tests.stores.factories import PostgresFactory, take

MANY = 50_000


@pytest.fixture(scope="module")
def factory(tmp_path_factory):
    """Many that wait in one queue, many more that are scheduled or done; with and without statistics."""
    factory = PostgresFactory(tmp_path_factory.mktemp("plans"))
    factory.joined("one")
    for state, n in ((0, MANY), (1, MANY), (3, MANY), (2, 100)):
        factory.sql(
            """insert into {s}.jobs(handler, queue, payload, state, age, due_at, finished_at, owner)
              select 'mail', 'q' || i %% 3, '{}', %s, i, i, i, 1 from generate_series(1, %s) as i""",
            state, n,
        )  # fmt: skip
    factory.sql(
        "insert into {s}.counts(state, queue, tier, n) select state, queue, tier, count(*) from {s}.jobs group by 1, 2, 3"
    )
    factory.sql(
        "insert into {s}.dead_letters(job_id, state, due_at) select i, %s, i from generate_series(1, %s) as i",
        PENDING,
        MANY,
    )
    yield factory
    factory.close()


@pytest.fixture(params=["without statistics", "with statistics"])
def store(request, factory):
    if request.param == "with statistics":
        factory.sql("analyze {s}.jobs")
    (store,) = factory._opened
    return store


STATEMENTS = {
    "claim": (claims.CANDIDATES, ("q1", 100, 10, 50, 100), {"ready"}),
    "claim from": (claims.CANDIDATES_FROM, ("q1", 100, 10, 50, 100, 0, 25_000), {"ready"}),
    "claim few": (claims.CLAIM_FEW, ("q1", 10, -100, 0, 1, 1, "{}"), {"ready", "jobs_pkey"}),
    "promote": (claims.PROMOTE, (1000,), {"scheduled", "jobs_pkey"}),
    "next due": (claims.NEXT_DUE, (), {"scheduled"}),
    "due later": (claims.DUE_LATER, (), {"scheduled"}),
    "claimed": (claims.CLAIM, (1, 1, "[]", "{1,2,3}"), {"jobs_pkey"}),
    "succeed": (settles.SUCCEED, ("{1,2}", "{1,1}", "{1,1}", None), {"jobs_pkey"}),
    "dispose": (settles.DISPOSE, ('[{"id": 1, "token": 1}]',), {"jobs_pkey"}),
    "extend": (settles.EXTEND, (1, "{1,2}", "{1,1}"), {"jobs_pkey"}),
    "lock free": (locks.LOCK_FREE.format(table="jobs", key="id"), ("{1,2}",), {"jobs_pkey"}),
    "locked": (locks.LOCKED.format(table="jobs", key="id"), ("{1,2}",), {"jobs_pkey"}),
    "held": (settles.HELD, (1,), {"in_flight"}),
    "lapsed": (settles.EXPIRED_LEASES, (2, "{}", "false", 0, 0, 100), {"in_flight"}),
    "prune": (verbs.EXPIRED, (3, 1, 100), {"terminal"}),
    "due within": (asking.DUE_BY, (10**15, "{q1,q2}", 1), {"scheduled"}),
    "pending letters": (asking.PENDING_DEAD_LETTERS, (1,), {"pending_dead_letters"}),
    "letters": (dead_letters.DUE_DEAD_LETTERS, (10,), {"pending_dead_letters"}),
    "weighed letters": (dead_letters.LENGTHS_SHOWN, ("{1,2}",), {"jobs_pkey", "attempts_of"}),
}


def plan(node):
    yield node
    for child in node.get("Plans", ()):
        yield from plan(child)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_it_reads_through_its_index(store, name, mode):
    sql, parameters, indexes = STATEMENTS[name]
    with store.transaction():
        store.run(f"set local plan_cache_mode = {mode}")
        store.run(f"prepare it as {sql}")
        values = ", ".join("null" if value is None else f"'{value}'" for value in parameters)
        ((explained,),) = store.rows(f"explain (format json) execute it{f'({values})' if values else ''}")
        store.run("deallocate it")
    nodes = list(plan(explained[0]["Plan"]))
    used = {node["Index Name"] for node in nodes if "Index Name" in node}
    assert indexes <= used
    assert not [node for node in nodes if node["Node Type"] == "Seq Scan" and node["Relation Name"] == "jobs"]


@pytest.mark.parametrize("horizon", [1.0, None])
def test_a_drain_that_asks_whether_anything_is_left_reads_little_of_it(store, monkeypatch, horizon):
    """Of all that is scheduled within the horizon, and of as many pending letters."""
    latest = None if horizon is None else store.clock() + horizon
    asked = []
    value = store.value
    monkeypatch.setattr(
        store, "value", lambda sql, *parameters: asked.append((sql, parameters)) or value(sql, *parameters)
    )
    store.remaining(None, latest, 10)
    assert len(asked) == (1 if latest is None else 2)
    for sql, parameters in asked:
        with store.transaction():
            ((explained,),) = store.rows(f"explain (analyze, buffers, format json) {sql}", *parameters)
        assert explained[0]["Plan"]["Shared Hit Blocks"] + explained[0]["Plan"]["Shared Read Blocks"] < 100


def test_a_claim_touches_little_however_much_waits(store):
    with pytest.raises(ZeroDivisionError), store.transaction():
        assert len(take(store, 100, "q1")) == 100
        ((explained,),) = store.rows(
            f"explain (analyze, buffers, format json) {claims.CANDIDATES}", "q1", 100, 10, 50, 100
        )
        plan = explained[0]["Plan"]
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 1000
        raise ZeroDivisionError


@pytest.mark.parametrize("name", ["reserve", "enqueue"])
def test_the_sequence_of_the_ids_is_looked_up_once_for_all_rows(store, name):
    jobs = f"{store.quoted}.jobs"
    sql, *parameters = {"reserve": (claims.RESERVE, jobs, 10), "enqueue": (claims.ENQUEUE, "[]", jobs, "bell")}[name]
    ((explained,),) = store.rows(f"explain (verbose, format json) {sql}", *parameters)
    nodes = [node for node in plan(explained[0]["Plan"]) if "pg_get_serial_sequence" in str(node.get("Output"))]
    assert [node["Parent Relationship"] for node in nodes] == ["InitPlan"]
