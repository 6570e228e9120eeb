"""supervisor dlq list, show, redrive, purge"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from supervisor.cli.app import SuggestingGroup
from supervisor.cli.context import (
    COUNT,
    UserMistake,
    config_option,
    force_option,
    json_option,
    load_settings,
    use_store,
)
from supervisor.cli.jobs import change, limit_option, print_job, print_jobs
from supervisor.config.settings import Settings


@click.group(cls=SuggestingGroup)
def dlq() -> None:
    """Look at dead letters, give them another life, or clear them away."""


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
    """Show all that is known about a dead letter."""
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
    """Start dead letters anew: no retries counted, history kept."""
    if everything == bool(ids):
        raise click.UsageError("expected the ids of dead letters, or --all")
    change(config, "redriven", lambda store: store.redrive(ids or None, force=force), "no dead letters")


@dlq.command()
@config_option
@force_option
def purge(config: Path | None, force: bool) -> None:
    """Delete all dead letters."""
    change(config, "purged", lambda store: store.purge(force=force), "no dead letters")
