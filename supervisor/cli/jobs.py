"""supervisor jobs list, show, cancel, retry, delete; `wait` has a file of its own"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from supervisor.cli.context import UserMistake, echo, load_settings
from supervisor.cli.follow import follow
from supervisor.cli.job_output import change_jobs, print_job, print_jobs
from supervisor.cli.options import (
    COUNT,
    SuggestingGroup,
    config_option,
    force_option,
    job_ids,
    json_option,
    limit_option,
    name_of,
    read_with,
)
from supervisor.cli.store_access import opened_store, use_store
from supervisor.cli.wait import wait
from supervisor.jobs import JobState
from supervisor.stores.protocol import Store
from supervisor.stores.records import OperatorResult
from supervisor.stores.waiting import still_runs, with_reasons

RETRIED = {
    JobState.SCHEDULED: "due now",
    JobState.FAILED: "failed, now run again",
    JobState.CANCELLED: "cancelled, now run again",
    JobState.SUCCEEDED: "succeeded, now run again",
}


@click.group(cls=SuggestingGroup)
@config_option
def jobs() -> None:
    """Show jobs, wait for their end, and cancel, retry or delete them."""


@jobs.command("list")
@config_option
@click.option("--state", type=click.Choice([state.value for state in JobState]), help="Only jobs in this state.")
@click.option("--queue", metavar="NAME", callback=read_with(name_of), help="Only jobs of this queue.")
@click.option("--handler", metavar="NAME", callback=read_with(name_of), help="Only jobs for this handler.")
@limit_option
@json_option
def list_jobs(state: str | None, queue: str | None, handler: str | None, limit: int, as_json: bool) -> None:
    """List jobs, newest first."""
    wanted = JobState(state) if state else None

    def jobs_of(store: Store) -> Iterator[dict[str, Any]]:
        found = store.list_jobs(state=wanted, queue=queue, handler=handler, limit=limit, brief=not as_json)
        return with_reasons(store, found) if as_json else found

    filtered = state or queue or handler
    print_jobs(
        load_settings(),
        jobs_of,
        as_json,
        "no such jobs" if filtered else "no jobs yet: supervisor enqueue HANDLER [JSON]",
    )


@jobs.command()
@config_option
@click.argument("id", type=COUNT)
@click.option("--follow", "follows", is_flag=True, help="Print its state, its progress and what it logs until it ends.")
@json_option
def show(id: int, follows: bool, as_json: bool) -> int | None:
    """Show everything about one job, and why it does not run.

    With --follow, the exit code is 0 if it succeeded, and 1 if it failed or was cancelled.
    """
    if follows:
        with opened_store(load_settings()) as store:
            return follow(store, id, as_json)
    settings = load_settings()
    found = use_store(settings, lambda store: [*with_reasons(store, filter(None, [store.get(id)]), settings.dlq.names)])
    if not found:
        raise UserMistake(f"no job {id}")
    print_job(found[0], as_json)
    return None


jobs.add_command(wait)


@jobs.command()
@config_option
@job_ids
def cancel(ids: Sequence[int]) -> int:
    """Cancel jobs. The worker of a running job is killed."""
    warnings: list[str] = []

    def change(store: Store) -> OperatorResult:
        status = store.stats()  # from before: a supervisor that is not seen is soon left out
        result = store.cancel(ids)
        reasons = {id: still_runs(id, status) for id in result.changed}
        warnings.extend(f"Warning: job {id} is cancelled, and {reason}" for id, reason in reasons.items() if reason)
        return result

    try:
        return change_jobs("cancelled", change)
    finally:
        for warning in warnings:
            echo(warning, err=True)


@jobs.command()
@config_option
@job_ids
@click.option(
    "--force", is_flag=True, help="Include succeeded jobs, and jobs with a dead letter that some sink still lacks."
)
def retry(ids: Sequence[int], force: bool) -> int:
    """Make scheduled jobs due now, and run failed and cancelled jobs again."""
    return change_jobs(RETRIED, lambda store: store.retry(ids, force=force))


@jobs.command()
@config_option
@job_ids
@force_option
def delete(ids: Sequence[int], force: bool) -> int:
    """Delete jobs that are not running."""
    return change_jobs("deleted", lambda store: store.delete(ids, force=force))
