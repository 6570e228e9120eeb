"""Handlers with parameters, run by the command: each job ends with its result, or is rejected with the field that does not fit."""

from __future__ import annotations

import json
from typing import Any

from tests.system.command import Command

PLUGIN = """
    from datetime import date, timedelta
    from supervisor import Job, handler, hookimpl

    @handler
    def shift(day: date, days: int = 1, *, job: Job):
        return {"day": day + timedelta(days), "attempt": job.attempt}

    @handler
    def fails(number: int):
        raise ValueError(f"no {number}")

    @hookimpl(wrapper=True)
    def supervisor_run(job):
        return [job.payload, (yield)]
"""


def test_typed_handlers_get_their_parameters(command: Command) -> None:
    ended = _run(
        command, ("shift", {"day": "2030-01-31"}), ("fails", {"number": 3}), ("shift", {"day": "today", "day2": 1})
    )
    assert [job["state"] for job in ended] == ["succeeded", "failed", "failed"]
    assert ended[0]["result"] == [{"day": "2030-01-31"}, {"day": "2030-02-01", "attempt": 1}]
    (error,) = ended[1]["errors"]
    assert (error["cause"], error["type"], error["message"]) == ("exception", "ValueError", "no 3")
    assert "binding.py" not in error["traceback"]
    (error,) = ended[2]["errors"]
    assert (error["cause"], error["type"], error["traceback"]) == ("rejected", "InvalidPayload", "")
    assert error["message"].startswith("payload.day: expected a valid date")
    assert error["message"].endswith("payload.day2: unexpected, did you mean 'day'?")


def test_workers_that_are_spawned_bind_them_too(command: Command) -> None:
    (job,) = _run(command, ("shift", {"day": "2030-01-31", "days": 2}), start="spawn")
    assert job["result"][1]["day"] == "2030-02-02"


def test_the_schema_of_a_payload_is_shown(command: Command) -> None:
    command.write(plugins={"p.py": PLUGIN})
    report = json.loads(command.ask("plugins", "--json"))
    schemas = {handler["name"]: handler["schema"] for handler in report["handlers"]}
    assert schemas["shift"]["properties"]["days"] == {"type": "integer", "default": 1, "title": "Days"}


def _run(command: Command, *jobs: tuple[str, Any], start: str = "fork") -> list[dict[str, Any]]:
    command.write(
        config=f"workers: {{count: 1, start: {start}}}\nretry: {{max_retries: 0}}\n", plugins={"p.py": PLUGIN}
    )
    for handler, payload in jobs:
        command.enqueue(handler, payload)
    command.run("--drain").wait(60)
    return sorted(command.jobs(), key=lambda job: job["id"])
