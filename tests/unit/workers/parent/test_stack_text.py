"""Dumps of faulthandler are made readable."""

from __future__ import annotations

import subprocess
import sys

from supervisor.workers.parent import stack_text as stacks

HEARTBEAT = f"""Thread 0x00007f0000000001 (most recent call first):
  File "{stacks.HEARTBEAT_FILE}", line 40 in run
"""
MAIN = f"""Current thread 0x00007f0000000002 [python] (most recent call first):
  File "/plugins/jobs.py", line 21 in inner
  File "/plugins/jobs.py", line 25 in hang
  File "{stacks.OWN_CODE}/child/main.py", line 190 in _run_job
  File "{stacks.OWN_CODE}/child/main.py", line 165 in _run_frame
  File "<string>", line 1 in <module>
"""
WATCH = f"""Thread 0x00007f0000000004 (most recent call first):
  File "{stacks.OWN_CODE}/child/loop_watch.py", line 84 in _watch
"""
INTERRUPTER = f"""Thread 0x00007f0000000005 (most recent call first):
  File "{stacks.OWN_CODE}/child/interruption.py", line 90 in wait
  File "{stacks.HEARTBEAT_FILE}", line 64 in _wait
"""
OTHER = """Thread 0x00007f0000000003 (most recent call first):
  File "/lib/python3/threading.py", line 320 in wait
  File "/plugins/jobs.py", line 7 in helper
"""


def test_only_the_frames_and_threads_of_the_job_are_shown() -> None:
    assert stacks.readable(f"{HEARTBEAT}\n{OTHER}\n{MAIN}") == (
        "Thread 0x00007f0000000003 (most recent call first):\n"
        '  File "/lib/python3/threading.py", line 320 in wait\n'
        '  File "/plugins/jobs.py", line 7 in helper\n'
        "\n"
        "Current thread 0x00007f0000000002 [python] (most recent call first):\n"
        '  File "/plugins/jobs.py", line 21 in inner\n'
        '  File "/plugins/jobs.py", line 25 in hang'
    )


def test_an_idle_worker_has_nothing_to_show() -> None:
    idle = MAIN.replace('  File "/plugins/jobs.py", line 21 in inner\n  File "/plugins/jobs.py", line 25 in hang\n', "")
    assert stacks.readable(f"Timeout (0:00:00.500000)!\n{HEARTBEAT}\n{idle}") is None
    assert stacks.readable("") is None
    assert stacks.readable("Thread 0x12 (most rec") is None


def test_a_dump_cut_short_is_shown_as_far_as_it_goes() -> None:
    assert stacks.readable(MAIN[:150]) is not None


def test_of_two_dumps_the_last_is_shown() -> None:
    again = MAIN.replace("line 21", "line 22")
    shown = (
        stacks.readable(
            f"Timeout (0:00:00.500000)!\n{HEARTBEAT}\n{MAIN}\nTimeout (0:00:00.500000)!\n{HEARTBEAT}\n{again}"
        )
        or ""
    )
    assert "line 22" in shown
    assert "line 21" not in shown


def test_a_dump_is_whole_once_it_has_come_to_the_workers_own_frames_of_the_main_thread() -> None:
    dump = f"Timeout (0:00:00.500000)!\n{WATCH}\n{INTERRUPTER}\n{HEARTBEAT}\n{OTHER}\n{MAIN}"
    frames = dump.index("line 190 in _run_job\n") + len("line 190 in _run_job\n")
    assert not any(stacks.is_whole(dump[:length]) for length in range(0, dump.index("line 190"), 7))
    assert stacks.is_whole(dump[:frames])
    assert stacks.is_whole(dump)


def test_a_stack_that_is_requested_while_the_dumper_is_armed_again_ends_no_worker() -> None:
    """In between there is no handler of faulthandler, and the default would end the process."""
    program = """
import faulthandler, os, signal
from supervisor.workers.system.linux import STACK_SIGNAL
from supervisor.workers.child.stack_dump import StackDumper

ours, theirs = os.pipe()
dumper = StackDumper(theirs)
dumper.arm()
faulthandler.unregister(STACK_SIGNAL)
os.kill(os.getpid(), STACK_SIGNAL)
dumper.arm()
os.kill(os.getpid(), STACK_SIGNAL)
assert b"most recent call first" in os.read(ours, 1000)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
