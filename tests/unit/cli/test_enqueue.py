from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from supervisor.cli.app import root
from supervisor.config.settings import Settings
from supervisor.jobs import Backoff
from supervisor.stores.opening import open_store
from tests.stores.factories import take_one
from tests.unit.cli.conftest import Call, write


def test_enqueue_prints_the_id_and_creates_the_store(call: Call, tmp_path: Path) -> None:
    assert call("enqueue", "mail", '{"to": "me"}') == (0, "1\n", "")
    assert call("enqueue", "mail") == (0, "2\n", "")
    assert (tmp_path / "jobs.db").exists()
    assert call("jobs", "show", 1, "--json").json["payload"] == {"to": "me"}
    assert call("jobs", "show", 2, "--json").json["payload"] is None


def test_enqueue_takes_every_option(call: Call) -> None:
    options = ["--queue", "q", "--priority", "-3", "--at", "2100-01-31T08:00:00+01:00", "--max-retries", "7"]
    assert call("enqueue", "mail", "[1]", *options, "--timeout", "90s").code == 0
    job = call("jobs", "show", 1, "--json").json
    assert (job["queue"], job["priority"], job["max_retries"], job["state"]) == ("q", -3, 7, "scheduled")
    assert job["due_at"] == "2100-01-31T07:00:00.000000Z"


def test_a_job_has_the_backoff_that_is_given(call: Call) -> None:
    assert call("enqueue", "mail", "--backoff", '{"base": "10s", "factor": 3, "max": 60, "jitter": "none"}').code == 0
    store = open_store(Settings().store, create=False, base=Path())
    store.join("here-1", "here", 1)
    lease = take_one(store)
    store.leave()
    store.close()
    assert lease.policy.backoff == Backoff(10.0, 3.0, 60.0, "none")


def test_headers_are_json_or_else_text(call: Call) -> None:
    values = {
        "tenant": ("7", 7), "on": ("true", True), "list": ("[1, null]", [1, None]), "quoted": ('"7"', "7"), "text": ("a=b", "a=b"),
        "empty": ("", ""), "broken": ("{a", "{a"), "nan": ("NaN", "NaN"), "long": ("123456789012345678901", "123456789012345678901"),
    }  # fmt: skip
    assert call("enqueue", "mail", *(f"--header={name}={text}" for name, (text, _) in values.items())).code == 0
    job = call("jobs", "show", 1, "--json").json
    assert job["headers"] == {name: value for name, (_, value) in values.items()}
    for name in values.keys() - {"quoted", "list"}:
        assert call("jobs", "list", "--header", f"{name}={values[name][0]}", "--json").json["id"] == 1


def test_a_unique_key_that_a_job_has_adds_no_job(call: Call) -> None:
    assert call("enqueue", "mail", "--unique", "a") == (0, "1\n", "")
    assert call("enqueue", "mail", "--unique", "a") == (
        0,
        "1\n",
        "job 1 has the unique key 'a' already: no job was added\n",
    )
    assert call("enqueue", "mail", "2", "--unique", "a", "--on-conflict", "replace") == (
        0,
        "1\n",
        "job 1 has the unique key 'a' already: it was replaced\n",
    )
    assert call("jobs", "show", 1, "--json").json["payload"] == 2
    assert call("enqueue", "mail", "--unique", "a", "--on-conflict", "reject") == (
        2, "", "Error: job 1 has the unique key 'a': nothing was enqueued\n",
    )  # fmt: skip


def test_a_file_counts_the_new_jobs(call: Call) -> None:
    call("enqueue", "mail", "--unique", "a")
    write("jobs.jsonl", "".join(f'{{"handler": "mail", "unique": "{key}"}}\n' for key in "abcb"))
    warning = "2 lines have a unique key that a job has already: no job was added for them\n"
    assert call("enqueue", "--file", "jobs.jsonl") == (0, "2\n", warning)
    write("more.jsonl", '{"handler": "mail", "unique": "b", "on-conflict": "replace"}\n')
    replaced = (
        "1 line has a unique key that a job has already: no job was added for them; 1 of them replaced that job\n"
    )
    assert call("enqueue", "--file", "more.jsonl") == (0, "0\n", replaced)
    write("jobs.jsonl", '{"handler": "mail"}\n{"handler": "mail", "unique": "a", "on-conflict": "reject"}\n')
    assert call("enqueue", "--file", "jobs.jsonl").code == 2
    assert len(call("jobs", "list").out.splitlines()) == 1 + 3


