"""supervisor dlq list, show, redrive, purge, drop-sink"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from supervisor.cli.by_filter import change_matching
from supervisor.cli.context import UserMistake, load_settings
from supervisor.cli.exit_codes import DONE
from supervisor.cli.job_filter import (
    change_options,
    filter_options,
    refuse_mixture,
    take_changes,
    take_filter_of_dead_letters,
)
from supervisor.cli.job_list import before_option, print_page
from supervisor.cli.job_output import change_jobs, print_job, print_missing_sinks
from supervisor.cli.options import COUNT, SuggestingGroup, config_option, force_option, json_option, limit_option
from supervisor.cli.store_access import once_available, opened_store, use_store
from supervisor.cli.topic_redrive import TopicOptions, redrive_topic
from supervisor.config.settings import Settings
from supervisor.stores.by_filter import DEAD_LETTER_STATES
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
@filter_options(DEAD_LETTER_STATES, "dead letters")
@before_option
@limit_option
@json_option
def list_dead_letters(before: str | None, limit: int, as_json: bool, **options: Any) -> None:
    """List dead letters, the newest first. If there are more, the command for the next page is on standard error."""
    settings, given = load_settings(), take_filter_of_dead_letters(options)
    empty = "no such dead letters" if given.options or before else _empty(settings)
    of_any = given._replace(where=given.where._replace(dead_letter=given.where.dead_letter or "any"))
    with opened_store(settings) as store:
        print_page(store, ("dlq", "list"), of_any, before, limit, as_json=as_json, empty=empty)
        if not as_json:
            print_missing_sinks(settings, once_available(store.stats)["sinks"])


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
@change_options(DEAD_LETTER_STATES, "dead letters")
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@force_option
@click.option(
    "--from-topic", metavar="TOPIC", help="Instead, send the dead letters of this Kafka topic to their sources."
)
@click.option("--to", metavar="TOPIC", help="Send those of --from-topic to this topic.")
@click.option("--bootstrap", metavar="HOST:PORT", help="Brokers of --from-topic, in place of those of the config.")
def redrive(
    ids: Sequence[int], everything: bool, force: bool, from_topic: str | None, to: str | None, bootstrap: str | None,
    **options: Any,
) -> int:  # fmt: skip
    """Run dead letters again: their retries start at 0, their history is kept.

    They are those with these ids, all that match a filter, or all. With --from-topic, send the records in a dead-letter topic of Kafka to
    the topics that they came from.
    """
    given, changes = take_filter_of_dead_letters(options), take_changes(options, force=force)
    topic = TopicOptions(from_topic, to, changes.limit, changes.dry_run, bootstrap)
    if from_topic is not None:
        if ids or everything or force or changes.yes or given.options:
            raise click.UsageError("expected no ids, no filter, --all, --force or --yes beside --from-topic")
        return redrive_topic(topic)
    if topic.only_for_topics:
        raise click.UsageError(f"expected {topic.only_for_topics[0]} only beside --from-topic")
    if everything and (ids or given.options or changes.given not in ([], ["--dry-run"])):
        raise click.UsageError("expected the ids of dead letters, or --all, or a filter")
    if not everything:
        refuse_mixture(ids, given, changes, "the ids of dead letters, or --all")
    if given.options or changes.dry_run:
        return change_matching("redrive", given.where, changes, "redriven")
    return change_jobs("redriven", lambda store: store.redrive(ids or None, force=force), empty="no dead letters")


@dlq.command()
@config_option
@change_options(DEAD_LETTER_STATES, "dead letters")
@force_option
def purge(ids: Sequence[int], force: bool, **options: Any) -> int:
    """Delete all dead letters, those with these ids, or all that match a filter."""
    given, changes = take_filter_of_dead_letters(options), take_changes(options, force=force)
    if ids or given.options:
        refuse_mixture(ids, given, changes)
    if ids:
        return change_jobs("purged", lambda store: store.purge(force=force, ids=ids))
    return change_matching("purge", given.where, changes, "purged", first=_look_whether_it_purges)


def _look_whether_it_purges(store: Store) -> None:
    """Purge nothing: a store that can't purge refuses it, and names what to do instead."""
    store.purge(ids=[])


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
