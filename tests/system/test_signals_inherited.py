"""Signals that the program which starts a command has blocked or ignores, and a terminal that lets no background job write."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.system.command import Command

DEAF = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.execvp(sys.argv[1], sys.argv[1:])
"""
PLUGINS = {
    "jobs.py": """
        from supervisor import handler

        @handler
        def noop(job):
            pass
    """
}


def test_signals_blocked_and_children_ignored_by_the_starter_are_heard_and_seen_all_the_same(command: Command) -> None:
    command.write(plugins=PLUGINS)
    run = command.run(under=[sys.executable, "-c", DEAF])
    command.until(command.enqueue("noop"), "succeeded")
    os.kill(run.forkserver(), signal.SIGKILL)
    run.logged("killed by SIGKILL")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


def test_the_thread_that_writes_the_log_blocks_the_signal_of_a_terminal_that_refuses_background_output(
    command: Command,
) -> None:
    run = command.run()
    run.logged("supervisor started")
    tasks = Path(f"/proc/{run.pid}/task")
    blocked = {int(task.name) for task in tasks.iterdir() if _blocks(task, signal.SIGTTOU)}
    assert len(blocked) == 1
    assert run.pid not in blocked, "TTOU that an operator sends still arrives"


def _blocks(task: Path, number: signal.Signals) -> bool:
    mask = (task / "status").read_text().split("SigBlk:")[1].split()[0]
    return bool(int(mask, 16) >> (number - 1) & 1)
