"""supervisor jobs list, show, cancel, retry, delete"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click
import orjson

from supervisor.cli.app import SuggestingGroup
from supervisor.cli.context import (
    COUNT,
    UserMistake,
    config_option,
    force_option,
    job_ids,
    json_option,
    load_settings,
    name_of,
    read_with,
    use_store,
)
from supervisor.cli.render import ago, block, clipped, heading, print_fields, print_json, print_table
from supervisor.jobs import JobState
from supervisor.stores.protocol import Store
from supervisor.text.units import format_duration

COLUMNS = ("id", "handler", "queue", "state", "attempt", "due", "ended", "dead letter", "last error")
FIELDS = ("id", "handler", "queue", "priority", "state", "attempt", "retries", "max_retries", "dead_letter")
TIMES = ("created_at", "due_at", "started_at", "finished_at")
ERROR_FIELDS = ("signal", "exit_code", "peak_memory", "oom_suspected", "heartbeat_age", "host", "pid")
MAX_REFUSED = 20  # are named, of those that a verb can't be done to
ERROR_BLOCKS = ("traceback", "stack", "stderr")

limit_option = click.option("--limit", type=COUNT, default=100, show_default=True, help="At most so many.")


@click.group(cls=SuggestingGroup)
def jobs() -> None:
    """Look at jobs, and cancel, retry or delete them."""


@jobs.command("list")
@config_option
@click.option("--state", type=click.Choice([state.value for state in JobState]), help="Only jobs in this state.")
@click.option("--queue", callback=read_with(name_of), help="Only jobs of this queue.")
@click.option("--handler", callback=read_with(name_of), help="Only jobs for this handler.")
@limit_option
@json_option
def list_jobs(
    config: Path | None, state: str | None, queue: str | None, handler: str | None, limit: int, as_json: bool
) -> None:
    """List jobs, newest first."""
    wanted = JobState(state) if state else None
    found = use_store(
        load_settings(config),
        lambda store: store.list_jobs(state=wanted, queue=queue, handler=handler, limit=limit),
    )
    filtered = state or queue or handler
    empty = "no such jobs" if filtered else "no jobs yet: supervisor enqueue HANDLER [JSON]"
    print_jobs(found, as_json, empty)


@jobs.command()
@config_option
@click.argument("id", type=COUNT)
@json_option
def show(config: Path | None, id: int, as_json: bool) -> None:
    """Show all that is known about a job."""
    job = use_store(load_settings(config), lambda store: store.get(id))
    if job is None:
        raise UserMistake(f"no job {id}")
    print_job(job, as_json)


@jobs.command()
@config_option
@job_ids
def cancel(config: Path | None, ids: Sequence[int]) -> None:
    """Cancel jobs; the worker of a running one is killed."""
    change(config, "cancelled", lambda store: store.cancel(ids))


@jobs.command()
@config_option
@job_ids
def retry(config: Path | None, ids: Sequence[int]) -> None:
    """Make scheduled jobs due now, and start ended ones anew."""
    change(config, "due now", lambda store: store.retry(ids))


@jobs.command()
@config_option
@job_ids
@force_option
def delete(config: Path | None, ids: Sequence[int], force: bool) -> None:
    """Delete jobs that are not running."""
    change(config, "deleted", lambda store: store.delete(ids, force=force))


# --- shared with the dead letters


def change(
    config: Path | None, done: str, verb: Callable[[Store], tuple[list[int], dict[int, str]]], nothing: str = ""
) -> None:
    """Apply one of the operator's verbs and say what it changed; exit code 2 if it refused any."""

    def apply(store: Store) -> tuple[list[int], dict[int, str]]:
        both = verb(store)
        store.notify()
        return both

    changed, refused = use_store(load_settings(config), apply)
    if changed:
        click.echo(f"{done}: {' '.join(map(str, changed))}")
    elif not refused and nothing:
        click.echo(nothing)
    if refused:
        reasons = [f"job {id}: {why}" for id, why in islice(refused.items(), MAX_REFUSED)]
        more = len(refused) - len(reasons)
        raise UserMistake("; ".join(reasons) + (f"; and {more:,} more" if more else ""))


def print_jobs(found: Sequence[dict[str, Any]], as_json: bool, empty: str) -> None:
    if as_json:
        for job in found:
            print_json(job)
    elif found:
        print_table(COLUMNS, [_row(job) for job in found])
    else:
        click.echo(empty)


def print_job(job: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(job)
        return
    fields = {name: job.get(name) for name in FIELDS}
    times = {name: f"{job[name]}  ({ago(job[name])})" for name in TIMES if job.get(name)}
    print_fields({**fields, **times})
    for name in ("headers", "payload", "result"):
        if job.get(name) not in (None, {}):
            heading(name)
            block(orjson.dumps(job[name], option=orjson.OPT_INDENT_2).decode())
    for error in job.get("errors") or []:
        _print_error(error)


def _row(job: dict[str, Any]) -> list[Any]:
    errors = job.get("errors") or []
    error = (
        clipped(": ".join(filter(None, (errors[-1].get("type") or errors[-1]["cause"], errors[-1].get("message")))))
        if errors
        else ""
    )
    due = ago(job["due_at"]) if job["state"] in (JobState.SCHEDULED, JobState.READY) else ""
    return [
        job["id"], job["handler"], job["queue"], job["state"], job["attempt"],
        due, ago(job["finished_at"]), job["dead_letter"], error,
    ]  # fmt: skip


def _detail(name: str, value: Any) -> str:
    if name == "heartbeat_age":
        return f"last heartbeat {format_duration(value)} before"
    if name == "peak_memory":
        return f"peak memory {value / 10**6:.0f}MB"
    return "killed for memory, it seems" if name == "oom_suspected" else f"{name.replace('_', ' ')} {value}"


def _print_error(error: dict[str, Any]) -> None:
    what = ": ".join(filter(None, (error.get("type"), error.get("message"))))
    heading(f"attempt {error['attempt']}: {error['cause']}, {ago(error['at'])}")
    if what:
        block(what)
    details = [_detail(name, error[name]) for name in ERROR_FIELDS if error.get(name) not in (None, False)]
    if details:
        block(", ".join(details))
    for name in ERROR_BLOCKS:
        if error.get(name):
            click.echo(f"  {name}")
            block(error[name])
