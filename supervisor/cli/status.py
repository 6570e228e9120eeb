"""supervisor status"""

from __future__ import annotations

from typing import Any

import click

from supervisor.cli.context import load_settings
from supervisor.cli.job_output import print_missing_sinks
from supervisor.cli.options import config_option, json_option
from supervisor.cli.render import ago, print_json, print_table
from supervisor.cli.store_access import use_store
from supervisor.text.units import format_duration

QUEUE_COLUMNS = ("queue", "fresh", "retries", "scheduled", "in flight", "failed", "workers busy", "")
QUEUE_KEYS = ("queue", "queue_size", "retry_queue_size", "scheduled", "in_flight", "failed", "processing")
SINK_COLUMNS = ("sink", "dead letters", "supervisors")
SINK_KEYS = ("sink", "pending", "supervisors")
WORKER_COLUMNS = ("pid", "state", "job", "handler", "attempt", "for")


@click.command()
@config_option
@json_option
def status(as_json: bool) -> None:
    """Show every queue, every supervisor and the current job of each worker, and the sinks of dead letters."""
    stats = use_store(load_settings(), lambda store: store.stats())
    if as_json:
        print_json(stats)
        return
    print_queues(stats["queues"])
    click.echo()
    _print_supervisors(stats["supervisors"])
    if stats["sinks"]:
        click.echo()
        print_table(SINK_COLUMNS, [[row[key] for key in SINK_KEYS] for row in stats["sinks"]])
        print_missing_sinks(stats["sinks"])


def print_queues(queues: list[dict[str, Any]]) -> None:
    if not queues:
        click.echo("no jobs yet: supervisor enqueue HANDLER [JSON]")
        return
    rows = [[*(queue[key] for key in QUEUE_KEYS), "paused" if queue["paused"] else ""] for queue in queues]
    print_table(QUEUE_COLUMNS, rows)


def _print_supervisors(supervisors: list[dict[str, Any]]) -> None:
    if not supervisors:
        click.echo("no supervisor is running: supervisor run")
    for each in supervisors:
        title = f"{each['host']} pid {each['pid']}: {each['state']}, seen {ago(each['seen_at'])}"
        print_table(WORKER_COLUMNS, [_worker_row(worker) for worker in each.get("workers") or []], title)


def _worker_row(worker: dict[str, Any]) -> list[Any]:
    job = worker.get("current_job") or {}
    running = job.get("running_for")
    return [
        worker.get("pid"),
        worker.get("state"),
        job.get("job_id"),
        job.get("handler"),
        job["retry_count"] + 1 if "retry_count" in job else None,
        format_duration(running) if running is not None else None,
    ]
