"""The grants of the guide to PostgreSQL are enough for what it says, with real roles, and allow nothing more."""

from __future__ import annotations

import re
from contextlib import closing

import psycopg
import pytest

from supervisor.cli.app import run_command_line
from supervisor.client.client import Client
from supervisor.config.settings import RetentionSettings, Settings, StoreSettings
from supervisor.errors import RowRefused, StoreBroken
from supervisor.jobs import Progress
from supervisor.stores.extras import Extras
from supervisor.stores.job_limits import JobLimits, Limit
from supervisor.stores.job_reports import JobReport, progress_text
from supervisor.stores.postgres.limits import PostgresLimits
from supervisor.stores.postgres.rights import OF_SUPERVISORS
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.records import ClaimRequest, EnqueueRow, Presence
from supervisor.stores.schedules import ScheduleChange
from supervisor.stores.search import JobFilter
from tests.docs.pages import page
from tests.stores.factories import ON_POSTGRESQL, again, dead, make_dead, put, resolve, state_of, success, take
from tests.stores.pooler import Pooler

pytestmark = ON_POSTGRESQL

GRANTS = [block for block in page("guides/postgresql.md").blocks if block.title.startswith("rights of ")]
ROLES = ("app", "operator", "runner")
APP, OPERATOR, RUNNER = ROLES


@pytest.fixture
def store(factory):
    """A store whose owner has given each role what the guide says."""
    store = factory.open()
    for role in ROLES:
        factory.sql(f"create role {role} login")
    assert [block.title for block in GRANTS] == [f"rights of {role}.sql" for role in ROLES]
    for block in GRANTS:
        factory.sql(re.sub(r"\bsupervisor\b", "{s}", block.text))
    yield store
    for role in ROLES:
        factory.sql(f"drop owned by {role}; drop role {role}")


@pytest.fixture
def of(factory):
    """Opens the store for a role."""

    def open_of(role):
        return PostgresStore(url_of(factory, role), schema=factory.schema)

    return open_of


def url_of(factory, role):
    return factory.server.url.replace("postgres@", f"{role}@")


def client_of(factory, url):
    return Client(Settings(store=StoreSettings(url=url, options={"schema": factory.schema})))


def test_an_enqueue_only_role_uses_a_client_of_its_own(factory, store):
    with client_of(factory, url_of(factory, APP)) as client:
        assert client.enqueue("mail") == 1
        assert client.enqueue_many([("mail", 1), ("mail", 2)]) == [2, 3]
        many = client.enqueue_many([("mail", "x" * 20_000)] * 300)
        assert many == list(range(4, 304))
        for refused in (lambda: client.job(1), lambda: client.cancel(1)):
            with pytest.raises(
                StoreBroken, match=r"permission denied for table .*grant this right to the role in the URL"
            ):
                refused()
    assert store.stats()["queues"][0]["queue_size"] == 303
    assert store.repair() == ""


def test_jobs_of_an_enqueue_only_role_that_are_too_large_for_one_statement_are_all_or_none(factory, store, of):
    factory.sql("alter table {s}.jobs add constraint short check (length(payload) < 5000)")
    app = PostgresStore(url_of(factory, APP), schema=factory.schema, limits=PostgresLimits(sent_characters=10_000))
    rows = [EnqueueRow("mail", f'"{"x" * 1000}"')] * 40
    assert app.enqueue(rows) == list(range(1, 41))
    with pytest.raises(RowRefused, match="short"):
        app.enqueue([*rows, EnqueueRow("mail", f'"{"x" * 5000}"')])
    app.close()
    assert store.stats()["queues"][0]["queue_size"] == 40


def test_an_enqueue_only_role_enqueues_on_a_connection_whose_address_is_written_in_another_way(factory, store):
    pooler = Pooler(factory.server)
    url = pooler.url.replace("postgres@", f"{APP}@")
    try:
        with client_of(factory, url_of(factory, APP)) as client:
            for host in ("127.0.0.1", "localhost"):
                with psycopg.connect(url.replace("127.0.0.1", host)) as mine:
                    id = client.enqueue("mail", connection=mine)
                assert state_of(store, id) == "ready"
    finally:
        pooler.close()


def test_an_operator_reads_and_changes_jobs_and_does_not_run_them(store, of):
    store.join("one", "host", 1)
    make_dead(store, "a", "b")
    operator = of(OPERATOR)
    assert operator.list_jobs() and operator.get(1) and operator.stats()["queues"] and operator.paused() == frozenset()
    operator.pause("mail", True)
    ids = put(operator, "c", "d", "e", *["many"] * 300)
    assert [*operator.cancel(ids[:2]).changed] == ids[:2]
    assert [*operator.retry(ids[:1]).changed] == ids[:1]
    assert [*operator.delete(ids[1:2]).changed] == ids[1:2]
    assert [*operator.redrive([1], True).changed] == [1]
    assert [*operator.move(ids[2:3], "other").changed] == ids[2:3]
    (unique,) = store.enqueue([EnqueueRow("g", "null", extras=Extras(unique="g"))])
    assert [*operator.cancel([unique]).changed] == [*operator.retry([unique]).changed] == [unique]
    tagged = store.enqueue([EnqueueRow("f", "null", extras=Extras(tags=("eu",)))])
    assert operator.find_jobs(JobFilter(tag="eu")).ids == tagged
    assert operator.purge(True).changed
    operator.change_schedules(["nightly"], lambda now, rows: [ScheduleChange(rows["nightly"].state)], wait=True)
    assert [row.state.name for row in operator.schedules()] == ["nightly"]
    operator.change_schedules(["nightly"], lambda now, rows: [ScheduleChange(rows["nightly"].state, forget=True)])
    assert operator.schedules() == []
    with pytest.raises(StoreBroken, match="permission denied for table supervisors"):
        operator.join("o", "host", 1)
    operator.close()


