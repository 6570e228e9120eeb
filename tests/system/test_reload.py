"""HUP, TTIN, TTOU and USR1 to a serving supervisor."""

from __future__ import annotations

import json
import signal
import time

from tests.system.command import Command, Running, wait_for

VERSION = """
    import os, time
    from supervisor import handler

    @handler
    def version(job):
        return {number}

    @handler
    def gated(job):
        open("begun", "a").close()
        while not os.path.exists("gate"):
            time.sleep(0.01)
        return {number}
"""


def plugin(number: int) -> dict[str, str]:
    return {"jobs.py": VERSION.format(number=number)}


def serve(command: Command, config: str) -> Running:
    command.write(config=config, plugins=plugin(1))
    run = command.run()
    run.logged("supervisor started")
    return run


def result(command: Command, handler: str = "version") -> int:
    number: int = command.until(command.enqueue(handler), "succeeded")["result"]
    return number


def reloads(run: Running) -> int:
    return run.log.count("config reloaded")


def reload(run: Running) -> str:
    """Send HUP, and return the line of the log about the reload."""
    before = reloads(run)
    run.signal(signal.SIGHUP)

    def again() -> bool:
        return reloads(run) > before

    wait_for(again)
    return [line for line in run.log.splitlines() if "config reloaded" in line][-1]


def workers(command: Command) -> int:
    (row,) = command.status()["supervisors"]
    return len(row["workers"])


def wait_workers(command: Command, count: int) -> None:
    def as_many() -> None:
        assert workers(command) == count

    wait_for(as_many)


def test_changed_handlers_serve_and_running_jobs_finish_in_the_old_code(command: Command) -> None:
    run = serve(command, "workers: {count: 2}\n")
    running = command.enqueue("gated")
    wait_for((command.folder / "begun").exists)
    command.write(plugins=plugin(2))
    reload(run)
    assert result(command) == 2
    assert command.job(running)["state"] == "in_flight"
    (command.folder / "gate").touch()
    assert command.until(running, "succeeded")["result"] == 1
    assert command.job(running)["retries"] == 0


def test_no_job_is_dropped_by_reloads_under_load(command: Command) -> None:
    run = serve(command, "workers: {count: 2}\n")
    command.enqueue_many([{"handler": "version"}] * 20_000)
    for _ in range(5):
        reload(run)

    def all_done() -> None:
        assert {job["state"] for job in command.jobs()} == {"succeeded"}

    wait_for(all_done, timeout=60, every=0.5)
    assert {(job["retries"], len(job["errors"])) for job in command.jobs()} == {(0, 0)}


def test_new_settings_of_workers_retries_handlers_and_log_are_used(command: Command) -> None:
    run = serve(command, "workers: {count: 1}\nretry: {max_retries: 0}\n")
    command.write(
        config="workers: {count: 3}\nretry: {max_retries: 7}\nlog: {level: debug}\nhandlers: {version: {timeout: 7s}}\n"
    )
    line = reload(run)
    for key in ("workers", "retry", "handlers", "log"):
        assert key in line
    id = command.enqueue("version")
    assert command.until(id, "succeeded")["max_retries"] == 7
    wait_workers(command, 3)
    run.logged(f"job={id} handler=version attempt 1 succeeded")


def test_keys_that_need_a_restart_are_named(command: Command) -> None:
    run = serve(command, "workers: {count: 1}\n")
    command.write(config="store: sqlite:///other.db\nlease: {ttl: 20s}\nworkers: {count: 2}\n")
    line = reload(run)
    assert "a restart is needed for: store, lease" in line
    wait_for(lambda: not (command.folder / "other.db").exists())
    command.write(config="workers: {count: 2}\n")
    assert result(command) == 1


def test_a_bad_config_is_refused_with_all_its_errors_and_the_old_one_serves(command: Command) -> None:
    run = serve(command, "workers: {count: 1}\n")
    command.write(config="workers: {cuont: 2}\nretry: {max_retries: -1}\n")
    run.signal(signal.SIGHUP)
    run.logged("config refused, the old one stays: ")
    assert "workers.cuont" in run.log
    assert "retry.max_retries" in run.log
    command.write(config="workers: {count: 1}\n")
    assert result(command) == 1
    command.write(plugins=plugin(2))
    reload(run)
    assert result(command) == 2


def test_a_file_that_no_longer_imports_is_refused_and_the_old_code_serves(command: Command) -> None:
    run = serve(command, "workers: {count: 2}\n")
    command.write(plugins={"jobs.py": "import nonsense_that_is_nowhere\n"})
    run.signal(signal.SIGHUP)
    assert "jobs.py:1" in run.logged("config refused")
    assert result(command) == 1
    assert reloads(run) == 0
    command.write(plugins=plugin(3))
    reload(run)
    assert result(command) == 3


