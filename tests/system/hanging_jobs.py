"""Handlers that hang for an hour, each in its own way, as the text of a plugin file. A kill that fails shows as a time-out.

Each takes the path of a file, which it creates once it has started. `deep` and `blocked` also start programs that are hard to end.
"""

from __future__ import annotations

LOOP, SLEEP, REGEX, NAP, CALL, DEAF, BLOCKED, DEEP = (
    "loop", "sleep", "regex", "nap", "call", "deaf", "blocked", "deep",
)  # fmt: skip

PLUGIN = r"""
import ctypes, re, signal, subprocess, sys, time
from pathlib import Path
from supervisor import handler

DEAF_PROGRAM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(3600)"


def start_deaf(**how):
    program = subprocess.Popen([sys.executable, "-c", DEAF_PROGRAM], stdout=subprocess.PIPE, **how)
    program.stdout.readline()
    return program


@handler
def loop(job):
    Path(job.payload).touch()
    while True:
        pass


@handler
def sleep(job):
    Path(job.payload).touch()
    time.sleep(3600)


@handler
def regex(job):
    "It uses the CPU and holds the GIL."
    Path(job.payload).touch()
    re.match(r"(a|aa)+$", "a" * 200 + "b")


def lock_twice():
    "A C call that holds the GIL, uses no CPU, and is ended by no signal."
    lock, c = ctypes.create_string_buffer(256), ctypes.PyDLL(None)
    c.pthread_mutex_lock(lock)
    c.pthread_mutex_lock(lock)


@handler
def call(job):
    Path(job.payload).touch()
    lock_twice()


@handler
def nap(job):
    "As `call`, but any signal ends the call, which then begins again."
    Path(job.payload).touch()
    while True:
        ctypes.PyDLL(None).sleep(3600)


@handler
def deaf(job):
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    Path(job.payload).touch()
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            pass


@handler
def blocked(job):
    program = start_deaf()
    Path(job.payload).touch()
    program.wait()


@handler
def deep(job):
    "Deaf, holding the GIL, with a deaf program in its group and another in a session of its own."
    programs = [start_deaf(), start_deaf(start_new_session=True)]
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:
        signal.signal(number, signal.SIG_IGN)
    Path(job.payload).write_text(" ".join(str(program.pid) for program in programs))
    lock_twice()
"""
