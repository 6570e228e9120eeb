"""Every example in the pages works: plugins load and are called, programs run, configs are read, commands parse."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import orjson
import pytest
import yaml
from click.testing import CliRunner

from supervisor import Client, Handler, InvalidPayload, Job, Reject, Retry, Snooze, events
from supervisor.cli.init import PLUGIN
from supervisor.config.loading import load
from supervisor.config.schedules import of_handler
from supervisor.config.settings import Settings
from supervisor.jobs import Kind, Lease, Outcome, Policy
from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager
from supervisor.schedules.fire_times import Cron
from supervisor.workers.child.middleware import async_middleware
from tests.docs.commands import COMMANDS, parse
from tests.docs.pages import Block, blocks, code_in_prose, first_column, page, pages
from tests.docs.shell import commands_in, run_page
from tests.promtool import promtool
from tests.system.command import Command

PLUGINS = [block for block in blocks("python") if block.title.startswith("plugins/")]
PROGRAMS = [block for block in blocks("python") if block.title.endswith(".py") and block not in PLUGINS]
ON_POSTGRESQL = [block for block in PROGRAMS if block.title.startswith("with_")]
BY_PYTEST = [block for block in PROGRAMS if block.page == "guides/testing.md" or "job_runner" in block.text]
WITH_A_SUPERVISOR = [block for block in PROGRAMS if block.page == "guides/results.md"]
LANGUAGES = {"python", "yaml", "sh", "console", "json", "toml", "ini", "dockerfile", "sql", "text"}
LEASE = Lease(7, 1, "thumbnail", "default", "null", None, 0, 0, 0, 0, 0, Policy())

ids = [f"{block.page}:{block.title}" for block in PLUGINS]


def test_every_block_of_code_is_of_a_kind_that_is_tested() -> None:
    assert {block.language for each in pages() for block in each.blocks} <= LANGUAGES
    for block in blocks("python"):
        assert block.title == "signature" or block in PLUGINS or block in PROGRAMS, block.where


# --- plugins


class Loaded:
    """A plugin of a page, loaded as a supervisor loads it. `names` are those of its file."""

    def __init__(self, block: Block, folder: Path) -> None:
        file = folder / block.title
        file.parent.mkdir(parents=True)
        file.write_text(block.text)
        self.folder = folder
        self.manager = PluginManager()
        assert [report.error for report in self.manager.load_all(discover([str(file)], folder))] == [None], block.where
        function = next(iter(self.functions().values()))
        bound = getattr(function, "__self__", None)
        self.names: Mapping[str, Any] = getattr(bound, "_function", function).__globals__

    def functions(self) -> dict[str, Callable[..., Any]]:
        hooks = {
            implementation.function.__name__: implementation.function
            for caller in vars(self.manager.hook).values()
            if hasattr(caller, "get_hookimpls")
            for implementation in caller.get_hookimpls()
        }
        return hooks | {name: handler.function for name, handler in self.manager.handlers.items()}

    def call(self, handler: str, payload: Any = None, attempt: int = 1) -> Any:
        return self.manager.handlers[handler].function(Job(7, handler, payload, attempt))

    def hook(self, name: str, **arguments: Any) -> Any:
        (result,) = self.manager.call(name, **arguments)
        return result


def _thumbnail(plugin: Loaded) -> None:
    assert plugin.call("thumbnail", {"path": "cat.png", "width": 200}) == "cat.png in 200 pixels"


def _ship(plugin: Loaded) -> None:
    with pytest.raises(ValueError, match="order 17 does not exist"):
        plugin.call("ship", {"order": 17})


def _invoice(plugin: Loaded) -> None:
    with contextlib.chdir(plugin.folder):
        assert [plugin.call("invoice", {"customer": "Ada"}) for _ in range(2)] == ["written", "written"]


def _send_invoice(plugin: Loaded) -> None:
    payload = {"customer": 7, "amount": "12.50", "due": "2030-01-31"}
    assert plugin.call("send_invoice", payload) == "invoice 7: 12.50 by 2030-01-31, 1 copies for 7"
    with pytest.raises(InvalidPayload, match=r"payload\.amount: expected a valid decimal"):
        plugin.call("send_invoice", {**payload, "amount": "much"})


def _fetch(plugin: Loaded) -> None:
    async def answers() -> Any:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connect = asyncio.open_connection
        plugin.names["asyncio"].open_connection = lambda host, _port: connect(host, port)
        try:
            return await plugin.call("fetch", {"host": "127.0.0.1"})
        finally:
            plugin.names["asyncio"].open_connection = connect
            server.close()
            await server.wait_closed()

    assert asyncio.run(answers()) == "HTTP/1.0 200 OK"


def _charge(plugin: Loaded) -> None:
    answer = SimpleNamespace(status_code=200, json=lambda: {"paid": True}, raise_for_status=lambda: None)
    asked: list[Any] = []
    requests = plugin.names["requests"]
    requests.post = lambda url, **options: asked.append(options) or answer
    assert plugin.call("charge", {"amount": 5}) == {"paid": True}
    assert asked[0]["headers"] == {"Idempotency-Key": "7"}
    for status, error in ((429, Retry), (404, Reject)):
        answer.status_code = status
        with pytest.raises(error):
            plugin.call("charge", {"amount": 5})


def _crawl(plugin: Loaded) -> None:
    assert plugin.call("crawl", {"pages": ["a", "b"]}) == {"complete": True, "done": ["a", "b"]}


def _transcode(plugin: Loaded) -> None:
    assert plugin.call("transcode", {"path": "film"}) == 4


def _report(plugin: Loaded) -> None:
    assert plugin.call("monthly-report", {"month": "2030-01"}) == "report of 1/2030"
    assert plugin.manager.handlers["monthly-report"].never_retry == (ValueError,)


def _place_order(plugin: Loaded) -> None:
    with contextlib.chdir(plugin.folder), Client("sqlite:///jobs.db", create=True) as jobs:
        (id,) = plugin.call("place_order", {"order": 3})
        assert jobs.job(id)["headers"] == {"parent": 7}  # type: ignore[index]


def _convert_video(plugin: Loaded) -> None:
    job = Job(7, "convert", {"file": "a.mp4"})
    plugin.manager.handlers["convert"].function(job)
    assert job.last_progress == (100_000, 100_000, "converting")


def _send_mail(plugin: Loaded) -> None:
    logger = plugin.names["logger"]
    lines: list[str] = []
    logger.addFilter(lambda record: lines.append(record.getMessage()))
    logger.setLevel("INFO")
    plugin.call("send_mail", {"to": "me"})
    assert lines == ["to me"]


def _measure(plugin: Loaded) -> None:
    assert plugin.call("measure", {"station": "north"}) == 12
    for payload, attempt, error in (
        ({"station": "south"}, 1, Retry),
        ({"station": "south"}, 3, Reject),
        ({"station": "x"}, 1, KeyError),
    ):
        with pytest.raises(error):
            plugin.call("measure", payload, attempt)


def _download(plugin: Loaded) -> None:
    for payload, most in (({"export": "a"}, 20), ({"export": "a", "ends": "2030-01-01T00:00:00Z"}, None)):
        with pytest.raises(Snooze) as snoozed:
            plugin.call("download", payload)
        assert snoozed.value.max_snoozes == most
    plugin.names["READY"].add("a")
    assert plugin.call("download", {"export": "a"}) == "a.csv"


def _pager(plugin: Loaded) -> None:
    sent: list[Any] = []

    class Server:
        def __init__(self, host: str, timeout: float) -> None:
            assert host == "localhost"

        def __enter__(self) -> Server:
            return self

        def __exit__(self, *error: Any) -> None: ...

        def sendmail(self, sender: str, to: list[str], text: str) -> None:
            sent.append((to, text))

    plugin.names["smtplib"].SMTP = Server
    sink = plugin.manager.merged("supervisor_sinks")["pager"](to="oncall@example.org")
    assert sink.publish([{"id": 3, "handler": "ship"}, {"id": 4, "handler": "ship"}]) == [3, 4]
    assert sent == [(["oncall@example.org"], "Subject: failed jobs\n\njob 3: ship\njob 4: ship")]
    sink.close()


def _timing(plugin: Loaded) -> None:
    (wrapper,) = plugin.manager.wrappers("supervisor_run")
    steps = wrapper(Job(7, "thumbnail"))
    next(steps)
    with pytest.raises(StopIteration) as ended:
        steps.send("the result")
    assert ended.value.value == "the result"
    failing = wrapper(Job(7, "thumbnail"))
    next(failing)
    with pytest.raises(ZeroDivisionError):
        failing.throw(ZeroDivisionError())


def _gently(plugin: Loaded) -> None:
    at_once = []

    async def calls(job: Job) -> int:
        at_once.append(10 - plugin.names["calls"]._value)
        await asyncio.sleep(0)
        return 1

    async def main() -> list[int]:
        run = async_middleware(plugin.manager.wrappers("supervisor_run"))
        return await asyncio.gather(*(run(Job(7, "fetch"), calls) for _ in range(20)))

    assert asyncio.run(main()) == [1] * 20
    assert max(at_once) == 10


def _database(plugin: Loaded) -> None:
    worker = SimpleNamespace(pid=1, number=1)
    with contextlib.chdir(plugin.folder):
        plugin.hook("supervisor_worker_started", worker=worker)
        assert plugin.call("count_tables") == 0
        plugin.hook("supervisor_worker_stopping", worker=worker)


def _roll(plugin: Loaded) -> None:
    plugin.hook("supervisor_worker_started", worker=SimpleNamespace(pid=1, number=1))
    assert 1 <= plugin.call("roll") <= 6


def _alerts(plugin: Loaded) -> None:
    ended = events.WorkerExited(1, 2, "timeout", "killed by SIGKILL", 7, "thumbnail", 1.0)
    plugin.hook("supervisor_events", events=[ended, ended._replace(cause="crash")])
    assert plugin.names["killed"] == ["thumbnail"]


def _commands(plugin: Loaded) -> None:
    group = click.Group("supervisor")
    plugin.hook("supervisor_commands", group=group)
    (example,) = (block for block in page("guides/plugins.md").blocks if block.language == "console")
    call, output = example.text.removeprefix("$ supervisor ").split("\n", 1)
    assert CliRunner().invoke(group, call).output == output


def _generated(plugin: Loaded) -> None:
    assert [plugin.call(name, 21) for name in ("double", "twice")] == [42, 42]
    assert all(isinstance(handler, Handler) for handler in plugin.manager.handlers.values())


def _announce(plugin: Loaded) -> None:
    plugin.hook("supervisor_started", info={"owner": "me", "host": "here", "pid": 1, "store": "sqlite:///jobs.db"})
    plugin.hook("supervisor_stopping", reason="SIGTERM")
    assert plugin.names["lines"] == ["me serves sqlite:///jobs.db on here, pid 1", "stopping: SIGTERM"]


def _store(plugin: Loaded) -> None:
    store = plugin.manager.merged("supervisor_stores")["mystore"](SimpleNamespace(), create=True, base=plugin.folder)
    assert store.stats()["queues"] == []


def _audit(plugin: Loaded) -> None:
    settled = events.JobsSettled([Outcome(LEASE, Kind.SUCCEEDED)])
    plugin.hook("supervisor_events", events=[settled, events.StoreBecameUnavailable("no route")])
    assert plugin.names["seen"] == [(7, "succeeded"), "no route"]


def _convert(plugin: Loaded) -> None:
    handler = plugin.manager.handlers["convert"]
    assert (handler.nice, handler.rlimits) == (10, {"cpu": "60s", "memory": "1GB", "files": 256})


def _handle_order(plugin: Loaded) -> None:
    headers = {"kafka.topic": "orders", "kafka.partition": 2, "kafka.offset": 17, "kafka.key": None}
    job = Job(7, "handle_order", {"number": 5}, headers=headers)
    assert plugin.manager.handlers["handle_order"].function(job) == "order 5 at offset 17 of partition 2"


def _sales(plugin: Loaded) -> None:
    results = [orjson.dumps(plugin.call("fetch_sales", {"country": country})).decode() for country in ("de", "ita")]
    given = {"ids": [1, 2], "failed": [], "results": results}
    job = Job(7, "add_sales", headers={"supervisor.parents": given})
    assert plugin.manager.handlers["add_sales"].function(job) == 5


def _daily(plugin: Loaded) -> None:
    handler = plugin.manager.handlers["daily"]
    job = Job(7, "daily", headers={"schedule.name": "daily", "schedule.time": "2026-03-29T01:00:00.000000Z"})
    assert handler.function(job) == "report of 2026-03-28"
    assert of_handler("daily", handler.schedule).timing == Cron("0 3 * * *", "Europe/Berlin")


CHECKS: Mapping[str, Callable[[Loaded], None]] = {
    "README.md:plugins/thumbnails.py": _thumbnail,
    "getting-started.md:plugins/thumbnails.py": _thumbnail,
    "getting-started.md:plugins/orders.py": _ship,
    "concepts/at-least-once.md:plugins/invoices.py": _invoice,
    "guides/workflows.md:plugins/sales.py": _sales,
    "guides/handlers.md:plugins/billing.py": _send_invoice,
    "guides/handlers.md:plugins/pages.py": _fetch,
    "guides/handlers.md:plugins/payments.py": _charge,
    "guides/handlers.md:plugins/reports.py": _report,
    "guides/timeouts.md:plugins/crawl.py": _crawl,
    "guides/timeouts.md:plugins/transcode.py": _transcode,
    "guides/handlers.md:plugins/video.py": _convert_video,
    "guides/handlers.md:plugins/mail.py": _send_mail,
    "guides/handlers.md:plugins/dice.py": _roll,
    "guides/handlers.md:plugins/convert.py": _convert,
    "guides/handlers.md:plugins/orders.py": _place_order,
    "guides/kafka.md:plugins/orders.py": _handle_order,
    "guides/retries.md:plugins/weather.py": _measure,
    "guides/schedules.md:plugins/daily.py": _daily,
    "guides/retries.md:plugins/exports.py": _download,
    "guides/dead-letters.md:plugins/pager.py": _pager,
    "guides/plugins.md:plugins/timing.py": _timing,
    "guides/plugins.md:plugins/gently.py": _gently,
    "guides/plugins.md:plugins/database.py": _database,
    "guides/plugins.md:plugins/alerts.py": _alerts,
    "guides/plugins.md:plugins/commands.py": _commands,
    "guides/plugins.md:plugins/generated.py": _generated,
    "guides/plugins.md:plugins/announce.py": _announce,
    "guides/plugins.md:plugins/jobs_in_memory.py": _store,
    "reference/events.md:plugins/audit.py": _audit,
}


def test_every_plugin_of_the_pages_is_called_by_a_test() -> None:
    assert sorted(ids) == sorted(CHECKS)


@pytest.mark.parametrize("block", PLUGINS, ids=ids)
def test_a_plugin_of_the_pages_loads_and_does_what_the_page_explains(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "requests", ModuleType("requests"))
    monkeypatch.setattr("smtplib.SMTP", None)
    CHECKS[f"{block.page}:{block.title}"](Loaded(block, tmp_path))


# --- programs


@pytest.mark.parametrize(
    "block",
    [each for each in PROGRAMS if each not in ON_POSTGRESQL + WITH_A_SUPERVISOR + BY_PYTEST],
    ids=lambda block: block.where,
)
def test_a_program_of_the_pages_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("supervisor.client.tracing.sender", None)
    with Client("sqlite:///jobs.db", create=True):
        pass
    file = tmp_path / block.title
    file.write_text(block.text)
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(str(file))


# --- pages that are run as a whole


def test_getting_started_works_from_top_to_bottom(command: Command) -> None:
    command.config.unlink()
    run_page(page("getting-started.md"), command.folder, languages={"console", "python"})
    assert [job["state"] for job in command.jobs()] == ["scheduled", "ready", "succeeded"]


def test_the_loop_of_a_developer_works(command: Command) -> None:
    command.write(plugins={"thumbnails.py": PLUGIN})
    run_page(page("guides/develop.md"), command.folder, languages={"console"})


def test_the_commands_that_enqueue_work(command: Command) -> None:
    (command.folder / "payload.json").write_text('{"path": "cat.png"}')
    run_page(page("guides/enqueueing.md"), command.folder, languages={"sh"})
    jobs = command.jobs()
    assert len(jobs) == 4 + 3
    assert {job["queue"] for job in jobs} == {"default", "images"}


def test_the_commands_about_schedules_work_and_their_json_has_the_documented_keys(command: Command) -> None:
    (config, *_) = (block for block in page("guides/schedules.md").blocks if block.language == "yaml")
    command.write(config=config.text, plugins={"report.py": PLUGIN})
    run_page(page("guides/schedules.md"), command.folder, languages={"sh"})
    (job,) = command.jobs()
    assert (job["handler"], job["payload"]) == ("report", {"size": "full"})
    listed = [json.loads(line) for line in command.ask("schedules", "list", "--json").splitlines()]
    assert [it["schedule"] for it in listed] == ["cleanup", "daily", "nightly"]
    written = first_column(page("reference/command-line.md").section("A schedule"))
    assert all(sorted(it) == sorted(written) for it in listed)


# --- commands


KNOWN_PROGRAMS = {
    "supervisor",
    "python3",
    "pip",
    "systemctl",
    "kill",
    "mkdocs",
    "python",
    "source",
    "mkdir",
    "curl",
    "cd",
    "useradd",
}


@pytest.mark.parametrize("block", blocks("sh", "console"), ids=lambda block: block.where)
def test_the_commands_of_the_pages_parse(block: Block) -> None:
    for words in commands_in(block):
        assert words[0] in KNOWN_PROGRAMS, (block.where, words)
        if words[0] == "supervisor" and words[1] != "greet":
            parse(words[1:])


def test_commands_in_the_text_parse() -> None:
    for where, code in code_in_prose():
        if code.startswith("supervisor ") and (words := _complete(code)):
            try:
                parse(words)
            except click.UsageError as error:
                raise AssertionError(f"{where}: {code}: {error}") from error


def _complete(code: str) -> list[str]:
    """The words of a command that is named with its arguments: ID stands for a number. Nothing if it is only named."""
    words = ["1" if word == "ID" else word for word in shlex.split(code)]
    path = next((path for path in COMMANDS if words[: path.count(" ") + 1] == path.split()), "")
    return words[1:] if path and len(words) > path.count(" ") + 1 else []


# --- configs and other files


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.where)
def test_a_config_of_the_pages_is_read(block: Block, tmp_path: Path) -> None:
    if block.title == "compose.yaml":
        (service,) = yaml.safe_load(block.text)["services"].values()
        assert service["stop_grace_period"] == "45s"
        return
    if block.title == "deployment.yaml":
        spec = yaml.safe_load(block.text)["spec"]
        (container,) = spec["containers"]
        probes = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")]
        assert probes == ["/livez", "/readyz"]
        assert spec["terminationGracePeriodSeconds"] > Settings().shutdown.grace
        return
    if block.title == "prometheus.yml":
        (tmp_path / block.title).write_text(block.text)
        promtool("check", "config", "--syntax-only", str(tmp_path / block.title))
        return
    config = tmp_path / "supervisor.yaml"
    config.write_text(block.text)
    load(
        config,
        {
            "JOBS_PASSWORD": "secret",
            "JOBS_DATABASE": "postgresql://localhost/jobs",
            "HTTP_TOKEN": "of 16 characters",
            "WEBHOOK_SECRET": "of 16 characters",
            "KAFKA_PASSWORD": "of a user",
        },
    )


def test_the_other_files_of_the_pages_can_be_read() -> None:
    for block in blocks("json"):
        for line in block.text.splitlines():
            json.loads(line)
    for block in blocks("toml"):
        assert tomllib.loads(block.text)["project"]["entry-points"]["supervisor"]
    for block in blocks("dockerfile"):
        if checks := re.findall(r"^HEALTHCHECK .* CMD supervisor (.*) \|\| exit 1$", block.text, re.M):
            parse(checks[0].split())
            continue
        (call,) = (json.loads(line.removeprefix("CMD ")) for line in block.text.splitlines() if line.startswith("CMD "))
        assert call[0] == "supervisor"
        parse(call[1:])
