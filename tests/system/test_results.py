"""Programs and commands that wait for the end of jobs, while a real supervisor runs them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from supervisor import AsyncClient, Client, JobFailed
from supervisor.config.loading import load
from supervisor.stores.postgres.store import PostgresStore
from tests.stores.postgres_server import Server
from tests.system.command import TIMEOUT, Command

JOBS = """
    import os, time
    from dataclasses import dataclass
    from supervisor import handler, Reject

    @dataclass
    class Size:
        width: int
        height: int

    @handler
    def half(size: Size) -> Size:
        return Size(size.width // 2, size.height // 2)

    @handler
    def wait(job):
        while not os.path.exists("go"):
            time.sleep(0.005)
        return job.attempt

    @handler(max_retries=1, backoff={"base": "10ms"})
    def flaky(job):
        if job.attempt == 1:
            raise ValueError("not yet")
        return "at last"

    @handler
    def reject(job):
        raise Reject("no such order")

    @handler(timeout="100ms", max_retries=0)
    def hang(job):
        time.sleep(3600)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server({})
    yield server
    server.remove()


@pytest.fixture
def client(command: Command):
    command.write(plugins={"jobs.py": JOBS})
    with Client(f"sqlite:///{command.folder}/jobs.db", create=True) as client:
        yield client


def waits(command: Command, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "supervisor", "jobs", "wait", *map(str, arguments)],
        cwd=command.folder,
        env=command.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_program_gets_values_and_failures(command: Command, client: Client) -> None:
    command.run()
    assert client.result(client.enqueue("half", {"width": 8, "height": 6}), timeout=TIMEOUT) == {
        "width": 4,
        "height": 3,
    }
    assert client.result(client.enqueue("flaky"), timeout=TIMEOUT) == "at last"
    for handler, cause, message in (("reject", "rejected", "no such order"), ("hang", "timeout", "timeout of 0.1s")):
        with pytest.raises(JobFailed, match=message) as error:
            client.result(client.enqueue(handler), timeout=TIMEOUT)
        assert error.value.cause == cause and len(error.value.errors) == 1

    async def use() -> None:
        async with AsyncClient(f"sqlite:///{command.folder}/jobs.db") as jobs:
            ids = await jobs.enqueue_many([("half", {"width": n, "height": n}) for n in range(0, 100, 2)])
            found = dict([each async for each in jobs.results(ids, timeout=TIMEOUT)])
            assert [found[id]["width"] for id in ids] == [*range(50)]

    asyncio.run(use())


def test_a_wait_survives_the_kill_of_the_supervisor(command: Command, client: Client) -> None:
    run = command.run()
    id = client.enqueue("wait")
    command.until(id, "in_flight")
    waiting = waits(command, id, "--json")
    run.kill()
    command.run()
    (command.folder / "go").touch()
    out, err = waiting.communicate(timeout=TIMEOUT)
    assert (waiting.returncode, err) == (0, "")
    assert '"state":"succeeded"' in out


def test_ctrl_c_ends_a_wait_at_once_and_quietly(command: Command, client: Client) -> None:
    done, id = client.enqueue("reject"), client.enqueue("wait", queue="unserved")
    client.cancel(done)
    waiting = waits(command, done, id)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == f"job {done} (reject) was cancelled\n"
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=TIMEOUT)
    assert (waiting.returncode, out, err) == (-signal.SIGINT, "", ""), "a shell shows it as 130"


def test_a_reader_that_has_enough_ends_the_output(command: Command, client: Client) -> None:
    """The command still reports how the jobs ended."""
    ids = [client.enqueue("reject") for _ in range(3)]
    for id in ids:
        client.cancel(id)
    waiting = waits(command, *ids)
    assert waiting.stdout is not None and waiting.stderr is not None
    waiting.stdout.close()
    assert waiting.wait(TIMEOUT) == 1
    waiting.stderr.close()


def test_a_server_that_is_restarted_ends_no_wait(command: Command, server: Server) -> None:
    PostgresStore(server.url, create=True).close()
    command.write(config=f"store: {server.url}\nworkers: {{count: 1}}\n", plugins={"jobs.py": JOBS})
    run = command.run()
    with Client(load(command.config)) as client, ThreadPoolExecutor(1) as threads:
        id = client.enqueue("wait")
        command.until(id, "in_flight")
        waiting, result = waits(command, id), threads.submit(client.result, id)
        server.stop()
        run.logged("store unavailable")
        server.start()
        run.logged("store available again")
        (command.folder / "go").touch()
        assert result.result(TIMEOUT) == 1
    out, err = waiting.communicate(timeout=TIMEOUT)
    assert (waiting.returncode, out, err) == (0, f"job {id} (wait) succeeded\n", "")