HOOK = """
    import os, time
    from supervisor import hookimpl

    @hookimpl
    def supervisor_worker_started(worker):
        {act}
"""


def test_the_old_workers_go_on_if_no_new_one_can_be_started(command: Command) -> None:
    run = serve(command, "workers: {count: 2}\n")
    command.write(plugins={"jobs.py": VERSION.format(number=2), "hook.py": HOOK.format(act="os._exit(3)")})
    run.signal(signal.SIGHUP)
    run.logged(
        "config refused, the old one stays: the first new worker ended before it was ready: exited with status 3 "
        f"during hook supervisor_worker_started of plugin {command.folder}/plugins/hook.py"
    )
    wait_for(lambda: "the log those of hooks" in command.ask("status"))
    assert [result(command) for _ in range(5)] == [1] * 5
    assert "exited: stopped" not in run.log


def test_no_old_worker_exits_before_a_new_one_is_ready(command: Command) -> None:
    run = serve(command, "workers: {count: 2}\n")
    wait_for(lambda: run.log.count(") started") == 2)
    waits = HOOK.format(act="while not os.path.exists('go'): time.sleep(0.01)")
    command.write(plugins={"jobs.py": VERSION.format(number=2), "hook.py": waits})
    run.signal(signal.SIGHUP)
    wait_for(lambda: run.log.count("forkserver started") == 2)
    assert result(command) == 1
    assert "exited: stopped" not in run.log and reloads(run) == 0
    (command.folder / "go").touch()
    run.logged("config reloaded")
    assert result(command) == 2
    wait_for(lambda: run.log.count("exited: stopped") == 2)
    wait_for(lambda: run.log.count(") started") == 4)


def test_the_first_new_worker_has_the_new_limits(command: Command) -> None:
    run = serve(command, "workers: {count: 1}\n")
    command.write(config="workers: {count: 1, max_jobs: 1}\n")
    reload(run)
    for _ in range(3):
        result(command)
    wait_for(lambda: run.log.count("exited: max_jobs (workers.max_jobs is 1)") == 3)


def test_a_supervisor_that_is_terminated_while_the_first_new_worker_starts_ends(command: Command) -> None:
    run = serve(command, "workers: {count: 1}\n")
    waits = HOOK.format(act="print('in the hook', flush=True); time.sleep(3600)")
    command.write(config="workers: {count: 1}\nshutdown: {grace: 500ms}\n", plugins={"hook.py": waits})
    run.signal(signal.SIGHUP)
    run.logged("in the hook")
    run.signal(signal.SIGTERM)
    run.signal(signal.SIGINT)
    assert run.wait() == 3


def test_a_new_file_that_does_not_import_does_not_keep_others_from_serving(command: Command) -> None:
    run = serve(command, "workers: {count: 2}\n")
    command.write(plugins={**plugin(2), "new.py": "import nonsense_that_is_nowhere\n"})
    reload(run)
    assert "new.py" in run.logged("did not load")
    assert result(command) == 2


def test_the_files_of_the_last_of_many_hups_serve(command: Command) -> None:
    run = serve(command, "workers: {count: 2}\n")
    for number in range(2, 12):
        command.write(plugins=plugin(number))
        run.signal(signal.SIGHUP)
        time.sleep(0.02)

    def newest() -> None:
        assert result(command) == 11

    wait_for(newest)


def test_a_hup_during_a_reload_leads_to_another_reload(command: Command) -> None:
    run = serve(command, "workers: {count: 1}\n")
    slow = """
        import os, time
        open("importing", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)
    """
    command.write(plugins={**plugin(2), "slow.py": slow})
    run.signal(signal.SIGHUP)
    wait_for((command.folder / "importing").exists)
    command.write(plugins=plugin(3))
    run.signal(signal.SIGHUP)
    run.signal(signal.SIGUSR1)
    run.logged("status: ")  # so it has received the HUP before
    (command.folder / "go").touch()

    def newest() -> None:
        assert result(command) == 3

    wait_for(newest)


def test_a_hup_at_the_start_is_not_lost(command: Command) -> None:
    slow = {"slow.py": "import time\nopen('importing', 'w').close()\ntime.sleep(1)\n"}
    command.write(config="workers: {count: 1}\n", plugins={**slow, **plugin(1)})
    run = command.run()
    wait_for((command.folder / "importing").exists)
    run.signal(signal.SIGHUP)
    run.logged("supervisor started")
    run.logged("config reloaded")
    assert result(command) == 1


