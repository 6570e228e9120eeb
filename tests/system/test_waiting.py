"""For every reason for which a job does not run, `jobs show` names the reason and what to do, and `status` names the problem.

Each fault is a real one. The guide lists them: docs/guides/troubleshooting.md, "A job does not run".
"""

from __future__ import annotations

import re
import signal
import sqlite3
from collections.abc import Callable

import psutil
import pytest

from supervisor.workers.blame import HOST
from tests.system.command import Command, Running, wait_for
from tests.system.stopped import stop_between_writes

PLUGIN = {
    "jobs.py": """
        import os, time
        from supervisor import handler

        @handler
        def noop(job):
            return job.attempt

        @handler
        def slow(job):
            time.sleep(3600)

        @handler(max_retries=3, backoff={"base": "1h", "max": "2h", "jitter": "none"})
        def fails(job):
            raise ValueError("broken")

        @handler(max_retries=9, backoff={"base": "1ms", "max": "1ms", "jitter": "none"})
        def fails_then_hangs(job):
            if job.attempt == 1:
                raise ValueError("broken")
            time.sleep(3600)
    """
}
ASYNC = """
    import asyncio
    from supervisor import handler

    @handler
    async def waits(job):
        await asyncio.sleep(3600)
"""
HANGS = """
    import time
    from supervisor import hookimpl

    @hookimpl
    def supervisor_worker_started(worker):
        time.sleep(3600)
"""
EXITS = """
    import os
    from supervisor import hookimpl

    @hookimpl
    def supervisor_worker_started(worker):
        os._exit(7)
"""
ONE = "workers: {count: 1}\n"
SHORT = "workers: {count: 1, heartbeat: 500ms}\nlease: {ttl: 1s}\n"


def serve(command: Command, config: str = ONE, **plugins: str) -> Running:
    command.write(config=config, plugins=PLUGIN | {f"{name}.py": text for name, text in plugins.items()})
    run = command.run()
    run.logged("supervisor started")
    return run


def busy(command: Command, handler: str = "slow") -> int:
    id = command.enqueue(handler)
    wait_for(lambda: command.job(id)["lease"] is not None and command.job(id)["waiting_because"] is None)
    return id


def queue_is_paused(command: Command) -> int:
    serve(command)
    command.ask("queues", "pause", "default")
    return command.enqueue("noop")


def no_supervisor_runs(command: Command) -> int:
    return command.enqueue("noop")


def no_supervisor_serves_the_queue(command: Command) -> int:
    serve(command, "workers: {count: 1, queues: [mail]}\n")
    return command.enqueue("noop")


def the_handler_is_missing(command: Command) -> int:
    serve(command)
    return command.enqueue("nope")


def another_supervisor_has_the_handler(command: Command) -> int:
    serve(command)
    command.write(plugins={"other.py": "from supervisor import handler\n@handler\ndef other(job): pass\n"})
    command.run().logged("supervisor started")

    def claimed_by_the_first() -> int:
        id = command.enqueue("other")
        assert (
            wait_for(lambda: (state := command.job(id)["state"]) in ("scheduled", "succeeded") and state) == "scheduled"
        )
        return id

    return wait_for(claimed_by_the_first)


def its_plugin_did_not_import(command: Command) -> int:
    serve(command, mail="import nothing_like_this")
    return command.enqueue("mail")


def it_is_scheduled(command: Command) -> int:
    serve(command)
    return command.enqueue("noop", None, "--delay", "2h")


def it_is_scheduled_in_a_paused_queue(command: Command) -> int:
    id = command.enqueue("noop", None, "--delay", "2h")
    command.ask("queues", "pause", "default")
    return id


def it_waits_for_its_retry(command: Command) -> int:
    serve(command)
    return command.enqueue("fails")


def it_waits_for_the_budget(command: Command) -> int:
    serve(command, "workers: {count: 1}\nretry: {budget: {limit: 1, per: 1h}}\n")
    command.until(command.enqueue("fails"), "scheduled")
    return command.enqueue("fails")


def retries_have_their_share(command: Command) -> int:
    command.write(config="workers: {count: 1}\nretry: {max_in_flight: 1}\n", plugins=PLUGIN)
    command.run().logged("supervisor started")
    first = command.enqueue("fails_then_hangs")
    wait_for(lambda: bool(running := _current(command)) and running["job_id"] == first and running["is_retry"])
    second = command.enqueue("noop")
    _make_retry(command, second)
    command.enqueue("noop")
    return second


