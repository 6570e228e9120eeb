from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from supervisor.cli import context, render
from supervisor.cli import plugin_scan as scan
from supervisor.cli.app import root, run_command_line
from supervisor.errors import StoreUnavailable
from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Answer]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """Run a command in an empty folder as the shell would."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Answer:
        capfd.readouterr()
        code = run_command_line([str(argument) for argument in arguments])
        return Answer(code, *capfd.readouterr())

    return call


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins are imported right here; a unit test starts no process."""

    def scan_here(settings: Any) -> Any:
        return PluginManager().load_all(discover(settings.plugins.paths, settings.base))

    monkeypatch.setattr(scan, "scan", scan_here)
    for name in ("supervisor.cli.check", "supervisor.cli.plugins"):
        __import__(name)
        monkeypatch.setattr(sys.modules[name], "scan", scan_here)


def write(path: str, text: str) -> None:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


# --- enqueue


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


def test_enqueue_uses_the_queue_of_the_handler(call: Call) -> None:
    write("supervisor.yaml", "handlers: {mail: {queue: slow}}")
    call("enqueue", "mail")
    call("enqueue", "mail", "--queue", "fast")
    assert [call("jobs", "show", id, "--json").json["queue"] for id in (1, 2)] == ["slow", "fast"]


def test_enqueue_reads_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
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
        (["mail", "--delay", "1s", "--at", "2030-01-01T00:00:00Z"], "expected at most one of them"),
        (["mail", "--max-retries", "1001"], "max_retries: expected a whole number from 0 to 1000"),
        (["mail", "--timeout", "never"], "timeout: expected a duration"),
        (["mail", "--priority", "high"], "'high' is not a valid integer"),
        (["", "1"], "handler: expected a name"),
        ([], "expected the name of a handler, or --file"),
        (["mail", "--file", "x.jsonl"], "--file: all about a job stands in its line"),
        (["--file", "gone.jsonl"], "gone.jsonl: No such file"),
        (["mail", "--piority", "1"], "No such option"),
    ],
)
def test_mistakes_at_enqueue_enqueue_nothing(call: Call, tmp_path: Path, arguments: list[str], error: str) -> None:
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


def test_an_empty_file_enqueues_nothing(call: Call) -> None:
    write("jobs.jsonl", "\n\n")
    assert call("enqueue", "--file", "jobs.jsonl") == (0, "0\n", "")


# --- looking


def test_nothing_is_there_before_the_first_job(call: Call, tmp_path: Path) -> None:
    for arguments in (["status"], ["jobs", "list"], ["dlq", "list"], ["queues", "list"], ["queues", "pause", "q"]):
        answer = call(*arguments)
        assert answer.code == 2
        assert answer.err == (
            f"Error: no store yet: {tmp_path}/jobs.db does not exist; supervisor enqueue and supervisor run create it\n"
        )


def test_empty_states_say_what_to_do(call: Call) -> None:
    call("enqueue", "mail")
    call("jobs", "delete", 1)
    assert call("jobs", "list").out == "no jobs yet: supervisor enqueue HANDLER [JSON]\n"
    assert call("jobs", "list", "--state", "failed").out == "no such jobs\n"
    assert "no dead letters: dlq.sinks is empty" in call("dlq", "list").out
    assert call("dlq", "purge").out == "no dead letters\n"
    assert "no supervisor is running: supervisor run" in call("status").out
    write("supervisor.yaml", "dlq: {sinks: [{type: file, path: dead.jsonl}]}")
    assert call("dlq", "list").out == "no dead letters\n"


def test_jobs_for_people_and_programs(call: Call) -> None:
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
    assert "state       ready" in shown


def test_status(call: Call) -> None:
    call("enqueue", "mail", "--queue", "q")
    call("queues", "pause", "q")
    status = call("status", "--json").json
    assert status["supervisors"] == []
    assert [(queue["queue"], queue["queue_size"], queue["paused"]) for queue in status["queues"]] == [("q", 1, True)]
    assert call("status").lines[1].split() == ["q", "1", "0", "0", "0", "0", "0", "paused"]
    assert json.loads(call("queues", "list", "--json").out)["queue"] == "q"


