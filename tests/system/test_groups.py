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
        import time
        from pathlib import Path
        from supervisor import handler

        @handler
        def serve(job):
            "Wait until one more job is allowed."
            with open("served.log", "a") as log:
                while log.tell() >= int(Path("allowed").read_text()):
                    time.sleep(0.005)
                log.write(job.payload)
            time.sleep(0.005)
    """
}
MANY, FEW, BEFORE = 400, 12, 20


def jobs(tenant: str, n: int) -> list[dict[str, str]]:
    return [{"handler": "serve", "payload": tenant, "group": f"tenant:{tenant}"}] * n


def served(command: Command) -> str:
    log = command.folder / "served.log"
    return log.read_text() if log.exists() else ""


def allow(command: Command, number: int) -> None:
    """Let so many jobs be served, counted from the beginning of the log."""
    part = command.folder / "allowed.part"
    part.write_text(str(number))
    part.replace(command.folder / "allowed")


def shares_in_store(command: Command) -> dict[str, float]:
    with closing(sqlite3.connect(command.folder / "jobs.db")) as store:
        return dict(store.execute("select name, shares from group_shares where queue = 'default'"))


def test_ten_jobs_of_a_tenant_start_at_once_though_another_has_hundreds(command: Command) -> None:
    command.write(CONFIG.format(shares="{}"), PLUGIN)
    command.enqueue_many(jobs("a", MANY))
    allow(command, BEFORE)
    command.run()
    wait_for(lambda: served(command) == "a" * BEFORE)
    command.enqueue_many(jobs("b", FEW))
    allow(command, MANY + FEW)
    wait_for(lambda: served(command).count("b") == FEW)
    order = served(command)
    turns = order[order.index("b") : order.rindex("b") + 1]
    assert turns.count("a") <= FEW + 1
    assert order.index("b") < MANY / 2, "behind the jobs that the supervisor held already"


def test_shares_are_read_at_the_start_and_again_after_a_hangup(command: Command) -> None:
    command.write(CONFIG.format(shares='{"tenant:b": 3}'), PLUGIN)
    allow(command, 0)
    run = command.run()
    run.logged("supervisor started")

    def order(shares: float) -> str:
        wait_for(lambda: shares_in_store(command) == {"tenant:b": shares})
        command.enqueue_many(jobs("a", 1) + jobs("a", FEW) + jobs("b", FEW))
        before = len(served(command))
        allow(command, before + 1 + 2 * FEW)
        wait_for(lambda: len(served(command)) == before + 1 + 2 * FEW)
        return served(command)[before:]

    assert "bbb" in order(3)
    command.write(CONFIG.format(shares='{"tenant:b": 1}'), PLUGIN)
    run.signal(signal.SIGHUP)
    run.logged("config reloaded")
    assert "bb" not in order(1)[: 2 * FEW]
