"""Every hot statement reads through the index made for it, however many other rows are in the table."""

from __future__ import annotations

import pytest

from supervisor.jobs import JobState
from supervisor.stores.codes import PENDING
from supervisor.stores.postgres import (
    claim,
    dead_letters,
    enqueue,
    functions,
    job_limits,
    oldest,
    operator,
    queries,
    recovery,
    row_locks,
    search,
    settle,
)
from supervisor.stores.postgres.claim_cursor import WHOLE
from supervisor.stores.search import IdRange, JobFilter
from tests.stores.factories import PostgresFactory, take

MANY = 50_000


@pytest.fixture(scope="module")
def factory(tmp_path_factory):
    """Many jobs that wait in three queues, and as many that are scheduled or done."""
    factory = PostgresFactory(tmp_path_factory.mktemp("plans"))
    factory.joined("one")
    for state, n in ((0, MANY), (1, MANY), (3, MANY), (2, 100)):
        factory.sql(
            """insert into {s}.jobs(handler, queue, payload, state, age, due_at, finished_at, owner, lease_until)
              select 'mail', 'q' || i %% 3, '{}', %s, i, i, i, 1, i from generate_series(1, %s) as i""",
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
    # Jobs that are held back by a limit, in two of the queues.
    factory.sql(
        """insert into {s}.held_back(job_id, age, priority, tier, name, queue)
          select i, i, 0, 0, 'handler mail', 'q' || i %% 2 from generate_series(1, %s) as i""",
        MANY,
    )
    # Lines of groups: a hundred are open, and as many have no time; the others are closed.
    factory.sql(
        """insert into {s}.group_lines(queue, tier, name, open_at)
          select 'q1', 0, 'group ' || i, case when i > 200 then 10::bigint ^ 15 + i when i > 100 then i end
          from generate_series(1, %s) as i""",
        MANY,
    )
    factory.sql("insert into {s}.limits(name, times, until) select i, '[]', i from generate_series(1, %s) as i", MANY)
    factory.sql(
        "insert into {s}.limited_leases(name, job_id, token) select 'a', i, 0 from generate_series(1, %s) as i", MANY
    )
    factory.sql("insert into {s}.job_tags(job_id, tag) select i, 'eu' from generate_series(1, %s) as i", MANY)
    yield factory
    factory.close()


@pytest.fixture(params=["without statistics", "with statistics"])
def store(request, factory):
    if request.param == "with statistics":
        factory.sql("analyze")
    (store,) = factory._opened
    return store


CLAIM = ("q1", 100, 1, 1, "{}", 10**6, 0)
FRESH_CLAIM = ("{q0,q1}", "{5,5}", 1, 1, '{"q0": {"mail": "policy"}}', 10**6, 0)
RULE = (1000, 10, 50, 100)
DONE, DEAD = JobFilter(JobState.SUCCEEDED, handler="mail"), JobFilter(dead_letter="delivered")
TAGGED = JobFilter(handler="mail", tag="eu")
MAIL = JobFilter(JobState.FAILED, "q1", "mail", since=1, until=2)
LINE, GROUP_LINE = ("handler mail", "q1", 0), ("group 1", "q1", 0)
STATEMENTS = {
    "claim": (claim.CLAIM, (*CLAIM, *WHOLE, *RULE), {"ready", "jobs_pkey"}),
    "claim from a position": (claim.CLAIM, (*CLAIM, 0, 25_000, *RULE), {"ready", "jobs_pkey"}),
    "claim fresh jobs": (claim.CLAIM_FRESH, (*FRESH_CLAIM, "{0,1}", "{1,1}"), {"ready", "jobs_pkey"}),
    "first ready": (claim.FIRST_READY, ("{q0,q1}", "{0,0}", "{1,1}"), {"ready"}),
    "claim ready jobs": (claim.CLAIM_READY, ("q1", "{1,2}", 1, 1, "{}", 10**6, 0), {"jobs_pkey"}),
    "candidates under limits": (job_limits.FIRST_READY, ("q1", 0, 10), {"ready"}),
    "hold back": (job_limits.HOLD, ("q1", 0, 100, "{mail}", "{a}"), {"ready", "jobs_pkey"}),
    "make ready": (job_limits.MAKE_READY, ("{1,2}",), {"jobs_pkey"}),
    "live leases": (job_limits.USES, ("{a,b}",), {"limited_leases_pkey", "jobs_pkey"}),
    "ended leases": (job_limits.FORGET_ENDED, ("a",), {"limited_leases_pkey"}),
    "lines": (job_limits.LINES, ("handler ", "", -1, 100), {"held_back_lines"}),
    "count of a line": (job_limits.COUNT, (*LINE, 10), {"held_back_lines"}),
    "first of a line": (job_limits.FIRST, (*LINE, 10), {"held_back_lines", "jobs_pkey"}),
    "changed ones of a line": (job_limits.FORGET_CHANGED, (*LINE, 10), {"held_back_lines", "held_back_pkey"}),
    "leave a line": (job_limits.LEAVE, ("{1,2}",), {"held_back_pkey"}),
    "open lines": (job_limits.OPEN_LINES, ("q1", 0, 1000, 20), {"open_lines"}),
    "close a line": (job_limits.CLOSE, (*GROUP_LINE, 5), {"group_lines_pkey"}),
    "remove an empty line": (job_limits.REMOVE_EMPTY, GROUP_LINE, {"group_lines_pkey", "held_back_lines"}),
    "open lines of ended groups": (job_limits.OPEN_ENDED, ("{q1}", "{group 1}"), {"group_lines_pkey"}),
    "closed lines": (job_limits.CLOSED, ("q1", 1000), {"open_lines"}),
    "claims to forget": (job_limits.FORGET_TIMES, (10, "jobs"), {"limits_until", "limits_pkey"}),
    "promote": (claim.PROMOTE, (1000,), {"scheduled", "jobs_pkey"}),
    "look": (claim.LOOK, ("", 1000, None, False), {"scheduled", "counts_by_queue"}),
    "next due": (claim.NEXT_DUE_LATER, (), {"scheduled"}),
    "next due later": (claim.NEXT_DUE_LATER, (), {"scheduled"}),
    "succeed": (settle.SUCCEED, ("{1,2}", "{1,1}", "{1,1}", None), {"jobs_pkey"}),
    "dispose": (settle.DISPOSE, ('[{"id": 1, "token": 1}]',), {"jobs_pkey"}),
    "extend": (settle.EXTEND, (1, "{1,2}", "{1,1}"), {"jobs_pkey"}),
    "mark started": (settle.MARK_STARTED, (1, "{1,2}", "{1,1}"), {"jobs_pkey"}),
    "lock free": (row_locks.JOBS.lock_free, ("{1,2}",), {"jobs_pkey"}),
    "locked": (row_locks.LOCKED_JOBS, ("{1,2}",), {"jobs_pkey"}),
    "held": (settle.HELD, (1,), {"in_flight"}),
    "expired": (recovery.EXPIRED, (2, "{}", "false", 0, 0, 100), {"in_flight"}),
    "prune": (operator.PAST, (3, 1, 0, 0, 10**6, 0, 100), {"terminal"}),
    "end of a page to prune": (operator.PAGE_END, (3, 1, 0, 0, 100), {"terminal"}),
    "ended": (queries.ENDED, (f"{{{','.join(map(str, range(1, 1001)))}}}",), {"jobs_pkey"}),
    "oldest ready": (oldest.OLDEST_READY, (100,), {"ready"}),
    "due within": (queries.DUE_BY, (10**15, "{q1,q2}", 1, "{work}"), {"scheduled"}),
    "find finished": (*search.passing(DONE, search.by_finish(DONE, (1, 1), 10_000), 100), {"terminal", "jobs_pkey"}),
    "find by id": (*search.passing(MAIL, search.by_id(MAIL, False, IdRange(1, 10**6), 10_000), 100), {"jobs_pkey"}),
    "find pending": (
        *search.passing(DEAD, search.by_id(DEAD, False, IdRange(1, 10**6), 10_000), 100),
        {"dead_letters_pkey"},
    ),
    "find by tag": (
        *search.passing(TAGGED, search.by_id(TAGGED, False, IdRange(1, 10**6), 10_000), 100),
        {"jobs_by_tag", "jobs_pkey"},
    ),
    "created at": (search.CREATED_AT, (1,), {"jobs_pkey"}),
    "pending dead letters": (queries.PENDING_DEAD_LETTERS, (1,), {"pending_dead_letters"}),
    "drop sink": (operator.SET_OWED, ("[]", "[]", "[]", 1, 10), {"dead_letters_pkey"}),
    "claim dead letters": (
        dead_letters.CLAIM_DEAD_LETTERS,
        (10, 10**6, 1, 1, 0, "{[]}", "{[]}", "{[]}"),
        {"pending_dead_letters", "dead_letters_pkey", "jobs_pkey", "attempts_of"},
    ),
}


def plan(node):
    yield node
    for child in node.get("Plans", ()):
        yield from plan(child)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_reads_through_its_index(store, name, mode):
    sql, parameters, indexes = STATEMENTS[name]
    run = store.connection.run
    with store.transaction():
        run(f"set local plan_cache_mode = {mode}")
        run(f"prepare it as {sql}")
        values = ", ".join("null" if value is None else f"'{value}'" for value in parameters)
        ((explained,),) = store.connection.rows(f"explain (format json) execute it{f'({values})' if values else ''}")
        run("deallocate it")
    nodes = list(plan(explained[0]["Plan"]))
    used = {node["Index Name"] for node in nodes if "Index Name" in node}
    assert indexes <= used
    assert not [
        node
        for node in nodes
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] in ("jobs", "held_back", "group_lines")
    ]