def test_unknown_jobs_are_named(call: Call) -> None:
    call("enqueue", "mail")
    assert call("jobs", "show", 9) == (2, "", "Error: no job 9\n")
    assert call("dlq", "show", 9) == (2, "", "Error: no job 9\n")
    assert call("dlq", "show", 1) == (2, "", "Error: job 1 is ready, not a dead letter\n")
    assert call("jobs", "show", "x").code == 2


# --- verbs


def test_verbs_say_what_they_did_and_what_they_refused(call: Call) -> None:
    call("enqueue", "mail", "--delay", "1h")
    call("enqueue", "mail")
    assert call("jobs", "retry", 1) == (0, "due now: 1\n", "")
    answer = call("jobs", "cancel", 1, 2, 9)
    assert (answer.code, answer.out) == (2, "cancelled: 1 2\n")
    assert answer.err.startswith("Error: job 9: ")
    assert call("jobs", "delete", 1, 2) == (0, "deleted: 1 2\n", "")


def test_pause_and_resume(call: Call) -> None:
    call("enqueue", "mail")
    said = [call("queues", verb, "default").out for verb in ("pause", "pause", "resume", "resume")]
    assert said == [
        "default: paused\n",
        "default: was paused already\n",
        "default: resumed\n",
        "default: was not paused\n",
    ]


def test_redrive_wants_ids_or_all(call: Call) -> None:
    call("enqueue", "mail")
    assert "expected the ids of dead letters, or --all" in call("dlq", "redrive").err
    assert "expected the ids of dead letters, or --all" in call("dlq", "redrive", 1, "--all").err
    assert call("dlq", "redrive", "--all").out == "no dead letters\n"


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["stauts"], "no command 'stauts', did you mean 'status'?"),
        (["jobs", "lst"], "no command 'lst', did you mean 'list'?"),
        (["dlq", "xyzzy"], "no command 'xyzzy'; expected one of list, show, redrive, purge"),
        (["status", "-c", "gone.yaml"], "gone.yaml: No such file"),
        (["-c", "gone.yaml", "status"], "gone.yaml: No such file"),
        (["jobs", "list", "--limit", str(2**63)], "is not in the range"),
        (["jobs", "show", str(2**63)], "is not in the range"),
        (["dlq", "redrive", str(2**63)], "is not in the range"),
        (["jobs", "list", "--queue", "\udcff"], "expected a name of 1 to 255 printable characters"),
        (["jobs", "list", "--handler", "\udcff"], "expected a name of 1 to 255 printable characters"),
        (["queues", "pause", ""], "expected a name of 1 to 255 printable characters"),
        (["run", "--horizon", "1h"], "--horizon goes with --drain"),
        (["run", "--drain", "--horizon", "1"], "expected a duration such as"),
        (["copy", "--from", ""], "store: expected a URL such as"),
        (["copy", "--from", "sqlite:///jobs\n.db"], "store: expected a URL such as"),
    ],
)
def test_mistakes_are_answered_in_one_line(call: Call, scanned: None, arguments: list[str], error: str) -> None:
    answer = call(*arguments)
    assert answer.code == 2
    assert error in answer.err
    assert "Traceback" not in answer.err


def test_every_mistake_of_a_config_is_told_by_every_command(call: Call) -> None:
    write("bad.yaml", "workers: {cuont: 1, timeout: 5}\nlogg: {}\n")
    for arguments in (["status"], ["run"], ["enqueue", "mail"], ["plugins"]):
        answer = call(*arguments, "-c", "bad.yaml")
        assert answer.code == 2
        assert {line.split(": ")[2] for line in answer.err.splitlines()} == {"workers.cuont", "workers.timeout", "logg"}


