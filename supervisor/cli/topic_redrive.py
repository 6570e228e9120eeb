"""supervisor dlq redrive --from-topic"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from supervisor.cli.context import UserMistake, current_context, echo, load_settings
from supervisor.cli.exit_codes import DONE
from supervisor.config import kafka as checked
from supervisor.config.settings import Settings
from supervisor.dead_letters.topic_redrive import Cluster, Redriven, opened_redrive
from supervisor.text.units import counted

GROUP = "supervisor"
"""The group without a Kafka store in the config; what was redriven is committed as `<group>-redrive`."""

MAX_LEFT = 20


class TopicOptions(NamedTuple):
    """The options of a redrive from a topic."""

    from_topic: str | None
    to: str | None
    limit: int | None
    dry_run: bool
    bootstrap: str | None

    @property
    def only_for_topics(self) -> list[str]:
        """The options that were given, and are for records in a topic only."""
        return [name for name, value in (("--to", self.to), ("--bootstrap", self.bootstrap)) if value is not None]


def redrive_topic(options: TopicOptions) -> int:
    """Send the dead letters of a topic to where they came from, and print how many. Return the exit code.

    Raises UserMistake if some can't be sent anywhere, and StoreError if an error has ended it; the others are sent even so.
    """
    topic, to = options.from_topic, options.to
    for name, value in (("--from-topic", topic), ("--to", to)):
        if value is not None and not checked.is_topic(value):
            raise UserMistake(f"{name}: {value!r} is not the name of a topic")
    assert topic is not None
    if to == topic:
        raise UserMistake("--to: expected another topic than --from-topic")
    cluster = _cluster(load_settings(), options.bootstrap)
    timeout = current_context().store_timeout
    with opened_redrive(cluster, topic, to, options.limit, timeout, dry_run=options.dry_run) as redrive:
        return _print(redrive.run(), topic, cluster, dry_run=options.dry_run)


def _cluster(settings: Settings, bootstrap: str | None) -> Cluster:
    """Return the brokers to use: those of the store, else of a sink, unless the command line names others."""
    given = None if bootstrap is None else _bootstrap(bootstrap)
    if (store := settings.store.kafka) is not None:
        return Cluster(given or store.bootstrap, store.kafka, f"{store.group}-redrive")
    for sink in settings.dlq.sinks:
        if sink.type == checked.KAFKA and "bootstrap" in sink.options:
            own = given or _bootstrap(sink.options["bootstrap"])
            return Cluster(own, sink.options.get("kafka") or {}, f"{GROUP}-redrive")
    if given is None:
        raise UserMistake(
            "the config has neither a Kafka store nor a sink of type kafka: name the brokers with --bootstrap"
        )
    return Cluster(given, {}, f"{GROUP}-redrive")


def _bootstrap(text: str) -> str:
    try:
        return checked.bootstrap(text, None)
    except ValueError as error:
        raise UserMistake(f"bootstrap: {error}") from None


def _print(result: Redriven, topic: str, cluster: Cluster, *, dry_run: bool) -> int:
    done = "would be redriven" if dry_run else "redriven"
    for to, count in result.sent.items():
        echo(f"{counted(count, 'record')} {done} to {to}")
    if not result.sent and not result.left and result.error is None:
        echo(f"no dead letters in {topic} that group {cluster.group} has not redriven")
    if result.left:
        shown = "".join(f"\n  {line}" for line in islice(result.left, MAX_LEFT))
        more = f"\n  and {len(result.left) - MAX_LEFT:,} more" if len(result.left) > MAX_LEFT else ""
        echo(f"{counted(len(result.left), 'dead letter')} of {topic} can't be sent anywhere:{shown}{more}", err=True)
    if result.error is not None:
        raise result.error
    if result.left:
        raise UserMistake(f"not all dead letters of {topic} {'can be' if dry_run else 'were'} redriven")
    return DONE
