"""Print jobs, for people or as JSON, and what a command has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import click
import orjson

from supervisor.cli.context import UserMistake, current_context, echo, load_settings
from supervisor.cli.exit_codes import DONE
from supervisor.cli.render import (
    ago,
    clipped,
    due,
    last_error,
    print_block,
    print_fields,
    print_heading,
    print_json,
    print_table,
)
from supervisor.cli.store_access import use_store
from supervisor.config.settings import Settings
from supervisor.events import SinkMissing
from supervisor.jobs import JobState
from supervisor.stores.protocol import Store
from supervisor.stores.records import OperatorResult
from supervisor.text.units import counted, format_duration

COLUMNS = ("id", "handler", "queue", "state", "attempt", "due", "ended", "dead letter", "missing sinks", "last error")
FIELDS = (
    "id", "handler", "queue", "priority", "key", "on_failure", "unique", "unique_while", "group", "on_parent_failed", "tags", "state",
    "attempt", "retries", "max_retries", "timeout", "backoff", "snoozes", "dead_letter",
)  # fmt: skip
TIMES = ("created_at", "due_at", "expires_at", "started_at", "finished_at")
AHEAD = frozenset({"due_at", "expires_at"})
ERROR_FIELDS = ("signal", "exit_code", "peak_memory", "oom_suspected", "heartbeat_age", "host", "pid")
ERROR_BLOCKS = ("traceback", "stack", "stderr")
MAX_RELATIVES = 20  # parents, and children, in the tree of a workflow
MAX_REFUSED = 20  # refused jobs named in the message


def print_rows(jobs: Iterable[dict[str, Any]]) -> bool:
    """Print a table of the jobs, and return whether there are any."""
    return print_table(COLUMNS, map(_row, jobs))


def print_job(job: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(job)
        return
    fields = {name: job.get(name) for name in FIELDS} | {"snoozes": job["snoozes"] or None}
    fields |= _chosen(job)
    times = {name: f"{job[name]}  ({(due if name in AHEAD else ago)(job[name])})" for name in TIMES if job.get(name)}
    waiting = current_context().mask(job.get("waiting_because") or "")
    missing = ", ".join(job["missing_sinks"])
    progress = job["progress"] and f"{progress_line(job['progress'])}  ({ago(job['progress']['at'])})"
    print_fields(
        {**fields, "missing_sinks": missing, **times, progress_name(job): progress, "waiting_because": waiting}
    )
    print_relatives(job)
    for name in ("headers", "payload", "result"):
        if job.get(name) not in (None, {}):
            print_heading(name)
            print_block(orjson.dumps(job[name], option=orjson.OPT_INDENT_2).decode())
    for error in job.get("errors") or []:
        _print_error(error)
    if log := job["log"]:
        print_heading(f"log of attempt {log['attempt']}")
        left_out = [f"... {counted(log['skipped'], 'line')} left out ..."] if log["skipped"] else []
        print_block(current_context().mask("\n".join([*left_out, *log["lines"]])))


def _chosen(job: Mapping[str, Any]) -> dict[str, str | None]:
    """Return what the job has of its own as text; what is the default is None."""
    while_, options = job.get("unique_while"), job.get("options") or {}
    on_failure, on_parent_failed, timeout = job.get("on_failure"), job.get("on_parent_failed"), options.get("timeout")
    backoff = {name: value for name, value in (options.get("backoff") or {}).items() if value is not None}
    curve = (f"{name} {value if isinstance(value, str) else _curve(name, value)}" for name, value in backoff.items())
    return {
        "tags": ", ".join(job.get("tags") or ()),
        "on_failure": None if on_failure == "pass" else on_failure,
        "on_parent_failed": None if on_parent_failed == "cancel" else on_parent_failed,
        "unique_while": None
        if while_ == "unfinished"
        else while_
        if isinstance(while_, str | None)
        else format_duration(while_),
        "timeout": None if timeout is None else format_duration(timeout) if timeout else "none",
        "backoff": ", ".join(curve),
    }


def _curve(name: str, value: float) -> str:
    return f"{value:g}" if name == "factor" else format_duration(value)


def print_relatives(job: Mapping[str, Any]) -> None:
    """Print the parents and the children of the job as a tree, if it has any."""
    parents, children = job.get("parents") or [], job.get("children") or []
    if not parents and not children:
        return
    print_heading("workflow")
    lines = [_relative(each) for each in parents[:MAX_RELATIVES]] + _more(parents)
    lines.append(f"{'└─ ' if parents else ''}{job['id']} {job['handler']}: {job['state'].replace('_', ' ')} (this job)")
    shown = [_relative(each) for each in children[:MAX_RELATIVES]] + _more(children)
    lines += [
        f"{'   ' if parents else ''}{'└─' if n == len(shown) else '├─'} {line}" for n, line in enumerate(shown, 1)
    ]
    print_block("\n".join(lines))


def _relative(job: Mapping[str, Any]) -> str:
    state = "deleted" if job["state"] is None else job["state"].replace("_", " ")
    return f"{job['id']} {job['handler'] or ''}: {state}".replace(" :", ":") + (", waited for" if job["waits"] else "")


def _more(jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"... {len(jobs) - MAX_RELATIVES:,} more ..."] if len(jobs) > MAX_RELATIVES else []


def progress_name(job: Mapping[str, Any]) -> str:
    """Return how the progress of this job is named: by its attempt, if that is not the attempt of the job."""
    earlier = job["progress"] and job["progress"]["attempt"] != job["attempt"]
    return f"progress of attempt {job['progress']['attempt']}" if earlier else "progress"


def progress_line(progress: Mapping[str, Any]) -> str:
    """Return the progress of a job as text, such as `3/10 (30%) converting`."""
    done, total = progress["done"], progress["total"]
    share = "" if total is None else f"/{total:,} ({done / total:.0%})" if total else f"/{total:,}"
    return f"{done:,}{share} {progress['message'] or ''}".rstrip()


def print_missing_sinks(settings: Settings, sinks: Sequence[dict[str, Any]]) -> None:
    """Print which of these sinks (as in `status --json`) dead letters wait for in vain."""
    for row in sinks:
        if row["pending"] and not row["supervisors"]:
            echo(SinkMissing(row["sink"], row["pending"], row["sink"] in settings.dlq.names).text)


def change_jobs(
    done: str | Mapping[JobState, str], change: Callable[[Store], OperatorResult], *, empty: str = ""
) -> int:
    """Change jobs in the store of the config, and print `done` (which may depend on the state before) and their ids, or `empty`
    if there were none. Return the exit code.

    Raises UserMistake if any job was refused; the others are changed even so.
    """
    changed, refused = use_store(load_settings(), change)
    lines: dict[str, list[int]] = {}
    for id, state in changed.items():
        lines.setdefault(done if isinstance(done, str) else done[state], []).append(id)
    for line, ids in lines.items():
        click.echo(f"{line}: {' '.join(map(str, ids))}")
    if not changed and not refused and empty:
        click.echo(empty)
    if refused:
        reasons = [f"job {id}: {reason}" for id, reason in islice(refused.items(), MAX_REFUSED)]
        more = len(refused) - len(reasons)
        raise UserMistake("; ".join(reasons) + (f"; and {more:,} more" if more else ""))
    return DONE


def _row(job: dict[str, Any]) -> list[Any]:
    return [
        job["id"], job["handler"], job["queue"], job["state"], job["attempt"],
        due(job["due_at"]) if job["state"] in (JobState.SCHEDULED, JobState.READY) else "",
        ago(job["finished_at"]), job["dead_letter"], ", ".join(job["missing_sinks"]), clipped(last_error(job)),
    ]  # fmt: skip


def _print_error(error: dict[str, Any]) -> None:
    print_heading(f"attempt {error['attempt']}: {error['cause']}, {ago(error['at'])}")
    if message := ": ".join(filter(None, (error.get("type"), error.get("message")))):
        print_block(message)
    if details := [_detail(name, error[name]) for name in ERROR_FIELDS if error.get(name) not in (None, False)]:
        print_block(", ".join(details))
    for name in ERROR_BLOCKS:
        if error.get(name):
            click.echo(f"  {name}")
            print_block(error[name])


def _detail(name: str, value: Any) -> str:
    if name == "heartbeat_age":
        return f"last heartbeat {format_duration(value)} before"
    if name == "peak_memory":
        return f"peak memory {value / 10**6:.0f}MB"
    return "killed for memory, it seems" if name == "oom_suspected" else f"{name.replace('_', ' ')} {value}"
