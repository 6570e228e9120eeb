"""The whole story of a job: what it is, what it waits for, and what became of each attempt."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from supervisor.http.pages.rendering import Text, json_text, parsed, text
from supervisor.jobs import JobState
from supervisor.stores.waiting import UNFINISHED

SHORT = 2000
"""Characters of the texts of attempts before the last one."""
TEXTS = ("traceback", "stack", "stderr")
MAX_ATTEMPTS = 20
LOG_LINES = 200
RETRIED = frozenset({JobState.SCHEDULED, JobState.FAILED, JobState.CANCELLED})


def story(job: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the facts of the page about a job with its `waiting_because`."""
    state = job["state"]
    return {
        "job": job,
        "took": _took(job, now),
        "attempts": _attempts(job),
        "attempts_left_out": max(0, len(job["errors"]) - MAX_ATTEMPTS),
        "payload": lambda: text(json_text(job["payload"])),
        "headers": text(json_text(job["headers"])) if job["headers"] else None,
        "result": None if job["result"] is None else text(json_text(job["result"])),
        "log": _log(job),
        "may": {
            "retry": state in RETRIED,
            "run_again": state == JobState.SUCCEEDED,
            "cancel": state in UNFINISHED,
            "delete": state != JobState.IN_FLIGHT,
        },
    }


def part_of(job: Mapping[str, Any], part: str) -> str | None:
    """Return a whole text of a job: `payload`, `result`, `headers`, `log`, or `attempt-2`."""
    if part in ("payload", "result", "headers"):
        return json_text(job[part])
    if part == "log":
        return "" if job["log"] is None else "\n".join(map(str, job["log"]["lines"]))
    number = part.removeprefix("attempt-")
    found = [error for error in job["errors"] if f"{error.get('attempt')}" == number]
    return None if part == number or not found else json_text(found) + _plain(found)


def _plain(errors: list[Mapping[str, Any]]) -> str:
    return "".join(f"\n\n--- {name}\n{error[name]}" for error in errors for name in TEXTS if error.get(name))


def _took(job: Mapping[str, Any], now: datetime) -> float | None:
    """Return for how many seconds its last attempt ran, up to this moment if it runs."""
    started, ended = parsed(job["started_at"]), parsed(job["finished_at"])
    if started is None or job["state"] in (JobState.SCHEDULED, JobState.READY):
        return None
    return ((ended or now) - started).total_seconds()


def _attempts(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the failed attempts, the newest first."""
    return [
        {
            "attempt": error.get("attempt"), "cause": error.get("cause"), "type": error.get("type") or "",
            "message": str(error.get("message") or ""), "at": error.get("at"), "facts": _facts(error),
            "texts": {
                name: text(str(error[name]), SHORT if older else 16_384) for name in TEXTS if error.get(name)
            },
            "is_last": not older,
        }
        for older, error in enumerate(reversed(job["errors"][-MAX_ATTEMPTS:]))
    ]  # fmt: skip


def _facts(error: Mapping[str, Any]) -> dict[str, Any]:
    memory, age = error.get("peak_memory"), error.get("heartbeat_age")
    found = {
        "host": error.get("host"),
        "pid": error.get("pid"),
        "exit code": error.get("exit_code"),
        "signal": error.get("signal"),
        "peak memory": f"{memory / 1_000_000:,.0f} MB" if isinstance(memory, int) else None,
        "killed for memory": "likely, by the kernel" if error.get("oom_suspected") else None,
        "last heartbeat": f"{age:.1f}s before" if isinstance(age, float) else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _log(job: Mapping[str, Any]) -> dict[str, Any] | None:
    log = job["log"]
    if log is None:
        return None
    shown: Text = text("\n".join(map(str, log["lines"][-LOG_LINES:])))
    return {"attempt": log["attempt"], "left_out": log["skipped"], "text": shown}