def test_enqueue_uses_the_queue_of_the_handler(call: Call) -> None:
    write("supervisor.yaml", "handlers: {mail: {queue: slow}}")
    call("enqueue", "mail")
    call("enqueue", "mail", "--queue", "fast")
    assert [call("jobs", "show", id, "--json").json["queue"] for id in (1, 2)] == ["slow", "fast"]


def test_a_queue_that_the_config_does_not_name_is_warned_of_if_it_lists_those_served(call: Call) -> None:
    write("supervisor.yaml", "workers: {queues: [default, mail]}")
    rest = "; its jobs wait until a supervisor serves it\n"
    warning = f"Warning: no key of the config has a queue 'mial', did you mean 'mail'?{rest}"
    assert call("enqueue", "ok", "--queue", "mial") == (0, "1\n", warning)
    write("jobs.jsonl", '{"handler": "ok", "queue": "mial"}\n{"handler": "ok", "queue": "mail"}\n')
    assert call("enqueue", "--file", "jobs.jsonl") == (0, "2\n", warning)
    assert call("enqueue", "ok", "--queue", "mail").err == call("enqueue", "ok").err == ""
    write("supervisor.yaml", "queues: {mail: {}}")
    assert call("enqueue", "ok", "--queue", "mial").err == ""


def test_enqueue_reads_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("supervisor.yaml", "")
    runner = CliRunner()
    assert runner.invoke(root, ["enqueue", "mail", "-"], input='{"a": "ü"}').output == "1\n"
    lines = '{"handler": "a"}\n\n{"handler": "b", "payload": 1, "max-retries": 2, "delay": "1h"}\n'
    assert runner.invoke(root, ["enqueue", "--file", "-"], input=lines).output == "2\n"
    job = json.loads(runner.invoke(root, ["jobs", "show", "3", "--json"]).output)
    assert (job["handler"], job["payload"], job["max_retries"], job["state"]) == ("b", 1, 2, "scheduled")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["mail", "{a"], "payload: not JSON"),
        (["mail", "NaN"], "payload: not JSON"),
        (["mail", "123456789012345678901"], "payload: "),
        (["mail", "[" * 101 + "]" * 101], "payload: nested deeper than 100"),
        (["mail", '"' + "x" * 1_000_000 + '"'], "expected at most 1000000"),
        (["mail", "--delay", "3"], "delay: expected a duration such as 500ms"),
        (["mail", "--at", "tomorrow"], "at: expected a time such as"),
        (["mail", "--at", "2030-01-01T00:00:00"], "at: expected a time with a time zone"),
        (
            ["mail", "--at", "2030-01-01"],
            "a time with a time zone, such as 2030-01-31T09:30:00+01:00, got '2030-01-01'",
        ),
        (["mail", "--delay", "1s", "--at", "2030-01-01T00:00:00Z"], "expected at most one of them"),
        (["mail", "--max-retries", "1001"], "max_retries: expected a whole number from 0 to 1000"),
        (["mail", "--timeout", "never"], "timeout: expected a duration"),
        (["mail", "--backoff", "10s"], "backoff: not JSON"),
        (["mail", "--backoff", "10"], "backoff: expected a mapping with base, factor, max, jitter, exponential"),
        (["mail", "--backoff", '{"bse": 1}'], "backoff.bse: unknown key, did you mean 'base'?"),
        (["mail", "--header", "tenant"], "'--header': expected NAME=VALUE, got 'tenant'"),
        (["mail", "--header", "a=1", "--header", "a=2"], "'--header': expected each name once, got 'a' twice"),
        (["mail", "--header", "supervisor.parents=1"], "headers: supervisor.parents is set by the store"),
        (["--file", "x.jsonl", "--header", "a=1"], "--file: each line has all about its job"),
        (["mail", "--priority", "high"], "'high' is not a valid integer"),
        (["", "1"], "handler: expected a name"),
        ([], "expected the name of a handler, or --file"),
        (["mail", "--file", "x.jsonl"], "--file: each line has all about its job"),
        (["--file", "gone.jsonl"], "gone.jsonl: No such file"),
        (["mail", "--piority", "1"], "No such option"),
    ],
)
def test_a_mistake_enqueues_nothing(call: Call, tmp_path: Path, arguments: list[str], error: str) -> None:
    answer = call("enqueue", *arguments)
    assert answer.code == 2
    assert error in answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""
    assert not (tmp_path / "jobs.db").exists()


