"""The cost of a claim doesn't grow with the number of waiting jobs: every hot statement walks an index, none scans or sorts."""

from __future__ import annotations

import sqlite3

import pytest

from supervisor.jobs import JobState
from supervisor.stores.records import EnqueueRow
from supervisor.stores.search import IdRange, JobFilter
from supervisor.stores.sqlite import (
    dead_letters,
    job_limits,
    operator,
    queries,
    queue,
    ready_claims,
    recovery,
    search,
    settle,
)
from supervisor.stores.sqlite.connection import Connection
from supervisor.stores.sqlite.store import SqliteStore

BY_KEY = "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"

TAGGED = JobFilter(tag="eu")
MAIL = JobFilter(queue="mail", handler="mail", since=1, until=2)

LINES = "USING INDEX held_back_lines "

STATEMENTS = {
    "candidates": (queue.CANDIDATES.as_text_each, "SEARCH jobs USING INDEX ready (queue=? AND tier=?)"),
    "claim": (queue.CLAIM, BY_KEY),
    "due": (queue.DUE.as_text_each, "SEARCH jobs USING INDEX scheduled (due_at<?)"),
    "promote": (queue.PROMOTE, BY_KEY),
    "succeed": (settle.SUCCEED, BY_KEY),
    "succeed with results": (settle.SUCCEED_WITH_RESULT, BY_KEY),
    "dispose": (settle.DISPOSE, BY_KEY),
    "extend": (settle.EXTEND, BY_KEY),
    "mark started": (settle.MARK_STARTED, BY_KEY),
    "expired": (
        recovery.EXPIRED.as_text_each,
        "SEARCH jobs USING INDEX in_flight (owner=? AND lease_until>? AND lease_until<?)",
    ),
    "prune": (operator.PAST, "SEARCH jobs USING INDEX terminal (state=? AND finished_at>? AND finished_at<?)"),
    "end of a page to prune": (
        operator.PAGE_END,
        "SEARCH jobs USING INDEX terminal (state=? AND finished_at>? AND finished_at<?)",
    ),
    "list finished": (
        search.by_finish(JobFilter(JobState.FAILED), None, 1).sql,
        "SEARCH jobs USING INDEX terminal (state=?)",
    ),
    "list finished behind a place": (
        search.by_finish(JobFilter(JobState.FAILED), (1, 1), 1).sql,
        "SEARCH jobs USING INDEX terminal (state=? AND finished_at<?)",
    ),
    "find by id": (
        search.passing(MAIL, search.by_id(MAIL, False, IdRange(), 1))[0],
        "SEARCH jobs USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
    ),
    "find by tag": (
        search.passing(TAGGED, search.by_id(TAGGED, False, IdRange(), 1))[0],
        "SEARCH job_tags USING INDEX jobs_by_tag (tag=? AND job_id>? AND job_id<?)",
    ),
    "find by text": (search.WITH_TEXT.as_text_each, BY_KEY),
    "held": (settle.HELD.as_text_each, "SEARCH jobs USING INDEX in_flight (owner=?)"),
    "due dead letters": (
        dead_letters.DUE_DEAD_LETTERS.as_text_each,
        "SEARCH dead_letters USING INDEX pending_dead_letters (<expr>=? AND due_at<?)",
    ),
    "drop sink": (operator.SET_OWED, "SEARCH dead_letters USING INDEX pending_dead_letters (<expr>=?)"),
    "pending dead letters": (
        queries.PENDING_DEAD_LETTERS.as_text_each,
        "SEARCH dead_letters USING INDEX pending_dead_letters (<expr>=?)",
    ),
    "ended": (queries.ENDED, BY_KEY),
    "due within": (queries.DUE_BY, "SEARCH jobs USING INDEX scheduled (due_at<?)"),
    "jobs to hold back": (job_limits.HELD_NOW, "SEARCH jobs USING INDEX ready (queue=? AND tier=?)"),
    "candidates under limits": (
        job_limits.FIRST_READY.as_text_each,
        "SEARCH jobs USING INDEX ready (queue=? AND tier=?)",
    ),
    "ready jobs under limits": (ready_claims.READY_JOBS.as_text_each, BY_KEY),
    "live leases": (job_limits.USES.as_text_each, BY_KEY),
    "ended leases": (job_limits.FORGET_ENDED, "SEARCH limited_leases USING PRIMARY KEY (name=?)"),
    "lines": (job_limits.NEXT_LINE.as_text_each, f"SEARCH held_back {LINES}(name=? AND queue=? AND tier>?)"),
    "count of a line": (job_limits.COUNT, f"SEARCH held_back {LINES}(name=? AND queue=? AND tier=?)"),
    "first of a line": (job_limits.FIRST.as_text_each, f"SEARCH held_back {LINES}(name=? AND queue=? AND tier=?)"),
    "leave a line": (job_limits.LEAVE, "SEARCH held_back USING INTEGER PRIMARY KEY (rowid=?)"),
    "leave a line, changed": (job_limits.FORGET_CHANGED, "SEARCH held_back USING INTEGER PRIMARY KEY (rowid=?)"),
    "groups that have ended": (
        job_limits.ENDED_GROUPS.as_text_each,
        "SEARCH limited_leases USING PRIMARY KEY (name>? AND name<?)",
    ),
    "open lines": (
        job_limits.OPEN_LINES.as_text_each,
        "SEARCH group_lines USING INDEX open_lines (queue=? AND tier=? AND open_at<?)",
    ),
    "close a line": (job_limits.CLOSE, "SEARCH group_lines USING PRIMARY KEY (queue=? AND tier=? AND name=?)"),
    "remove an empty line": (
        job_limits.REMOVE_EMPTY,
        "SEARCH group_lines USING PRIMARY KEY (queue=? AND tier=? AND name=?)",
    ),
    "whether a line is closed": (
        job_limits.WAITS_FOR_AN_END,
        "SEARCH group_lines USING INDEX open_lines (queue=? AND tier=? AND open_at=?)",
    ),
    "next line to open": (
        job_limits.NEXT_OPEN,
        "SEARCH group_lines USING INDEX open_lines (queue=? AND tier=? AND open_at>?)",
    ),
    "next queue with lines": (job_limits.NEXT_QUEUE, "SEARCH group_lines USING INDEX open_lines (queue>?)"),
    "claims to forget": (job_limits.FORGET_TIMES, "SEARCH limits USING INDEX limits_until (until>? AND until<?)"),
    "next due": (queue.NEXT_DUE, "SEARCH jobs USING INDEX scheduled"),
}

