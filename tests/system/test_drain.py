"""`run --drain` ends when it has done all it can; its exit code and its report show what it could not do."""

from __future__ import annotations

import json
import signal
import sqlite3
import time

import pytest

from tests.system.command import Command, wait_for
from tests.system.test_sharing import locked

JOBS = {
    "jobs.py": """
        import os, time
        from supervisor import handler, hookimpl

        @handler
        def gated(job):
            while not os.path.exists("gate"):
                time.sleep(0.01)
            time.sleep(1)

        @handler
        def noop(job):
            pass

        @handler
        def flaky(job):
            if job.attempt < 3:
                raise ValueError("not yet")

        @handler(max_retries=0)
        def fails(job):
            raise ValueError("never")

        class Refusing:
            def publish(self, dead_letters):
                raise ConnectionError("nobody there")

            def close(self):
                pass

        @hookimpl
        def supervisor_sinks():
            return {"refusing": Refusing}
    """
}
QUICK = "retry: {backoff: {base: 100ms, jitter: none}}\n"


def states(command: Command) -> dict[int, str]:
    return {job["id"]: job["state"] for job in command.jobs()}


def test_a_drain_waits_for_retries_and_delays(command: Command) -> None:
    command.write(config="workers: {count: 2}\n" + QUICK, plugins=JOBS)
    command.enqueue("flaky")
    command.enqueue("noop", None, "--delay", "1s")
    command.enqueue_many([{"handler": "noop"}] * 100)
    run = command.run("--drain")
    assert run.wait() == 0
    assert set(states(command).values()) == {"succeeded"}
    assert "drained" in run.out
    assert "102 succeeded" in run.out
    assert command.left_behind() == {}


def test_a_drain_with_nothing_to_do_ends_at_once(command: Command) -> None:
    command.write(plugins=JOBS)
    assert command.run("--drain").wait() == 0


def test_jobs_due_after_the_horizon_are_left(command: Command) -> None:
    command.write(config="workers: {count: 2}\n" + QUICK, plugins=JOBS)
    soon, late = command.enqueue("noop", None, "--delay", "1s"), command.enqueue("noop", None, "--delay", "1h")
    flaky = command.enqueue("flaky")
    run = command.run("--drain", "--horizon", "30s")
    assert run.wait() == 0
    assert states(command) == {soon: "succeeded", late: "scheduled", flaky: "succeeded"}
    assert "left out: 1 due after the horizon" in run.out


def test_jobs_that_wait_for_jobs_due_after_the_horizon_are_left_out(command: Command) -> None:
    command.write(config="workers: {count: 1}\nshutdown: {grace: 30s}\n", plugins=JOBS)
    late = command.enqueue("noop", None, "--delay", "1h")
    children = [command.enqueue("noop", None, "--after", str(late))]
    children.append(command.enqueue("noop", None, "--after", str(children[0])))
    began = time.monotonic()
    run = command.run("--drain", "--horizon", "1s")
    assert run.wait() == 0
    assert time.monotonic() - began < 25
    assert states(command) == {late: "scheduled", **dict.fromkeys(children, "blocked")}
    assert "left out: 1 due after the horizon, 2 that wait for jobs due after the horizon" in run.out
    assert "left behind" not in run.out


def test_the_horizon_does_not_move_during_the_run(command: Command) -> None:
    command.write(config="workers: {count: 1}\n" + QUICK, plugins=JOBS)
    command.enqueue("gated")
    run = command.run("--drain", "--horizon", "10s")
    run.logged("supervisor started")
    late = command.enqueue("noop", None, "--delay", "10500ms")
    (command.folder / "gate").touch()
    assert run.wait() == 0
    assert command.job(late)["state"] == "scheduled"


def test_jobs_that_no_plugin_serves_are_left_and_named(command: Command) -> None:
    command.write(config="workers: {count: 2}\n" + QUICK, plugins=JOBS)
    flaky, nobody = command.enqueue("flaky"), command.enqueue("nobody")
    run = command.run("--drain")
    assert run.wait() == 4
    assert states(command) == {flaky: "succeeded", nobody: "scheduled"}
    assert "left behind: 1 scheduled" in run.out
    assert "nobody" in run.out
    assert command.job(nobody)["retries"] == 0


