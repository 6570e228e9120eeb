from __future__ import annotations

import re
import signal
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

import pytest

import supervisor
from supervisor import Client, NewJob
from supervisor.client import InvalidJob
from supervisor.client.store_access import StoreAccess
from supervisor.errors import ConfigError, StoreBroken, StoreError, StoreUnavailable, StoreUnsure
from supervisor.jobs import Backoff, Policy
from supervisor.stores.opening import attempts_while_unavailable
from supervisor.stores.records import ClaimRequest
from supervisor.stores.sqlite.store import SqliteStore


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return "sqlite:///jobs.db"


@pytest.fixture
def client(url):
    with Client(url, create=True, timeout=0.0) as client:
        yield client


@pytest.fixture
def store(client, tmp_path):
    store = SqliteStore(tmp_path / "jobs.db")
    store.join("one", "host", 1)
    yield store
    store.leave()
    store.close()


def claim(store, queue="default"):
    return store.claim([ClaimRequest(queue, 100, 100, 100, 1000)], 30.0, lambda handler, queue: Policy())


def test_enqueue_returns_the_id_of_a_stored_job(client):
    id = client.enqueue("mail", {"to": "a"}, queue="post", priority=5, headers={"trace": "x"})
    job = client.job(id)
    assert (job["handler"], job["payload"], job["queue"], job["priority"]) == ("mail", {"to": "a"}, "post", 5)
    assert (job["state"], job["headers"]) == ("ready", {"trace": "x"})
    assert client.job(id + 1) is None


def test_a_job_has_the_reason_why_it_waits(client):
    id, later = client.enqueue("mail"), client.enqueue("mail", delay="1h")
    assert client.job(id)["waiting_because"] == "no supervisor is running: start one with: supervisor run"
    assert "due in 1h" in client.job(later)["waiting_because"] or "due in 59m" in client.job(later)["waiting_because"]
    client.cancel(id)
    assert client.job(id)["waiting_because"] is None


def test_durations_are_seconds_or_text(client, store):
    by_number = client.job(client.enqueue("a", delay=90))
    by_text = client.job(client.enqueue("a", delay="1.5m"))
    for job in (by_number, by_text):
        waits = datetime.fromisoformat(job["due_at"]) - datetime.fromisoformat(job["created_at"])
        assert (job["state"], waits.total_seconds()) == ("scheduled", 90.0)


def test_a_time_is_a_datetime_or_its_text(client):
    for at in (datetime(2100, 1, 1, 12, tzinfo=UTC), "2100-01-01T13:00:00+01:00"):
        assert client.job(client.enqueue("a", at=at))["due_at"] == "2100-01-01T12:00:00.000000Z"


def test_settings_of_a_job_reach_its_lease(client, store):
    client.enqueue("a", max_retries=0, timeout="2s", backoff={"base": "1s", "factor": 4, "jitter": "none"})
    client.enqueue("a", timeout="none", backoff=Backoff(1.0, 1.0, 1.0, "none"))
    first, second = claim(store)
    assert (first.policy.max_retries, first.policy.timeout) == (0, 2.0)
    assert first.policy.backoff == Backoff(1.0, 4.0, 30.0, "none")
    assert (second.policy.timeout, second.policy.backoff) == (None, Backoff(1.0, 1.0, 1.0, "none"))


def test_jobs_may_be_enqueued_in_every_form(client):
    ids = client.enqueue_many(
        [NewJob("a", 1), {"handler": "b", "payload": 2, "delay": "1h"}, ("c", 3)] + [("d", n) for n in range(3)]
    )
    assert [client.job(id)["handler"] for id in ids] == ["a", "b", "c", "d", "d", "d"]
    assert client.enqueue_many([]) == []