@pytest.mark.parametrize("horizon", [1.0, None])
def test_a_drain_that_asks_whether_anything_is_left_reads_little_of_it(store, monkeypatch, horizon):
    """Of all that is scheduled within the horizon, and of as many pending dead letters."""
    latest = None if horizon is None else store.clock() + horizon
    asked = []
    value, rows = store.connection.value, store.connection.rows
    monkeypatch.setattr(
        store.connection, "value", lambda sql, *parameters: asked.append((sql, parameters)) or value(sql, *parameters)
    )
    monkeypatch.setattr(
        store.connection, "rows", lambda sql, *parameters: asked.append((sql, parameters)) or rows(sql, *parameters)
    )
    store.remaining(None, latest, 10)
    monkeypatch.undo()
    asked = [it for it in asked if it[0] in (queries.DUE_BY, queries.PENDING_DEAD_LETTERS)]
    assert len(asked) == (1 if latest is None else 2)
    for sql, parameters in asked:
        assert blocks(store, sql, *parameters) < 100


def blocks(store, sql, *parameters):
    with store.transaction():
        ((explained,),) = store.connection.rows(f"explain (analyze, buffers, format json) {sql}", *parameters)
    return explained[0]["Plan"]["Shared Hit Blocks"] + explained[0]["Plan"]["Shared Read Blocks"]


