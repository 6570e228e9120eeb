"""Many processes on one SQLite file, and a file that is locked or full for a while."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from supervisor.engine.limits import DEFAULT_LIMITS
from supervisor.workers.run_times import FRAME_JOBS
from tests.system.command import Command, Running, wait_for
from tests.system.disks import fill, small_disk
from tests.system.privileges import require_root

CLAIMED_AHEAD = 2 * DEFAULT_LIMITS.buffered_per_worker + 2 * 2 * FRAME_JOBS
"""Jobs that one supervisor with two workers has claimed at most: buffered, and sent to the workers."""

JOBS = {
    "jobs.py": """
        import os, time
        from supervisor import handler

        def mark(job):
            fd = os.open("ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(fd, f"{job.id}\\n".encode())
            os.close(fd)

        @handler
        def marks(job):
            mark(job)

        @handler
        def waits(job):
            mark(job)
            while not os.path.exists("go"):
                time.sleep(0.01)
            return "finished"

        @handler
        def bulky(job):
            mark(job)
            while not os.path.exists("go"):
                time.sleep(0.01)
            return "x" * 500_000
    """
}
ENQUEUER = """
import sys, time
from supervisor import Client
end = time.monotonic() + float(sys.argv[1])
ids = []
with Client("sqlite:///jobs.db") as jobs:
    while time.monotonic() < end:
        ids.append(jobs.enqueue("marks", {"n": len(ids)}))
        ids += jobs.enqueue_many([{"handler": "marks", "payload": n} for n in range(20)])
        time.sleep(0.005)
print(*ids)
"""


def ran(command: Command) -> Counter[int]:
    file = command.folder / "ran"
    return Counter(int(line) for line in file.read_text().split()) if file.exists() else Counter()


def enqueuer(command: Command, seconds: float) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", ENQUEUER, str(seconds)]
    return subprocess.Popen(arguments, cwd=command.folder, env=command.env, stdout=subprocess.PIPE, text=True)


def wait_ran(command: Command, count: int) -> None:
    def so_many() -> None:
        assert len(ran(command)) >= count

    wait_for(so_many)


def wait_all_succeeded(command: Command, timeout: float = 60.0) -> None:
    def nothing_open() -> None:
        assert {job["state"] for job in command.jobs()} == {"succeeded"}

    wait_for(nothing_open, timeout, every=0.3)


def intact(file: Path) -> bool:
    with closing(sqlite3.connect(file)) as db:
        return bool(db.execute("pragma integrity_check").fetchone() == ("ok",))


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the write lock, as another program that does not end its transaction."""
    with closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as db:
        db.execute("begin immediate")
        yield
        db.execute("rollback")


class LockHolder:
    """Another program that holds the write lock for 300 ms again and again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._hold_again_and_again)
        self.times = 0

    def __enter__(self) -> LockHolder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _hold_again_and_again(self) -> None:
        while not self._ended.wait(0.05):
            with locked(self._file):
                self.times += 1
                self._ended.wait(0.3)


def test_two_supervisors_and_three_clients_lose_nothing_when_one_supervisor_is_killed(command: Command) -> None:
    command.write(config="workers: {count: 2}\nlease: {ttl: 5s}\n", plugins=JOBS)
    command.enqueue("marks")
    first, second = command.run(), command.run()
    clients = [enqueuer(command, 3.0) for _ in range(3)]
    wait_ran(command, 200)
    first.kill()
    third = command.run()
    ids = [1]
    for client in clients:
        out, _ = client.communicate(timeout=60)
        assert client.returncode == 0
        ids += map(int, out.split())
    wait_all_succeeded(command)
    assert len(ids) == len(set(ids))
    assert {job["id"] for job in command.jobs()} == set(ids) == set(ran(command))
    again = [id for id, times in ran(command).items() if times > 1]
    assert len(again) <= CLAIMED_AHEAD, "only jobs that the killed supervisor had claimed may have run twice"
    for run in (second, third):
        run.signal(signal.SIGTERM)
        assert run.wait() == 0
    assert intact(command.folder / "jobs.db")
    assert command.left_behind() == {}


def test_a_writer_that_holds_the_lock_again_and_again_costs_no_job_and_no_worker(command: Command) -> None:
    command.write(config="workers: {count: 2}\n", plugins=JOBS)
    command.enqueue_many([{"handler": "marks"}] * 500)
    with LockHolder(command.folder / "jobs.db") as holder:
        runs = [command.run(), command.run()]
        ids = [int(command.call("enqueue", "marks").out) for _ in range(3)]
        wait_all_succeeded(command)
        held = holder.times
    assert held > 3
    assert len(ids) == 3
    assert ran(command) == dict.fromkeys(range(1, 504), 1)
    for run in runs:
        assert " exited: " not in run.log
        assert "crashed" not in run.log
        assert "killed" not in run.log


def serve_waits(command: Command) -> tuple[Running, int]:
    command.write(config="workers: {count: 2}\nlease: {ttl: 3s}\n", plugins=JOBS)
    id = command.enqueue("waits")
    run = command.run()
    wait_ran(command, 1)
    return run, id


def test_jobs_go_on_and_outcomes_are_kept_while_the_store_is_unavailable(command: Command) -> None:
    run, id = serve_waits(command)
    with locked(command.folder / "jobs.db"):
        run.logged("store unavailable")
        (command.folder / "go").touch()
        time.sleep(4)  # past the lease: no other supervisor may take it over
    run.logged("store available again")
    job = command.until(id, "succeeded")
    assert (job["result"], job["retries"], job["errors"]) == ("finished", 0, [])
    command.until(command.enqueue("marks"), "succeeded")
    assert ran(command) == {id: 1, id + 1: 1}
    assert " exited: " not in run.log


def test_a_supervisor_stopped_while_the_store_is_unavailable_exits_and_loses_no_job(command: Command) -> None:
    run, id = serve_waits(command)
    with locked(command.folder / "jobs.db"):
        run.logged("store unavailable")
        (command.folder / "go").touch()
        run.signal(signal.SIGTERM)
        assert run.wait(30) == 1, "its outcome could not be settled"
    assert command.run("--drain").wait() == 0
    assert command.job(id)["state"] == "succeeded"
    assert command.processes() == {}


def test_a_drain_settles_outcomes_when_the_store_is_available_again(command: Command) -> None:
    run, id = serve_waits(command)
    with locked(command.folder / "jobs.db"):
        run.logged("store unavailable")
        run.signal(signal.SIGTERM)
        run.logged("supervisor stopping")
    (command.folder / "go").touch()
    assert run.wait() == 0
    assert (command.job(id)["state"], command.job(id)["retries"]) == ("succeeded", 0)


def test_a_start_waits_for_a_store_that_is_locked(command: Command) -> None:
    command.write(config="workers: {count: 1}\n", plugins=JOBS)
    id = command.enqueue("marks")
    with locked(command.folder / "jobs.db"):
        run = command.run()
        stopped = command.run()
        stopped.logged("store unavailable", timeout=30)
        stopped.signal(signal.SIGTERM)
        assert stopped.wait(30) == 0
        assert "Traceback" not in stopped.log
        assert run.code is None
    command.until(id, "succeeded")


def test_a_full_disk_stops_no_supervisor_and_outcomes_are_settled_when_there_is_space(command: Command) -> None:
    require_root("a small disk")
    with small_disk(command.folder / "disk", "10m") as disk:
        command.write(config="workers: {count: 2}\nstore: sqlite:///disk/jobs.db\n", plugins=JOBS)
        command.enqueue("marks")
        run = command.run()
        command.enqueue_many([{"handler": "bulky"}] * 6)
        wait_ran(command, 3)
        fill(filler := disk / "filler")
        (command.folder / "go").touch()
        run.logged("the store fails to settle outcomes: ")
        assert run.code is None
        full = [line for line in run.log.splitlines() if "database or disk is full" in line]
        assert 1 <= len(full) < 10
        filler.unlink()
        wait_all_succeeded(command)
        assert set(ran(command).values()) == {1}
        run.signal(signal.SIGTERM)
        assert run.wait() == 0
        assert intact(disk / "jobs.db")
