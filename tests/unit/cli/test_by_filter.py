"""Commands on all jobs that match a filter, and lists in pages."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor import Client
from supervisor.cli import by_filter as changing
from supervisor.cli import store_access
from supervisor.jobs import Cause, Failure, JobState, Kind, Outcome, Policy
from supervisor.stores import by_filter
from supervisor.stores.records import ClaimRequest
from supervisor.stores.sqlite.store import SqliteStore
from tests.unit.cli.conftest import Call, write

Fail = Callable[..., list[int]]


@pytest.fixture
def fail(call: Call, tmp_path: Path) -> Fail:
    """Makes failed jobs with this message; they are dead letters, delivered ones without sinks."""

    def fail(number: int, message: str = "no", *, sinks: tuple[str, ...] = (), queue: str = "default") -> list[int]:
        for _ in range(number):
            call("enqueue", "mail", "--queue", queue)
        store = SqliteStore(tmp_path / "jobs.db")
        store.join(f"owner {message}", "host", 1, frozenset(sinks))
        leases = store.claim([ClaimRequest(queue, 100, 100, 100, 100)], 30.0, lambda handler, queue: Policy())
        failure = Failure(Cause.EXCEPTION, "OSError", message)
        outcomes = [Outcome(it, Kind.FAILED, failure=failure, state=JobState.FAILED, dead_letter=True) for it in leases]
        assert store.settle(outcomes) == []
        store.leave()
        store.close()
        return [lease.id for lease in leases]

    return fail


@pytest.fixture
def succeed(call: Call, tmp_path: Path) -> Fail:
    def succeed(number: int) -> list[int]:
        for _ in range(number):
            call("enqueue", "mail")
        store = SqliteStore(tmp_path / "jobs.db")
        store.join("owner", "host", 1)
        leases = store.claim([ClaimRequest("default", 100, 100, 100, 100)], 30.0, lambda handler, queue: Policy())
        assert store.settle([Outcome(it, Kind.SUCCEEDED, state=JobState.SUCCEEDED) for it in leases]) == []
        store.leave()
        store.close()
        return [lease.id for lease in leases]

    return succeed


def states(call: Call) -> list[str]:
    return [json.loads(line)["state"] for line in reversed(call("jobs", "list", "--json").lines)]


def test_jobs_are_changed_that_match_all_options(call: Call, fail: Fail) -> None:
    fail(3, "smtp1 is down")
    fail(2, "smtp2 is down")
    call("enqueue", "mail", "--delay", "1h")
    answer = call("jobs", "retry", "--error", "SMTP1", "--queue", "default", "--since", "1h", "--yes")
    assert answer == (0, "failed, now run again: 3 jobs\n", "")
    assert states(call) == ["ready"] * 3 + ["failed"] * 2 + ["scheduled"]
    assert call("jobs", "retry", "--state", "scheduled", "-y").out == "due now: 1 job\n"
    assert call("jobs", "cancel", "--handler", "mail", "--limit", 3, "--yes").out == "cancelled: 3 jobs\n"
    assert states(call) == ["ready", *["cancelled"] * 2, *["failed"] * 2, "cancelled"]
    assert call("jobs", "delete", "--state", "cancelled", "--yes").out == "deleted: 3 jobs\n"
    assert call("jobs", "delete", "--until", "2000-01-01T00:00:00Z", "--yes").out == "no such jobs\n"
    assert call("dlq", "redrive", "--error", "smtp2", "--yes").out == "redriven: 2 jobs\n"


def test_dead_letters_are_purged_that_match(call: Call, fail: Fail) -> None:
    first, *_ = fail(3, "one")
    fail(2, "two", queue="other")
    assert call("dlq", "purge", "--error", "two", "--yes") == (0, "purged: 2 jobs\n", "")
    assert call("dlq", "purge", first) == (0, f"purged: {first}\n", "")
    call("enqueue", "mail")
    assert call("dlq", "purge", 6).err == "Error: job 6: ready, not a dead letter\n"
    assert call("dlq", "purge", "--dry-run").lines[0] == "would purge 2 jobs (2 delivered)"
    text = "expected --yes, since there is no terminal to ask on: it would purge 2 jobs (2 delivered)"
    for options in ((), ("--force",), ("--limit", 2)):
        assert call("dlq", "purge", *options) == (2, "", f"Error: {text}\n")
    assert states(call) == ["failed", "failed", "ready"]
    assert call("dlq", "purge", "--yes").out == "purged: 2 jobs\n"
    assert call("dlq", "purge", "--yes").out == "no dead letters\n"
    assert call("dlq", "purge", "--queue", "other").out == "no such dead letters\n"


def test_what_is_left_alone_is_named_with_the_reason(call: Call, fail: Fail) -> None:
    fail(2, "pending", sinks=("file",))
    answer = call("dlq", "redrive", "--state", "pending", "--yes")
    assert (answer.code, answer.out) == (0, "redriven: 0 jobs\n")
    assert answer.err.startswith("left alone: 2 jobs: its dead letter is pending: not every sink has it yet")
    assert call("dlq", "redrive", "--state", "pending", "--force", "--yes").out == "redriven: 2 jobs\n"


def test_a_dry_run_counts_and_shows_the_newest_and_changes_nothing(call: Call) -> None:
    for _ in range(12):
        call("enqueue", "mail")
    answer = call("jobs", "cancel", "--queue", "default", "--dry-run")
    assert (answer.code, answer.err) == (0, "")
    assert answer.lines[0] == "would cancel 12 jobs (12 ready)"
    assert [line.split()[0] for line in answer.lines[1:-1]] == ["id", *map(str, range(12, 2, -1))]
    assert answer.lines[-1] == "... and 2 more"
    assert (
        call("jobs", "cancel", "--queue", "default", "--limit", 3, "--dry-run").lines[0]
        == "would cancel 3 jobs (3 ready)"
    )
    assert set(states(call)) == {"ready"}


def test_a_dry_run_of_a_redrive_of_all_counts_them_and_changes_nothing(call: Call, fail: Fail) -> None:
    call("enqueue", "mail", "--queue", "waits")
    assert call("dlq", "redrive", "--all", "--dry-run").out == "no dead letters\n"
    fail(2, "pending", sinks=("file",))
    last = fail(3)[-1]
    answer = call("dlq", "redrive", "--all", "--force", "--dry-run")
    assert (answer.code, answer.err) == (0, "")
    assert answer.lines[0] == "would redrive 5 jobs (3 delivered, 2 pending)"
    assert [int(line.split()[0]) for line in answer.lines[2:]] == [*range(last, last - 5, -1)]
    answer = call("dlq", "redrive", "--all", "--dry-run")
    assert (answer.code, answer.lines[0]) == (0, "would redrive 3 jobs (3 delivered)")
    assert answer.err.startswith("would leave alone: 2 jobs: its dead letter is pending")
    assert states(call) == ["ready", *["failed"] * 5]


def test_a_dry_run_and_a_question_count_only_what_would_be_changed(call: Call, fail: Fail, succeed: Fail) -> None:
    succeed(3)
    fail(2, "pending", sinks=("file",), queue="mine")
    fail(1, queue="mine")
    answer = call("jobs", "retry", "--state", "succeeded", "--dry-run")
    work_is_done = "3 jobs: succeeded: its work is done (--force to do it again)\n"
    assert answer == (0, "would retry 0 jobs\n", f"would leave alone: {work_is_done}")
    answer = call("jobs", "retry", "--state", "succeeded")
    assert answer == (0, "succeeded, now run again: 0 jobs\n", f"left alone: {work_is_done}")
    forced = call("jobs", "retry", "--state", "succeeded", "--force", "--dry-run")
    assert (forced.lines[0], forced.err) == ("would retry 3 jobs (3 succeeded)", "")
    for name in ("retry", "delete"):
        answer = call("jobs", name, "--queue", "mine", "--dry-run")
        assert answer.lines[0] == f"would {name} 1 job (1 failed)"
        assert len(answer.lines) == 3
        assert answer.err.startswith("would leave alone: 2 jobs: its dead letter is pending")
        assert f"it would {name} 1 job (1 failed)" in call("jobs", name, "--queue", "mine").err
        assert (
            call("jobs", name, "--queue", "mine", "--force", "--dry-run").lines[0] == f"would {name} 3 jobs (3 failed)"
        )
    with Client("sqlite:///jobs.db") as client:
        assert client.retry_jobs(state="succeeded", dry_run=True) == 0
        assert client.retry_jobs(state="succeeded", dry_run=True, force=True) == 3
        assert client.delete_jobs(queue="mine", dry_run=True) == 1


def test_progress_is_shown_on_standard_error(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        call("enqueue", "mail")
    monkeypatch.setattr(changing, "LINE_EVERY", 0.0)
    monkeypatch.setattr(by_filter, "PAGE", 3)
    monkeypatch.setattr(by_filter, "BATCH", 2)
    answer = call("jobs", "cancel", "--state", "ready", "--yes")
    assert (answer.out, answer.err.split("\n")) == (
        "cancelled: 5 jobs\n", ["found 3", "found 5", "2 of 5", "4 of 5", "5 of 5", ""],
    )  # fmt: skip


def test_without_a_terminal_nobody_is_asked_and_nothing_is_changed(call: Call) -> None:
    call("enqueue", "mail")
    answer = call("jobs", "cancel", "--queue", "default")
    text = "expected --yes, since there is no terminal to ask on: it would cancel 1 job (1 ready)"
    assert answer == (2, "", f"Error: {text}\n")
    assert states(call) == ["ready"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["jobs", "cancel"], "expected the ids of jobs, or a filter such as --queue NAME"),
        (["jobs", "retry", "--yes"], "expected the ids of jobs, or a filter such as --queue NAME"),
        (["jobs", "delete", "--limit", "5"], "expected the ids of jobs, or a filter such as --queue NAME"),
        (["jobs", "cancel", "1", "--queue", "q"], "expected either ids or a filter; --queue is only for"),
        (["jobs", "delete", "1", "--dry-run"], "expected either ids or a filter; --dry-run is only for"),
        (["dlq", "purge", "1", "--error", "x"], "expected either ids or a filter; --error is only for"),
        (["dlq", "redrive", "--all", "--queue", "q"], "expected the ids of dead letters, or --all"),
        (["dlq", "redrive", "--all", "--limit", "5", "--dry-run"], "expected the ids of dead letters, or --all"),
        (["dlq", "redrive", "--dry-run"], "expected the ids of dead letters, or --all"),
        (["jobs", "cancel", "--state", "failed"], "'failed' is not one of"),
        (["jobs", "retry", "--since", "yesterday"], "--since: expected a time with a zone, such as"),
        (["jobs", "retry", "--until", "2026-01-01"], "--until: expected a time with a zone, such as"),
        (["jobs", "retry", "--header", "tenant"], "--header: expected NAME=VALUE, got 'tenant'"),
        (["jobs", "retry", "--tag", ""], "expected a name"),
        (["jobs", "retry", "--error", ""], "expected a text of 1 to 200 characters"),
        (["jobs", "list", "--queue", " x"], "expected a name"),
    ],
)
def test_mistakes_change_nothing(call: Call, arguments: list[str], message: str) -> None:
    call("enqueue", "mail")
    answer = call(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert message in " ".join(answer.err.split()).replace("'--since'", "--since").replace(
        "'--until'", "--until"
    ).replace("'--header'", "--header")
    assert states(call) == ["ready"]


FILTERED = (
    ("jobs", "list"),
    ("jobs", "cancel"),
    ("jobs", "retry"),
    ("jobs", "delete"),
    ("dlq", "list"),
    ("dlq", "redrive"),
    ("dlq", "purge"),
)
VALUES = {
    "--tag": "a", "--header": "a=1", "--queue": "default", "--handler": "mail", "--error": "x", "--since": "1h", "--until": "1h",
    "--limit": "1", "--state": "",
}  # fmt: skip


@pytest.mark.parametrize("option", VALUES)
@pytest.mark.parametrize("command", FILTERED, ids=" ".join)
def test_an_option_that_is_repeated_is_a_mistake(call: Call, command: tuple[str, ...], option: str) -> None:
    """Only the last one would count."""
    call("enqueue", "mail", "--tag", "a")
    value = VALUES[option]
    if option == "--state":
        value = "pending" if command[0] == "dlq" else "scheduled"
    answer = call(*command, option, value, option, value)
    assert (answer.code, answer.out) == (2, "")
    assert f"expected {option} once at most, got it 2 times" in " ".join(answer.err.split())
    assert states(call) == ["ready"]


def test_options_that_change_nothing_when_repeated_may_be_repeated(call: Call) -> None:
    call("enqueue", "mail", "--tag", "a", "--tag", "b")
    write("other.yaml", "store: sqlite:///other.db\n")
    call("enqueue", "mail", "-c", "other.yaml")
    assert call("jobs", "cancel", "--tag", "a", "--yes", "--yes").code == 0
    assert call("jobs", "list", "-c", "absent.yaml", "-c", "other.yaml").code == 0


def test_jobs_are_found_by_tag_and_header(call: Call) -> None:
    write(
        "jobs.jsonl",
        """{"handler": "mail", "tags": ["eu"], "headers": {"tenant": "7"}}
{"handler": "mail", "tags": ["eu"]}
{"handler": "mail", "headers": {"tenant": 7}}
{"handler": "mail"}
""",
    )
    call("enqueue", "--file", "jobs.jsonl")
    assert ids(call("jobs", "list", "--tag", "eu")) == [2, 1]
    assert ids(call("jobs", "list", "--header", "tenant=7")) == [3, 1]
    page = call("jobs", "list", "--tag", "eu", "--header", "tenant=7", "--limit", 1)
    assert (ids(page), next_page(call, page).out) == ([1], "no such jobs\n")
    assert call("jobs", "cancel", "--tag", "eu", "--header", "tenant=7", "-y").out == "cancelled: 1 job\n"
    assert call("jobs", "delete", "--header", "tenant=7", "-y").out == "deleted: 2 jobs\n"
    assert ids(call("jobs", "list")) == [4, 2]


# --- lists in pages


def next_page(call: Call, answer: Any) -> Any:
    found = re.fullmatch(r"next page: supervisor (.*)\n", answer.err)
    assert found, answer.err
    return call(*shlex.split(found[1]))


def ids(answer: Any) -> list[int]:
    return [int(line.split()[0]) for line in answer.lines[1:]]


def test_a_list_names_the_command_for_the_next_page(call: Call) -> None:
    for _ in range(5):
        call("enqueue", "mail", "--queue", "a queue")
    first = call("jobs", "list", "--queue", "a queue", "--limit", 2)
    assert ids(first) == [5, 4]
    assert first.err == "next page: supervisor jobs list --queue 'a queue' --limit 2 --before 4\n"
    second = next_page(call, first)
    third = next_page(call, second)
    assert (ids(second), ids(third), third.err) == ([3, 2], [1], "")
    assert call("jobs", "list", "--limit", 5).err == ""
    assert ids(call("jobs", "list", "--before", 3)) == [2, 1]
    assert call("jobs", "list", "--before", 1).out == "no such jobs\n"


def test_pages_of_ended_jobs_are_in_the_order_in_which_they_ended(call: Call, fail: Fail) -> None:
    made = fail(5, "no")[::-1]
    first = call("jobs", "list", "--state", "failed", "--limit", 2, "--json")
    assert [json.loads(line)["id"] for line in first.lines] == made[:2]
    second = next_page(call, first)
    assert [json.loads(line)["id"] for line in second.lines] == made[2:4]
    assert ids(call("jobs", "list", "--state", "failed", "--before", made[2])) == made[3:]
    call("enqueue", "mail")
    answer = call("jobs", "list", "--state", "failed", "--before", 6)
    assert answer.err == "Error: --before: expected a job that is failed; job 6 is ready\n"
    for where, wrong in (((), "x"), ((), "5.5"), (("--state", "failed"), "-1"), (("--state", "failed"), "1.x")):
        answer = call("jobs", "list", *where, "--before", wrong)
        assert answer == (2, "", f"Error: --before: expected the id of a job, got {wrong!r}\n")


def test_the_next_page_is_of_the_same_config(call: Call) -> None:
    write("other.yaml", "store: sqlite:///other.db\n")
    for _ in range(2):
        call("enqueue", "mail", "-c", "other.yaml")
    first = call("jobs", "list", "-c", "other.yaml", "--limit", 1)
    assert ids(next_page(call, first)) == [1]


def test_a_search_goes_on_until_its_page_is_full(call: Call, fail: Fail, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from supervisor.cli import job_list

    monkeypatch.setattr(job_list, "UNLIMITED", replace(job_list.UNLIMITED, searched=2, batch=1))
    old = fail(2, "kitten")
    fail(5, "dog")
    assert ids(call("jobs", "list", "--error", "kitten")) == old[::-1]
    assert ids(call("dlq", "list", "--error", "kitten", "--state", "delivered")) == old[::-1]
    assert call("dlq", "list", "--error", "cow").out == "no such dead letters\n"


# --- queues


def test_a_queue_is_emptied_and_moved(call: Call) -> None:
    for queue in ("a", "a", "a", "b"):
        call("enqueue", "mail", "--queue", queue)
    assert call("queues", "move", "a", "b", "--dry-run").lines[0] == "would move 3 jobs (3 ready) to b"
    answer = call("queues", "move", "a", "b")
    assert answer.err == (
        "Error: expected --yes, since there is no terminal to ask on: it would move 3 jobs (3 ready) to b\n"
    )
    assert call("queues", "move", "a", "b", "--yes") == (0, "moved to b: 3 jobs\n", "")
    assert call("queues", "empty", "a", "--yes").out == "no such jobs\n"
    assert call("queues", "empty", "b", "--dry-run").lines[0] == "would cancel 4 jobs (4 ready)"
    assert call("queues", "empty", "b", "-y").out == "cancelled: 4 jobs\n"
    assert (
        call("jobs", "retry", "--state", "cancelled", "--queue", "b", "-y").out == "cancelled, now run again: 4 jobs\n"
    )
    assert call("queues", "empty", "b", "--delete", "-y").out == "deleted: 4 jobs\n"
    assert states(call) == []


def test_the_store_is_opened_once_to_move_jobs(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call("enqueue", "mail", "--queue", "a")
    opened, open_store = [], store_access.open_store

    def opening(*args: Any, **options: Any) -> Any:
        opened.append(args)
        return open_store(*args, **options)

    monkeypatch.setattr(store_access, "open_store", opening)
    assert call("queues", "move", "a", "a", "--yes").code == 2
    assert opened == []
    assert call("queues", "move", "a", "default", "--yes").out == "moved to default: 1 job\n"
    assert len(opened) == 1


def test_a_queue_that_nothing_has_is_warned_of_before_jobs_are_moved_there(call: Call) -> None:
    call("enqueue", "mail", "--queue", "mail")
    answer = call("queues", "move", "mail", "maill", "-y")
    assert answer.err == "Warning: no job and no key of the config has a queue 'maill', did you mean 'mail'?\n"
    assert answer.out == "moved to maill: 1 job\n"
    assert "expected another queue than 'maill'" in call("queues", "move", "maill", "maill").err
    assert call("queues", "move", "maill", " x").code == 2
