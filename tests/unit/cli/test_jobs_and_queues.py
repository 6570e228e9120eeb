"""Commands that show jobs, dead letters and queues, and change them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Answer, Call, write


def test_a_command_without_a_store_names_the_commands_that_create_it(call: Call, tmp_path: Path) -> None:
    for arguments in (["status"], ["jobs", "list"], ["dlq", "list"], ["queues", "list"], ["queues", "pause", "q"]):
        answer = call(*arguments)
        assert answer.code == 2
        assert answer.err == (
            f"Error: no store yet: {tmp_path}/jobs.db does not exist; supervisor enqueue and supervisor run create it\n"
        )


def test_an_empty_list_names_the_next_command(call: Call) -> None:
    call("enqueue", "mail")
    call("jobs", "delete", 1)
    assert call("jobs", "list").out == "no jobs yet: supervisor enqueue HANDLER [JSON]\n"
    assert call("jobs", "list", "--state", "failed").out == "no such jobs\n"
    assert call("dlq", "list").out == "no dead letters\n"
    write("supervisor.yaml", "dlq: {enabled: false}")
    assert "no dead letters: dlq.enabled is false" in call("dlq", "list").out
    assert call("dlq", "purge").out == "no dead letters\n"
    assert "no supervisor is running: start one with: supervisor run" in call("status").out
    write("supervisor.yaml", "dlq: {sinks: [{type: file, path: dead.jsonl}]}")
    assert call("dlq", "list").out == "no dead letters\n"


def test_jobs_are_shown_to_people_and_programs(call: Call) -> None:
    call("enqueue", "mail", '"\\u001b[31mred"', "--queue", "q")
    call("enqueue", "pdf", "--delay", "1h")
    table = call("jobs", "list").lines
    assert table[0].split() == ["id", "handler", "queue", "state", "attempt", "due"]
    assert table[1].split()[:5] == ["2", "pdf", "default", "scheduled", "1"]
    assert "in 59m" in table[1] or "in 1h" in table[1]
    assert call("jobs", "list", "--handler", "pdf").out.count("pdf") == 1
    assert [json.loads(line)["id"] for line in call("jobs", "list", "--json").lines] == [2, 1]
    assert [json.loads(line)["id"] for line in call("jobs", "list", "--json", "--limit", 1).lines] == [2]
    shown = call("jobs", "show", 1).out
    assert "\x1b" not in shown
    assert ["state", "ready"] in [line.split() for line in shown.splitlines()]


def test_what_relates_a_job_to_others_is_shown_if_it_is_set(call: Call) -> None:
    options = "--key account:7 --on-failure hold --unique day --group a --tag x --tag y"
    call("enqueue", "book", *options.split())
    call("enqueue", "book")
    keys = ("key", "on_failure", "unique", "group", "tags")
    shown = [line.split(maxsplit=1) for line in call("jobs", "show", 1).lines]
    assert [(name, value) for name, value in shown if name in keys] == [
        ("key", "account:7"), ("on_failure", "hold"), ("unique", "day"), ("group", "a"), ("tags", "x, y"),
    ]  # fmt: skip
    assert not {*keys} & {line.split()[0] for line in call("jobs", "show", 2).lines}
    assert [call("jobs", "show", id, "--json").json["on_failure"] for id in (1, 2)] == ["hold", "pass"]


def fields_of(answer: Answer) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(" ") for line in answer.lines)}


def test_the_options_of_a_job_and_its_end_are_shown_if_they_are_set(call: Call) -> None:
    options = "--unique day --unique-while 1d --timeout 5s --max-retries 2 --expires 10m"
    call("enqueue", "book", *options.split())
    call("enqueue", "book")
    call("enqueue", "book", "--after", "1", "--on-parent-failed", "wait")
    shown = fields_of(call("jobs", "show", 1))
    assert (shown["unique_while"], shown["timeout"], shown["max_retries"]) == ("1d", "5s", "2")
    assert shown["expires_at"].endswith(("(in 10m)", "(in 9m 59s)"))
    assert not {"unique_while", "timeout", "backoff", "expires_at", "on_parent_failed"} & {
        line.split()[0] for line in call("jobs", "show", 2).lines
    }
    line = {"handler": "book", "timeout": "none", "backoff": {"base": "1s", "factor": 3, "max": "1m", "jitter": "none"}}
    write("jobs.jsonl", json.dumps(line))
    call("enqueue", "--file", "jobs.jsonl")
    shown = fields_of(call("jobs", "show", 4))
    assert (shown["timeout"], shown["backoff"]) == ("none", "base 1s, factor 3, max 1m, jitter none")
    assert ["on_parent_failed", "wait"] in [line.split() for line in call("jobs", "show", 3).lines]


def test_status_shows_queues_and_supervisors(call: Call) -> None:
    call("enqueue", "mail", "--queue", "q")
    call("queues", "pause", "q")
    status = call("status", "--json").json
    assert status["supervisors"] == []
    assert [(queue["queue"], queue["queue_size"], queue["paused"]) for queue in status["queues"]] == [("q", 1, True)]
    assert call("status").lines[1].split() == ["q", "1", "0", "0", "0", "0", "0", "0", "paused"]
    assert json.loads(call("queues", "list", "--json").out)["queue"] == "q"


def test_unknown_jobs_are_named(call: Call) -> None:
    call("enqueue", "mail")
    assert call("jobs", "show", 9) == (2, "", "Error: no job 9\n")
    assert call("dlq", "show", 9) == (2, "", "Error: no job 9\n")
    assert call("dlq", "show", 1) == (2, "", "Error: job 1 is ready, not a dead letter\n")
    assert call("jobs", "show", "x").code == 2


def test_operator_commands_print_changed_and_refused_jobs(call: Call) -> None:
    call("enqueue", "mail", "--delay", "1h")
    call("enqueue", "mail")
    assert call("jobs", "retry", 1) == (0, "due now: 1\n", "")
    answer = call("dlq", "redrive", 1)
    assert (answer.code, answer.err) == (2, "Error: job 1: ready: it is going to run anyway\n")
    answer = call("jobs", "cancel", 1, 2, 9)
    assert (answer.code, answer.out) == (2, "cancelled: 1 2\n")
    assert answer.err.startswith("Error: job 9: ")
    answer = call("dlq", "redrive", 1, "--force")
    refused = "Error: job 1: cancelled, not a dead letter (supervisor jobs retry runs an ended job again)\n"
    assert answer == (2, "", refused)
    call("enqueue", "mail", "--delay", "1h")
    assert call("jobs", "retry", 1, 3) == (0, "cancelled, now run again: 1\ndue now: 3\n", "")
    assert call("jobs", "delete", 1, 2) == (0, "deleted: 1 2\n", "")


def test_pause_and_resume_print_the_new_and_the_old_state(call: Call) -> None:
    call("enqueue", "mail")
    printed = [call("queues", command, "default").out for command in ("pause", "pause", "resume", "resume")]
    assert printed == [
        "default: paused\n",
        "default: was paused already\n",
        "default: resumed\n",
        "default: was not paused\n",
    ]


def test_a_pause_of_a_queue_that_nothing_names_is_warned_of(call: Call) -> None:
    write("supervisor.yaml", "handlers: {mail: {queue: post}}\nqueues: {slow: {}}\nworkers: {queues: [served]}")
    call("enqueue", "other", "--queue", "mine")
    for queue in ("post", "slow", "served", "mine", "default"):
        assert call("queues", "pause", queue) == (0, f"{queue}: paused\n", "")
    warning = "Warning: no job and no key of the config has a queue 'pots', did you mean 'post'?\n"
    assert call("queues", "pause", "pots") == (0, "pots: paused\n", warning)


def test_redrive_expects_ids_or_all(call: Call) -> None:
    call("enqueue", "mail")
    assert "expected the ids of dead letters, or --all" in call("dlq", "redrive").err
    assert "expected the ids of dead letters, or --all" in call("dlq", "redrive", 1, "--all").err
    assert call("dlq", "redrive", "--all").out == "no dead letters\n"


def test_a_worker_that_may_run_on_is_warned_of_only_once_its_job_is_cancelled(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.cli.jobs.still_runs", lambda *_: "its worker may still run it")
    call("enqueue", "mail")
    with monkeypatch.context() as patch:
        patch.setattr("supervisor.cli.store_access.attempts_while_unavailable", lambda timeout: iter([nullcontext()]))
        with closing(sqlite3.connect("jobs.db", isolation_level=None)) as other:
            other.execute("begin immediate")
            locked = call("jobs", "cancel", 1)
    assert (locked.code, "locked" in locked.err, "Warning" in locked.err) == (75, True, False), locked
    assert call("jobs", "cancel", 1, 9).err.startswith("Warning: job 1 is cancelled, and its worker may still run it\n")
    assert "Warning" not in call("jobs", "cancel", 9).err


def test_a_job_is_shown_with_its_parents_and_children(call: Call) -> None:
    for arguments in (
        ["fetch"],
        ["fetch"],
        ["merge", "--after", 1, "--after", 2],
        ["a", "--after", 3],
        ["b", "--after", 3],
    ):
        assert call("enqueue", *arguments).code == 0
    call("jobs", "cancel", 5)
    assert call("jobs", "show", 3).out.partition("workflow\n")[2].splitlines() == [
        "    1 fetch: ready, waited for",
        "    2 fetch: ready, waited for",
        "    └─ 3 merge: blocked (this job)",
        "       ├─ 4 a: blocked, waited for",
        "       └─ 5 b: cancelled",
    ]
    shown = call("jobs", "show", 3, "--json").json
    assert [parent["id"] for parent in shown["parents"]] == [1, 2]
    assert shown["children"][0] == {"id": 4, "handler": "a", "state": "blocked", "waits": True}
    assert shown["waiting_because"] == (
        "it waits for its parents, jobs 1 (fetch, ready), 2 (fetch, ready): wait until they have ended"
    )
    assert "workflow" not in call("jobs", "show", call("enqueue", "alone").out.strip()).out


def test_a_job_that_waits_for_a_failed_parent_names_the_command(call: Call) -> None:
    call("enqueue", "fetch")
    call("enqueue", "merge", "--after", 1, "--on-parent-failed", "wait")
    call("jobs", "cancel", 1)
    reason = call("jobs", "show", 2, "--json").json["waiting_because"]
    assert reason == (
        "its parent, job 1 (fetch), has been cancelled: run that again with: supervisor jobs retry 1, or cancel this job with: "
        "supervisor jobs cancel 2"
    )
    call("jobs", "retry", 1)
    reason = call("jobs", "show", 2, "--json").json["waiting_because"]
    assert reason == "it waits for its parent, job 1 (fetch, ready): wait until it has ended"


def test_many_children_are_counted(call: Call) -> None:
    call("enqueue", "fetch")
    write("jobs.jsonl", '{"handler": "merge", "after": [1]}\n' * 25)
    call("enqueue", "--file", "jobs.jsonl", "--force")
    assert call("jobs", "show", 1).lines[-1].strip() == "└─ ... 5 more ..."
