"""Orphans that come to a process, and children of its plugins, which are none."""

from __future__ import annotations

import os
import subprocess

import pytest

from supervisor.workers.system import marks, orphans
from supervisor.workers.system import process_tree as proctree
from supervisor.workers.system.orphans import Orphans


def exited(code: int) -> subprocess.Popen[bytes]:
    """A program of this process in a session of its own that has exited, and nobody has waited for."""
    program = subprocess.Popen(["sh", "-c", f"exit {code}"], start_new_session=True)
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    return program


def test_the_exit_status_of_a_plugins_program_waits_for_the_plugin() -> None:
    program = exited(3)
    for _ in range(3):
        Orphans("me").sweep(())
    assert program.wait() == 3


def test_programs_that_nobody_waits_for_leave_a_bounded_number_of_zombies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "MAX_ZOMBIES", 2)
    programs = [exited(3) for _ in range(4)]
    Orphans("me").sweep(())
    assert [proctree.stat(program.pid) is None for program in programs] == [True, True, False, False]
    assert [program.wait() for program in programs[2:]] == [3, 3]
    for program in programs[:2]:
        program.wait()


def test_a_process_that_is_hidden_from_this_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    program = exited(3)
    monkeypatch.setattr(marks, "mark_of", lambda pid: None)
    Orphans("me").sweep(())
    assert program.wait() == 3


def test_a_mark_names_its_owner_and_its_pid() -> None:
    program = "import os; from supervisor.workers.system import marks; {}; print(marks.mark_of(os.getpid()))"

    def mark(setting: str) -> int:
        return int(subprocess.run(["python", "-c", program.format(setting)], capture_output=True, check=True).stdout)

    highest = mark("marks.set_mark('me', 2**22 - 1)")
    assert (marks.pid_in(highest, "me"), marks.pid_in(highest, "you")) == (2**22 - 1, None)
    assert marks.pid_in(mark("marks.set_mark('me', marks.SUPERVISOR)"), "me") == marks.SUPERVISOR
    unmarked = [marks.pid_in(each, "me") for each in (None, mark("import resource; resource.setrlimit(10, (1, 1))"))]
    assert unmarked == [None, None]
