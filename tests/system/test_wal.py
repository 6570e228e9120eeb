"""The write-ahead log of the database while another program keeps reading an old state, and afterwards."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from supervisor.stores.sqlite.limits import SqliteLimits
from tests.system.command import Command, wait_for

WAL_LIMIT = SqliteLimits().wal_bytes

PLUGIN = {
    "noop.py": """
        from supervisor import handler

        @handler
        def noop(job):
            pass
    """
}


def test_a_log_that_grew_behind_a_reader_is_reported_and_shrinks_once_the_reader_has_ended(command: Command) -> None:
    command.write(config="workers: {count: 1}\nlease: {ttl: 3s}\n", plugins=PLUGIN)
    run = command.run()
    wal = command.folder / "jobs.db-wal"
    command.until(command.enqueue("noop"), "succeeded")
    with closing(sqlite3.connect(command.folder / "jobs.db", isolation_level=None)) as reader:
        reader.execute("begin")
        assert reader.execute("select count(*) from jobs").fetchone() == (1,)
        with closing(sqlite3.connect(command.folder / "jobs.db", isolation_level=None, timeout=30)) as writer:
            writer.execute("create table ballast as select zeroblob(?) as bytes", (WAL_LIMIT + 5_000_000,))
        assert wal.stat().st_size > WAL_LIMIT
        command.enqueue("noop")
        run.logged("keeps reading an old state")
        command.until(command.enqueue("noop"), "succeeded")
        reader.execute("commit")
        wait_for(lambda: wal.stat().st_size <= WAL_LIMIT)
    assert run.log.count("keeps reading an old state") == 1