def test_every_bad_line_of_a_file_is_named_and_nothing_is_enqueued(call: Call, tmp_path: Path) -> None:
    write(
        "jobs.jsonl",
        '{"handler": "a"}\n{"handler": "b"\n\n{"hander": "c"}\n{"payload": 1}\n[1]\n'
        '{"handler": "d", "delay": "soon"}\n{"handler": "e", "priority": "1"}\n',
    )
    answer = call("enqueue", "--file", "jobs.jsonl")
    assert answer.code == 2
    assert "nothing was enqueued" in answer.err
    found = [line for line in answer.err.splitlines() if line.startswith("jobs.jsonl:")]
    expected = ["2: line: not JSON", "4: hander: unknown key, did you mean 'handler'?", "5: handler: missing"]
    expected += [
        "6: expected an object such as",
        "7: delay: expected a duration",
        "8: priority: expected a whole number",
    ]
    assert len(found) == len(expected)
    for line, beginning in zip(found, expected, strict=True):
        assert line.startswith(f"jobs.jsonl:{beginning}")
    assert not (tmp_path / "jobs.db").exists()


def test_a_file_with_a_list_of_several_lines_is_told_to_have_one_object_per_line(call: Call) -> None:
    write("jobs.jsonl", '[\n{"handler": "a"},\n{"handler": "b"}\n]\n')
    assert "expected one object per line" in call("enqueue", "--file", "jobs.jsonl").err


def test_an_empty_file_enqueues_nothing(call: Call) -> None:
    write("jobs.jsonl", "\n\n")
    assert call("enqueue", "--file", "jobs.jsonl") == (0, "0\n", "")


def test_no_store_is_made_in_a_folder_where_no_supervisor_runs(call: Call, tmp_path: Path) -> None:
    Path("plugins").rmdir()
    answer = call("enqueue", "mail")
    assert (answer.code, answer.out) == (2, "")
    assert f"{tmp_path} has no supervisor.yaml and no etc/supervisor.yaml; nor is there jobs.db" in answer.err
    shown = call("status")
    assert shown.code == 2
    assert (
        "has no supervisor.yaml and no etc/supervisor.yaml; nor is there jobs.db or a folder plugins: name" in shown.err
    )
    assert "create it" not in shown.err
    assert list(tmp_path.iterdir()) == []
    write("supervisor.yaml", "")
    assert call("enqueue", "mail").out == "1\n"
    Path("supervisor.yaml").unlink()
    assert call("enqueue", "mail").out == "2\n"  # the store is there


MAIL = "from supervisor import handler\n\n@handler('send mail')\ndef mail(job): ...\n"


@pytest.mark.usefixtures("scanned")
def test_a_handler_that_no_plugin_has_is_refused_unless_forced(call: Call) -> None:
    write("plugins/mail.py", MAIL)
    write("supervisor.yaml", "handlers: {other: {timeout: 1s}}")
    refused = call("enqueue", "send mial")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(
        "Error: handler 'send mial': no plugin has it, did you mean 'send mail'?\nnothing was enqueued"
    )
    write("jobs.jsonl", '{"handler": "send mail"}\n\n{"handler": "y"}\n{"handler": "x"}\n{"handler": "y"}\n')
    refused = call("enqueue", "--file", "jobs.jsonl")
    assert refused.code == 2
    assert [line.partition(": no")[0] for line in refused.err.removeprefix("Error: ").splitlines()[:2]] == [
        "jobs.jsonl:3: handler 'y'",
        "jobs.jsonl:4: handler 'x'",
    ]
    assert call("enqueue", "send mail").out == "1\n"
    assert call("enqueue", "other").out == "2\n"
    assert call("enqueue", "x", "--force").out == "3\n"
    assert call("enqueue", "--force", "--file", "jobs.jsonl").out == "4\n"


@pytest.mark.usefixtures("scanned")
@pytest.mark.parametrize("other", ["raise RuntimeError", "", None], ids=["broken", "no handler", "no plugins"])
def test_any_handler_is_accepted_where_the_handlers_are_not_known(call: Call, other: str | None) -> None:
    if other is None:
        write("supervisor.yaml", "plugins: [gone]")
    else:
        write("plugins/other.py", other)
    if other:
        write("plugins/mail.py", MAIL)
    assert call("enqueue", "x") == (0, "1\n", "")


