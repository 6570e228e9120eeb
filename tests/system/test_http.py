"""The HTTP server of the real command: health, metrics, the store, commands, and who may ask."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.promtool import promtool
from tests.system.command import Command, Running, wait_for
from tests.unit.http_site import check

PLUGIN = """
import os, time
from supervisor import handler

@handler(max_retries=0)
def fails(job):
    raise ValueError("<b>broken</b>")

@handler
def waits(job):
    while not os.path.exists(job.payload):
        time.sleep(0.01)
"""
TOKEN = "a token of more than 16 characters"


class Answer(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Site:
    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), named)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        kind = answer.headers.get_content_type()
        found = json.loads(data) if kind == "application/json" else data.decode()
        return Answer(answer.status, found, {key.lower(): value for key, value in answer.getheaders()})


def served(command: Command, run: Running) -> Site:
    return Site(int(run.logged("HTTP: http://").rpartition(":")[2]))


def start(command: Command, more: str = "", http: str = '{listen: "127.0.0.1:0"}') -> tuple[Running, Site]:
    command.write(config=f"workers: {{count: 2}}\nhttp: {http}\n{more}", plugins={"p.py": PLUGIN})
    run = command.run()
    run.logged("supervisor started")
    return run, served(command, run)


@pytest.fixture
def site(command: Command) -> Iterator[Site]:
    yield start(command)[1]


def test_a_supervisor_is_alive_from_its_start_and_ready_once_it_claims(command: Command) -> None:
    slow = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    command.write(config='http: {listen: "127.0.0.1:0"}\n', plugins={"p.py": slow})
    run = command.run()
    site = served(command, run)
    assert site.ask("/livez").status == 200
    starting = site.ask("/readyz")
    assert (starting.status, starting.body["ready"], starting.body["reasons"][0]["reason"]) == (503, False, "starting")
    assert site.ask("/api/status").status == 503
    (command.folder / "go").touch()
    ready = wait_for(lambda: (answer := site.ask("/readyz")).status == 200 and answer)
    assert ready.body == {"ready": True, "state": "running", "reasons": []}


def test_a_plugin_that_does_not_load_and_a_drain_are_reasons(command: Command) -> None:
    command.write(
        config='http: {listen: "127.0.0.1:0"}\n', plugins={"p.py": PLUGIN, "broken.py": "import no_such_module\n"}
    )
    run = command.run()
    run.logged("supervisor started")
    site = served(command, run)
    (reason,) = site.ask("/readyz").body["reasons"]
    assert reason["reason"] == "plugin" and "no_such_module" in reason["message"] and reason["what_to_do"]
    flag = command.folder / "flag"
    job = command.enqueue("waits", str(flag))
    command.until(job, "in_flight")
    run.signal(signal.SIGTERM)
    wait_for(lambda: "draining" in [each["reason"] for each in site.ask("/readyz").body["reasons"]])
    flag.touch()
    assert run.wait() == 0


def test_metrics_are_in_the_format_of_prometheus(command: Command, site: Site) -> None:
    job = command.enqueue("fails")
    command.until(job, "failed")
    answer = wait_for(lambda: 'jobs_total{state="failed"} 1.0' in (it := site.ask("/metrics")).body and it)
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "# TYPE supervisor_run_time_seconds histogram" in answer.body
    assert 'supervisor_run_time_seconds_count{handler="fails"} 1.0' in answer.body
    assert 'supervisor_workers_wanted{group="(others)"} 2.0' in answer.body
    assert promtool("check", "metrics", input=answer.body) == ""
    asked = site.ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert asked.headers["content-type"].startswith("application/openmetrics-text")


def test_the_store_is_shown_and_commands_change_it(command: Command, site: Site) -> None:
    failed = command.enqueue("fails")
    command.until(failed, "failed")
    assert site.ask("/api/status").body["queues"][0]["failed"] == 1
    assert [job["id"] for job in site.ask("/api/jobs?state=failed").body["jobs"]] == [failed]
    assert site.ask(f"/api/jobs/{failed}").body == command.job(failed)
    assert site.ask(f"/api/jobs/{failed}/retry", "POST").body == {"id": failed}
    wait_for(lambda: len(command.job(failed)["errors"]) == 2 or command.job(failed)["state"] == "failed")
    assert site.ask("/api/queues/default/pause", "POST").status == 200
    waiting = command.enqueue("fails")
    assert "paused" in site.ask(f"/api/jobs/{waiting}").body["waiting_because"]
    assert site.ask(f"/api/jobs/{waiting}/cancel", "POST").body == {"id": waiting}
    assert command.job(waiting)["state"] == "cancelled"
    assert site.ask("/api/queues/default/resume", "POST").body == {"queue": "default", "paused": False}
    assert site.ask(f"/api/jobs/{waiting}", "DELETE").status == 200
    assert site.ask(f"/api/jobs/{waiting}").status == 404
    command.until(failed, "failed")
    assert site.ask("/api/dlq/redrive", "POST", {"force": True}).body["changed"] == 1


def test_workers_are_added_and_removed_and_the_supervisor_is_drained(command: Command) -> None:
    run, site = start(command)
    flag = command.folder / "flag"
    job = command.enqueue("waits", str(flag))
    command.until(job, "in_flight")
    assert site.ask("/api/workers/add", "POST").body == {"workers": "3 workers"}
    wait_for(lambda: len(site.ask("/api/workers").body) == 3)
    (busy,) = [each["current_job"] for each in site.ask("/api/workers").body if each["current_job"]]
    assert busy["job_id"] == job and busy["running_since"] >= command.job(job)["created_at"]
    assert site.ask("/api/workers/remove", "POST").body == {"workers": "2 workers"}
    (plugin,) = site.ask("/api/plugins").body
    assert {it["name"] for it in plugin["handlers"]} == {"fails", "waits"}
    description = site.ask("/api/openapi.json").body
    for path in (path for path, operations in description["paths"].items() if "get" in operations):
        path = path.replace("{id}", str(job))
        check(description, "GET", path, *site.ask(path)[:2])
    assert site.ask("/api/drain", "POST").status == 202
    wait_for(lambda: site.ask("/readyz").body["state"] == "draining")
    assert site.ask("/api/workers/add", "POST").body == {"error": "workers: the supervisor is stopping"}
    assert site.ask("/api/drain", "POST").status == 202
    flag.touch()
    assert run.wait() == 0
    assert command.job(job)["state"] == "succeeded"
    assert "a request to /api/drain" in run.log


def test_a_wrong_request_is_refused_with_what_was_expected(site: Site) -> None:
    for path, method, body, status, error in (
        ("/api/jobs/x", "GET", None, 400, "id: expected a whole number"),
        ("/api/jobs?state=lost", "GET", None, 400, "state: expected one of scheduled"),
        ("/api/jobs/7", "GET", None, 404, "no job 7"),
        ("/api/jobs/7/cancel", "POST", None, 404, "job 7: no such job"),
        ("/api/dlq/redrive", "POST", [1], 400, "body: expected an object"),
        ("/api/dlq/redrive", "POST", {"ids": [1] * 40_000}, 413, "body: expected at most 65536 bytes"),
        ("/nothing", "GET", None, 404, "Not Found"),
        ("/livez", "POST", None, 405, "Method Not Allowed"),
    ):
        answer = site.ask(path, method, body)
        assert answer.status == status and error in answer.body["error"], path


def test_without_a_token_no_page_of_another_site_can_ask(site: Site) -> None:
    assert site.ask("/api/status", Host="evil.example").status == 421
    own = f"http://127.0.0.1:{site.port}"
    assert site.ask("/api/dlq/redrive", "POST", Origin="http://evil.example").status == 403
    assert site.ask("/api/dlq/redrive", "POST", Sec_Fetch_Site="cross-site").status == 403
    assert site.ask("/api/dlq/redrive", "POST", Origin=own, Sec_Fetch_Site="same-origin").status == 200
    headers = site.ask("/api/status").headers
    assert (
        headers["content-security-policy"].startswith("default-src 'self'") and headers["cache-control"] == "no-store"
    )
    assert "server" not in headers


def test_with_a_token_all_but_probes_need_it(command: Command) -> None:
    _, site = start(command, http=f'{{listen: "0.0.0.0:0", token: "{TOKEN}", read_only: true}}')
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert site.ask("/livez", Host="probe").status == 200
    assert site.ask("/readyz").body == {"ready": True, "state": "running", "reasons": []}
    for path in ("/metrics", "/api/status", "/nothing"):
        assert site.ask(path).status == 401
        assert site.ask(path, Authorization="Bearer wrong").status == 401
    assert site.ask("/api/status", Host="jobs.example", **right).status == 200
    refused = site.ask("/api/dlq/redrive", "POST", **right)
    assert refused.status == 403 and "read_only" in refused.body["error"]


def test_an_address_that_others_reach_needs_a_token(command: Command) -> None:
    command.write(config='http: {listen: "0.0.0.0:8080"}\n', plugins={"p.py": PLUGIN})
    ended = command.call("check")
    assert (
        ended.code == 2 and "http.listen: expected http.token beside an address that other machines reach" in ended.err
    )
    command.write(config='http: {listen: "127.0.0.1:8080", token: short}\n', plugins={})
    ended = command.call("check")
    assert "http.token: expected at least 16 characters" in ended.err and "short" not in ended.err


def test_a_port_that_is_taken_ends_the_start(command: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command.write(config=f'http: {{listen: "127.0.0.1:{port}"}}\n', plugins={"p.py": PLUGIN})
        ended = command.call("run", "--drain")
    assert ended.code == 2
    assert f"http.listen: can't listen on 127.0.0.1:{port}" in ended.err


def test_the_memory_store_is_read_too(command: Command) -> None:
    _, site = start(command, "store: memory://\n")
    assert site.ask("/api/status").body["supervisors"][0]["state"] == "running"


def test_workers_do_not_hold_the_port_after_the_supervisor_was_killed(command: Command) -> None:
    run, site = start(command)
    flag = command.folder / "flag"
    command.until(command.enqueue("waits", str(flag)), "in_flight")
    stopped = run.forkserver()
    os.kill(stopped, signal.SIGSTOP)  # it can't end, nor can its workers be reaped
    try:
        run.kill()
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", site.port))
    finally:
        os.kill(stopped, signal.SIGCONT)
        flag.touch()
