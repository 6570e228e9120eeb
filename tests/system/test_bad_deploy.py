"""A plugin that does not import, or a handler that no plugin has: its jobs wait unharmed, and the others run."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from tests.system.command import Command, Running, wait_for

JOBS = 1000
CONFIG = """
workers: {count: 2}
retry: {max_retries: 0, backoff: {base: 100ms, max: 1s}}
"""
GOOD = """
from supervisor import handler

@handler
def mail(job):
    return job.payload
"""
BAD = """
from supervisor import handler

@handler
def mail(job)
    return job.payload
"""
OTHER = """
from supervisor import handler

@handler
def other(job):
    pass
"""


def states(command: Command, handler: str) -> Counter[tuple[str, int]]:
    return Counter((job["state"], job["retries"]) for job in command.jobs("--handler", handler))


def unharmed(command: Command) -> bool:
    return all(
        retries == 0 and state in ("ready", "scheduled", "in_flight") for state, retries in states(command, "mail")
    )


def all_succeed(command: Command, run: Running) -> None:
    def succeeded() -> None:
        assert states(command, "mail") == {("succeeded", 0): JOBS}, run.log

    wait_for(succeeded, 60)


def run_a_while_with_the_bad_file(command: Command) -> Running:
    """Run until the 1,000 jobs have been claimed about twice, and jobs of other plugins have run beside them."""
    command.write(config=CONFIG, plugins={"mail.py": BAD, "other.py": OTHER})
    command.enqueue_many([{"handler": "mail", "payload": number} for number in range(JOBS)])
    others = [command.enqueue("other") for _ in range(20)]
    run = command.run()
    assert "mail.py:5" in run.logged("did not load")
    for id in others:
        command.until(id, "succeeded")
    run.logged("handler=mail unknown_handler")
    wait_for(lambda: states(command, "mail")["scheduled", 0] == JOBS)
    due = command.jobs("--handler", "mail")[0]["due_at"]
    wait_for(lambda: command.jobs("--handler", "mail", "--limit", "1")[0]["due_at"] > due)  # claimed again
    assert unharmed(command)
    assert sum(states(command, "mail").values()) == JOBS
    assert len(run.log.splitlines()) < 100, "a thousand jobs that wait are logged in a few lines"
    return run


def test_a_mended_plugin_serves_after_a_reload(command: Command) -> None:
    run = run_a_while_with_the_bad_file(command)
    command.write(plugins={"mail.py": GOOD})
    run.signal(signal.SIGHUP)
    all_succeed(command, run)
    assert run.code is None


def test_a_mended_plugin_serves_after_a_restart(command: Command) -> None:
    run = run_a_while_with_the_bad_file(command)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    command.write(plugins={"mail.py": GOOD})
    all_succeed(command, command.run())


def test_a_new_forkserver_serves_mended_plugins_and_reports_broken_ones(command: Command) -> None:
    command.write(config=CONFIG, plugins={"mail.py": BAD, "other.py": OTHER})
    run = command.run()
    run.logged("supervisor started")
    command.write(plugins={"mail.py": GOOD, "other.py": "import nothing_of_that_name\n"})
    os.kill(run.forkserver(), signal.SIGKILL)
    assert "other.py:1" in run.logged("nothing_of_that_name")
    run.logged("handlers=mail")
    id = command.enqueue("mail", "at last")
    assert command.until(id, "succeeded")["result"] == "at last"
    assert "unknown_handler" not in run.log


def test_a_reload_that_breaks_a_plugin_is_refused_and_the_old_plugins_serve_on(command: Command) -> None:
    command.write(config=CONFIG, plugins={"mail.py": GOOD})
    run = command.run()
    run.logged("supervisor started")
    command.write(plugins={"mail.py": BAD})
    run.signal(signal.SIGHUP)
    assert "mail.py:5" in run.logged("config refused")
    id = command.enqueue("mail", "still")
    assert command.until(id, "succeeded")["result"] == "still"


def test_a_job_with_an_unknown_handler_is_claimed_seldom_and_is_a_dead_letter_after_the_grace(command: Command) -> None:
    command.write(
        config="""
            workers: {count: 1}
            retry: {backoff: {base: 100ms, max: 500ms}}
            unknown_handler: {grace: 2s}
            dlq: {sinks: [{type: file, path: dead.jsonl}]}
        """,
        plugins={"other.py": OTHER},
    )
    nobodys = [command.enqueue("nobodys", None, "--priority", "50") for _ in range(50)]
    others = [command.enqueue("other") for _ in range(200)]
    run = command.run()
    for id in others:
        command.until(id, "succeeded")
    for id in nobodys:
        job = command.until(id, "failed")
        assert ([error["cause"] for error in job["errors"]], job["retries"]) == (["unknown_handler"], 0)
    wait_for(lambda: {command.job(id)["dead_letter"] for id in nobodys} == {"delivered"})
    assert run.log.count("tried again later") == 1


def test_jobs_behind_many_with_an_unknown_handler_do_not_wait_for_each_of_these(command: Command) -> None:
    command.write(config="workers: {count: 2}\n", plugins={"other.py": OTHER})
    command.enqueue_many([{"handler": "nobodys"}] * 40_000)
    others = [command.enqueue("other") for _ in range(10)]
    command.run()
    for id in others:
        assert command.until(id, "succeeded")["errors"] == []


@pytest.mark.parametrize("who", ["served", "unserved"])
def test_a_job_runs_on_the_one_supervisor_that_has_its_handler(command: Command, who: str) -> None:
    command.write(
        config="workers: {count: 1}\nretry: {max_retries: 0, backoff: {max: 1s}}\n", plugins={"mail.py": GOOD}
    )
    (command.folder / "old").mkdir()
    command.write(plugins={"../old/other.py": OTHER})
    old = command.folder / "old.yaml"
    old.write_text(command.config.read_text() + "plugins: [old]\n")
    new = command.config
    command.config = old
    first = command.run()
    command.config = new
    second = command.run() if who == "served" else None
    first.logged("supervisor started")
    ids = [command.enqueue("mail", number) for number in range(50)]
    if second is None:
        first.logged("unknown_handler")
        assert unharmed(command)
        second = command.run()
    for id in ids:
        assert command.until(id, "succeeded")["errors"] == []