FIRST_OF_ALL = ("SCAN dead_letters USING INDEX pending_dead_letters",)
"""Of a `limit 1` in the order of the index."""


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "jobs.db"
    store = SqliteStore(path, create=True)
    database = sqlite3.connect(path)
    yield database
    database.close()
    store.close()


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_walks_its_index(database, name):
    statement, expected = STATEMENTS[name]
    parameters = [1] * database_parameters(statement)
    plan = [
        step.replace("COVERING ", "")
        for _, _, _, step in database.execute(f"explain query plan {statement}", parameters)
    ]
    assert expected in plan
    for step in plan:
        assert "TEMP B-TREE" not in step
        assert (
            not step.startswith(("SCAN jobs", "SCAN dead_letters", "SCAN held_back", "SCAN limited_leases"))
            or step in FIRST_OF_ALL
        )


def database_parameters(statement: str) -> int:
    numbered = [f"?{n}" in statement for n in (1, 2, 3, 4, 5)]
    return sum(numbered) or statement.count("?")


def test_an_enqueue_passes_values_that_its_rows_share_once(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path / "jobs.db", create=True)
    run, passed = Connection.run, []
    monkeypatch.setattr(
        Connection, "run", lambda self, sql, *values: passed.append(len(values)) or run(self, sql, *values)
    )
    store.enqueue([EnqueueRow("mail", str(number), headers="{}") for number in range(100)])
    store.close()
    assert 100 < max(passed) < 120