WRONG = {
    "handler": [("", "a name of 1 to 255"), ("a\n", "printable"), (None, "a name"), ("x" * 256, "255")],
    "queue": [(" a", "a name"), (3, "a name")],
    "payload": [
        (float("nan"), "finite"),
        ({1: 2}, "not text"),
        ("x" * 1_000_001, "1000000"),
        (object(), "not JSON"),
        ({"a": [{"b": object()}]}, "payload.a[0].b: object is not JSON"),
    ],
    "headers": [([1], "a mapping"), ({"a": float("inf")}, "headers.a: inf is not a finite number")],
    "priority": [(2**63, "9223372036854775807"), (1.5, "whole"), (True, "whole")],
    "delay": [("10", "a duration"), (-1, "a duration"), ("soon", "a duration"), ([], "a duration")],
    "at": [("tomorrow", "a time such as"), (datetime(2030, 1, 1), "time zone"), (17, "time zone")],
    "max_retries": [(-1, "0 to 1000"), (1001, "0 to 1000"), ("3", "whole")],
    "timeout": [(-1, "a duration"), ("no", "a duration")],
    "backoff": [
        ({"base": -1}, "base"),
        ({"factr": 2}, "factr"),
        ({"factor": 0}, "factor"),
        ({1: 2}, "backoff.1"),
        (3, "a mapping"),
    ],
}


@pytest.mark.parametrize(("key", "value", "expected"), [(key, *case) for key, cases in WRONG.items() for case in cases])
def test_an_invalid_job_names_the_key_and_the_expected_value(client, key, value, expected):
    job = {"handler": "a", "payload": None} | {key: value}
    with pytest.raises(InvalidJob) as refused:
        client.enqueue(job.pop("handler"), job.pop("payload"), **job)
    assert str(refused.value).startswith(key) and expected in str(refused.value)


class Celsius(float): ...


class Point(NamedTuple):
    x: float
    y: float


def test_subclasses_of_json_types_are_stored_as_these(client):
    value = {"at": [Point(Celsius(1.5), 2)]}
    ids = [client.enqueue("a", value, headers=value), *client.enqueue_many([("a", value), ("a", value)])]
    plain = {"at": [[1.5, 2]]}
    assert [client.job(id)["payload"] for id in ids] == [plain] * 3
    assert client.job(ids[0])["headers"] == plain


def test_delay_and_at_exclude_each_other(client):
    with pytest.raises(InvalidJob, match="at most one"):
        client.enqueue("a", delay=1, at=datetime.now(UTC))


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"handler": "b", "paylod": 1}, "jobs[1]: paylod: unknown key, did you mean 'payload'?"),
        ({"payload": 1}, "jobs[1]: handler: missing; expected a handler's name"),
        (("b", float("inf")), "jobs[1]: payload: inf is not a finite number"),
        ("b", "jobs[1]: expected a NewJob, a mapping or (handler, payload), got 'b'"),
    ],
)
def test_no_job_is_enqueued_if_one_is_invalid(client, job, message):
    with pytest.raises(InvalidJob) as refused:
        client.enqueue_many([("a", 1), job])
    assert str(refused.value) == message
    assert client.job(1) is None


def test_a_missing_file_is_refused_and_what_creates_it_is_named(url, tmp_path):
    help = f"{tmp_path}/jobs.db: no such database; supervisor run creates it, and so does a Client with create=True"
    with pytest.raises(StoreError) as refused, Client(url):
        pass
    assert str(refused.value) == help
    with pytest.raises(StoreError, match="no such database"):
        Client(url).enqueue("a")


def test_a_store_that_no_supervisor_sees_is_refused():
    with pytest.raises(StoreError, match="memory:// exists in one process only"):
        Client("memory://").enqueue("mail")


@pytest.mark.parametrize("url", ["", "sqlite:///jobs\n.db", 5])
def test_text_that_is_no_url_is_refused(url):
    with pytest.raises(StoreError, match="store: expected a URL such as"):
        Client(url)


