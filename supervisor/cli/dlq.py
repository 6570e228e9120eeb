"""supervisor dlq list, show, redrive, purge"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from supervisor.cli.changes import change_jobs
from supervisor.cli.context import UserMistake, load_settings
from supervisor.cli.groups import SuggestingGroup
from supervisor.cli.job_output import print_job, print_jobs
from supervisor.cli.options import COUNT, config_option, force_option, json_option, limit_option
from supervisor.cli.store_access import use_store
from supervisor.config.settings import Settings


@click.group(cls=SuggestingGroup)
def dlq() -> None:
    """Show dead letters, and redrive or purge them."""


@dlq.command("list")
@config_option
@limit_option
@json_option
def list_dead_letters(config: Path | None, limit: int, as_json: bool) -> None:
    """List dead letters, newest first."""
    settings = load_settings(config)
    found = use_store(settings, lambda store: store.list_jobs(dead_letter="any", limit=limit))
    print_jobs(found, as_json, _empty(settings))


def _empty(settings: Settings) -> str:
    if settings.dlq.active:
        return "no dead letters"
    return "no dead letters: dlq.sinks is empty, so failed jobs have none; see supervisor jobs list --state failed"


@dlq.command()
@config_option
@click.argument("id", type=COUNT)
@json_option
def show(config: Path | None, id: int, as_json: bool) -> None:
    """Show everything about one dead letter."""
    job = use_store(load_settings(config), lambda store: store.get(id))
    if job is None:
        raise UserMistake(f"no job {id}")
    if job["dead_letter"] is None:
        raise UserMistake(f"job {id} is {job['state']}, not a dead letter")
    print_job(job, as_json)


@dlq.command()
@config_option
@click.argument("ids", nargs=-1, type=COUNT, metavar="[ID...]")
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@force_option
def redrive(config: Path | None, ids: Sequence[int], everything: bool, force: bool) -> None:
    """Run dead letters again: their retries start at 0, their history is kept."""
    if everything == bool(ids):
        raise click.UsageError("expected the ids of dead letters, or --all")
    change_jobs(config, "redriven", lambda store: store.redrive(ids or None, force=force), empty="no dead letters")


@dlq.command()
@config_option
@force_option
def purge(config: Path | None, force: bool) -> None:
    """Delete all dead letters."""
    change_jobs(config, "purged", lambda store: store.purge(force=force), empty="no dead letters")
