"""`supervisor run --reload`: a change of a file is a reload."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.system.command import Command, Running, wait_for
from tests.system.test_reload import plugin, reloads, result, wait_workers


@pytest.fixture
def watching(command: Command) -> Running:
    command.write(config="workers: {count: 1}\n", plugins=plugin(1))
    run = command.run("--reload")
    run.logged("supervisor started")
    assert result(command) == 1
    return run


def serves(command: Command, number: int) -> None:
    """Wait until this version of the plugin serves."""

    def newest() -> None:
        assert result(command) == number

    wait_for(newest)


def test_a_saved_plugin_serves_and_the_running_job_is_not_lost(command: Command, watching: Running) -> None:
    running = command.enqueue("gated")
    wait_for((command.folder / "begun").exists)
    command.write(plugins=plugin(2))
    watching.logged(f"changed: {command.folder / 'plugins/jobs.py'}")
    wait_for(lambda: reloads(watching) >= 1)
    (command.folder / "gate").touch()
    job = command.until(running, "succeeded")
    assert (job["result"], job["retries"]) == (1, 0)
    serves(command, 2)


def test_a_file_that_does_not_import_is_named_and_the_old_code_serves_on(command: Command, watching: Running) -> None:
    command.write(plugins={"jobs.py": "def"})
    watching.logged(f"config refused, the old one stays: {command.folder / 'plugins/jobs.py'}:1: SyntaxError")
    assert result(command) == 1
    command.write(plugins=plugin(3))
    serves(command, 3)


def test_a_saved_config_is_used(command: Command, watching: Running) -> None:
    command.write(config="workers: {count: 3}\n")
    watching.logged(f"changed: {command.config}")
    wait_workers(command, 3)
    command.write(config="workers: {count: three}\n")
    watching.logged("config refused, the old one stays")
    command.write(config="workers: {count: 2}\n")
    wait_workers(command, 2)
    command.write(config="workers: {count: 2}\nlease: {ttl: 60s}\n")
    watching.logged("a restart is needed for: lease")


def test_many_changes_at_once_are_few_reloads(command: Command, watching: Running) -> None:
    command.write(plugins={f"more{number}.py": "" for number in range(100)} | plugin(2))
    serves(command, 2)
    assert watching.log.count("changed: ") <= 5


def test_a_folder_of_plugins_that_is_replaced_is_watched_again(command: Command, watching: Running) -> None:
    """As a version control system does, or a program that unpacks files."""
    plugins = command.folder / "plugins"
    plugins.rename(command.folder / "old")
    watching.logged("handlers removed")
    shutil.copytree(command.folder / "old", plugins)
    watching.logged("handlers added")
    command.write(plugins=plugin(2))
    serves(command, 2)


def test_plugins_that_the_config_names_later_are_watched(command: Command, watching: Running) -> None:
    other = command.folder / "other"
    other.mkdir()
    (other / "more.py").write_text("from supervisor import handler\n@handler\ndef more(job): return 1")
    command.write(config="plugins: [plugins, other/more.py]\nworkers: {count: 1}\n")
    watching.logged("handlers added: more")

    def more(number: int) -> None:
        assert command.until(command.enqueue("more"), "succeeded")["result"] == number

    more(1)
    (other / "more.py").write_text("from supervisor import handler\n@handler\ndef more(job): return 2")
    wait_for(lambda: more(2))


def test_the_files_that_a_supervisor_writes_are_no_changes(command: Command, watching: Running) -> None:
    """Its store and its log are beside the config."""
    command.enqueue_many([{"handler": "version"}] * 100)
    wait_for(lambda: {job["state"] for job in command.jobs()} == {"succeeded"})
    command.write(plugins=plugin(2))
    serves(command, 2)
    changed = [line.partition("changed: ")[2] for line in watching.log.splitlines() if "changed: " in line]
    assert {path for line in changed for path in line.split(", ") if "jobs.py" not in path} == set()


def test_it_ends_as_without_the_option(command: Command, watching: Running) -> None:
    watching.signal(signal.SIGTERM)
    assert watching.wait() == 0
    assert watching.log.splitlines()[-1].endswith("supervisor stopped: exit code 0")


def test_without_watchfiles_the_command_to_install_it_is_named(command: Command, tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/watchfiles.py").write_text("raise ModuleNotFoundError('No module named watchfiles')")
    command.env["PYTHONPATH"] = f"{tmp_path / 'hidden'}:{command.env['PYTHONPATH']}"
    ended = command.call("run", "--reload")
    assert ended.code == 2 and "Error: run --reload needs watchfiles: pip install 'job-supervisor[dev]'" in ended.err


def test_reload_goes_without_drain(command: Command) -> None:
    assert "--reload goes without --drain" in command.call("run", "--reload", "--drain").err