def it_is_a_suspect(command: Command) -> int:
    serve(command)
    busy(command)
    id = command.enqueue("noop")
    _sql(command, f"update jobs set expired_count = 2 where id = {id}")
    return id


def a_sole_suspect_is_tried(command: Command) -> int:
    command.write(config="workers: {count: 2}\n", plugins=PLUGIN)
    suspect = command.enqueue("slow")
    _sql(command, f"update jobs set expired_count = 14 where id = {suspect}")
    serve(command, "workers: {count: 2}\n")
    wait_for(lambda: command.status()["supervisors"][0]["runs_alone"] == suspect)
    return command.enqueue("noop")


def all_workers_are_busy(command: Command) -> int:
    serve(command)
    busy(command)
    return command.enqueue("noop")


def async_workers_are_busy(command: Command) -> int:
    serve(command, "workers: {count: 1, async: {concurrency: 1}}\n", waits=ASYNC)
    busy(command, "waits")
    return command.enqueue("waits")


def workers_are_busy_beside_async_workers(command: Command) -> int:
    serve(command, waits=ASYNC)
    busy(command)
    return command.enqueue("noop")


def workers_fail_to_start(command: Command) -> int:
    serve(command, exits=EXITS)
    return command.enqueue("noop")


def a_hook_hangs_in_the_workers(command: Command) -> int:
    serve(command, hangs=HANGS)
    return command.enqueue("noop")


def the_supervisor_drains(command: Command) -> int:
    run = serve(command)
    busy(command)
    run.signal(signal.SIGTERM)
    return command.enqueue("noop")


def the_supervisor_is_stopped(command: Command) -> int:
    run = serve(command, SHORT)
    wait_for(lambda: command.status()["supervisors"][0]["lease_ttl"] == 1.0)
    stop_between_writes(command, [psutil.Process(run.pid)])
    return command.enqueue("noop")


def the_supervisor_was_stopped_while_the_job_ran(command: Command) -> int:
    run = serve(command, SHORT)
    id = busy(command)
    stop_between_writes(command, [psutil.Process(run.pid)])
    return id


def the_supervisor_was_killed_while_the_job_ran(command: Command) -> int:
    run = serve(command)
    id = busy(command)
    run.kill()
    return id


def the_store_refuses_claims(command: Command) -> int:
    serve(command)
    _sql(command, "create trigger no before update of owner on jobs begin select raise(abort, 'hands off'); end")
    return command.enqueue("noop")


def _current(command: Command) -> dict[str, object]:
    workers = [worker for each in command.status()["supervisors"] for worker in each["workers"]]
    return next((worker["current_job"] for worker in workers if worker["current_job"]), {})


def _sql(command: Command, statement: str) -> None:
    with sqlite3.connect(command.folder / "jobs.db", timeout=10) as connection:
        connection.execute(statement)
    connection.close()


def _make_retry(command: Command, id: int) -> None:
    _sql(command, f"update jobs set retries = 1, tier = 1 where id = {id}")
    _sql(command, "update counts set n = n - 1 where state = 1 and tier = 0 and queue = 'default'")
    _sql(command, "insert into counts values (1, 'default', 1, 1) on conflict do update set n = n + 1")


REASONS: dict[Callable[[Command], int], tuple[str, str]] = {
    queue_is_paused: ("queue default is paused: resume it with: supervisor queues resume default", "queue_paused"),
    no_supervisor_runs: ("no supervisor is running: start one with: supervisor run", "no_supervisor"),
    no_supervisor_serves_the_queue: ("no running supervisor serves queue default (served: mail): add", "queue_not_served"),
    the_handler_is_missing: ("no running supervisor has the handler nope: correct or add", "handler_missing"),
    another_supervisor_has_the_handler: ("claims jobs for the handler other, and releases them for later", "handler_elsewhere"),
    its_plugin_did_not_import: ("mail.py:1 did not load: ModuleNotFoundError: No module named", "plugin"),
    it_is_scheduled: ("it is scheduled: due in", ""),
    it_is_scheduled_in_a_paused_queue: ("besides, queue default is paused", "queue_paused"),
    it_waits_for_its_retry: ("attempt 1 failed (exception), and the next is due in 59m", ""),
    it_waits_for_the_budget: ("the retry budget of queue default is used up", ""),
    retries_have_their_share: ("as many retries of queue default run as retry.max_in_flight allows", ""),
    it_is_a_suspect: ("suspects run one by one, and it waits for its turn", ""),
    a_sole_suspect_is_tried: ("starts no other job beside job 1, which may have ended supervisors", ""),
    all_workers_are_busy: ("the only worker that may run it is busy, the longest with job 1 (slow) for", ""),
    async_workers_are_busy: ("async workers are busy, the longest with job 1 (waits) for", ""),
    workers_are_busy_beside_async_workers: ("the only worker that may run it is busy, the longest with job 1 (slow) for", ""),
    workers_fail_to_start: ("workers fail as soon as they start (0 of 1 run); the last one exited with status 7", "workers"),
    a_hook_hangs_in_the_workers: ("supervisor_worker_started of ", "worker_start"),
    the_supervisor_drains: ("is draining: wait, or start another with: supervisor run", ""),
    the_supervisor_is_stopped: ("look at its log, or start another with: supervisor run", "not_seen"),
    the_supervisor_was_stopped_while_the_job_ran: ("no other runs: look at its log, or start another", "not_seen"),
    the_supervisor_was_killed_while_the_job_ran: ("is gone, and no other runs: start one with: supervisor run", "gone"),
    the_store_refuses_claims: ("the store fails to claim jobs: ", "store"),
}  # fmt: skip


