"""Signals in the processes that a job forks."""

from __future__ import annotations

import subprocess
import sys

import pytest

SIGNALLED_AT_FORK = """
import os, signal, threading
from supervisor.workers.child.process_state import obey_signals_in_forks, quiet_signals

quiet_signals()
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.{name}))
obey_signals_in_forks()

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


@pytest.mark.parametrize(("name", "number"), [("SIGTERM", 15), ("SIGHUP", 1), ("SIGALRM", 14), ("SIGINT", 2)])
def test_a_fork_obeys_a_signal_that_comes_before_it_has_dispositions_of_its_own(name: str, number: int) -> None:
    assert output_of(SIGNALLED_AT_FORK.format(name=name)).splitlines() == [f"-{number} []"] * 2


NESTED = """
import os, signal
from supervisor.workers.child.process_state import obey_signals_in_forks, quiet_signals

def fork_within():
    global within
    if not within:
        within = True
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

within = False
quiet_signals()
os.register_at_fork(before=fork_within)
obey_signals_in_forks()
pid = os.fork()
blocked = [*signal.pthread_sigmask(signal.SIG_BLOCK, ())]
if pid == 0:
    os._exit(len(blocked))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), blocked)
"""

RAISES_MEANWHILE = """
import os, signal
from supervisor.workers.child import process_state

process_state.quiet_signals()
process_state.obey_signals_in_forks()
mask = process_state.pthread_sigmask

def blocked_and_raised(how, numbers):
    was = mask(how, numbers)
    if how == signal.SIG_BLOCK and numbers:
        raise TimeoutError
    return was

process_state.pthread_sigmask = blocked_and_raised
pid = os.fork()
if pid == 0:
    os._exit(len(mask(signal.SIG_BLOCK, ())))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), [*mask(signal.SIG_BLOCK, ())])
"""


@pytest.mark.parametrize("scene", [NESTED, RAISES_MEANWHILE], ids=["a hook forks", "the block raises"])
def test_nothing_stays_blocked_after_a_fork(scene: str) -> None:
    assert output_of(scene) == "0 []\n"


def output_of(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
