"""What a claim costs doesn't grow with what waits: every hot statement walks an index, none scans or sorts."""

from __future__ import annotations

import sqlite3

import pytest

from supervisor.jobs import JobState
from supervisor.stores.codes import IN_FLIGHT
from supervisor.stores.records import EnqueueRow
from supervisor.stores.sqlite import claim as sqlite_claims
from supervisor.stores.sqlite import dead_letters as sqlite_letters
from supervisor.stores.sqlite import operator as sqlite_verbs
from supervisor.stores.sqlite import queries as sqlite_asking
from supervisor.stores.sqlite import settle as sqlite_settles
from supervisor.stores.sqlite.store import SqliteStore

BY_KEY = "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"

STATEMENTS = {
    "candidates": (
        f"select {sqlite_claims.CANDIDATE} from {sqlite_claims.CANDIDATES}",
        ["SEARCH jobs USING INDEX ready (queue=? AND tier=?)"],
    ),
    "claim": (sqlite_claims.CLAIM, [BY_KEY]),
    "due": (f"select id from {sqlite_claims.DUE}", ["SEARCH jobs USING INDEX scheduled (due_at<?)"]),
    "promote": (sqlite_claims.PROMOTE, [BY_KEY]),
    "succeed": (sqlite_settles.SUCCEED, [BY_KEY]),
    "dispose": (sqlite_settles.DISPOSE, [BY_KEY]),
    "extend": (sqlite_settles.EXTEND, [BY_KEY]),
    "expired": (
        f"select id from {sqlite_settles.EXPIRED}",
        ["SEARCH jobs USING INDEX in_flight (owner=? AND lease_until>? AND lease_until<?)"],
    ),
    "prune": (
        f"select id from {sqlite_verbs.EXPIRED}",
        ["SEARCH jobs USING INDEX terminal (state=? AND finished_at<?)"],
    ),
    "list finished": (
        sqlite_asking._filtered(JobState.FAILED, None, None, None)[0] + " limit ?",
        ["SEARCH jobs USING INDEX terminal (state=?)"],
    ),
    "held": (
        f"select id from jobs where state = {IN_FLIGHT} and owner = ?",
        ["SEARCH jobs USING INDEX in_flight (owner=?)"],
    ),
    "due letters": (
        f"select job_id from {sqlite_letters.DUE_DEAD_LETTERS}",
        ["SEARCH dead_letters USING INDEX pending_dead_letters (due_at<?)"],
    ),
    "due within": (
        sqlite_asking.DUE_BY.replace("?2", "'[1]'").replace("?3", "?2"),
        ["SEARCH jobs USING INDEX scheduled (due_at<?)"],
    ),
    "next due": (
        sqlite_claims.NEXT_DUE,
        ["SEARCH jobs USING INDEX scheduled"],
    ),
}


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "jobs.db"
    store = SqliteStore(path, create=True)
    database = sqlite3.connect(path)
    yield database
    database.close()
    store.close()


@pytest.mark.parametrize("name", STATEMENTS)
def test_plan(database, name):
    statement, expected = STATEMENTS[name]
    plan = [
        row[3].replace("COVERING ", "")
        for row in database.execute(f"explain query plan {statement}", [1] * database_parameters(statement))
    ]
    for step in expected:
        assert step in plan
    for step in plan:
        assert "TEMP B-TREE" not in step
        assert not step.startswith(("SCAN jobs", "SCAN dead_letters"))


def database_parameters(statement: str) -> int:
    numbered = [f"?{n}" in statement for n in (1, 2, 3)]
    return sum(numbered) or statement.count("?")


def test_an_enqueue_hands_over_once_what_its_rows_share(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path / "jobs.db", create=True)
    run, handed = store.run, []
    monkeypatch.setattr(store, "run", lambda sql, *values: handed.append(len(values)) or run(sql, *values))
    store.enqueue([EnqueueRow("mail", str(number), headers="{}") for number in range(100)])
    store.close()
    assert 100 < max(handed) < 120
