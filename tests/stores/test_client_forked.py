"""A client in a process that was forked after it had connected, and in one that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from supervisor import Client
from supervisor.errors import StoreError
from tests.stores.at_once import Meanwhile


@pytest.fixture
def client(tmp_path):
    with Client(f"sqlite:///{tmp_path}/jobs.db", create=True) as client:
        yield client


def in_child(work) -> int:
    """Run `work` in a forked child; returns its exit status, 0 if `work` returned."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_connects_for_itself(client):
    client.enqueue("a")
    parents = client._access._opened

    def work() -> None:
        assert client.enqueue("b") == 2
        assert client._access._opened is not parents
        client.close()

    assert in_child(work) == 0
    assert client.enqueue("c") == 3
    assert client._access._opened is not None


def seen_by_another(path: Path) -> list[str]:
    ask = "import sqlite3, sys; print(*[name for name, in sqlite3.connect(sys.argv[1]).execute('select handler from jobs')])"
    return subprocess.check_output([sys.executable, "-c", ask, str(path)], text=True).split()


def test_jobs_that_a_child_enqueues_stay_though_the_parent_and_others_close(client, tmp_path):
    """The process that closes last removes the log, and sees only the locks of processes that still run."""
    client.enqueue("of-parent")
    (closed, close), (done, do) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(close)  # so that it ends with its parent
            client.enqueue("of-child")
            os.write(do, b".")
            os.read(closed, 1)
            client.enqueue("later-of-child")
            os.write(do, b".")
            os.read(closed, 1)
        finally:
            os._exit(0)
    os.read(done, 1)
    client.close()
    assert seen_by_another(tmp_path / "jobs.db") == ["of-parent", "of-child"]
    os.write(close, b".")
    os.read(done, 1)
    assert seen_by_another(tmp_path / "jobs.db") == ["of-parent", "of-child", "later-of-child"]
    os.write(close, b".")
    os.waitpid(child, 0)
    assert client.job(3)["handler"] == "later-of-child"
    for fd in (closed, close, done, do):
        os.close(fd)


def test_a_child_forked_while_another_thread_writes_can_write_too(client):
    """The locks of that thread are not the child's."""
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            client.enqueue_many([("a", n) for n in range(300)])

    writer = Meanwhile(write)
    try:
        for _ in range(10):
            assert in_child(lambda: client.enqueue("b")) == 0
    finally:
        stop.set()
        writer.join()


def test_a_fork_in_the_middle_of_a_call_on_the_same_thread_is_reported(client):
    """As a signal handler may fork."""

    def work() -> None:
        with pytest.raises(StoreError, match="was using the client: its store can't be used in it any more"):
            client.enqueue("b")

    assert client._ask(lambda store: in_child(work)) == 0
    assert client.enqueue("c") == 1


AT_THE_END = """
import atexit, sys, threading, time
from supervisor import Client

client = Client(sys.argv[1])
client.enqueue("first")

class Deleted:
    def __del__(self):
        client.enqueue("deleted")

deleted = Deleted()
atexit.register(client.enqueue, "atexit")
threading.Thread(target=lambda: (threading.main_thread().join(), client.enqueue("thread"))).start()
"""


def test_a_client_can_be_used_until_the_interpreter_has_ended(client, tmp_path):
    program = [sys.executable, "-c", AT_THE_END, f"sqlite:///{tmp_path}/jobs.db"]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [client.job(id)["handler"] for id in (1, 2, 3, 4)] == ["first", "thread", "atexit", "deleted"]