def test_a_runner_does_all_that_a_supervisor_does(factory, store, of):
    put(store, *["mail"] * 20)
    store.enqueue([EnqueueRow("mail", "{}", extras=Extras(unique="a", expires=1))])
    runner = of(RUNNER)
    runner.join("one", "host", 1, frozenset({"file"}))
    runner.announce(Presence("running", ttl=30.0))
    leases = take(runner, limit=6)
    runner.extend(leases, 30.0, leases)
    for done in (1, 2):
        runner.keep_reports([JobReport(leases[0].id, leases[0].token, progress_text(1, Progress(done)), None)])
    runner.settle([success(leases[0]), again(leases[1]), dead(leases[2])])
    (letter,) = runner.claim_dead_letters(10, 30.0)
    runner.postpone([letter], 0.0)
    (letter,) = runner.claim_dead_letters(10, 30.0)
    runner.mark_accepted([letter], "file")
    assert store.get(3)["dead_letter"] == "delivered"
    runner.prune(RetentionSettings(), 100)
    factory.clock.step(1)
    assert len(runner.look(None, 100).expired) == 1
    runner.set_group_shares({"mail": {"tenant": 2.0}}, None)
    factory.sql("insert into {s}.counts(state, queue, tier, n) values (1, 'default', 0, 5)")
    assert runner.repair()
    assert runner.held() and runner.expired_leases(10) == []
    claim_under_limits(runner)
    for number in (1, 2, 5):
        jobs = [EnqueueRow("mail", "1")] * number
        assert runner.change_schedules(["n"], lambda now, rows, jobs=jobs: [ScheduleChange(rows["n"].state, jobs)])[0]
    runner.leave()
    runner.close()


def claim_under_limits(runner):
    limits = JobLimits({}, {"mail": Limit(running=5, claims=2, per=60_000_000)})
    for _ in range(2):
        allowance = runner.allowance(limits, None)
        requests = [ClaimRequest("default", 3, 0, 3, 100)]
        claimed = runner.claim_limited(requests, 30.0, resolve, allowance, 100)
        runner.settle([success(lease) for lease in claimed.leases])
    assert claimed.held
    assert runner.release_held(None, None, 10)


def lacked_by_operator(factory):
    return [
        f'grant update, delete on "{factory.schema}".expiries to operator',
        f'grant insert, update, delete on "{factory.schema}".group_lines to operator',
        f'grant insert, update, delete on "{factory.schema}".held_back to operator',
        f'grant insert, update, delete on "{factory.schema}".limited_leases to operator',
        f'grant insert, update, delete on "{factory.schema}".limits to operator',
        f'grant insert, update on "{factory.schema}".reports to operator',
        f'grant insert, update, delete on "{factory.schema}".supervisors to operator',
        "grant execute on function "
        + ", ".join(f'"{factory.schema}".{name}' for name in ("put", "forget_groups", "set_group_shares"))
        + " to operator",
    ]


def test_the_missing_rights_of_a_role_are_named_as_grants(factory, store, of):

    def missing(role):
        with closing(of(role)) as opened:
            return opened.missing_rights()

    rights = {role: missing(role) for role in (OPERATOR, RUNNER)}
    assert rights == {OPERATOR: lacked_by_operator(factory), RUNNER: []}
    assert store.missing_rights() == []
    factory.sql("revoke execute on function {s}.clock from operator")
    assert missing(RUNNER) == [f'grant execute on function "{factory.schema}".clock to runner']


def test_the_grants_that_are_named_are_enough_for_a_supervisor(factory, store, of):
    factory.sql("revoke operator from runner; revoke all on {s}.supervisors from runner")
    factory.sql("grant usage on schema {s} to runner; grant select on {s}.test_clock to runner")
    with closing(of(RUNNER)) as runner:
        grants = runner.missing_rights()
    assert len(grants) == len(OF_SUPERVISORS) + 1, "one for each table, and one for all functions"
    factory.sql("; ".join(grants))
    test_a_runner_does_all_that_a_supervisor_does(factory, store, of)


def test_check_names_the_missing_rights_of_its_role_and_leaves_nothing_behind(
    factory, store, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plugins").mkdir()

    def check(role):
        url = url_of(factory, role)
        (tmp_path / "supervisor.yaml").write_text(f"store: {{url: '{url}', schema: {factory.schema}}}\n")
        code = run_command_line(["check"])
        return code, capfd.readouterr().err

    code, errors = check(OPERATOR)
    grants = "; ".join(lacked_by_operator(factory))
    assert code == 2 and f"its role lacks rights: let the owner run `{grants}`" in errors
    assert check(RUNNER)[0] == 0
    assert store.stats()["supervisors"] == []


def test_a_transaction_that_does_not_notify_can_be_prepared_for_a_commit_in_two_phases(factory, store):
    with client_of(factory, url_of(factory, APP)) as client, closing(psycopg.connect(url_of(factory, APP))) as mine:
        mine.tpc_begin("order 1")
        mine.execute("set local supervisor.notify = off")
        id = client.enqueue("mail", connection=mine)
        mine.tpc_prepare()
        assert store.get(id) is None
        mine.tpc_commit()
        assert state_of(store, id) == "ready"
        mine.tpc_begin("order 2")
        client.enqueue("mail", connection=mine)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):
            mine.tpc_prepare()
