"""Hooks of plugin files, on both sides: each is called, and one that fails does no harm to the others."""

from __future__ import annotations

import signal

import orjson
import pytest

from tests.system.command import Command, Running, wait_for

RECORD = """
    import json, os
    from supervisor import handler, hookimpl

    def record(call):
        fd = os.open("calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, (json.dumps(call) + "\\n").encode())
        os.close(fd)
"""
RAISING = """
    from supervisor import hookimpl

    @hookimpl
    def supervisor_started(info): raise ValueError("bad start")

    @hookimpl
    def supervisor_stopping(reason): raise ValueError("bad stop")

    @hookimpl
    def supervisor_events(events): raise ValueError("bad events")

    @hookimpl
    def supervisor_worker_started(worker): raise ValueError("bad worker start")

    @hookimpl
    def supervisor_worker_stopping(worker): raise ValueError("bad worker stop")
"""
PARENT = """
    @hookimpl
    def supervisor_started(info): record(["started", os.getpid(), info])

    @hookimpl
    def supervisor_stopping(reason): record(["stopping", os.getpid(), reason])

    @hookimpl
    def supervisor_events(events): record(["events", os.getpid(), [type(event).__name__ for event in events]])
"""
WORKER = """
    @handler
    def noop(job):
        return os.getpid()

    @hookimpl
    def supervisor_worker_started(worker): record(["worker started", worker.pid, worker.number])

    @hookimpl
    def supervisor_worker_stopping(worker): record(["worker stopping", worker.pid, worker.number])

    @hookimpl(wrapper=True)
    def supervisor_run(job):
        record(["before", job.id, job.handler])
        result = yield
        record(["after", job.id, result])
        return {"wrapped": result}
"""