def test_the_config_after_the_command_goes_before_the_one_before_it(call: Call) -> None:
    write("one.yaml", "store: sqlite:///one.db")
    write("two.yaml", "store: sqlite:///two.db")
    call("-c", "one.yaml", "enqueue", "mail")
    call("-c", "one.yaml", "enqueue", "mail", "-c", "two.yaml")
    assert Path("one.db").exists()
    assert Path("two.db").exists()


def test_a_store_in_memory_can_be_seen_by_no_other_command(call: Call) -> None:
    write("supervisor.yaml", "store: memory://")
    for arguments in (["enqueue", "mail"], ["status"]):
        assert "lives inside one process" in call(*arguments).err


def test_a_store_that_is_away_is_a_mistake_with_a_message(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call("enqueue", "mail")

    def unavailable(*arguments: Any, **options: Any) -> Any:
        raise StoreUnavailable("jobs.db: locked")

    monkeypatch.setattr(context, "TIMEOUT", 0.0)
    monkeypatch.setattr("supervisor.stores.opening.open_store", unavailable)
    assert call("status") == (2, "", "Error: jobs.db: locked\n")


def test_a_database_of_something_else_is_refused(call: Call) -> None:
    write("jobs.db", "this is no database, not at all, and it is long enough to look like one" * 20)
    answer = call("status")
    assert answer.code == 2
    assert "jobs.db" in answer.err


@pytest.mark.parametrize("arguments", [["status"], ["enqueue", "mail"], ["jobs", "list"]], ids=" ".join)
def test_a_store_that_no_file_can_be_is_told_by_every_command(call: Call, arguments: list[str]) -> None:
    Path("jobs.db").mkdir()
    answer = call(*arguments)
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "jobs.db: expected a file, not a folder" in answer.err
    write("supervisor.yaml", f"store: sqlite:///{'x' * 300}\n")
    answer = call(*arguments)
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "x: File name too long" in answer.err


@pytest.mark.parametrize(
    ("name", "error"),
    [("folder", "folder: expected a file, not a folder"), ("x" * 300, "x: File name too long"), ("file/jobs.db", "file is not a directory")],
)  # fmt: skip
def test_check_finds_a_store_that_no_file_can_be(call: Call, scanned: None, name: str, error: str) -> None:
    Path("folder").mkdir()
    Path("file").touch()
    write("supervisor.yaml", f"store: sqlite:///{name}\nplugins: []\n")
    answer = call("check")
    assert answer.code == 2
    assert error in answer.err
    assert answer.err.endswith("\n1 mistake\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["check"],
        ["enqueue", "mail"],
        ["run"],
        ["run", "-c", "x.yaml"],
        ["copy", "--from", "sqlite:///x.db"],
    ],
    ids=" ".join,
)
def test_a_current_folder_that_is_gone_is_told_by_every_command(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir("gone")
    (tmp_path / "gone").rmdir()
    answer = call(*arguments)
    assert answer.code == 2
    assert answer.err.startswith("Error: current folder: No such file or directory; expected one that exists")
    assert (
        call("-c", tmp_path / "x.yaml", "enqueue", "mail").err
        == f"Error: {tmp_path}/x.yaml: No such file or directory\n"
    )
    write(str(tmp_path / "x.yaml"), "store: sqlite:///jobs.db\n")
    assert call("-c", tmp_path / "x.yaml", "enqueue", "mail").out == "1\n"


def test_a_command_may_choose_its_exit_code(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*arguments: Any, **options: Any) -> Any:
        raise SystemExit(7)

    call("enqueue", "mail")
    monkeypatch.setattr("supervisor.cli.jobs.print_jobs", leave)
    with pytest.raises(SystemExit, match="7"):
        call("jobs", "list")


# --- check


def test_check_says_that_all_is_right(call: Call, scanned: None) -> None:
    write("plugins/mail.py", "from supervisor import handler\n@handler\ndef mail(job): ...\n")
    answer = call("check")
    assert answer.code == 0
    assert "mail.py: mail" in answer.out
    assert "will be created" in answer.out
    assert answer.lines[-1] == "all right"
    assert not Path("jobs.db").exists()
    call("enqueue", "mail")
    assert "reachable" in call("check").out


def test_check_names_all_mistakes_of_all_kinds_at_once(call: Call, scanned: None) -> None:
    write("plugins/bad.py", "\nimport no_such_module\n")
    write("plugins/mail.py", "from supervisor import handler\n@handler\ndef mail(job): ...\n")
    write(
        "supervisor.yaml",
        "workers: {cuont: 1}\nretry: {burst: 0}\nhandlers: {mial: {timeout: 1s}}\n"
        "store: sqlite:///gone/jobs.db\n"
        "dlq:\n  sinks:\n    - {type: fil, path: x}\n    - {type: file, pth: x}\n    - {type: file, name: f}\n",
    )
    answer = call("check")
    assert answer.code == 2
    for expected in (
        "supervisor.yaml:1: workers.cuont: unknown key, did you mean 'count'?",
        "supervisor.yaml:2: retry.burst: expected a whole number",
        "plugins/bad.py:2: ModuleNotFoundError: No module named 'no_such_module'",
        "supervisor.yaml: handlers.mial: no plugin brings this handler, did you mean 'mail'?",
        "supervisor.yaml: dlq.sinks[0].type: no plugin brings a sink 'fil', did you mean 'file'?",
        "supervisor.yaml: dlq.sinks[1]: sink 'file': missing a required argument: 'path'",
        "supervisor.yaml: dlq.sinks[2]: sink 'file': missing a required argument: 'path'",
        "gone is not a directory that can be written to",
        "8 mistakes",
    ):
        assert expected in answer.err


def test_check_compares_the_heartbeats_that_hold(call: Call, scanned: None) -> None:
    write(
        "plugins/mail.py",
        "from supervisor import handler\n\n"
        "@handler(heartbeat_timeout='600ms')\ndef mail(job): ...\n\n"
        "@handler(heartbeat_timeout='600ms')\ndef mended(job): ...\n",
    )
    write("supervisor.yaml", "handlers: {mended: {heartbeat: 100ms}}\n")
    answer = call("check")
    expected = "handler 'mail': heartbeat_timeout: expected at least twice its heartbeat, got 600ms"
    assert (answer.code, answer.err) == (
        2,
        f"Error: {Path.cwd()}/plugins/mail.py:3: {expected}\n1 mistake\n",
    )


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("gone/dead.jsonl", "/gone does not exist"),
        ("plugins", "/plugins is a folder, expected a file"),
        ("5", "path: expected the path of a file, got 5"),
        ("x" * 300, "File name too long"),
    ],
)
def test_check_finds_a_sink_that_run_would_refuse(call: Call, scanned: None, path: str, error: str) -> None:
    Path("plugins").mkdir()
    sinks = f"sinks: [{{type: file, path: dead.jsonl}}, {{type: file, name: f, path: {path}}}]"
    write("supervisor.yaml", f"dlq: {{{sinks}}}\n")
    answer = call("check")
    assert answer.code == 2
    assert "Error: supervisor.yaml: dlq.sinks[1]: sink 'file': " in answer.err
    assert error in answer.err
    assert "1 mistake\n" in answer.err
    assert not Path("dead.jsonl").exists()
    write("supervisor.yaml", f"dlq: {{enabled: false, {sinks}}}\n")
    assert call("check").code == 0