def test_the_status_names_a_sink_that_is_down_until_it_accepts_dead_letters(command: Command) -> None:
    sink = """
        import os
        from supervisor import handler, hookimpl

        class Pager:
            def publish(self, dead_letters):
                if not os.path.exists("repaired"):
                    raise ConnectionError("nobody there")
                return [dead_letter["id"] for dead_letter in dead_letters]

            def close(self):
                pass

        @hookimpl
        def supervisor_sinks():
            return {"pager": Pager}

        @handler(max_retries=0)
        def fails_for_good(job):
            raise ValueError("never")
    """
    serve(command, "workers: {count: 1}\ndlq: {sinks: [{type: pager}]}\n", sink=sink)
    id = command.enqueue("fails_for_good")
    wait_for(lambda: "sink pager does not accept dead letters: ConnectionError: nobody there" in command.ask("status"))
    reason = "its dead letter waits for sink pager, which does not accept it: ConnectionError: nobody there: repair it"
    wait_for(lambda: reason in command.ask("jobs", "show", str(id)) and reason in command.ask("dlq", "show", str(id)))
    (command.folder / "repaired").touch()
    wait_for(lambda: command.status()["problems"] == [] and command.job(id)["waiting_because"] is None)


@pytest.mark.parametrize("fault", REASONS, ids=lambda fault: fault.__name__)
def test_a_job_that_does_not_run_has_its_reason(command: Command, fault: Callable[[Command], int]) -> None:
    reason, problem = REASONS[fault]
    id = fault(command)

    def shown() -> None:
        assert reason in (command.job(id)["waiting_because"] or "")
        assert reason in command.ask("jobs", "show", str(id))
        found = {each["kind"]: each["message"] for each in command.status()["problems"]}
        assert not problem or found.get(problem, "no such problem") in command.ask("status")

    try:
        wait_for(shown, timeout=30)
        if fault is a_hook_hangs_in_the_workers:
            line = command.runs[0].logged("is not ready after")
            assert f"hook supervisor_worker_started of plugin {command.folder}/plugins/hangs.py has not ended" in line
            assert f"py-spy dump -p {line.partition('(pid ')[2].partition(')')[0]}," in line
    finally:
        for run in command.runs:
            if run.code is None:
                run.signal(signal.SIGCONT)
                run.signal(signal.SIGKILL) if "hang" in fault.__name__ else None


def test_a_cancelled_job_whose_supervisor_is_stopped_is_said_to_run_on(command: Command) -> None:
    run = serve(command, SHORT)
    id = busy(command)
    stop_between_writes(command, [psutil.Process(run.pid)])
    wait_for(lambda: bool(re.search(rf"pid {run.pid} was not seen for [4-9]", command.ask("status"))))
    cancelled = command.call("jobs", "cancel", str(id))
    assert (cancelled.code, cancelled.out) == (0, f"cancelled: {id}\n")
    reason = f"and its worker may still run it: supervisor {HOST} pid {run.pid} was not seen for "
    assert cancelled.err.startswith(f"Warning: job {id} is cancelled, {reason}")
    run.signal(signal.SIGCONT)
    run.logged("cancelled; its worker")
    other = busy(command)
    assert command.call("jobs", "cancel", str(other)).err == "", "its supervisor is there"