def test_jobs_that_no_plugin_serves_are_left_even_if_they_were_put_off_past_the_horizon(command: Command) -> None:
    command.write(config="workers: {count: 1}\nretry: {backoff: {max: 1h}}\n", plugins=JOBS)
    late, nobody = command.enqueue("noop", None, "--delay", "2h"), command.enqueue("nobody")
    run = command.run("--drain", "--horizon", "10s")
    assert run.wait() == 4
    assert states(command) == {late: "scheduled", nobody: "scheduled"}
    assert "left behind: 1 scheduled" in run.out
    assert "no plugin serves handler 'nobody': 1 job" in run.out
    assert "left out: 1 due after the horizon" in run.out


def test_a_drain_names_the_missing_handlers_of_jobs_that_it_did_not_claim(command: Command) -> None:
    command.write(config="workers: {count: 1}\n", plugins=JOBS)
    command.enqueue("noop", None, "--delay", "2h")
    command.enqueue("nobody", None, "--delay", "2h")
    run = command.run("--drain", "--horizon", "1s")
    assert run.wait() == 0
    assert "left out: 2 due after the horizon" in run.out
    assert "no plugin serves handler 'nobody', and jobs that are left need it" in run.out
    assert "'noop'" not in run.out
    assert "; no plugin serves: nobody" in run.log


def test_a_retry_in_backoff_is_waited_for_beside_jobs_that_no_plugin_serves(command: Command) -> None:
    command.write(config="workers: {count: 1}\nretry: {backoff: {base: 1s, factor: 1, jitter: none}}\n", plugins=JOBS)
    nobody = [command.enqueue("nobody") for _ in range(3)]
    flaky = command.enqueue("flaky")
    assert command.run("--drain").wait() == 4
    assert states(command) == {**dict.fromkeys(nobody, "scheduled"), flaky: "succeeded"}


def test_dead_letters_that_a_sink_refuses_are_left_after_the_grace(command: Command) -> None:
    command.write(
        config="dlq: {sinks: [{type: file, path: dead.jsonl}, {type: refusing}]}\nshutdown: {grace: 1s}\n", plugins=JOBS
    )
    id = command.enqueue("fails")
    run = command.run("--drain")
    assert run.wait() == 4
    assert command.job(id)["dead_letter"] == "pending"
    assert "left behind: 1 dead letters" in run.out
    assert "refusing: ConnectionError: nobody there" in run.out


def test_a_drain_does_not_wait_for_refused_dead_letters_and_jobs_that_no_plugin_serves(command: Command) -> None:
    command.write(config="dlq: {sinks: [{type: refusing}]}\nshutdown: {grace: 500ms}\n", plugins=JOBS)
    command.enqueue("fails")
    command.enqueue("nobody")
    run = command.run("--drain")
    assert run.wait() == 4
    assert "nobody there" in run.out


def test_dead_letters_are_delivered_before_a_drain_ends(command: Command) -> None:
    command.write(config="dlq: {sinks: [{type: file, path: dead.jsonl}]}\n", plugins=JOBS)
    ids = [command.enqueue("fails") for _ in range(20)]
    run = command.run("--drain")
    assert run.wait() == 0
    assert {command.job(id)["dead_letter"] for id in ids} == {"delivered"}
    assert len((command.folder / "dead.jsonl").read_text().splitlines()) == 20
    assert "20 dead letters" in run.out


def test_a_paused_queue_is_not_waited_for(command: Command) -> None:
    command.write(plugins=JOBS)
    paused = command.enqueue("noop", None, "--queue", "slow")
    delayed = command.enqueue("noop", None, "--queue", "slow", "--delay", "1h")
    done = command.enqueue("noop")
    command.ask("queues", "pause", "slow")
    run = command.run("--drain")
    assert run.wait() == 0
    assert states(command) == {paused: "ready", delayed: "scheduled", done: "succeeded"}
    assert "left out: 2 in paused queues" in run.out
    assert "left out: 2 in paused queues" in run.log


def test_a_queue_not_served_is_not_waited_for(command: Command) -> None:
    command.write(config="workers: {count: 1, queues: [mail]}\n", plugins=JOBS)
    mine, other = command.enqueue("noop", None, "--queue", "mail"), command.enqueue("noop")
    run = command.run("--drain")
    assert run.wait() == 0
    assert states(command) == {mine: "succeeded", other: "ready"}
    assert "left out: 1 in queues not served" in run.out


