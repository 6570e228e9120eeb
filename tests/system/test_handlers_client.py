"""The Client in a handler, and programs that the handler starts, use the config of the supervisor."""

from __future__ import annotations

import signal
import sys
import textwrap
from typing import Any

import pytest

from tests.system.command import Command, Running, wait_for

JOBS = """
    import os
    from supervisor import Client, handler

    @handler
    def parent(job):
        os.chdir("/")
        with Client() as jobs:
            jobs.enqueue("child")

    @handler
    def child(job):
        return os.environ.get("SUPERVISOR_CONFIG")

    @handler
    def forgetful(job):
        os.environ["SUPERVISOR_CONFIG"] = "/nowhere.yaml"
"""
CONFIG = "store: sqlite:///of-conf.db\nworkers: {{count: 1, start: {start}}}\n"


def start(command: Command, *arguments: str, env: dict[str, str]) -> Running:
    run = Running([sys.executable, "-m", "supervisor", "run", *arguments], command.folder, command.env | env, 1)
    command.runs.append(run)
    run.logged("supervisor started")
    return run


def child_of(command: Command) -> Any:
    """Return the config in the environment of the child job, once the parent has enqueued it."""
    command.until(command.enqueue("forgetful"), "succeeded")
    id = command.enqueue("parent")
    command.until(id, "succeeded")
    return command.until(id + 1, "succeeded")["result"]


@pytest.fixture(params=["fork", "spawn"])
def elsewhere(command: Command, request: pytest.FixtureRequest) -> Command:
    """A command whose config is in a folder where no command looks for it."""
    command.config.unlink()
    command.config = command.folder / "conf" / "app.yaml"
    command.write(config=CONFIG.format(start=request.param))
    (command.config.parent / "plugins").mkdir()
    (command.config.parent / "plugins" / "jobs.py").write_text(textwrap.dedent(JOBS))
    return command


def test_a_handler_uses_the_config_that_was_given(elsewhere: Command) -> None:
    start(elsewhere, "-c", "conf/app.yaml", env={})
    assert child_of(elsewhere) == str(elsewhere.config)


def test_a_handler_uses_the_config_of_the_environment_also_after_a_reload(elsewhere: Command) -> None:
    run = start(elsewhere, env={"SUPERVISOR_CONFIG": "conf/app.yaml"})
    assert child_of(elsewhere) == str(elsewhere.config)
    run.signal(signal.SIGHUP)
    wait_for(lambda: "config reloaded" in run.log)
    assert child_of(elsewhere) == str(elsewhere.config)


def test_a_handler_uses_the_config_that_was_found(command: Command) -> None:
    command.write(plugins={"jobs.py": JOBS})
    start(command, env={})
    assert child_of(command) == str(command.config)