def test_a_claim_touches_little_however_much_waits(store):
    """It looks for 100 jobs whose policy is not known, so that it changes none."""
    with pytest.raises(ZeroDivisionError), store.transaction():
        assert len(take(store, 100, "q1")) == 100
        assert blocks(store, claim.CLAIM, *CLAIM, *WHOLE, *RULE) < 1000
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [(job_limits.OPEN_LINES, ("q1", 0, 1000, 20)), (job_limits.CLOSED, ("q1", 1000))],
    ids=["open", "closed"],
)
def test_a_claim_reads_few_of_the_lines_of_groups(store, sql, parameters):
    assert blocks(store, sql, *parameters) < 100


@pytest.mark.parametrize("sql", [job_limits.LINES, job_limits.COUNT, job_limits.FIRST])
def test_a_line_of_jobs_that_are_held_back_is_not_read_to_its_end(store, sql):
    parameters = ("handler ", "", -1, 100) if sql is job_limits.LINES else (*LINE, 10)
    assert blocks(store, sql, *parameters) < 100


@pytest.mark.parametrize(
    ("sql", "batch"), [(enqueue.RESERVE, 10), (functions.INSERT_JOBS, "[]")], ids=["reserve", "put"]
)
def test_the_sequence_of_the_ids_is_looked_up_once_for_all_rows(store, sql, batch):
    ((explained,),) = store.connection.rows(f"explain (verbose, format json) {sql}", batch)
    nodes = [node for node in plan(explained[0]["Plan"]) if "pg_get_serial_sequence" in str(node.get("Output"))]
    assert [node["Parent Relationship"] for node in nodes] == ["InitPlan"]
