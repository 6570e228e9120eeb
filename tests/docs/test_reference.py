"""The reference names everything that the code has, and nothing else."""

from __future__ import annotations

import inspect
import json
import re
import signal
import socket
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_overloads

import pytest
import yaml

import supervisor
from supervisor import events, hooks
from supervisor.config.loading import load
from supervisor.config.settings import Settings
from supervisor.jobs import Cause, Failure, Job, JobState, NewJob
from supervisor.kafka import events as kafka_events
from supervisor.schedules import events as schedule_events
from supervisor.telemetry.metrics import Metrics
from tests.config_keys import known_keys
from tests.docs.commands import COMMANDS, arguments_of, options_of
from tests.docs.pages import DOCS, code_in_prose, codes, first_column, page, rows
from tests.docs.signatures import documented, parameters
from tests.docs.store_options import store_options
from tests.gauges import gauges_without_an_engine
from tests.system.command import Command, wait_for

STORE_KEYS = store_options("sqlite") | store_options("postgresql") | store_options("kafka")


# --- configuration


def _default_rows() -> Iterator[tuple[str, str]]:
    for key, default, _ in rows(page("reference/configuration.md").section("Keys")):
        yield key.strip("`"), default


def test_every_config_key_is_in_the_reference_and_the_reverse() -> None:
    written = [key for key, _ in _default_rows()]
    assert len(written) == len(set(written))
    known = {*known_keys(), *STORE_KEYS}
    for key in known:
        assert key in written or any(key.startswith(f"{whole}.") for whole in written), key
    for key in written:
        assert key in known or any(one.startswith(f"{key}.") for one in known), key


def test_the_documented_defaults_are_those_of_the_code(tmp_path: Path) -> None:
    document: dict[str, Any] = {}
    for key, default in _default_rows():
        if default.startswith("`") and "<" not in key and key not in STORE_KEYS - {"store.synchronous"}:
            *sections, leaf = key.split(".")
            place = document
            for section in sections:
                place = place.setdefault(section, {})
            place[leaf] = yaml.load(default.strip("`"), yaml.SafeLoader)
    config = tmp_path / "supervisor.yaml"
    config.write_text(yaml.safe_dump(document))
    written, defaults = load(config, {}), Settings()
    sections = {key.partition(".")[0] for key in known_keys()} - {"store"}
    assert {name: getattr(written, name) for name in sections} == {name: getattr(defaults, name) for name in sections}
    assert written.store.url == defaults.store.url


def test_the_sections_that_a_reload_reads_are_those_of_the_code(tmp_path: Path) -> None:
    from supervisor.runtime.reload import FIXED, RELOADABLE

    read_again, fixed = (codes(row[0]) for row in rows(page("guides/reload.md").section("What is read again")))
    assert (read_again, fixed) == (list(RELOADABLE), list(FIXED))
    assert {*read_again, *fixed} == {key.partition(".")[0] for key in known_keys()}


# --- command line


def test_every_command_is_in_the_reference_and_the_reverse() -> None:
    sections = [
        codes(title)[0] for title in page("reference/command-line.md").headings if title.startswith("`supervisor")
    ]
    assert sorted(sections) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_its_arguments_and_options_in_the_reference(command: str) -> None:
    written = first_column(page("reference/command-line.md").section(f"`{command}`"))
    options = [code.partition(" ")[0] for code in written if code.startswith("-")]
    assert sorted(options) == sorted(options_of(command) - {"-c", "--config"})
    assert len(written) - len(options) == len(arguments_of(command))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_a_config_and_explains_itself(command: str) -> None:
    reads_none = command in ("supervisor init", "supervisor completion")
    assert reads_none or {"-c", "--config"} <= options_of(command)
    assert COMMANDS[command].help


def test_options_and_commands_in_the_text_exist() -> None:
    known = {option for command in COMMANDS for option in options_of(command)} | {"--help", "--version"}
    foreign = {"--time", "--ulimit", "--pids-limit"}  # of docker
    for where, code in code_in_prose():
        assert set(re.findall(r"(?<!\S)--[a-z-]+", code)) <= known | foreign, (where, code)
        if named := re.match(r"supervisor [a-z]+", code):
            assert any(f"{command} ".startswith(f"{named[0]} ") for command in COMMANDS), (where, code)


def test_what_a_job_can_have_names_every_argument_and_option() -> None:
    table = rows(page("guides/enqueueing.md").section("Arguments of a job"))
    assert {code for row in table for code in codes(row[0])} == {field.name for field in fields(NewJob)}
    options = {code for row in table for code in codes(row[1]) if code.startswith("--")}
    assert options == options_of("supervisor enqueue") - {"-c", "--config", "--file", "--force"}