def test_check_of_a_file_that_is_no_yaml(call: Call, scanned: None) -> None:
    write("supervisor.yaml", "a: b: c\n")
    answer = call("check")
    assert answer.code == 2
    assert answer.err == (
        "Error: supervisor.yaml:1: not YAML: mapping values are not allowed in this context\n1 mistake\n"
    )


# --- plugins


def test_plugins_shows_what_each_brought_and_what_failed(call: Call, scanned: None) -> None:
    write("plugins/a.py", "raise ValueError('no')\n")
    write(
        "plugins/b.py",
        "from supervisor import handler, hookimpl\n@handler(timeout='3s')\ndef mail(job): ...\n"
        "@hookimpl\ndef supervisor_sinks(): return {'pager': object}\n",
    )
    shown = call("plugins").out
    assert "error  " in shown
    assert "a.py:1: ValueError: no" in shown
    assert "handler mail  line 2: timeout 3s" in shown
    assert "supervisor_sinks" in shown
    assert "pager" in shown
    reports = [json.loads(line) for line in call("plugins", "--json").lines]
    assert [(report["line"], report["sinks"]) for report in reports] == [(1, []), (None, ["pager"])]


def test_plugins_in_files_whose_names_are_not_unicode(call: Call, scanned: None, tmp_path: Path) -> None:
    write("plugins/\udcff.py", "from supervisor import handler\n@handler\ndef mail(job): ...\n")
    answer = call("plugins", "--json")
    assert answer.code == 0
    assert answer.json["source"] == answer.json["handlers"][0]["file"] == f"{tmp_path}/plugins/\\udcff.py"
    assert answer.json["source"] in call("plugins").out
    assert call("check").code == 0


