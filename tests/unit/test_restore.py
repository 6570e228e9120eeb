"""Signals of a worker's own forks."""

from __future__ import annotations

import subprocess
import sys

import pytest

SIGNALLED_AT_BIRTH = """
import os, signal, threading
from supervisor.processes.restore import let_forks_obey, quiet_signals

quiet_signals()
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.{name}))
let_forks_obey()

def fork():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), [*before])

for _ in range(2):
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize(("name", "number"), [("SIGTERM", 15), ("SIGHUP", 1), ("SIGALRM", 14)])
def test_a_fork_obeys_a_signal_that_comes_before_it_can_have_dispositions_of_its_own(name: str, number: int) -> None:
    words = [sys.executable, "-c", SIGNALLED_AT_BIRTH.format(name=name)]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.splitlines() == [f"-{number} []"] * 2
