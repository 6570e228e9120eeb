"""The real command shares its workers between groups, by the shares of its config."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

from tests.system.command import Command, wait_for

CONFIG = """
workers: {{count: 1}}
queues: {{default: {{group_shares: {shares}}}}}
"""
PLUGIN = {
    "tenants.py": """
        import os, time
        from supervisor import handler

        @handler
        def serve(job):
            while not os.path.exists("gate"):
                time.sleep(0.01)
            with open("served.log", "a") as log:
                log.write(job.payload)
            time.sleep(0.005)
    """
}
MANY, FEW = 400, 12


def jobs(tenant: str, n: int) -> list[dict[str, str]]:
    return [{"handler": "serve", "payload": tenant, "group": f"tenant:{tenant}"}] * n


def served(command: Command) -> str:
    log = command.folder / "served.log"
    return log.read_text() if log.exists() else ""


def shares_in_store(command: Command) -> dict[str, float]:
    with closing(sqlite3.connect(command.folder / "jobs.db")) as store:
        return dict(store.execute("select name, shares from group_shares where queue = 'default'"))


def test_ten_jobs_of_a_tenant_start_at_once_though_another_has_hundreds(command: Command) -> None:
    command.write(CONFIG.format(shares="{}"), PLUGIN)
    command.enqueue_many(jobs("a", MANY))
    command.run()
    (command.folder / "gate").touch()
    wait_for(lambda: len(served(command)) > 20)
    before = len(served(command))
    command.enqueue_many(jobs("b", FEW))
    wait_for(lambda: served(command).count("b") == FEW)
    order = served(command)[before:]
    turns = order[order.index("b") : order.rindex("b") + 1]
    assert turns.count("a") <= FEW + 1
    assert len(served(command)) < MANY


def test_shares_are_read_at_the_start_and_again_after_a_hangup(command: Command) -> None:
    command.write(CONFIG.format(shares='{"tenant:b": 3}'), PLUGIN)
    run = command.run()
    run.logged("supervisor started")

    def order(shares: float) -> str:
        wait_for(lambda: shares_in_store(command) == {"tenant:b": shares})
        command.enqueue_many(jobs("a", 1) + jobs("a", FEW) + jobs("b", FEW))
        (command.folder / "gate").touch()
        wait_for(lambda: len(served(command)) == 1 + 2 * FEW)
        found = served(command)
        for name in ("gate", "served.log"):
            (command.folder / name).unlink()
        return found

    assert "bbb" in order(3)
    command.write(CONFIG.format(shares='{"tenant:b": 1}'), PLUGIN)
    run.signal(signal.SIGHUP)
    run.logged("config reloaded")
    assert "bb" not in order(1)[: 2 * FEW]
