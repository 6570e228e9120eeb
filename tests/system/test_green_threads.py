"""Plugins that replace threads, waiting and child processes, as gevent and eventlet do."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.system.command import Command, wait_for

GREEN_THREADS = """
    import _thread, os, queue, select, signal, socket, subprocess, threading, time
    from supervisor import Sink, handler, hookimpl

    nap, write = time.sleep, os.write

    def never(*arguments, **options):
        return 1

    def refuse(*arguments, **options):
        raise RuntimeError("only in a green thread")

    def write_from_main(*arguments):
        return write(*arguments) if _thread.get_ident() == threading.main_thread().ident else refuse()

    _thread.start_new_thread = threading._start_new_thread = never
    time.sleep = time.monotonic = os.read = subprocess.Popen = socket.socket = refuse
    threading.Event = threading.Condition = queue.SimpleQueue = refuse
    signal.signal = os.close = never
    os.write = write_from_main
    del select.poll, select.epoll

    @handler(timeout="30s", max_retries=0)
    def longer_than_the_heartbeat_timeout(job):
        nap(2.5)
        return "slept"

    @handler(max_retries=0)
    def count_descriptors(job):
        return len(os.listdir("/proc/self/fd"))

    @handler(max_retries=0)
    def fail(job):
        raise ValueError("no")
"""

HOOKS = """
    def note(text):
        with open("notes", "a") as file:
            print(text, file=file)

    class Notes(Sink):
        def publish(self, dead_letters):
            note("published")
            return [one["id"] for one in dead_letters]

    @hookimpl
    def supervisor_sinks():
        return {"notes": Notes}

    @hookimpl
    def supervisor_started(info):
        note("started")

    @hookimpl
    def supervisor_events(events):
        for event in events:
            if type(event).__name__ == "ConfigReloaded":
                note("reloaded")

    @hookimpl
    def supervisor_stopping(reason):
        note("stopping")
"""

both = pytest.mark.parametrize("start", ["fork", "spawn"])


@both
def test_a_plugin_that_replaces_threads_stops_no_heartbeat(command: Command, start: str) -> None:
    command.write(
        config=f"workers: {{count: 1, start: {start}, heartbeat: 200ms, heartbeat_timeout: 1s}}\n",
        plugins={"green.py": GREEN_THREADS},
    )
    run = command.run()
    job = command.until(command.enqueue("longer_than_the_heartbeat_timeout"), "succeeded")
    assert job["errors"] == []
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


@both
def test_hooks_in_a_plugin_that_replaces_threads_run_in_real_threads(
    command: Command, tmp_path: Path, start: str
) -> None:
    command.write(
        config=f"workers: {{count: 1, start: {start}}}\ndlq: {{sinks: [{{type: notes}}]}}\n",
        plugins={"green.py": GREEN_THREADS + HOOKS},
    )
    run = command.run()
    notes = tmp_path / "notes"

    def noted(text: str) -> None:
        wait_for(lambda: notes.exists() and text in notes.read_text().split())

    noted("started")
    command.until(command.enqueue("fail"), "failed")
    noted("published")
    command.write(plugins={"other.py": "from supervisor import handler\n@handler\ndef quick(job): return 1\n"})
    run.signal(signal.SIGHUP)
    noted("reloaded")
    command.until(command.enqueue("quick"), "succeeded")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    noted("stopping")


@both
def test_descriptors_of_earlier_workers_are_closed_whatever_a_plugin_replaces(command: Command, start: str) -> None:
    command.write(
        config=f"workers: {{count: 1, max_jobs: 1, start: {start}}}\n",
        plugins={"green.py": GREEN_THREADS},
    )
    command.run()
    counts = [command.until(command.enqueue("count_descriptors"), "succeeded")["result"] for _ in range(4)]
    assert counts == [counts[0]] * 4
