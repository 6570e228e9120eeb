"""The server becomes unavailable to a supervisor that works, in every way: running jobs go on, outcomes are kept, and a job that
was taken over meanwhile is left to the supervisor that has it.

SUPERVISOR_OUTAGE_SECONDS is how long the cable is cut (a few).
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from supervisor.stores.postgres.store import PostgresStore
from tests.stores.postgres_server import Server
from tests.system.command import TIMEOUT, Command, Running, wait_for
from tests.system.machines import Machine, Network, why_not

OUTAGE = float(os.environ.get("SUPERVISOR_OUTAGE_SECONDS", "3"))
TTL = 2.0
HERE = socket.gethostname()
CALL = 15.0
"""Seconds within which a command answers, or fails."""
END = 15.0
"""Seconds within which a supervisor exits that waits for nothing but the store."""

JOBS = {
    "jobs.py": """
        import os, socket, time
        from supervisor import handler

        HOST = socket.gethostname()

        def mark(job):
            fd = os.open("ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(fd, f"{job.id} {HOST}\\n".encode())
            os.close(fd)
            return HOST

        @handler
        def marks(job):
            time.sleep(0.005)
            return mark(job)

        @handler
        def waits(job):
            "Waits for the file of the machine that it runs on."
            mark(job)
            while not os.path.exists(f"go-{HOST}"):
                time.sleep(0.01)
            return HOST
    """
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if reason := why_not():
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    with Network() as network:
        yield network


@pytest.fixture(scope="module")
def far(network: Network) -> Machine:
    return network.machine("far")


@pytest.fixture(scope="module")
def lan_server(network: Network) -> Iterator[Server]:
    """Of all machines of the network, and of this one."""
    server = Server({}, under=network.under, address=network.address)
    yield server
    server.remove()


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    server = Server({})
    yield server
    server.remove()


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """A server and its standby, which has all that the first has committed."""
    first = Server({"synchronous_standby_names": "*"})
    second = Server({}, of=first)
    yield first, second
    for server in (first, second):
        server.remove()


def configure(command: Command, url: str, name: str = "supervisor", *, schema: str) -> None:
    """The config of the supervisors that reach the server there."""
    if name == "supervisor":
        PostgresStore(url, schema=schema, create=True).close()
    store = json.dumps({"url": url, "schema": schema})
    command.write(plugins=JOBS)
    (command.folder / f"{name}.yaml").write_text(
        f"store: {store}\nworkers: {{count: 2, heartbeat: 200ms}}\nlease: {{ttl: {TTL:g}s}}\nshutdown: {{grace: 2s}}\n"
    )


def schema() -> str:
    return f"test_{os.getpid()}_{next(_numbers)}"


@pytest.fixture
def single(command: Command, own_server: Server) -> Iterator[Command]:
    """On a server of this machine."""
    configure(command, own_server.url, schema=schema())
    yield command
    if own_server.process.poll() is not None:
        own_server.start()


@pytest.fixture
def both(command: Command, lan_server: Server, far: Machine) -> Iterator[Command]:
    """On a server that `far` reaches through its cable, and this machine directly."""
    name = schema()
    configure(command, lan_server.url, schema=name)
    configure(command, f"{lan_server.far_url}?connect_timeout=2&tcp_user_timeout=1000", "far", schema=name)
    configure(command, lan_server.far_url, "patient", schema=name)
    yield command
    far.join()


def run_far(command: Command, far: Machine, config: str = "far") -> Running:
    run = command.run(under=far.under, config=config)
    run.logged("supervisor started")
    return run


def ran(command: Command) -> Counter[tuple[int, str]]:
    file = command.folder / "ran"
    lines = file.read_text().splitlines() if file.exists() else []
    return Counter((int(id), host) for id, host in map(str.split, lines))


def wait_ran(command: Command, id: int, host: str) -> None:
    wait_for(lambda: (id, host) in ran(command), TIMEOUT + OUTAGE)


def finish_jobs_on(command: Command, host: str) -> None:
    (command.folder / f"go-{host}").touch()


def all_done_once(command: Command, count: int, timeout: float = 30.0) -> None:
    wait_for(lambda: len(command.jobs("--state", "succeeded")) == count, timeout, every=0.2)
    assert sorted(ran(command).values()) == [1] * count, "run again, though nobody has lost a lease"
    assert all(job["errors"] == [] for job in command.jobs())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_the_server_is_restarted_again_and_again_while_jobs_run(
    single: Command, own_server: Server, how: signal.Signals
) -> None:
    run = single.run()
    run.logged("supervisor started")
    single.enqueue_many([{"handler": "marks"}] * 600)
    for times in range(1, 4):
        wait_for(lambda times=times: len(ran(single)) > 100 * times)
        own_server.stop(how)
        wait_for(lambda times=times: run.log.count("store unavailable") == times)
        own_server.start()
        wait_for(lambda times=times: run.log.count("store available again") == times)
    all_done_once(single, 600)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


def test_every_connection_is_cut_again_and_again(single: Command, own_server: Server) -> None:
    run = single.run()
    run.logged("supervisor started")
    single.enqueue_many([{"handler": "marks"}] * 300)
    cut = 0
    with own_server.connect() as admin:
        for _ in range(20):
            cut += own_server.cut(admin)
            time.sleep(0.1)
    all_done_once(single, 300)
    assert cut > 20, "those of the supervisor, and of the commands"


def test_a_frozen_server_is_left_for_the_standby_that_was_promoted(
    command: Command, pair: tuple[Server, Server]
) -> None:
    """Old connections hang, and so do new ones to the old server."""
    first, second = pair
    url = f"postgresql://postgres@/postgres?host={first.folder},{second.folder}&connect_timeout=2"
    configure(command, url, schema="failover")
    run = command.run()
    id = command.enqueue("waits")
    wait_ran(command, id, HERE)
    first.freeze()
    second.promote()
    finish_jobs_on(command, HERE)
    run.logged("store unavailable", 30)
    run.logged("store available again", 30)
    first.stop(signal.SIGKILL)  # a promotion includes that the old server takes no more writes
    job = command.until(id, "succeeded")
    assert (job["result"], job["errors"]) == (HERE, [])
    command.until(command.enqueue("marks"), "succeeded")
    assert set(ran(command).values()) == {1}


def test_a_server_that_became_a_standby_is_not_written_to(command: Command, pair: tuple[Server, Server]) -> None:
    first, second = pair
    url = f"postgresql://postgres@/postgres?host={first.folder},{second.folder}&connect_timeout=2"
    configure(command, url, schema="failover")
    run = command.run()
    id = command.enqueue("waits")
    wait_ran(command, id, HERE)
    first.stop()
    first.become_standby_of(second)
    first.start()
    run.logged("store unavailable")
    finish_jobs_on(command, HERE)
    second.promote()
    run.logged("store available again", 30)
    assert command.until(id, "succeeded")["errors"] == []
    command.until(command.enqueue("marks"), "succeeded")
    assert set(ran(command).values()) == {1}


def test_behind_a_cut_cable_outcomes_are_kept_and_commands_fail_in_time(both: Command, far: Machine) -> None:
    """No other supervisor runs that could take the jobs over."""
    run = run_far(both, far)
    id, later = both.enqueue("waits"), both.enqueue("waits")
    wait_ran(both, id, "far")
    wait_ran(both, later, "far")
    far.cut()
    finish_jobs_on(both, "far")
    run.logged("store unavailable", 30)
    began = time.monotonic()
    starting, stopped = (both.run(under=far.under, config="far") for _ in range(2))
    ended = both.call("status", under=far.under, config="far", timeout=CALL)
    assert ended.code == 75 and ended.out == "" and ended.err.count("\n") == 1
    stopped.logged("store unavailable", 30)
    stopped.signal(signal.SIGTERM)
    assert stopped.wait(END) == 0
    starting.logged("store unavailable")
    assert both.job(id)["state"] == "in_flight"
    time.sleep(max(0.0, began + OUTAGE - time.monotonic()))
    far.join()
    run.logged("store available again", 30)
    starting.logged("supervisor started", 30)
    for job in (both.until(id, "succeeded"), both.until(later, "succeeded")):
        assert (job["result"], job["errors"]) == ("far", [])
    assert set(ran(both).values()) == {1}


def test_a_job_that_was_taken_over_meanwhile_is_left_to_the_supervisor_that_has_it(both: Command, far: Machine) -> None:
    run = run_far(both, far)
    id = both.enqueue("waits")
    wait_ran(both, id, "far")
    wait_for(lambda: both.job(id)["started_at"] is not None)
    far.cut()
    both.run().logged("supervisor started")
    wait_ran(both, id, HERE)
    finish_jobs_on(both, "far")
    run.logged("store unavailable", 30)
    time.sleep(max(0.0, OUTAGE - 3))
    far.join()
    run.logged("stale", 30)
    both.until(both.enqueue("marks"), "succeeded")
    assert both.job(id)["state"] == "in_flight"
    finish_jobs_on(both, HERE)
    job = both.until(id, "succeeded")
    assert (job["result"], job["errors"]) == (HERE, [])


def test_a_supervisor_that_is_stopped_behind_a_cut_cable_exits_in_time_and_logs_what_it_leaves(
    both: Command, far: Machine
) -> None:
    """It does not wait for the limits of its calls, which are longer."""
    busy = run_far(both, far, "patient")
    id, first = both.enqueue("waits"), both.enqueue("marks")
    wait_ran(both, id, "far")
    both.until(first, "succeeded")
    idle = run_far(both, far)
    wait_for(lambda: both.status()["supervisors"][-1]["state"] == "running")  # nor is its first claim under way
    far.cut()
    finish_jobs_on(both, "far")
    asked = time.monotonic()
    for run in (busy, idle):
        run.signal(signal.SIGTERM)
    assert busy.wait(60) == 1, "its outcome could not be settled: that is not a clean end"
    assert idle.wait(60) == 0, "no outcome of its own is lost"
    assert time.monotonic() - asked < END
    busy.logged("store unavailable")
    busy.logged("exit code 1; left behind: 1 unsettled")
    far.join()
    finish_jobs_on(both, HERE)
    assert both.run("--drain").wait(30) == 0
    assert both.job(id)["state"] == "succeeded"


def test_status_shows_the_supervisors_of_all_machines_and_jobs_of_a_killed_one_are_taken_over(
    both: Command, far: Machine, network: Network
) -> None:
    """On another machine it is not known that it is gone: its leases expire, and then it is off the list."""
    runs = [run_far(both, far), both.run()]
    runs[1].logged("supervisor started")
    ids = [both.enqueue("waits") for _ in range(4)]
    wait_for(lambda: len(ran(both)) == 4)
    shown = both.status()["supervisors"]
    wait_for(lambda: [len(busy(one)) for one in both.status()["supervisors"]] == [2, 2])
    assert [(one["host"], one["pid"]) for one in shown] == [("far", runs[0].pid), (HERE, runs[1].pid)]
    text = both.ask("status")
    for host, run in (("far", runs[0]), (HERE, runs[1])):
        assert f"{host} pid {run.pid}: running, 2 jobs in flight" in text
    runs[0].kill()
    finish_jobs_on(both, HERE)
    jobs = [both.until(id, "succeeded") for id in ids]
    assert [(job["result"], job["errors"]) for job in jobs] == [(HERE, [])] * 4
    wait_for(lambda: [one["host"] for one in both.status()["supervisors"]] == [HERE], 30.0)


def busy(supervisor: dict[str, Any]) -> list[Any]:
    return [worker for worker in supervisor["workers"] if worker["current_job"]]
