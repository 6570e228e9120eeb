"""supervisor status"""

from __future__ import annotations

import socket
from typing import Any

import click

from supervisor.cli.context import echo, load_settings
from supervisor.cli.job_output import progress_line
from supervisor.cli.options import config_option, interval_of, json_option, read_with
from supervisor.cli.render import clipped, print_heading, print_json, print_table
from supervisor.cli.status_check import check
from supervisor.cli.store_access import use_store
from supervisor.cli.watch import watch
from supervisor.config.settings import Settings
from supervisor.stores.problems import Present, problems, with_problems
from supervisor.text.units import counted, format_duration

QUEUE_COLUMNS = ("queue", "fresh", "retries", "blocked", "scheduled", "in flight", "failed", "workers busy", "")
QUEUE_KEYS = ("queue", "queue_size", "retry_queue_size", "blocked", "scheduled", "in_flight", "failed", "processing")
SINK_COLUMNS = ("sink", "dead letters", "supervisors")
SINK_KEYS = ("sink", "pending", "supervisors")
MAX_SHOWN = 30
"""The queues, and the problems, that `status` shows."""
PARTITION_COLUMNS = ("partition", "committed", "lag")
WORKER_COLUMNS = ("pid", "state", "job", "handler", "attempt", "for", "progress")


@click.command()
@config_option
@click.option(
    "--check", "checks", is_flag=True, help="Print the problems only; exit with 0 if there are none, else with 1."
)
@click.option("--here", is_flag=True, help="With --check: of the supervisors of this host only.")
@click.option(
    "--watch",
    "seconds",
    metavar="[SECONDS]",
    is_flag=False,
    flag_value="2",
    callback=read_with(interval_of),
    help="Show it again every so many seconds, by default 2, until Ctrl-C.",
)
@json_option
def status(checks: bool, here: bool, seconds: float | None, as_json: bool) -> int | None:
    """Show every queue, every supervisor and the current job of each worker, the sinks of dead letters, and what keeps jobs from running."""
    if checks + as_json + (seconds is not None) > 1 + (as_json and not checks):
        raise click.UsageError("--check can't be combined with --watch or --json")
    if here and not checks:
        raise click.UsageError("--here is for --check only")
    settings = load_settings()
    if checks:
        return check(settings, socket.gethostname() if here else None)
    if seconds is not None:
        return watch(settings, seconds, lambda stats: print_status(stats, settings, as_json), as_json)
    print_status(use_store(settings, lambda store: store.stats()), settings, as_json)
    return None


def print_status(stats: dict[str, Any], settings: Settings, as_json: bool) -> None:
    if as_json:
        print_json(with_problems(stats, settings.dlq.names))
        return
    found = problems(stats, settings.dlq.names)
    _print_busy_queues(stats["queues"])
    _print_supervisors(stats)
    if stats["sinks"]:
        click.echo()
        print_table(SINK_COLUMNS, [[row[key] for key in SINK_KEYS] for row in stats["sinks"]])
    if found:
        click.echo()
        print_heading("problems")
        for each in found[:MAX_SHOWN]:
            echo(f"  {each.text}")
        if len(found) > MAX_SHOWN:
            click.echo(f"  ... and {len(found) - MAX_SHOWN} more: supervisor status --json")


def _print_busy_queues(queues: list[dict[str, Any]]) -> None:
    """Print the queues that are paused or have jobs that wait, run or have failed, those with the most jobs if they are too many."""
    busy = sorted(filter(_size, queues), key=_size, reverse=True)[:MAX_SHOWN]
    if busy or not queues:
        print_queues(sorted(busy, key=lambda queue: queue["queue"]))
    if empty := sum(not _size(queue) for queue in queues):
        click.echo(f"{counted(empty, 'queue', 'have')} no job that waits, runs or has failed")
    if more := len(queues) - empty - len(busy):
        click.echo(f"{counted(more, 'more queue', 'have')} fewer jobs: supervisor queues list")


def _size(queue: dict[str, Any]) -> int:
    return sum((queue["paused"], *(int(queue[key]) for key in QUEUE_KEYS[1:])))


def print_queues(queues: list[dict[str, Any]]) -> None:
    if not queues:
        click.echo("no jobs yet: supervisor enqueue HANDLER [JSON]")
        return
    rows = [[*(queue[key] for key in QUEUE_KEYS), "paused" if queue["paused"] else ""] for queue in queues]
    print_table(QUEUE_COLUMNS, rows)


def _print_supervisors(stats: dict[str, Any]) -> None:
    present = Present(stats)
    for each in stats["supervisors"]:
        age = present.age(each)
        seen = f"as it was {format_duration(age)} ago" if age > 0 else "as it was before the clock was set back"
        seen = "now" if abs(age) < 1 else seen
        holds = f", {counted(each['in_flight'], 'job')} in flight" if each["in_flight"] else ""
        click.echo()
        print_heading(f"{each['host']} pid {each['pid']}: {each['state']}{holds}, {seen}")
        named = any(group["group"] for group in each["groups"])
        for group in each["groups"]:
            if named or group["min"] < group["max"]:
                echo(_group_line(group))
        if (alone := each["runs_alone"]) is not None:
            echo(
                f"starts no other job beside job {alone}, which may have ended supervisors: supervisor jobs show {alone}"
            )
        for limit in each["limits"]:
            echo(_limit_line(limit))
        _print_partitions(each["partitions"])
        if each["workers"]:
            columns = [*WORKER_COLUMNS, "group"] if named else WORKER_COLUMNS
            rows = [_worker_row(worker, present) for worker in each["workers"]]
            print_table(
                columns,
                [
                    [*row, worker.get("group")][: len(columns)]
                    for row, worker in zip(rows, each["workers"], strict=True)
                ],
            )


def _print_partitions(partitions: list[dict[str, Any]]) -> None:
    """Print the partitions of a member of a Kafka group, those with the largest lag if they are too many."""
    if not partitions:
        return
    largest = sorted(partitions, key=lambda it: it["lag"] or 0, reverse=True)[:MAX_SHOWN]
    shown = sorted(largest, key=lambda it: (it["topic"], it["partition"]))
    print_table(PARTITION_COLUMNS, [[f"{it['topic']}/{it['partition']}", it["committed"], it["lag"]] for it in shown])
    if more := len(partitions) - len(shown):
        click.echo(f"{counted(more, 'more partition', 'have')} less lag: supervisor status --json")


def _group_line(group: dict[str, Any]) -> str:
    name = f"group {group['group']} ({', '.join(group['queues'])})" if group["group"] else "other queues"
    limits = "" if group["min"] == group["max"] else f", from {group['min']} to {group['max']}"
    return f"{name}: {counted(group['count'], 'worker')}{limits}"


def _limit_line(limit: dict[str, Any]) -> str:
    of, name, most = limit["of"], limit["name"], limit["limit"]
    if of == "groups":
        some = "" if limit["reached"] is None else "; no more of some groups now"
        return f"limit of each group in queue {name}: {most}{some}"
    return f"limit of {of} {name}: {most}{'' if limit['reached'] is None else '; no more now'}"


def _worker_row(worker: dict[str, Any], present: Present) -> list[Any]:
    job = worker.get("current_job") or {}
    return [
        worker.get("pid"),
        worker.get("state"),
        job.get("job_id"),
        job.get("handler"),
        job["retry_count"] + 1 if "retry_count" in job else None,
        format_duration(present.ran(job)) if job else None,
        clipped(progress_line(job["progress"])) if job.get("progress") else None,
    ]