def test_jobs_enqueued_meanwhile_are_done_too(command: Command) -> None:
    command.write(
        plugins={
            "chain.py": """
                from supervisor import Client, handler

                @handler
                def chain(job):
                    if job.payload:
                        with Client("sqlite:///jobs.db") as jobs:
                            jobs.enqueue("chain", job.payload - 1)
            """
        }
    )
    command.enqueue("chain", 10)
    assert command.run("--drain").wait() == 0
    assert [job["state"] for job in command.jobs()] == ["succeeded"] * 11


def test_a_drain_that_never_reached_its_store_has_failed(command: Command) -> None:
    command.write(plugins=JOBS)
    command.enqueue("noop")
    with locked(command.folder / "jobs.db"):
        run = command.run("--drain")
        run.logged("store unavailable")
        run.signal(signal.SIGTERM)
        assert run.wait() == 1
    assert run.out.startswith("not drained")
    assert command.run("--drain").wait() == 0


def test_a_drain_ends_and_names_the_reason_if_its_store_stays_unavailable(command: Command) -> None:
    command.write(config="shutdown: {grace: 1s}\n", plugins=JOBS)
    command.enqueue("noop")
    with locked(command.folder / "jobs.db"):
        run = command.run("--drain")
        assert run.wait() == 75
    assert "\nthe store is unavailable: " in run.out


def test_a_drain_ends_and_names_the_reason_if_its_store_refuses_claims(command: Command) -> None:
    command.write(config="shutdown: {grace: 1s}\n", plugins=JOBS)
    command.enqueue("noop")
    with sqlite3.connect(command.folder / "jobs.db") as connection:
        connection.execute("create trigger no before update of owner on jobs begin select raise(abort, 'not now'); end")
    connection.close()
    run = command.run("--drain")
    assert run.wait() == 4
    assert ": no job has ended\nthe store failed to claim jobs: " in run.out
    assert run.out.endswith("left behind: 1 ready\n")


@pytest.mark.parametrize(
    ("hook", "reason"), [("os._exit(7)", "exited with status 7"), ("time.sleep(99)", "killed by SIGKILL")]
)
def test_a_drain_ends_and_names_the_reason_if_no_worker_can_start(command: Command, hook: str, reason: str) -> None:
    plugin = (
        f"import os, time\nfrom supervisor import hookimpl\n@hookimpl\ndef supervisor_worker_started(worker): {hook}\n"
    )
    command.write(config="workers: {count: 1}\nshutdown: {grace: 1s}\n", plugins={**JOBS, "hook.py": plugin})
    hook_file = command.folder / "plugins" / "hook.py"
    command.enqueue("noop")
    run = command.run("--drain")
    assert run.wait(40) == 4
    assert (
        f": no job has ended\nno worker became ready: {reason} during hook supervisor_worker_started of plugin {hook_file}"
        in run.out
    )
    assert run.out.endswith("left behind: 1 ready\n")


def test_the_log_follows_a_reload_during_a_drain(command: Command) -> None:
    command.write(plugins=JOBS)
    command.enqueue("noop", None, "--delay", "1h")
    run = command.run("--drain")
    run.logged("supervisor started")
    command.write(config="log: {format: json}\n")
    run.signal(signal.SIGHUP)
    run.logged("config reloaded")
    run.signal(signal.SIGTERM)
    assert run.wait() == 4
    assert json.loads(run.log.splitlines()[-1])["message"]


def test_a_signal_ends_a_drain_which_reports_what_is_left(command: Command) -> None:
    command.write(plugins=JOBS)
    command.enqueue("noop", None, "--delay", "1h")
    run = command.run("--drain")
    wait_for(lambda: "supervisor started" in run.log)
    run.signal(signal.SIGTERM)
    assert run.wait() == 4
    assert "left behind: 1 scheduled" in run.out


def test_a_handler_that_a_reload_brings_is_waited_for(command: Command) -> None:
    held = """
        import os, time
        from supervisor import handler

        @handler
        def held(job):
            while not os.path.exists("gate"):
                time.sleep(0.01)
    """
    command.write(config="workers: {count: 1}\nretry: {backoff: {max: 3s}}\n", plugins={"held.py": held})
    ids = [command.enqueue(name) for name in ("noop", "held")]
    run = command.run("--drain")
    run.logged("handler=noop unknown_handler")
    command.write(plugins=JOBS)
    run.signal(signal.SIGHUP)
    run.logged("config reloaded")
    (command.folder / "gate").touch()
    assert run.wait() == 0
    assert states(command) == dict.fromkeys(ids, "succeeded")
    assert "no plugin serves" not in run.out