@pytest.mark.parametrize("arguments", [["plugins"], ["plugins", "--json"], ["check"]], ids=" ".join)
def test_what_a_plugin_raises_keeps_secrets(
    call: Call, scanned: None, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("TOKEN", "hunter2hunter2")
    write("supervisor.yaml", "dlq: {sinks: [{type: http, url: 'http://here', token: '${TOKEN}'}]}\n")
    write("plugins/bad.py", "import os\n\nraise ValueError('no ' + os.environ['TOKEN'])\n")
    answer = call(*arguments)
    assert (answer.out + answer.err).count("ValueError: no ***") == 2
    assert "hunter2" not in answer.out + answer.err


def test_plugins_add_commands(call: Call, scanned: None) -> None:
    write(
        "plugins/extra.py",
        "import click\nfrom supervisor import hookimpl\n@hookimpl\ndef supervisor_commands(group):\n"
        "    @group.command()\n    def greet():\n        click.echo('hello')\n",
    )
    write("plugins/broken.py", "from supervisor import hookimpl\n@hookimpl\ndef supervisor_commands(group): 1 / 0\n")
    root.commands.pop("greet", None)
    answer = call("greet")
    root.commands.pop("greet", None)
    assert (answer.code, answer.out) == (0, "hello\n")
    assert len(answer.err.splitlines()) == 1
    assert "broken.py: supervisor_commands: ZeroDivisionError" in answer.err


# --- rendering


@pytest.mark.parametrize(
    ("stamp", "told"),
    [
        ("2030-01-01T00:00:00.000000Z", "now"),
        ("2029-12-31T23:59:50.000000Z", "10s ago"),
        ("2030-01-01T01:00:00.000000Z", "in 1h"),
        (None, ""),
    ],
)
def test_times_for_people(stamp: str | None, told: str) -> None:
    assert render.ago(stamp, datetime(2030, 1, 1, tzinfo=UTC)) == told


def test_text_of_jobs_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    assert render.safe("a\x1b[2Jb\rc\u202e") == "a\\x1b[2Jb\\rc\\u202e"
    render.print_json({"payload": "\x9b31m\u202e"})
    assert capsys.readouterr().out == '{"payload":"\\u009b31m\\u202e"}\n'
    assert render.clipped("x" * 100) == "x" * 59 + "…"


def _columns(lines: Iterable[str]) -> list[list[str]]:
    return [line.split() for line in lines]


def test_a_table_in_a_pipe_is_neither_coloured_nor_cut(capsys: pytest.CaptureFixture[str]) -> None:
    render.print_table(("id", "state", "empty", "text"), [[1, "failed", None, "y" * 150]])
    assert _columns(capsys.readouterr().out.splitlines()) == [["id", "state", "text"], ["1", "failed", "y" * 150]]


class Terminal:
    """Standard output that says it is a terminal."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_color", [False, True])
def test_colours_on_a_terminal_unless_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch, no_color: bool) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", terminal)
    render.print_table(("state",), [["failed"]])
    assert ("\x1b[31m" in terminal.text) is not no_color
