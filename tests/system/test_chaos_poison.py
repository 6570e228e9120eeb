"""Jobs that kill their supervisor each time, among others, while supervisors are started again and again: only those fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.stores.postgres.store import PostgresStore
from tests.stores.postgres_server import Server
from tests.system.command import Command, Running, wait_for

CONFIG = """
workers: {count: 3, async: {count: 1, concurrency: 4}}
lease: {ttl: 2s}
retry: {max_retries: 1, backoff: {base: 50ms, factor: 1, jitter: none}}
"""
PLUGIN = """
import asyncio, os, signal, time, psutil
from supervisor import handler

def kill_supervisor():
    with open("kills", "a") as kills:
        kills.write(".")
    for process in psutil.Process().parents():
        if "run" in process.cmdline():
            process.kill()
            break
    time.sleep(3600)

@handler
def poison(job):
    time.sleep(job.payload)
    kill_supervisor()

@handler
async def async_poison(job):
    await asyncio.sleep(job.payload)
    kill_supervisor()

@handler
def innocent(job):
    time.sleep(job.payload)

@handler
async def async_innocent(job):
    await asyncio.sleep(job.payload)
"""
LONG = 10.0  # seconds, of five leases


@pytest.fixture(params=["sqlite", "postgresql"])
def stores(request: pytest.FixtureRequest, command: Command) -> Iterator[Command]:
    if request.param == "sqlite":
        command.write(config=CONFIG, plugins={"poison.py": PLUGIN})
        yield command
        return
    server = Server({})
    try:
        PostgresStore(server.url, schema="poisoned", create=True).close()
        store = json.dumps({"url": server.url, "schema": "poisoned"})
        command.write(config=f"store: {store}\n{CONFIG}", plugins={"poison.py": PLUGIN})
        yield command
    finally:
        server.remove()


@pytest.mark.timeout(300)
def test_a_job_that_kills_its_supervisor_ends_and_a_long_innocent_job_loses_no_retry(
    stores: Command,
) -> None:
    command = stores
    innocents = [command.enqueue("innocent", LONG, "--max-retries", "0")]
    innocents.append(command.enqueue("async_innocent", LONG, "--max-retries", "0"))
    poisons = [
        command.enqueue("poison", 0.5),
        command.enqueue("async_poison", 1.0),
        command.enqueue("poison", 0.3 * LONG),
    ]
    innocents += [command.enqueue("innocent", 0.2, "--max-retries", "0") for _ in range(10)]
    runs: list[Running] = []

    def all_have_ended() -> None:
        for place, run in enumerate(runs):
            if run.code is not None:
                runs[place] = command.run()
        innocents.append(command.enqueue("innocent", 0.2, "--max-retries", "0"))
        states = {id: command.job(id)["state"] for id in [*poisons, *innocents[:12]]}
        assert set(states.values()) <= {"succeeded", "failed"}, states

    runs += [command.run(), command.run()]
    wait_for(all_have_ended, timeout=280.0, every=1.0)
    for id in poisons:
        job = command.job(id)
        assert (job["state"], [error["cause"] for error in job["errors"]]) == ("failed", ["lease_expired"] * 2), job
    for id in innocents:
        job = command.until(id, "succeeded", timeout=60.0)
        assert (job["retries"], job["errors"]) == (0, []), job
    kills = len(Path(command.folder / "kills").read_text())
    print(f"{kills} kills, {len(command.runs)} runs")