def calls(command: Command, hook: str) -> list[list[object]]:
    """Return what the hook has recorded at each call."""
    file = command.folder / "calls"
    lines = [orjson.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []
    return [line[1:] for line in lines if line[0] == hook]


def run_one(command: Command, plugins: dict[str, str]) -> tuple[Running, int, int]:
    """Run one job and stop; return the run, the id of the job and the pid of its worker."""
    command.write(config="workers: {count: 1}\n", plugins=plugins)
    id = command.enqueue("noop")
    run = command.run()
    pid = command.until(id, "succeeded")["result"]["wrapped"]
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    return run, id, pid


def test_hooks_of_both_sides_are_called_at_start_and_stop_and_around_each_job(command: Command) -> None:
    run, id, pid = run_one(command, {"both.py": RECORD + PARENT + WORKER})
    ((parent, info),) = calls(command, "started")
    assert parent == run.pid
    assert isinstance(info, dict)
    assert set(info) == {"owner", "host", "pid", "store"}
    assert calls(command, "stopping") == [[run.pid, "SIGTERM"]]
    assert calls(command, "worker started") == calls(command, "worker stopping") == [[pid, 1]]
    assert calls(command, "before") == [[id, "noop"]]
    assert calls(command, "after") == [[id, pid]]
    events = [name for _, names in calls(command, "events") for name in names]  # type: ignore[attr-defined]
    assert {"JobsClaimed", "JobsSettled", "WorkerStarted", "WorkerExited", "SupervisorStarted"} <= set(events)


def test_a_hook_that_raises_is_logged_and_the_hook_of_the_next_plugin_runs(command: Command) -> None:
    plugins = {"a_raises.py": RAISING, "m_records.py": RECORD + PARENT + WORKER, "z_raises.py": RAISING}
    run, id, pid = run_one(command, plugins)
    for hook in ("started", "stopping", "events", "worker_started", "worker_stopping"):
        assert f"supervisor_{hook}" in run.log
    assert "ValueError: bad start" in run.log
    assert len(calls(command, "started")) == len(calls(command, "stopping")) == 1
    assert calls(command, "worker started") == calls(command, "worker stopping") == [[pid, 1]]
    assert calls(command, "before") == [[id, "noop"]]


def test_a_hook_that_ends_the_supervisor_is_named_in_the_log_at_debug_level(command: Command) -> None:
    exits = """
        import os
        from supervisor import hookimpl

        @hookimpl
        def supervisor_started(info): os.kill(os.getpid(), 9)
    """
    command.write(config="workers: {count: 1}\nlog: {level: debug}\n", plugins={"exits.py": exits})
    run = command.run()
    assert run.wait() == -9
    plugin = f"{command.folder}/plugins/exits.py"
    assert f"DEBUG hook supervisor_started of plugin {plugin} is called for the first time\n" in run.log


def test_middleware_that_raises_fails_the_attempt(command: Command) -> None:
    wrapper = """
        from supervisor import handler, hookimpl

        @handler
        def noop(job): pass

        @hookimpl(wrapper=True)
        def supervisor_run(job):
            result = yield
            if job.payload:
                raise PermissionError("not you")
            return result
    """
    command.write(config="retry: {max_retries: 0}\n", plugins={"guard.py": wrapper})
    denied, fine = command.enqueue("noop", True), command.enqueue("noop", False)
    command.run()
    assert command.until(denied, "failed")["errors"][0]["message"] == "not you"
    command.until(fine, "succeeded")


def test_a_hook_that_hangs_holds_up_neither_jobs_nor_the_end(command: Command) -> None:
    hangs = """
        import time
        from supervisor import handler, hookimpl

        @handler
        def noop(job): pass

        @hookimpl
        def supervisor_events(events):
            open("hangs", "w").close()
            time.sleep(3600)
    """
    command.write(plugins={"hangs.py": hangs})
    run = command.run()
    wait_for((command.folder / "hangs").exists)
    for _ in range(3):
        command.until(command.enqueue("noop"), "succeeded")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


def test_a_plugin_adds_a_command(command: Command) -> None:
    adds = """
        import click
        from supervisor import hookimpl

        @hookimpl
        def supervisor_commands(group):
            @group.command()
            @click.argument("name")
            def greet(name):
                click.echo(f"hello {name}")
    """
    command.write(plugins={"adds.py": adds})
    assert command.ask("greet", "me") == "hello me\n"


def test_a_store_that_a_plugin_brings_works_like_any_other(command: Command) -> None:
    brings = """
        from supervisor import handler, hookimpl
        from supervisor.stores.sqlite.store import SqliteStore

        @handler
        def noop(job): return "done"

        def open_counted(settings, *, create, base):
            open(base / "opened", "a").close()
            return SqliteStore(base / settings.options["file"], create=create)

        @hookimpl
        def supervisor_stores():
            return {"counted": open_counted}
    """
    command.write(config="store: {type: counted, file: mine.db}\nworkers: {count: 1}\n", plugins={"brings.py": brings})
    id = int(command.call("enqueue", "noop").out)
    assert (command.folder / "opened").exists()
    run = command.run("--drain")
    assert run.wait() == 0
    assert command.job(id)["result"] == "done"
    assert (command.folder / "mine.db").exists()
    assert command.processes() == {}


def test_a_kind_of_store_that_no_plugin_brings_is_the_users_mistake(command: Command) -> None:
    command.write(config="store: {type: counted, file: mine.db}\n")
    run = command.run()
    assert run.wait() == 2
    assert "'counted' is not a kind of store" in run.log
    assert "Traceback" not in run.log


def test_jobs_run_on_a_memory_store(command: Command) -> None:
    chain = """
        from supervisor import hookimpl

        @hookimpl
        def supervisor_started(info):
            open("started", "w").write(info["store"])
    """
    command.write(config="store: memory://\nworkers: {count: 1}\n", plugins={"chain.py": chain})
    run = command.run()
    wait_for((command.folder / "started").exists)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert "memory" in (command.folder / "started").read_text()


def test_a_worker_hook_that_raises_while_workers_come_and_go_stops_no_job(command: Command) -> None:
    command.write(
        config="workers: {count: 2, max_jobs: 5}\n", plugins={"a_raises.py": RAISING, "m.py": RECORD + WORKER}
    )
    command.enqueue_many([{"handler": "noop"}] * 50)
    run = command.run("--drain")
    assert run.wait() == 0
    assert len(command.jobs("--state", "succeeded")) == 50
    assert len(calls(command, "worker started")) == len(calls(command, "worker stopping"))


def test_a_worker_whose_start_hook_runs_when_the_end_comes_still_calls_its_stop_hook(command: Command) -> None:
    slow = """
    import time

    @hookimpl
    def supervisor_stopping(reason): open("ends", "w").close()

    @hookimpl
    def supervisor_worker_started(worker):
        record(["worker started", worker.pid, worker.number])
        while not os.path.exists("ends"):
            time.sleep(0.01)

    @hookimpl
    def supervisor_worker_stopping(worker): record(["worker stopping", worker.pid, worker.number])
"""
    command.write(config="workers: {count: 2}\n", plugins={"slow.py": RECORD + slow})
    run = command.run()
    wait_for(lambda: len(calls(command, "worker started")) == 2)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert sorted(calls(command, "worker stopping")) == sorted(calls(command, "worker started"))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_start_hook_that_hangs_does_not_hold_up_the_end_and_is_named(command: Command, start: str) -> None:
    hangs = """
        import time
        from supervisor import hookimpl

        @hookimpl
        def supervisor_worker_started(worker):
            open("hangs", "w").close()
            time.sleep(3600)
    """
    config = f"workers: {{count: 1, start: {start}}}\nshutdown: {{grace: 1h}}\n"
    command.write(config=config, plugins={"a.py": RECORD + WORKER, "hangs.py": hangs})
    run = command.run()
    wait_for((command.folder / "hangs").exists)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert f"during hook supervisor_worker_started of plugin {command.folder}/plugins/hangs.py" in run.log


def test_a_stop_hook_that_hangs_is_named_when_the_grace_is_over(command: Command) -> None:
    hangs = """
        import time
        from supervisor import hookimpl

        @hookimpl
        def supervisor_worker_stopping(worker): time.sleep(3600)
    """
    config = "workers: {count: 1}\nshutdown: {grace: 2s}\nlog: {level: warning}\n"
    command.write(config=config, plugins={"a.py": RECORD + WORKER, "hangs.py": hangs})
    id = command.enqueue("noop")
    run = command.run("--drain")
    assert run.wait() == 0
    assert command.job(id)["state"] == "succeeded"
    where = f"during hook supervisor_worker_stopping of plugin {command.folder}/plugins/hangs.py"
    assert f"killed: no job cause=lingering: killed by SIGKILL {where}" in run.log


def test_signal_handlers_that_an_import_sets_are_replaced(command: Command) -> None:
    takes = """
        import signal
        from supervisor import hookimpl

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)

        @hookimpl
        def supervisor_started(info): pass
    """
    command.write(plugins={"takes.py": takes})
    run = command.run()
    run.logged("supervisor started")
    run.signal(signal.SIGHUP)
    run.logged("config reloaded")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
