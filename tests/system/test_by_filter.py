"""Commands on all jobs that match a filter: the question on a terminal, and jobs that run meanwhile."""

from __future__ import annotations

import signal

import pytest

from tests.system.command import Command, wait_for
from tests.system.in_terminal import InTerminal

PLUGIN = {
    "jobs.py": """
        import time
        from supervisor import handler

        @handler(max_retries=0)
        def fails(job):
            raise ConnectionError("smtp1 is down")

        @handler
        def noop(job):
            pass

        @handler
        def hangs(job):
            time.sleep(3600)
    """
}


@pytest.fixture
def filled(command: Command) -> Command:
    command.write(config="workers: {count: 2}\n", plugins=PLUGIN)
    command.enqueue_many([{"handler": "noop", "payload": None} for _ in range(3)])
    return command


@pytest.mark.parametrize(
    ("answer", "state", "code"), [("y\n", "cancelled", 0), ("n\n", "ready", 1), ("\n", "ready", 1)]
)
def test_on_a_terminal_it_asks_with_the_number(filled: Command, answer: str, state: str, code: int) -> None:
    with InTerminal(filled, "jobs", "cancel", "--handler", "noop") as terminal:
        terminal.shown("cancel 3 jobs (3 ready)? [y/N]: ")
        terminal.type(answer)
        terminal.shown("cancelled: 3 jobs" if code == 0 else "nothing was changed")
        assert terminal.wait() == code
    assert {job["state"] for job in filled.jobs()} == {state}


def test_purge_of_all_asks_on_a_terminal(filled: Command) -> None:
    filled.enqueue("fails")
    assert filled.run("--drain").wait() == 0
    with InTerminal(filled, "dlq", "purge") as terminal:
        terminal.shown("purge 1 job (1 delivered)? [y/N]: ")
        terminal.type("y\n")
        terminal.shown("purged: 1 job")
        assert terminal.wait() == 0


def test_an_interrupt_at_the_question_changes_nothing(filled: Command) -> None:
    with InTerminal(filled, "jobs", "delete", "--handler", "noop") as terminal:
        terminal.shown("delete 3 jobs (3 ready)? [y/N]: ")
        terminal.signal(signal.SIGINT)
        assert terminal.wait() in (130, -signal.SIGINT)
    assert {job["state"] for job in filled.jobs()} == {"ready"}


def test_running_jobs_are_cancelled_with_the_waiting_ones(filled: Command) -> None:
    filled.run()
    wait_for_succeeded(filled)
    filled.enqueue_many([{"handler": "hangs", "payload": None} for _ in range(4)])
    ids = [job["id"] for job in filled.jobs("--handler", "hangs")]
    for id in sorted(ids)[:2]:
        filled.until(id, "in_flight")
    assert filled.ask("jobs", "cancel", "--handler", "hangs", "--yes") == "cancelled: 4 jobs\n"
    assert {job["state"] for job in filled.jobs("--handler", "hangs")} == {"cancelled"}
    id = filled.enqueue("noop")
    filled.until(id, "succeeded")


def test_failed_jobs_are_run_again_once_each(filled: Command) -> None:
    filled.enqueue_many([{"handler": "fails", "payload": None} for _ in range(30)])
    filled.run()

    def all_failed() -> None:
        assert len(filled.jobs("--handler", "fails", "--state", "failed")) == 30

    wait_for(all_failed)
    assert filled.ask("jobs", "retry", "--error", "smtp1", "--yes") == "failed, now run again: 30 jobs\n"

    def twice() -> None:
        assert [len(job["errors"]) for job in filled.jobs("--handler", "fails", "--state", "failed")] == [2] * 30

    wait_for(twice)


def wait_for_succeeded(command: Command) -> None:
    def succeeded() -> None:
        assert {job["state"] for job in command.jobs()} == {"succeeded"}

    wait_for(succeeded)


def test_waiting_jobs_are_moved_to_a_queue_that_another_supervisor_serves(filled: Command) -> None:
    filled.write(config="workers: {count: 1, queues: [slow]}\n", plugins=PLUGIN)
    filled.run()
    running = filled.enqueue("hangs", None, "--queue", "slow")
    filled.until(running, "in_flight")
    filled.enqueue_many([{"handler": "noop", "payload": None, "queue": "slow"} for _ in range(5)])
    assert "moved to fast: 5 jobs\n" in filled.ask("queues", "move", "slow", "fast", "--yes")
    other = filled.folder / "other.yaml"
    other.write_text("workers: {count: 1, queues: [fast]}\n")
    filled.run(config="other")

    def all_done() -> None:
        assert [job["state"] for job in filled.jobs("--queue", "fast")] == ["succeeded"] * 5

    wait_for(all_done)
    assert filled.job(running)["state"] == "in_flight"
    assert filled.ask("queues", "empty", "slow", "--yes") == "no such jobs\n"
