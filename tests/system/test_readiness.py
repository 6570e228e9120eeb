"""/readyz of the real command says within five seconds what keeps it from its work, for each real fault, and is well again after it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from supervisor.stores.postgres.store import PostgresStore
from tests.stores.postgres_server import Server
from tests.system.command import Command, Running, wait_for
from tests.system.disks import fill, small_disk
from tests.system.privileges import require_root
from tests.system.test_http import Answer, Site, served
from tests.system.test_sharing import locked
from tests.system.test_store_unavailable import execute

PROMISED = 5.0
"""Seconds from a fault to the answer that names it."""
EVERY = 0.1
AFTER = 20.0

HTTP = 'http: {listen: "127.0.0.1:0"}\n'
GOOD = """
    import os, time
    from supervisor import handler, hookimpl

    @handler(max_retries=0)
    def fails(job):
        raise ValueError("never")

    @handler
    def waits(job):
        while not os.path.exists("go"):
            time.sleep(0.01)
"""
SINK = """
    import os
    from supervisor import Sink, hookimpl

    class Picky(Sink):
        def __init__(self): ...
        def publish(self, dead_letters):
            if os.path.exists("mailbox-is-full"):
                raise OSError("the mailbox is full")
            return [each["id"] for each in dead_letters]
        def close(self): ...

    @hookimpl
    def supervisor_sinks():
        return {"picky": Picky}
"""
DIES = """
    import os
    from supervisor import hookimpl

    @hookimpl
    def supervisor_worker_started(worker):
        if os.path.exists("die"):
            os._exit(7)
"""


def start(command: Command, config: str = "", plugins: dict[str, str] | None = None) -> tuple[Running, Site]:
    command.write(config=f"workers: {{count: 1}}\n{HTTP}{config}", plugins=plugins or {"p.py": GOOD})
    run = command.run()
    site = served(command, run)
    ready(site)
    return run, site


def ready(site: Site) -> None:
    wait_for(lambda: site.ask("/readyz").status == 200, AFTER, EVERY)


def refused(site: Site, reason: str, began: float | None = None, within: float = PROMISED) -> str:
    """Wait until the supervisor is not ready for this reason, and return its message. The fault began just now, or then."""
    began = time.monotonic() if began is None else began

    def answer() -> Answer | bool:
        return (it := site.ask("/readyz")).status == 503 and reason in reasons(it) and it

    found = wait_for(answer, within, EVERY)
    took = time.monotonic() - began
    assert took < within
    message: str = reasons(found)[reason]
    assert all(each["what_to_do"] for each in found.body["reasons"])
    return message


def reasons(answer: Answer) -> dict[str, str]:
    return {each["reason"]: each["message"] for each in answer.body["reasons"]}


def test_a_database_that_another_program_has_locked_and_claims_that_it_refuses(command: Command) -> None:
    _, site = start(command)
    with locked(command.folder / "jobs.db"):
        assert "locked" in refused(site, "store")
        page = site.ask("/", Accept="text/html").body  # can be read all the same
        assert "database is locked" in page and "All well" not in page
    ready(site)
    refusal = "begin select raise(abort, 'no'); end"
    execute(command, f"create trigger refuses before update on jobs when new.state = 2 {refusal}")
    job = command.enqueue("fails")
    assert "no jobs are claimed" in refused(site, "claims")
    assert "fails to claim jobs" in refused(site, "store")
    execute(command, "drop trigger refuses")
    ready(site)
    command.until(job, "failed")


def test_a_full_disk_also_while_there_is_nothing_to_do(command: Command) -> None:
    require_root("a small disk")
    with small_disk(command.folder / "disk", "2m") as disk:
        run, site = start(command, "store: sqlite:///disk/jobs.db\n")
        wait_for(lambda: idle_worker(command))  # nothing changes any more, so nothing need be written
        fill(filler := disk / "filler")
        assert "full" in refused(site, "store")
        filler.unlink()
        ready(site)
        run.signal(signal.SIGTERM)
        assert run.wait() == 0


def test_plugins_that_do_not_load_after_a_reload(command: Command) -> None:
    run, site = start(command)
    command.write(plugins={"new.py": "def broken(:\n"})
    run.signal(signal.SIGHUP)
    run.logged("new.py:1 did not load")
    assert "new.py:1 did not load" in refused(site, "plugin")
    (command.folder / "plugins/new.py").unlink()
    command.write(plugins={"p.py": "def broken(:\n"})
    run.signal(signal.SIGHUP)
    run.logged("config refused")
    wait_for(lambda: "the reload was refused" in refused(site, "plugin"), PROMISED)
    command.write(plugins={"p.py": GOOD})
    run.signal(signal.SIGHUP)
    ready(site)


def test_a_sink_that_raises_workers_that_exit_as_soon_as_they_start_and_an_end(command: Command) -> None:
    run, site = start(command, "dlq: {sinks: [{type: picky}]}\n", {"p.py": GOOD, "dies.py": DIES, "sink.py": SINK})
    (full := command.folder / "mailbox-is-full").touch()
    command.until(command.enqueue("fails"), "failed")
    assert refused(site, "sink") == "sink picky does not accept dead letters: OSError: the mailbox is full"
    full.unlink()
    ready(site)
    worker = wait_for(lambda: idle_worker(command))
    (die := command.folder / "die").touch()
    os.kill(worker, signal.SIGKILL)
    assert "workers fail as soon as they start (0 of 1 run)" in refused(site, "workers")
    die.unlink()
    ready(site)
    command.until(command.enqueue("waits"), "in_flight")
    run.signal(signal.SIGTERM)
    refused(site, "draining")
    (command.folder / "go").touch()
    assert run.wait() == 0


def idle_worker(command: Command) -> int:
    workers = command.status()["supervisors"][0]["workers"]
    assert [worker["state"] for worker in workers] == ["idle"]
    return int(workers[0]["pid"])


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.remove()


def test_a_server_that_is_missing_at_the_start_hangs_or_is_killed(command: Command, server: Server) -> None:
    PostgresStore(server.url, create=True).close()
    server.stop(signal.SIGQUIT)
    command.write(config=f'workers: {{count: 1}}\n{HTTP}store: "{server.url}"\n', plugins={"p.py": GOOD})
    site = served(command, command.run())
    assert "the store is unavailable: " in refused(site, "store", within=AFTER)
    server.start()
    ready(site)
    server.freeze()
    refused(site, "store")
    assert site.ask("/livez").status == 200
    server.thaw()
    ready(site)
    server.stop(signal.SIGQUIT)
    refused(site, "store")
    server.start()
    ready(site)