def test_plugins_are_not_imported_for_a_handler_that_stands_in_their_text(call: Call) -> None:
    write("plugins/mail/__init__.py", "from .deep import *")
    write("plugins/mail/deep.py", MAIL + "import os; os._exit(1)")
    assert call("enqueue", "send mail") == (0, "1\n", "")


TYPED = """
from supervisor import Job, handler
raise_at_import = None
@handler
def thumbnail(path: str, width: int = 200): ...
@handler("any")
def takes_any(job: "Job"): ...
"""


def test_a_payload_that_its_handler_would_refuse_is_not_enqueued(call: Call, tmp_path: Path) -> None:
    write("plugins/p.py", TYPED)
    write("jobs.jsonl", '{"handler": "any", "payload": 1}\n\n{"handler": "thumbnail", "payload": {"pth": "a"}}\n')
    code, out, err = call("enqueue", "thumbnail", '{"path": 1}')
    assert (code, out) == (2, "")
    assert "handler 'thumbnail': payload.path: expected a valid string, got 1\nnothing was enqueued; --force" in err
    code, out, err = call("enqueue", "--file", "jobs.jsonl")
    assert (code, out) == (2, "")
    assert "jobs.jsonl:3: handler 'thumbnail': payload.path: missing" in err
    assert not (tmp_path / "jobs.db").exists()
    assert call("enqueue", "thumbnail", '{"path": 1}', "--force") == (0, "1\n", "")
    assert call("enqueue", "thumbnail", '{"path": "a"}') == (0, "2\n", "")


def test_plugins_are_not_imported_for_a_handler_that_takes_any_payload(call: Call, tmp_path: Path) -> None:
    write("plugins/p.py", TYPED + "open('imported', 'w')\n")
    assert call("enqueue", "any", "[1]") == (0, "1\n", "")
    assert not (tmp_path / "imported").exists()


def test_lines_of_a_file_name_the_jobs_that_they_wait_for(call: Call) -> None:
    call("enqueue", "before")
    write(
        "jobs.jsonl",
        '{"handler": "fetch", "name": "a"}\n\n{"handler": "fetch", "name": "b", "after": [1]}\n'
        '{"handler": "merge", "after": ["b", "a", 1], "on_parent_failed": "wait"}\n',
    )
    assert call("enqueue", "--file", "jobs.jsonl", "--force") == (0, "3\n", "")
    assert call("jobs", "show", 4, "--json").json["after"] == [3, 2, 1]
    assert call("jobs", "show", 3, "--json").json["after"] == [1]


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (
            '{"handler": "a", "after": ["b"]}\n{"handler": "b", "name": "b"}',
            ":1: after: no earlier line has the name 'b'",
        ),
        ('{"handler": "a", "name": "a", "after": ["a"]}', ":1: after: no earlier line has the name 'a'"),
        (
            '{"handler": "a", "name": "a"}\n{"handler": "b", "name": "a"}',
            ":2: name: an earlier line has the name 'a' too",
        ),
        ('{"handler": "a", "name": 7}', ":1: name: expected"),
        (
            '{"handler": "a", "after": [1]}\n\n{"handler": "a", "after": [1, 99]}',
            "jobs.jsonl:3: after: there is no job 99",
        ),
        (
            '{"handler": "a"}\n{"handler": "a", "unique": "x", "on_conflict": "reject"}\n'
            '{"handler": "a", "unique": "x", "on_conflict": "reject"}',
            "jobs.jsonl:3: ",
        ),
        (
            '{"handler": "a", "unique": "y"}\n{"handler": "a", "unique": "before", "on_conflict": "reject"}',
            "jobs.jsonl:2: job 1 has the unique key 'before'",
        ),
    ],
)
def test_wrong_names_in_a_file_are_refused(call: Call, lines: str, error: str) -> None:
    call("enqueue", "before", "--unique", "before")
    write("jobs.jsonl", lines)
    answer = call("enqueue", "--file", "jobs.jsonl", "--force")
    assert answer.code == 2
    assert error in answer.err
    assert len(call("jobs", "list", "--json").lines) == 1