def test_a_reload_waits_for_no_old_job(command: Command) -> None:
    run = serve(command, "workers: {count: 1}\n")
    running = command.enqueue("gated")
    wait_for((command.folder / "begun").exists)
    for number in (2, 3, 4):
        command.write(plugins=plugin(number))
        reload(run)
        assert result(command) == number
    (command.folder / "gate").touch()
    assert command.until(running, "succeeded")["result"] == 1
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert command.left_behind() == {}


def test_a_hup_during_the_drain_changes_nothing(command: Command) -> None:
    run = serve(command, "workers: {count: 1}\n")
    running = command.enqueue("gated")
    wait_for((command.folder / "begun").exists)
    run.signal(signal.SIGTERM)
    run.logged("supervisor stopping")
    run.signal(signal.SIGHUP)
    run.signal(signal.SIGTTIN)
    (command.folder / "gate").touch()
    assert run.wait() == 0
    assert reloads(run) == 0
    assert (command.job(running)["state"], command.job(running)["retries"]) == ("succeeded", 0)


def test_a_supervisor_that_is_terminated_during_a_reload_ends(command: Command) -> None:
    for pause in (0.0, 0.05, 0.1, 0.2, 0.4):
        run = serve(command, "workers: {count: 2}\n")
        run.signal(signal.SIGHUP)
        time.sleep(pause)
        run.signal(signal.SIGTERM)
        assert run.wait() == 0
        assert "Traceback" not in run.log
        assert command.left_behind() == {}


def test_ttin_and_ttou_add_and_remove_a_worker_but_never_the_last(command: Command) -> None:
    run = serve(command, "workers: {count: 1}\n")
    run.signal(signal.SIGTTIN)
    wait_workers(command, 2)
    for count in (1, 1):
        run.signal(signal.SIGTTOU)
        wait_workers(command, count)
    assert result(command) == 1


def test_the_log_names_changed_plugin_files_and_what_they_bring_into_use(command: Command) -> None:
    run = serve(command, "workers: {count: 1}\n")
    plugins = command.folder / "plugins"
    assert reload(run).endswith("config reloaded: nothing changed")
    mail = "from supervisor import handler\n@handler\ndef mail(job): ...\n"
    command.write(plugins={"mail.py": mail, "_helper.py": "x = 1"})
    assert f"plugin file {plugins}/_helper.py, plugin file {plugins}/mail.py; handlers added: mail" in reload(run)
    (plugins / "mail.py").unlink()
    assert f"plugin file {plugins}/mail.py; handlers removed, whose jobs wait" in reload(run)
    hooks = "from supervisor import hookimpl\n@hookimpl\ndef supervisor_events(events): ...\n"
    command.write(plugins={"hooks.py": hooks})
    needed = f"a restart is needed for: {plugins}/hooks.py (its sinks and hooks run in the supervisor)"
    assert needed in reload(run)
    assert "nothing changed; " + needed in reload(run)
    wait_for(lambda: needed in command.ask("status"))
    (plugins / "hooks.py").unlink()
    assert "restart" not in reload(run)


def test_a_worker_added_during_the_start_is_started_with_the_others(command: Command) -> None:
    slow = """
        import os, time
        open("importing", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)
    """
    command.write(config="workers: {count: 1}\n", plugins={**plugin(1), "slow.py": slow})
    run = command.run()
    wait_for((command.folder / "importing").exists)
    run.signal(signal.SIGTTIN)
    (command.folder / "go").touch()
    run.logged("supervisor started")
    wait_workers(command, 2)


def test_a_worker_that_is_removed_finishes_its_job(command: Command) -> None:
    run = serve(command, "workers: {count: 2}\n")
    ids = [command.enqueue("gated") for _ in range(2)]
    for id in ids:
        command.until(id, "in_flight")
    run.signal(signal.SIGTTOU)
    (command.folder / "gate").touch()
    for id in ids:
        assert command.until(id, "succeeded")["retries"] == 0
    wait_workers(command, 1)


def test_the_status_is_written_to_the_log_when_asked(command: Command) -> None:
    run = serve(command, "workers: {count: 1}\n")
    id = command.enqueue("gated")
    wait_for((command.folder / "begun").exists)
    run.signal(signal.SIGUSR1)
    status = json.loads(run.logged("status: ").partition("status: ")[2])
    (worker,) = status["workers"]
    assert (worker["state"], worker["current_job"]["job_id"], worker["current_job"]["handler"]) == ("busy", id, "gated")
    assert (status["state"], status["leases"], status["store_unavailable"]) == ("running", 1, False)
    (command.folder / "gate").touch()
    command.until(id, "succeeded")
