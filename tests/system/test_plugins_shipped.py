"""The plugins of `plugins/`, loaded as they are."""

from __future__ import annotations

import json
import socket

from tests.system.command import ROOT, Command, wait_for

CONFIG = f"""
    plugins: {{paths: [{ROOT / "plugins"}], allow_writable_by_others: true}}
    workers: {{count: 2}}
    retry: {{max_retries: 0}}
    dlq:
      sinks:
        - {{type: file, path: dead.jsonl}}
        - {{type: log-alert}}
"""


def test_all_shipped_plugins_load(command: Command) -> None:
    command.write(config=CONFIG)
    ended = command.call("check")
    assert ended.code == 0, ended.out + ended.err


def test_good_jobs_succeed_and_bad_ones_reach_every_sink(command: Command) -> None:
    command.write(config=CONFIG)
    good = [command.enqueue("checksum", {"path": str(command.config)}), command.enqueue("shell", {"argv": ["true"]})]
    bad = command.enqueue("shell", {"argv": ["sh", "-c", "echo no paper >&2; exit 65"], "reject_codes": [65]})
    run = command.run("--drain")
    assert run.wait() == 0
    assert [command.job(id)["state"] for id in good] == ["succeeded"] * 2
    assert command.job(bad)["dead_letter"] == "delivered"
    (dead_letter,) = [json.loads(line) for line in (command.folder / "dead.jsonl").read_text().splitlines()]
    assert (dead_letter["id"], dead_letter["handler"], dead_letter["errors"][-1]["cause"]) == (bad, "shell", "rejected")
    assert dead_letter["errors"][-1]["message"] == "sh: exit code 65: no paper"
    assert " ERROR " in run.logged(f"dead letter job={bad} handler=shell cause=rejected: ")


def test_a_timeout_kills_a_program_that_ignores_signals(command: Command) -> None:
    command.write(config=CONFIG)
    program = "trap '' TERM INT HUP; touch started; while :; do sleep 3600; done"
    id = command.enqueue("shell", {"argv": ["sh", "-c", program], "cwd": str(command.folder)}, "--timeout", "1s")
    run = command.run()
    wait_for((command.folder / "started").exists)
    job = command.until(id, "failed")
    assert job["errors"][-1]["cause"] == "timeout"
    wait_for(lambda: not any("sleep" in line for line in command.processes().values()))
    assert run.code is None


def test_statsd_receives_metrics_of_a_run(command: Command) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(30)
        command.env |= {"STATSD_HOST": "127.0.0.1", "STATSD_PORT": str(server.getsockname()[1])}
        command.write(config=CONFIG)
        command.enqueue("shell", {"argv": ["true"]})
        assert command.run("--drain").wait() == 0
        got = b""
        while b"supervisor.jobs.succeeded:1|c" not in got or b"supervisor.run_time.shell:" not in got:
            got += server.recv(65_536) + b"\n"
