"""The titles of processes in `ps`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.system.command import Command, wait_for

PLUGIN = """
import subprocess, sys
from supervisor import handler

@handler
def shown(job):
    program = "print(open('/proc/self/cmdline').read().split(chr(0))[-2])"
    return [sys.argv, subprocess.check_output([sys.executable, "-c", program, "argument"], text=True)]
"""
SHOW = """
import sys
from supervisor.workers.system import title
{first}
title.set_title("role " + "x" * 100)
print(ascii(open("/proc/self/cmdline").read()), sys.argv[1], "A" * 100 in open("/proc/self/environ").read())
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_every_process_has_the_title_of_its_role(command: Command, start: str) -> None:
    """They are found by their environment, which stays readable."""
    command.write(config=f"workers: {{count: 2, start: {start}}}", plugins={"mine.py": PLUGIN})
    run = command.run()

    def all_titled() -> None:
        titles = sorted(each.strip(" \n") for each in command.processes().values())
        assert titles[:3] == [
            "supervisor: forkserver",
            f"supervisor: supervisor run -c {command.config}",
            "supervisor: worker 1",
        ]
        assert titles[3:] == ["supervisor: worker 2"]

    wait_for(all_titled)
    argv, program = command.until(command.enqueue("shown"), "succeeded")["result"]
    assert argv[0] == "-c" and program == "argument\n"
    run.end()


@pytest.mark.parametrize(
    ("first", "shown"),
    [
        ("", "'supervisor: role xxx"),
        ("title._stack = lambda: (0, 0)", "'{python}\\x00"),
        ("def refuse(*_): raise PermissionError\ntitle.open = refuse", "'{python}\\x00"),
    ],
)
def test_a_title_is_no_longer_than_the_arguments_and_left_if_they_are_not_found(first: str, shown: str) -> None:
    code = SHOW.format(first=first)
    out = subprocess.check_output([sys.executable, "-c", code, "argument"], env={"LONG": "A" * 100}, text=True)
    assert out.startswith(shown.format(python=sys.executable))
    assert out.split()[-2:] == ["argument", "True"]
