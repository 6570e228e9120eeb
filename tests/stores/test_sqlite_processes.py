"""Behaviour that only real processes show: claims beside each other, a writer killed half way, fork, and owners that die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.errors import StoreError, StoreUnavailable
from supervisor.stores.records import ClaimRequest, EnqueueRow
from supervisor.stores.sqlite.store import SqliteStore
from tests.stores.factories import TTL, put, resolve, success, take_one

SPAWN = multiprocessing.get_context("spawn")


def retry_while_unavailable(call: Callable[[], Any]) -> Any:
    while True:
        try:
            return call()
        except StoreUnavailable:
            pass


def claim_all(path: Path, owner: str, reports: Any) -> None:
    store = SqliteStore(path)
    store.join(owner, "host", os.getpid())
    reports.put("ready")
    claimed = []
    while leases := retry_while_unavailable(lambda: store.claim([ClaimRequest("default", 7, 7, 7, 100)], TTL, resolve)):
        assert retry_while_unavailable(lambda leases=leases: store.settle([success(lease) for lease in leases])) == []
        claimed += [lease.id for lease in leases]
    reports.put(claimed)
    store.leave()
    store.close()


def enqueue_some(path: Path, reports: Any) -> None:
    store = SqliteStore(path)
    reports.put([retry_while_unavailable(lambda: store.enqueue([EnqueueRow("mail", "{}")]))[0] for _ in range(50)])
    store.close()


def hold_a_transaction(path: Path, reports: Any) -> None:
    store = SqliteStore(path)
    store.join("killed", "host", os.getpid())
    store.claim([ClaimRequest("default", 1, 1, 1, 100)], TTL, resolve)
    with store.transaction():
        put(store, "never", "seen")
        store.cancel([1])
        reports.put("inside")
        signal.pause()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "jobs.db"


@pytest.fixture
def start():
    """Start a function in a new process; returns the process and the queue of its reports."""
    started = []

    def run(function: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
        reports = SPAWN.Queue()
        process = SPAWN.Process(target=function, args=(*arguments, reports))
        process.start()
        started.append((process, reports))
        return process, reports

    yield run
    for process, reports in started:
        process.kill()
        process.join()
        process.close()
        reports.close()


def test_supervisors_and_clients_share_a_file_and_no_job_is_claimed_twice(path, start):
    store = SqliteStore(path, create=True)
    ids = store.enqueue([EnqueueRow("mail", "{}") for _ in range(2000)])
    owners = [start(claim_all, path, owner)[1] for owner in ("one", "two")]
    for reports in owners:
        assert reports.get(timeout=30) == "ready"
    new = start(enqueue_some, path)[1].get(timeout=30)
    claimed = [id for reports in owners for id in reports.get(timeout=30)]
    assert len(claimed) == len(set(claimed))
    left = store.remaining(None, None).get("ready", 0)
    assert len(claimed) + left == len(ids) + len(new)
    assert store.connection.value("pragma integrity_check") == b"ok"
    store.close()


def test_a_writer_killed_half_way_leaves_nothing_half_done_and_no_lock(path, start):
    store = SqliteStore(path, create=True)
    (id,) = put(store)
    process, reports = start(hold_a_transaction, path)
    assert reports.get(timeout=30) == "inside"
    with pytest.raises(StoreUnavailable):
        put(store)
    process.kill()
    process.join()
    assert put(store) == [id + 1]
    assert [job["handler"] for job in store.list_jobs()] == ["mail", "mail"]
    assert store.get(id)["state"] == "in_flight"
    store.join("two", "host", os.getpid())
    (expired_leases,) = store.expired_leases(10)
    assert (expired_leases.lease.id, expired_leases.owner, expired_leases.owner_gone) == (id, "killed", True)
    assert [(row["owner"], row["state"]) for row in store.stats()["supervisors"]] == [
        ("killed", "gone"), ("two", "starting")
    ]  # fmt: skip
    store.cancel([id])
    assert store.expired_leases(10) == []
    assert [row["owner"] for row in store.stats()["supervisors"]] == ["two"]
    assert sorted(entry.name for entry in (path.parent / "jobs.db.notify").iterdir()) == ["two.lock", "two.sock"]
    store.leave()
    store.close()


def test_an_owner_is_not_gone_while_any_process_has_inherited_its_lock(path):
    store = SqliteStore(path, create=True)
    put(store)
    ours, theirs = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(theirs)
        owner = SqliteStore(path)
        lock = owner.join("one", "host", os.getpid())
        take_one(owner)
        program = [sys.executable, "-c", f"import os; os.read({ours}, 1)"]
        subprocess.Popen(program, pass_fds=[lock, ours])
        os._exit(0)
    os.close(ours)
    os.waitpid(parent, 0)
    store.join("two", "host", os.getpid())
    assert store.expired_leases(10) == []
    os.close(theirs)
    while not (expired_leases := store.expired_leases(10)):
        pass
    assert expired_leases[0].owner_gone
    store.leave()
    store.close()


def test_a_forked_copy_of_an_owner_does_not_pass_for_it(path):
    store = SqliteStore(path, create=True)
    put(store)
    ours, theirs = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(theirs)
        owner = SqliteStore(path)
        owner.join("one", "host", os.getpid())
        take_one(owner)
        if os.fork() == 0:
            os.read(ours, 1)
        os._exit(0)
    os.close(ours)
    os.waitpid(parent, 0)
    store.join("two", "host", os.getpid())
    while not (expired_leases := store.expired_leases(10)):
        pass
    assert expired_leases[0].owner_gone
    os.close(theirs)
    store.leave()
    store.close()


@pytest.mark.parametrize(
    "use",
    [lambda store: store.list_jobs(), lambda store: store.close(), lambda store: put(store)],
    ids=["ask", "close", "write"],
)
def test_a_store_carried_over_a_fork_refuses_to_touch_the_connection(path, use):
    store = SqliteStore(path, create=True)
    child = os.fork()
    if child == 0:
        try:
            use(store)
        except StoreError as error:
            os._exit(0 if "open a store there" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert put(store) == [1]
    store.close()
