"""The keys of `store:` that belong to one kind of store."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from supervisor.config.diagnostics import flatten
from supervisor.config.kafka import KafkaSettings
from supervisor.config.loading import load
from supervisor.config.section import tree
from supervisor.errors import ConfigError
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.sqlite.store import SqliteStore

_STORES = {"sqlite": ("sqlite:///jobs.db", SqliteStore), "postgresql": ("postgresql://localhost/jobs", PostgresStore)}


@cache
def store_options(kind: str) -> frozenset[str]:
    """Return the dotted keys: those of a Kafka store, or the arguments of the store that its section of the config takes."""
    if kind == "kafka":
        return frozenset(flatten(tree(KafkaSettings), "store"))
    url, store = _STORES[kind]
    arguments = inspect.signature(store).parameters.values()
    return frozenset(
        f"store.{each.name}" for each in arguments if each.name != "url" and _is_taken(url, each.name, each.default)
    )


def _is_taken(url: str, key: str, value: object) -> bool:
    if not isinstance(value, bool | str):
        return False
    with TemporaryDirectory() as folder:
        config = Path(folder, "supervisor.yaml")
        config.write_text(yaml.safe_dump({"store": {"url": url, key: value}}))
        try:
            load(config, {})
        except ConfigError:
            return False
    return True