def test_what_a_kafka_store_does_not_support_is_in_the_reference_and_the_reverse() -> None:
    from supervisor.stores.kafka.limits import NOT_HERE, NOWHERE

    table = rows(page("reference/command-line.md").section("What a Kafka store can't do"))
    assert [row[0] for row in table] == list(
        dict.fromkeys(limit.what for limit in (*NOT_HERE.values(), *NOWHERE.values()))
    )


# --- hooks, events, metrics


def test_every_hook_is_in_the_reference_with_its_arguments() -> None:
    specs = {name: spec for name, spec in vars(hooks.Specs).items() if name.startswith("supervisor_")}
    takes = {
        name: ", ".join(each.name for each in parameters(spec) if each.name != "self") for name, spec in specs.items()
    }
    written = [code for row in rows(page("reference/hooks.md").prose) for code in codes(row[0])]
    assert sorted(written) == sorted(f"{name}({arguments})" for name, arguments in takes.items())
    listed = {
        code
        for row in rows(page("guides/plugins.md").section("Which process a hook runs in"))
        for code in codes(row[1])
    }
    assert listed == set(specs)


def test_every_event_is_in_the_reference_with_its_fields() -> None:
    known = {
        name: list(event._fields)
        for module in (events, kafka_events, schedule_events)
        for name, event in vars(module).items()
        if isinstance(event, type) and issubclass(event, tuple) and event.__module__ == module.__name__
    }
    del known["PartitionFigures"]  # a part of an event
    written = {codes(name)[0]: codes(names) for name, names, _ in rows(page("reference/events.md").prose)}
    assert written == known


def test_every_metric_is_in_the_reference_and_the_reverse() -> None:
    known = {**Metrics().snapshot(), **gauges_without_an_engine()}
    written = {
        codes(name)[0]: (kind, codes(labels)) for name, kind, labels, _ in rows(page("reference/metrics.md").prose)
    }
    assert written.keys() == known.keys()
    for name, (kind, labels) in written.items():
        value = known[name]
        is_histogram = isinstance(value, dict) and "buckets" in value
        assert bool(labels) == (isinstance(value, Mapping) and not is_histogram), name
        assert kind == "histogram" or not is_histogram, name
        assert name.endswith("_total") == (kind == "counter"), name


# --- jobs


def test_the_states_and_the_causes_are_those_of_the_code() -> None:
    life = page("concepts/life-of-a-job.md")
    assert first_column(life.section("States")) == [state.value for state in JobState]
    causes = first_column(life.section("Outcomes of an attempt"))
    assert sorted(causes) == sorted(cause.value for cause in Cause)
    diagram = (DOCS / "diagrams/job-states.svg").read_text()
    assert all(f">{state.value}<" in diagram for state in JobState)


def test_what_is_kept_of_a_failure_is_what_a_failure_has() -> None:
    written = first_column(page("concepts/life-of-a-job.md").section("What is kept of a failure"))
    assert sorted(written) == sorted(field.name for field in fields(Failure))


# --- signals and exit codes


def test_every_exit_code_is_in_the_reference() -> None:
    from supervisor.runtime.supervisor import ExitCode

    codes_of_run = first_column(page("reference/signals-and-exit-codes.md").section("Exit codes of `supervisor run`"))
    assert [int(code) for code in codes_of_run] == sorted(ExitCode)


def test_the_signals_are_those_that_a_supervisor_catches_and_the_json_has_the_documented_keys(command: Command) -> None:
    command.write(
        plugins={"wait.py": "import time\nfrom supervisor import handler\n@handler\ndef wait(job): time.sleep(3600)"}
    )
    id = command.enqueue("wait")
    run = _run_until_ready(command)
    written = first_column(page("reference/signals-and-exit-codes.md").section("Signals"))
    assert sorted(written) == sorted(_caught(run.pid))

    def running() -> dict[str, Any]:
        workers = [worker for each in command.status()["supervisors"] for worker in each["workers"]]
        busy = [worker for worker in workers if worker["current_job"]]
        assert busy, workers
        return busy[0]

    worker = wait_for(running)
    status = command.status()
    json_of = page("reference/command-line.md")
    assert [*status["queues"][0]] == first_column(json_of.section("A queue"))
    supervisor_keys = json_of.section("A supervisor")
    assert {*status["supervisors"][0]} == {*first_column(supervisor_keys)}
    nested = {code for row in rows(supervisor_keys) if "workers" in row[0] for code in codes(row[1])} - {"null"}
    assert nested == {*worker, *worker["current_job"]}
    assert sorted(command.job(id)) == sorted(first_column(json_of.section("A job")))
    plugin = json.loads(command.ask("plugins", "--json"))
    assert sorted(plugin) == sorted(first_column(json_of.section("A plugin")))
    command.ask("jobs", "cancel", str(id))


def test_the_json_of_a_benchmark_has_the_documented_keys(command: Command) -> None:
    measured = json.loads(command.call("bench", "--jobs", "1", "--json").out)
    written = first_column(page("reference/command-line.md").section("A benchmark"))
    assert sorted(measured) == sorted(written)


