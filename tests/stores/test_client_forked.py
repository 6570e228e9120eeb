"""A client in a process that was forked after it had connected."""

from __future__ import annotations

import os

import pytest

from supervisor import Client


@pytest.fixture
def client(tmp_path):
    with Client(f"sqlite:///{tmp_path}/jobs.db", create=True) as client:
        yield client


def in_child(work) -> int:
    """The exit status of a forked child: 0 if `work` returned."""
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
    parents = client._opened

    def work() -> None:
        assert client.enqueue("b") == 2
        assert client._opened is not parents
        client.close()

    assert in_child(work) == 0
    assert client.enqueue("c") == 3
    assert client._opened is parents


def test_a_child_forked_while_another_thread_uses_the_client_is_not_stuck(client):
    client.enqueue("a")
    with client._lock:
        assert in_child(lambda: client.enqueue("b")) == 0
