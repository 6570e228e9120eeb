"""Limits of queues, handlers and groups hold over all supervisors, and hold up no other jobs. For supervisors that are killed, see
`test_chaos_limits`."""

from __future__ import annotations

import signal
import time
from datetime import datetime
from typing import Any

import pytest

from tests.system.command import Command, wait_for
from tests.system.gates import open_gate, waits_at_gate

PLUGIN = {
    "work.py": """
        from supervisor import handler
        from tests.system.gates import wait_for_gate

        @handler
        def mail(job):
            if job.payload is not None:
                wait_for_gate(job.payload)

        @handler
        def other(job):
            pass
    """
}

NEVER = 99
"""The number of a gate that no test opens."""


def all_succeeded(command: Command, number: int, handler: str = "mail") -> None:
    """Wait until so many jobs have succeeded."""

    def reached() -> None:
        assert succeeded(command, handler) == number

    wait_for(reached, 30.0)


def succeeded(command: Command, handler: str = "mail") -> int:
    return len(command.jobs("--state", "succeeded", "--handler", handler))


def seconds(job: dict[str, Any], key: str) -> float:
    return datetime.fromisoformat(job[key]).timestamp()


LIMITED = pytest.mark.parametrize(
    "limit",
    [
        "handlers: {mail: {limit: {running: 2}}}",
        "queues: {default: {limit: {running: 2}}}",
        "queues: {default: {group_limit: {running: 2}}}",
    ],
    ids=["handler", "queue", "group"],
)


@pytest.mark.usefixtures("without_polls")
def test_a_supervisor_goes_on_as_soon_as_another_gives_a_place_back(command: Command) -> None:
    """Each has a worker that waits, and serves a queue of its own."""
    for queue in ("one", "two"):
        config = f"workers: {{count: 1, queues: [{queue}]}}\nhandlers: {{mail: {{limit: {{running: 1}}}}}}"
        command.write(config, PLUGIN)
        command.config.rename(command.folder / f"{queue}.yaml")
        command.run(config=queue).logged("worker 1 (pid")
    command.write("{}")
    command.enqueue("mail", 0, "--queue", "one")

    def holds() -> None:
        assert waits_at_gate(command.folder, 0, command.runs[0].forkserver())

    wait_for(holds)
    others = [command.enqueue("mail", None, "--queue", "two") for _ in range(5)]
    for id in others:
        command.until(id, "blocked")
    open_gate(command.folder, 0)
    all_succeeded(command, 6)


@pytest.mark.usefixtures("without_polls")
@LIMITED
def test_short_jobs_go_on_without_a_pause(command: Command, limit: str) -> None:
    command.write(f"workers: {{count: 2}}\n{limit.replace('mail', 'other')}", PLUGIN)
    command.enqueue_many([{"handler": "other", "group": f"group {n % 20}"} for n in range(400)])
    runs = [command.run(), command.run()]
    all_succeeded(command, 400, "other")
    assert all(run.code is None for run in runs)


def test_others_run_though_many_jobs_of_a_handler_wait(command: Command) -> None:
    command.write("workers: {count: 3}\nhandlers: {mail: {limit: {running: 1}}}", PLUGIN)
    command.enqueue_many([{"handler": "mail", "payload": NEVER} for _ in range(5000)])
    others = [command.enqueue("other") for _ in range(20)]
    command.run()
    for id in others:
        command.until(id, "succeeded")

    def all_others_blocked() -> None:
        (row,) = command.status()["queues"]
        assert (row["queue_size"], row["blocked"]) == (0, 4999)

    wait_for(all_others_blocked)
    assert len(command.jobs("--state", "in_flight")) == 1
    (id,) = [job["id"] for job in command.jobs("--state", "blocked")[:1]]

    def shown() -> None:  # by the row of the supervisor, which it writes once a second
        reason = command.job(id)["waiting_because"]
        assert reason.startswith("handler mail has the limit 1 at once, and no more may run now")
        assert "limit of handler mail: 1 at once; no more now" in command.ask("status")

    wait_for(shown)


def test_a_reload_raises_lowers_and_removes_a_limit(command: Command) -> None:
    base = "workers: {count: 4}\nshutdown: {grace: 100ms}\n"
    command.write(base + "handlers: {mail: {limit: {running: 1}}}", PLUGIN)
    run = command.run()
    command.enqueue_many([{"handler": "other"}, *({"handler": "mail", "payload": NEVER} for _ in range(10))])

    def in_flight(n: int) -> None:
        assert len(command.jobs("--state", "in_flight")) == n

    wait_for(lambda: in_flight(1))
    command.write(base + "handlers: {mail: {limit: {running: 2}}}")
    run.signal(signal.SIGHUP)
    wait_for(lambda: in_flight(2))
    command.write(base + "handlers: {other: {limit: {running: 2}}}")
    run.signal(signal.SIGHUP)

    def released() -> None:
        assert command.jobs("--state", "blocked") == []

    wait_for(released)


def test_what_a_supervisor_that_is_gone_has_held_back_is_run_by_one_without_the_limit(command: Command) -> None:
    command.write("workers: {count: 2}\nhandlers: {mail: {limit: {running: 1}}}", PLUGIN)
    command.enqueue_many([{"handler": "mail", "payload": NEVER}, *({"handler": "mail"} for _ in range(5))])
    command.enqueue("other")
    run = command.run()

    def held_back() -> None:
        assert len(command.jobs("--state", "blocked")) == 5

    wait_for(held_back)
    run.kill()
    command.write("workers: {count: 2}")
    command.run()
    all_succeeded(command, 5)


def test_a_rate_holds_over_two_supervisors(command: Command) -> None:
    command.write("workers: {count: 2}\nqueues: {default: {limit: {rate: 5/1s}}}", PLUGIN)
    command.enqueue_many([{"handler": "other"} for _ in range(20)])
    command.enqueue("other", None, "--delay", "1h")  # which must not delay the others
    began = time.time()
    for run in (command.run(), command.run()):
        run.logged("worker 1 (pid")
    all_succeeded(command, 20, "other")
    times = sorted(seconds(job, "started_at") for job in command.jobs("--state", "succeeded"))
    # A job may start long after its claim, but none before it: of the first five there is no limit, the next ones wait for a second.
    assert all(at - began >= place // 5 for place, at in enumerate(times)), times


def test_a_drain_waits_for_what_a_limit_holds_back(command: Command) -> None:
    command.write("workers: {count: 3}\nhandlers: {mail: {limit: {running: 1, rate: 4/500ms}}}", PLUGIN)
    command.enqueue_many([{"handler": "mail"} for _ in range(12)])
    ended = command.call("run", "--drain")
    assert ended.code == 0, ended.err
    assert succeeded(command) == 12


def test_async_jobs_count_too(command: Command) -> None:
    plugin = """
        import asyncio
        from supervisor import handler

        running = 0

        @handler
        async def fetch(job):
            global running
            running += 1
            try:
                assert running <= 3, "more than three run at once"
                await asyncio.sleep(0.01)
            finally:
                running -= 1
    """
    command.write("workers: {count: 1}\nhandlers: {fetch: {limit: {running: 3}}}", {"fetch.py": plugin})
    command.enqueue_many([{"handler": "fetch"} for _ in range(100)])
    assert command.call("run", "--drain").code == 0
    assert [error for job in command.jobs() for error in job["errors"]] == []
    assert succeeded(command, "fetch") == 100
