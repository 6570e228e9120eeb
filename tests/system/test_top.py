"""`supervisor top` in a pseudo terminal: what reaches the terminal, and how it is left."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys

import pytest

from tests.system.command import Command
from tests.system.in_terminal import InTerminal

HOSTILE = "mail\x1b]0;owned\x07\x1b[2J\x9b31m[red]\n"
LEFT = (b"\x1b[?1049l", b"\x1b[?25h")
"""The sequences that give back the screen of before, and the cursor."""


def test_it_shows_a_job_with_a_hostile_name_takes_keys_and_restores_the_terminal(command: Command) -> None:
    id = command.enqueue("mail")
    with sqlite3.connect(command.folder / "jobs.db") as connection:
        connection.execute("update jobs set handler = ?", (HOSTILE,))
    connection.close()
    with InTerminal(command, "top", "--interval", "0.2", columns=120) as terminal:
        terminal.shown("no supervisor is running")
        terminal.shown("mail\\x1b]0;owned\\x07\\x1b[2J\\x9b31m[red]")
        terminal.type("\r")
        terminal.shown("waiting_because")
        terminal.type("c")
        terminal.shown(f"Cancel job {id}?")
        terminal.type("y")
        terminal.shown(f"job {id}: cancelled")
        terminal.type("qqq")
        assert terminal.wait() == 0
        assert command.job(id)["state"] == "cancelled"
        assert b"\x1b]0;owned" not in terminal.written and b"\x1b[2J" not in terminal.written
        assert not re.search(rb"\xc2\x9b|\x9b31m", terminal.written)
        assert all(sequence in terminal.written for sequence in LEFT)
        assert terminal.modes == terminal.modes_before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_restores_the_terminal(command: Command, number: signal.Signals) -> None:
    command.enqueue("mail")
    with InTerminal(command, "top", NO_COLOR="1") as terminal:
        terminal.shown("no supervisor is running")
        terminal.signal(number)
        assert terminal.wait() == 0
        assert all(sequence in terminal.written for sequence in LEFT)
        assert terminal.modes == terminal.modes_before
        assert "Traceback" not in terminal.text
        colours = re.findall(rb"\x1b\[[0-9;]*?(?:3[0-7]|4[0-7]|9[0-7]|38;[25])[;m]", terminal.written)
        assert not colours, "NO_COLOR was set"


def test_a_fault_restores_the_terminal_and_shows_where_it_is(command: Command) -> None:
    broken = "store: {type: broken}\n"
    plugin = """
        from supervisor import hookimpl

        class Broken:
            def stats(self):
                secret = "a value that nobody shall see"
                raise RuntimeError("a fault")

            def close(self):
                pass

        @hookimpl
        def supervisor_stores():
            return {"broken": lambda settings, create, base: Broken()}
    """
    command.write(config=broken, plugins={"broken.py": plugin})
    with InTerminal(command, "top") as terminal:
        assert terminal.wait() == 1
        assert "RuntimeError: a fault" in terminal.text
        assert "nobody shall see" not in terminal.text.replace('secret = "a value', "")
        assert all(sequence in terminal.written for sequence in LEFT)
        assert terminal.modes == terminal.modes_before


def test_a_store_that_has_no_jobs_to_show_is_named_after_the_terminal_was_restored(command: Command) -> None:
    plugin = """
        from supervisor import hookimpl
        from supervisor.errors import Unsupported
        from supervisor.stores.memory.store import MemoryStore

        class Narrow(MemoryStore):
            def __init__(self):
                super().__init__()
                self.find_jobs = self.list_jobs = self.refuse

            def refuse(self, *arguments, **named):
                raise Unsupported("list jobs", "ask its supervisor")

        @hookimpl
        def supervisor_stores():
            return {"narrow": lambda settings, create, base: Narrow()}
    """
    command.write(config="store: {type: narrow}\n", plugins={"narrow.py": plugin})
    with InTerminal(command, "top") as terminal:
        assert terminal.wait() == 2
        assert (
            "Error: top: this store can't list jobs: ask its supervisor; or use: supervisor status --watch"
            in " ".join(terminal.text.split())
        )
        assert terminal.modes == terminal.modes_before


def test_a_mistake_is_named_after_the_terminal_was_restored(command: Command) -> None:
    command.write(config="store: sqlite:///folder/\n")
    (command.folder / "folder").mkdir()
    with InTerminal(command, "top") as terminal:
        assert terminal.wait() in (2, 75)
        assert "Error: " in terminal.text


def test_without_a_terminal_or_the_extra_it_names_what_to_do(command: Command) -> None:
    ended = command.call("top")
    assert ended.code == 2
    assert "expected a terminal" in ended.err and "supervisor status --watch" in ended.err
    code = (
        "import sys; sys.modules['textual'] = None\n"
        "from supervisor.cli.top import application_class\n"
        "from supervisor.cli.context import UserMistake\n"
        "try: application_class()\nexcept UserMistake as error: print(error.message)"
    )
    shown = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "pip install 'job-supervisor[top]'" in shown