def test_a_current_folder_that_is_gone_is_an_error_of_the_store(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(StoreError, match="current folder: No such file or directory"):
        Client("sqlite:///jobs.db")


def test_a_client_without_url_uses_the_config_of_the_command_line(tmp_path, monkeypatch):
    monkeypatch.delenv("SUPERVISOR_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "etc").mkdir()
    config = "store: sqlite:///here.db\nhandlers: {mail: {queue: post}}\nlimits: {payload: 10B}\n"
    (tmp_path / "etc" / "supervisor.yaml").write_text(config)
    with Client(create=True) as client:
        assert client.job(client.enqueue("mail"))["queue"] == "post"
        assert client.job(client.enqueue("mail", queue="mine"))["queue"] == "mine"
        assert client.job(client.enqueue("scan"))["queue"] == "default"
        with pytest.raises(InvalidJob, match="at most 10"):
            client.enqueue("mail", "x" * 10)
    assert (tmp_path / "etc" / "here.db").exists()
    (tmp_path / "etc" / "supervisor.yaml").write_text("stoer: x")
    with pytest.raises(ConfigError, match="stoer"):
        Client()


def test_enqueueing_notifies_the_supervisors(client, store):
    import select

    client.enqueue("a")
    assert select.select([store.notification_fd()], [], [], 0)[0]


def test_cancel_returns_whether_it_cancelled_the_job(client, store):
    id = client.enqueue("a")
    assert client.cancel(id) is True
    assert client.cancel(id) is False
    assert client.cancel(999) is False
    assert claim(store) == []


def test_a_client_connects_again_after_close(client):
    client.close()
    client.close()
    assert client.enqueue("a") == 1


def test_threads_share_a_client(client):
    client._access.timeout = 30.0
    ids: list[int] = []
    threads = [threading.Thread(target=lambda: ids.extend(client.enqueue("a") for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ids) == list(range(1, 81))


def answer_of(call, timeout):
    for attempt in attempts_while_unavailable(timeout):
        with attempt:
            answer = call()
    return answer


def test_an_unavailable_store_is_tried_again_for_a_while(client, monkeypatch):
    answers = iter([StoreUnavailable("locked"), StoreUnavailable("locked"), 7])
    delays: list[float] = []
    clock = iter(range(100))
    monkeypatch.setattr("supervisor.stores.opening.time.sleep", delays.append)
    monkeypatch.setattr("supervisor.stores.opening.time.monotonic", lambda: next(clock))

    def call() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert answer_of(call, 30.0) == 7
    assert delays == [0.01, 0.02]
    answers = iter([StoreUnavailable("locked")] * 100)
    with pytest.raises(StoreUnavailable):
        answer_of(call, 5.0)
    assert len(delays) == 2 + 4


def test_the_error_of_a_broken_store_is_raised_at_once():
    tries = []

    def call():
        tries.append(1)
        raise StoreBroken("permission denied for schema supervisor")

    with pytest.raises(StoreBroken):
        answer_of(call, 30.0)
    assert len(tries) == 1


def test_every_attempt_of_an_enqueue_offers_the_same_rows(client, monkeypatch):
    """By them the store recognizes an attempt that may have been committed."""
    client._access.timeout = 30.0
    monkeypatch.setattr("supervisor.stores.opening.time.sleep", lambda seconds: None)
    store, seen = client._access._opened, []
    enqueue = store.enqueue

    def doubtful(rows):
        seen.append(rows)
        if len(seen) < 3:
            raise StoreUnavailable("locked")
        return enqueue(rows)

    monkeypatch.setattr(store, "enqueue", doubtful)
    assert client.enqueue("a") == 1
    assert len(seen) == 3 and all(rows is seen[0] for rows in seen)


def test_the_errors_of_a_client_are_imported_from_the_package() -> None:
    from supervisor import StoreError as Error
    from supervisor import StoreUnavailable as Unavailable
    from supervisor import StoreUnsure as Unsure

    assert (Unavailable, Error, Unsure) == (StoreUnavailable, StoreError, StoreUnsure)
    assert issubclass(Unavailable, Error) and issubclass(Unsure, Error) and issubclass(InvalidJob, ValueError)
    assert all(hasattr(supervisor, name) for name in supervisor.__all__)


def test_the_methods_that_docstrings_name_exist() -> None:
    texts = [member.__doc__ or "" for member in vars(Client).values() if callable(member)]
    named = [name for text in texts for name in re.findall(r"\bask `(\w+)`", text)]
    assert named and all(hasattr(Client, name) for name in named)


def test_a_call_that_is_tried_again_lets_other_calls_pass(client, monkeypatch):
    client._access.timeout = 30.0
    store, tried, passed = client._access._opened, threading.Event(), threading.Event()
    enqueue = store.enqueue

    def unavailable_until_passed(rows):
        if rows[0].handler == "first" and not passed.is_set():
            tried.set()
            raise StoreUnavailable("locked")
        return enqueue(rows)

    monkeypatch.setattr(store, "enqueue", unavailable_until_passed)
    ids = []
    first = threading.Thread(target=lambda: ids.append(client.enqueue("first")))
    first.start()
    assert tried.wait(30.0)
    assert client.enqueue("second") == 1
    passed.set()
    first.join()
    assert ids == [2]


@contextmanager
def in_use_by_another_thread(client):
    began, end = threading.Event(), threading.Event()

    def use(store):
        began.set()
        end.wait()

    user = threading.Thread(target=client._ask, args=(use,))
    user.start()
    try:
        assert began.wait(30.0)
        yield
    finally:
        end.set()
        user.join()


def locked(store):
    raise StoreUnavailable("locked")


def test_waiting_for_other_threads_counts_against_the_timeout(url):
    client = Client(url)
    client._access = StoreAccess(client._settings, create=True, timeout=0.0, min_wait=0.0)
    with in_use_by_another_thread(client), pytest.raises(StoreUnavailable, match=r"kept the client busy for too long$"):
        client.enqueue("a")
    with pytest.raises(StoreUnavailable, match="locked"):
        client._ask(locked)
    with in_use_by_another_thread(client), pytest.raises(StoreUnavailable, match="too long; their last error: locked"):
        client.enqueue("a")
    assert client.enqueue("a") == 1
    client.close()


def test_a_timeout_may_be_without_end(client):
    client._access.timeout = float("inf")
    assert client.enqueue("a") == 1


@pytest.mark.parametrize("use", [lambda client: client.enqueue("inner"), lambda client: client.close()])
def test_a_call_that_interrupts_another_is_refused_and_the_other_goes_on(client, monkeypatch, use):
    store, refused = client._access._opened, []
    enqueue = store.enqueue

    def interrupted(rows):
        signal.raise_signal(signal.SIGUSR1)
        return enqueue(rows)

    def interrupt(number, frame):
        with pytest.raises(StoreError, match="interrupted another of the same client") as error:
            use(client)
        refused.append(error)

    monkeypatch.setattr(store, "enqueue", interrupted)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        assert client.enqueue("outer") == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 1
    assert client.job(1)["handler"] == "outer" and client.job(2) is None


@pytest.mark.parametrize("create", [True, False])
def test_a_client_opens_the_new_file_after_its_file_was_replaced(url, tmp_path, create):
    other = tmp_path / "other"
    other.mkdir()
    with Client(url, create=True) as client, Client(f"sqlite:///{other / 'jobs.db'}", create=True) as there:
        there.enqueue("mail")
    with Client(url, create=create) as client:
        assert [client.enqueue("mail") for _ in range(3)] == [1, 2, 3]
        for file in tmp_path.glob("jobs.db-[ws]*"):
            file.unlink()
        (other / "jobs.db").rename(tmp_path / "jobs.db")
        assert client.enqueue("mail") == 2, "it is the second job of the new file"
        (tmp_path / "jobs.db").unlink()
        if create:
            assert client.enqueue("mail") == 1
        else:
            with pytest.raises(StoreError, match="no such database"):
                client.enqueue("mail")


def test_a_client_that_may_not_wait_reports_the_replaced_file_once(client, tmp_path):
    client.enqueue("mail")
    (tmp_path / "jobs.db").unlink()
    with pytest.raises(StoreUnavailable, match="the file was deleted, moved or replaced while it was open"):
        client.enqueue("mail")
    assert client.enqueue("mail") == 1