def _run_until_ready(command: Command) -> Any:
    """The supervisor, once it reports as to systemd that it serves."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        address = str(command.folder / "notify")
        notified.bind(address)
        notified.settimeout(30)
        command.env["NOTIFY_SOCKET"] = address
        run = command.run()
        while notified.recv(100) != b"READY=1":
            pass
    return run


def _caught(pid: int) -> list[str]:
    """The signals that the process has handlers for."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.M)
    assert found
    mask = int(found[1], 16)
    return [number.name.removeprefix("SIG") for number in signal.Signals if mask >> (number - 1) & 1]


# --- Python


def test_every_public_name_is_in_the_reference_and_the_reverse() -> None:
    api = page("reference/python-api.md")
    names = [codes(title)[0] for title in re.findall(r"^### (.+)$", api.prose, re.M)]
    assert sorted(names) == sorted(supervisor.__all__)
    methods = [codes(title)[0] for title in re.findall(r"^#### (.+)$", api.prose, re.M)]
    public = [name for name, _ in inspect.getmembers(supervisor.Client, callable) if not name.startswith("_")]
    assert sorted(methods) == sorted(f"Client.{name}" for name in public)


SIGNATURES = {
    "handler": get_overloads(supervisor.handler)[-1],
    "Job": supervisor.Job,
    "Retry": supervisor.Retry,
    "Handler": supervisor.Handler,
    "Client": supervisor.Client,
    "enqueue": get_overloads(supervisor.Client.enqueue)[0],
    "options": supervisor.Client.options,
    "enqueue_many": supervisor.Client.enqueue_many,
    "workflow": supervisor.Client.workflow,
    "enqueue_batch": supervisor.Client.enqueue_batch,
    "counts": supervisor.Client.counts,
    "job": supervisor.Client.job,
    "cancel": supervisor.Client.cancel,
    "cancel_jobs": supervisor.Client.cancel_jobs,
    "retry_jobs": supervisor.Client.retry_jobs,
    "delete_jobs": supervisor.Client.delete_jobs,
    "redrive_dead_letters": supervisor.Client.redrive_dead_letters,
    "purge_dead_letters": supervisor.Client.purge_dead_letters,
    "result": supervisor.Client.result,
    "results": supervisor.Client.results,
    "close": supervisor.Client.close,
    "AsyncClient": supervisor.AsyncClient,
    "NewJob": supervisor.NewJob,
    "NotAccepted": supervisor.NotAccepted,
    "Snooze": supervisor.Snooze,
}


def test_signatures_are_those_of_the_code() -> None:
    written = dict(
        documented(block.text) for block in page("reference/python-api.md").blocks if block.title == "signature"
    )
    assert written.keys() == SIGNATURES.keys()
    for name, function in SIGNATURES.items():
        own = [(each.name, each.kind, each.default) for each in parameters(function) if each.name != "self"]
        assert [(n, k) for n, k, _ in own] == [(n, k) for n, k, _ in written[name]], name
        for (argument, _, default), (_, _, text) in zip(own, written[name], strict=True):
            assert text is ... or text == default, (name, argument)


def test_handlers_have_their_options_and_jobs_their_attributes_in_the_guide() -> None:
    guide = page("guides/handlers.md")
    options = [each.name for each in parameters(SIGNATURES["handler"]) if each.name != "name"]
    assert first_column(guide.section("Options")) == options
    attributes = [each.partition("(")[0] for each in first_column(guide.section("The job"))]
    assert sorted(attributes) == sorted(name for name in dir(Job) if not name.startswith("_"))


def test_the_sql_function_has_its_arguments_in_the_guide() -> None:
    from supervisor.stores.postgres.functions import FUNCTIONS

    (function,) = (each for each in FUNCTIONS if "function {s}.enqueue(" in each)
    declared = re.search(r"\((.*?)\)\s+returns", function, re.S)
    assert declared
    arguments = [argument.split()[0] for argument in declared[1].split(",")]
    assert first_column(page("guides/postgresql.md").section("Jobs from SQL")) == arguments


def test_shipped_plugins_are_all_in_the_guide() -> None:
    listed = first_column(page("guides/plugins.md").section("Plugins that come with the project"))
    assert sorted(listed) == sorted(path.name for path in (DOCS.parent / "plugins").glob("*.py"))


def test_environment_variables_are_read_somewhere() -> None:
    written = first_column(page("reference/configuration.md").section("Environment variables"))
    package = "\n".join(path.read_text() for path in (DOCS.parent / "supervisor").rglob("*.py"))
    for name in written:
        assert name in package or name == "NO_COLOR", name
    assert set(re.findall(r"\"(SUPERVISOR_[A-Z_]+)\"", package)) <= set(written)
