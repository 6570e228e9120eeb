"""supervisor jobs list, show, cancel, retry, delete; `wait` has a file of its own"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from supervisor.cli.by_filter import change_matching
from supervisor.cli.context import UserMistake, echo, load_settings
from supervisor.cli.follow import follow
from supervisor.cli.job_filter import change_options, filter_options, refuse_mixture, take_changes, take_filter
from supervisor.cli.job_list import before_option, print_page
from supervisor.cli.job_output import MAX_REFUSED, change_jobs, print_job
from supervisor.cli.options import (
    COUNT,
    SuggestingGroup,
    config_option,
    force_option,
    json_option,
    limit_option,
)
from supervisor.cli.store_access import opened_store, use_store
from supervisor.cli.wait import wait
from supervisor.jobs import JobState
from supervisor.stores.by_filter import COMMANDS
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
@filter_options(state.value for state in JobState)
@before_option
@limit_option
@json_option
def list_jobs(before: str | None, limit: int, as_json: bool, **options: Any) -> None:
    """List jobs, the newest first. If there are more, the command for the next page is on standard error."""
    given = take_filter(options)
    empty = "no such jobs" if given.options or before else "no jobs yet: supervisor enqueue HANDLER [JSON]"
    with opened_store(load_settings()) as store:
        print_page(
            store, ("jobs", "list"), given, before, limit, as_json=as_json, empty=empty, read=with_reasons
        )  # fmt: skip


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
@change_options(COMMANDS["cancel"].states)
def cancel(ids: Sequence[int], **options: Any) -> int:
    """Cancel jobs: those with these ids, or all that match a filter. The worker of a running job is killed."""
    given, changes = take_filter(options), take_changes(options)
    refuse_mixture(ids, given, changes)
    warnings: list[str] = []
    status: list[dict[str, Any]] = []  # from before: a supervisor that is not seen is soon left out

    def look(store: Store) -> None:
        status[:] = [store.stats()]

    def warn(result: OperatorResult) -> None:
        running = [id for id, state in result.changed.items() if ids or state is JobState.IN_FLIGHT]
        reasons = {id: still_runs(id, status[0]) for id in running[: max(0, MAX_REFUSED - len(warnings))]}
        warnings.extend(f"Warning: job {id} is cancelled, and {reason}" for id, reason in reasons.items() if reason)

    def change(store: Store) -> OperatorResult:
        look(store)
        result = store.cancel(ids)
        warn(result)
        return result

    try:
        if ids:
            return change_jobs("cancelled", change)
        return change_matching("cancel", given.where, changes, "cancelled", before=look, each=warn)
    finally:
        for warning in warnings:
            echo(warning, err=True)


@jobs.command()
@config_option
@change_options(COMMANDS["retry"].states)
@click.option(
    "--force", is_flag=True, help="Include succeeded jobs, and jobs with a dead letter that some sink still lacks."
)
def retry(ids: Sequence[int], force: bool, **options: Any) -> int:
    """Make scheduled jobs due now, and run failed and cancelled jobs again.

    They are those with these ids, or all that match a filter. Without --state, a filter is for failed jobs.
    """
    given, changes = take_filter(options), take_changes(options, force=force)
    refuse_mixture(ids, given, changes)
    if ids:
        return change_jobs(RETRIED, lambda store: store.retry(ids, force=force))
    return change_matching("retry", given.where, changes, RETRIED)


@jobs.command()
@config_option
@change_options(COMMANDS["delete"].states)
@force_option
def delete(ids: Sequence[int], force: bool, **options: Any) -> int:
    """Delete jobs that are not running: those with these ids, or all that match a filter."""
    given, changes = take_filter(options), take_changes(options, force=force)
    refuse_mixture(ids, given, changes)
    if ids:
        return change_jobs("deleted", lambda store: store.delete(ids, force=force))
    return change_matching("delete", given.where, changes, "deleted")
