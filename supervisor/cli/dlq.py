"""supervisor dlq list, show, redrive, purge, drop-sink"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from supervisor.cli.context import UserMistake, load_settings
from supervisor.cli.exit_codes import DONE
from supervisor.cli.job_output import change_jobs, print_job, print_jobs, print_missing_sinks
from supervisor.cli.options import COUNT, SuggestingGroup, config_option, force_option, json_option, limit_option
from supervisor.cli.store_access import once_available, use_store
from supervisor.cli.topic_redrive import TopicOptions, redrive_topic
from supervisor.config.settings import Settings
from supervisor.stores.protocol import Store
from supervisor.stores.waiting import with_reasons
from supervisor.text.names import did_you_mean_or_all
from supervisor.text.units import counted


@click.group(cls=SuggestingGroup)
@config_option
def dlq() -> None:
    """Show dead letters, redrive or purge them, and drop sinks."""


@dlq.command("list")
@config_option
@limit_option
@json_option
def list_dead_letters(limit: int, as_json: bool) -> None:
    """List dead letters, newest first."""
    settings = load_settings()
    print_jobs(
        settings,
        lambda store: store.list_jobs(dead_letter="any", limit=limit, brief=not as_json),
        as_json,
        _empty(settings),
        None if as_json else lambda store: print_missing_sinks(settings, once_available(store.stats)["sinks"]),
    )


def _empty(settings: Settings) -> str:
    if settings.dlq.enabled:
        return "no dead letters"
    return "no dead letters: dlq.enabled is false, so failed jobs have none; see supervisor jobs list --state failed"


@dlq.command()
@config_option
@click.argument("id", type=COUNT)
@json_option
def show(id: int, as_json: bool) -> None:
    """Show everything about one dead letter."""
    settings = load_settings()
    found = use_store(settings, lambda store: [*with_reasons(store, filter(None, [store.get(id)]), settings.dlq.names)])
    if not found:
        raise UserMistake(f"no job {id}")
    (job,) = found
    if job["dead_letter"] is None:
        raise UserMistake(f"job {id} is {job['state']}, not a dead letter")
    print_job(job, as_json)


@dlq.command()
@config_option
@click.argument("ids", nargs=-1, type=COUNT, metavar="[ID...]")
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@force_option
@click.option(
    "--from-topic", metavar="TOPIC", help="Instead, send the dead letters of this Kafka topic to their sources."
)
@click.option("--to", metavar="TOPIC", help="Send those of --from-topic to this topic.")
@click.option("--limit", type=COUNT, help="Send this number of records at most.")
@click.option("--dry-run", is_flag=True, help="Only count the records that would be sent.")
@click.option("--bootstrap", metavar="HOST:PORT", help="Brokers of --from-topic, in place of those of the config.")
def redrive(ids: Sequence[int], everything: bool, force: bool, **topic: Any) -> int:
    """Run dead letters again: their retries start at 0, their history is kept.

    With --from-topic, send the records in a dead-letter topic of Kafka to the topics that they came from.
    """
    options = TopicOptions(**topic)
    if options.from_topic is not None:
        if ids or everything or force:
            raise click.UsageError("expected no ids, --all or --force beside --from-topic")
        return redrive_topic(options)
    if options.given:
        raise click.UsageError(f"expected {options.given[0]} only beside --from-topic")
    if everything == bool(ids):
        raise click.UsageError("expected the ids of dead letters, or --all")
    return change_jobs("redriven", lambda store: store.redrive(ids or None, force=force), empty="no dead letters")


@dlq.command()
@config_option
@force_option
def purge(force: bool) -> int:
    """Delete all dead letters."""
    return change_jobs("purged", lambda store: store.purge(force=force), empty="no dead letters")


@dlq.command("drop-sink")
@config_option
@click.argument("name")
@click.option("--force", is_flag=True, help="Drop it although the config has it.")
def drop_sink(name: str, force: bool) -> int:
    """Let pending dead letters wait no longer for a sink that is gone for good."""
    settings = load_settings()
    kept_in = settings.path if name in settings.dlq.names and not force else None
    dropped = use_store(settings, lambda store: _drop_sink(store, name, kept_in))
    click.echo(f"dropped sink {name}: {counted(dropped, 'dead letter')} waited for it")
    return DONE


def _drop_sink(store: Store, name: str, kept_in: Path | None) -> int:
    sinks = {row["sink"]: row for row in store.sinks()}
    waited_for = [sink for sink, row in sinks.items() if row["pending"]]
    if name not in waited_for:
        raise UserMistake(f"no pending dead letter waits for sink {name!r}{did_you_mean_or_all(name, waited_for)}")
    if sinks[name]["supervisors"]:
        raise UserMistake(
            f"sink {name}: a running supervisor has it; remove it from dlq.sinks there, and restart that first"
        )
    if kept_in is not None:
        raise UserMistake(
            f"sink {name} is in {kept_in}; remove it there first, or start a supervisor, which publishes to it (--force drops it even so)"
        )
    return store.drop_sink(name)
