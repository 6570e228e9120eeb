"""Every section of the config, with every default.

`Settings()` has all defaults. Durations are seconds and sizes are bytes, whatever unit they were written in. The keys written
for one queue or one handler override the general ones (`Section.over`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.config import types as kind
from supervisor.config.control_groups import usable_cpus
from supervisor.config.diagnostics import write_keys
from supervisor.config.job_limits import JobLimitSettings
from supervisor.config.kafka import (
    DEAD_LETTER_TOPIC,
    DEFAULT_GRACE,
    DEFAULT_RETRY,
    KAFKA,
    KafkaSettings,
    client_settings,
    kafka_settings,
    topic_suffix,
)
from supervisor.config.retries import BackoffSettings, RetrySettings
from supervisor.config.schedules import ScheduleSettings
from supervisor.config.section import ByName, ListOf, One, OneOr, OneOrNone, Place, Section, given, reporting, setting
from supervisor.errors import ConfigError
from supervisor.handlers import HandlerInfo
from supervisor.jobs import MAX_RETRIES, Policy
from supervisor.text.redaction import without_secrets

DEFAULT_QUEUE = "default"
DEFAULT_STORE = "sqlite:///jobs.db"
VARIABLE = "SUPERVISOR_CONFIG"
KEY_OF_STORE = "dlq.topic_suffix"
SCHEMES_WITHOUT_SECRETS = ("sqlite", "memory")


class StoreSettings(Section):
    """The store to use: its `url` or, for Kafka and perhaps for a store of a plugin, its `type`. `options` are all other keys, which
    `kafka` has as settings if this is a Kafka store."""

    rest = "options"

    url: str | None = setting(kind.optional(kind.text), default=DEFAULT_STORE)
    type: str | None = setting(kind.optional(kind.text), default=None)
    allow_writable_by_others: bool = setting(kind.flag, default=False)
    options: dict[str, Any] = setting(given, default_factory=dict)
    kafka: KafkaSettings | None = setting(given, default=None)

    @classmethod
    def mapping(cls, value: Any, place: Place) -> Any:
        return value if isinstance(value, dict) else {"url": kind.text(value, place)}

    @classmethod
    def completed(cls, values: dict[str, Any], place: Place) -> dict[str, Any]:
        if "type" not in values:
            return values
        own = {"kafka": kafka_settings(values["options"], place)} if values["type"] == KAFKA else {}
        return {"url": None, **values, **own}

    @property
    def scheme(self) -> str:
        """The name that the store is opened by: the URL's scheme, or `type`."""
        return self.url.partition(":")[0] if self.url else self.type or ""

    @property
    def shown(self) -> str:
        """The URL for a person to read, without its secrets."""
        if not self.url:
            return self.kafka.shown if self.kafka else self.type or ""
        return self.url if self.scheme in SCHEMES_WITHOUT_SECRETS else without_secrets(self.url)


class PluginSettings(Section):
    paths: tuple[str, ...] = setting(kind.plugin_paths, default=("plugins",))
    import_timeout: float = setting(kind.duration, default=30.0)
    allow_writable_by_others: bool = setting(kind.flag, default=False)

    @classmethod
    def mapping(cls, value: Any, place: Place) -> Any:
        return {"paths": value} if isinstance(value, list) else value


class AsyncWorkerSettings(Section):
    count: int = setting(kind.whole(1, 1000), default=1)
    concurrency: int = setting(kind.whole(1, 10_000), default=100)
    cancel_grace: float = setting(kind.duration, default=1.0)


class Size(NamedTuple):
    """The least and the most workers of a group; above the least, one that was idle for `idle_after` seconds exits."""

    min: int
    max: int
    idle_after: float = 30.0

    @property
    def is_fixed(self) -> bool:
        return self.min == self.max

    @property
    def text(self) -> str:
        return str(self.min) if self.is_fixed else f"{self.min} to {self.max}"


class CountSettings(Section):
    min: int = setting(kind.whole(1, 1000), missing="the least number of workers")
    max: int = setting(kind.whole(1, 1000), missing="the most workers")
    idle_after: float = setting(kind.duration, default=30.0)


_worker_count = OneOr(CountSettings, kind.whole(1, 1000), "a mapping with min and max")


def _size(count: int | CountSettings) -> Size:
    return Size(count, count) if isinstance(count, int) else Size(count.min, count.max, count.idle_after)


class GroupSettings(Section):
    queues: frozenset[str] = setting(kind.queue_list, missing="a list of queue names")
    count: int | CountSettings = setting(_worker_count, default=1)


class WorkerSettings(Section):
    count: int | CountSettings = setting(_worker_count, default_factory=lambda: usable_cpus().number)
    groups: Mapping[str, GroupSettings] = setting(ByName(GroupSettings), default_factory=dict)
    queues: frozenset[str] | None = setting(kind.queue_names, default=None)
    timeout: float | None = setting(kind.limit, default=300.0)
    soft_timeout: float | None = setting(kind.limit, default=None)
    cancel_grace: float | None = setting(kind.limit, default=None)
    heartbeat: float = setting(kind.duration, default=1.0)
    heartbeat_timeout: float | None = setting(kind.limit, default=30.0)
    max_age: float | None = setting(kind.limit, default=None)
    max_jobs: int | None = setting(kind.or_none(kind.whole(1, 1_000_000_000)), default=None)
    max_memory: int | None = setting(kind.size_limit, default=None)
    max_memory_hard: int | None = setting(kind.size_limit, default=None)
    start: str = setting(kind.one_of("fork", "spawn"), default="fork")
    async_: AsyncWorkerSettings = setting(One(AsyncWorkerSettings), default=AsyncWorkerSettings())

    @property
    def count_shown(self) -> str:
        """The number of workers and where it comes from, as text for people."""
        default = "" if "count" in self.written else f" by default: {usable_cpus().reason}"
        sizes = self.sizes
        groups = ", ".join(f"{name} {size.text}" for name, size in sizes.items() if name)
        count = f"workers.count: {sizes[''].text}{default}" if sizes[""].max else ""
        return "; ".join(filter(None, (count, groups and f"workers.groups: {groups}")))

    @property
    def served_groups(self) -> dict[str, GroupSettings]:
        """The groups with a queue that is served here."""
        return {name: it for name, it in self.groups.items() if self.queues is None or self.queues & it.queues}

    @property
    def sizes(self) -> dict[str, Size]:
        """The sizes of these groups, and under no name that of the workers for all other queues, which is 0 if there are none."""
        grouped = {queue for group in self.groups.values() for queue in group.queues}
        others = _size(self.count) if self.queues is None or self.queues - grouped else Size(0, 0)
        return {"": others, **{name: _size(group.count) for name, group in self.served_groups.items()}}

    @property
    def count_keys(self) -> str:
        return "workers.count and workers.groups" if self.groups else "workers.count"

    @property
    def most(self) -> int:
        """The most workers that there may be at once, without the async ones."""
        return sum(size.max for size in self.sizes.values())


class LeaseSettings(Section):
    ttl: float = setting(kind.duration, default=30.0)


class QueueSettings(Section):
    retry: RetrySettings = setting(One(RetrySettings), default=RetrySettings())
    limit: JobLimitSettings | None = setting(One(JobLimitSettings), default=None)
    group_limit: JobLimitSettings | None = setting(One(JobLimitSettings), default=None)
    group_shares: Mapping[str, float] = setting(kind.shares, default_factory=dict)


class RlimitSettings(Section):
    cpu: float | None = setting(kind.duration, default=None)
    memory: int | None = setting(kind.size, default=None)
    files: int | None = setting(kind.whole(16, 1_000_000_000), default=None)


class HandlerSettings(Section):
    """The settings of one handler. `queue` is the queue of its jobs that name none; @handler takes all others but `limit` as options."""

    timeout: float | None = setting(kind.limit, default=None)
    max_retries: int | None = setting(kind.whole(0, MAX_RETRIES), default=None)
    backoff: BackoffSettings | None = setting(One(BackoffSettings), default=None)
    heartbeat: float | None = setting(kind.duration, default=None)
    heartbeat_timeout: float | None = setting(kind.limit, default=None)
    soft_timeout: float | None = setting(kind.limit, default=None)
    cancel_grace: float | None = setting(kind.limit, default=None)
    queue: str | None = setting(kind.optional(kind.queue_name), default=None)
    nice: int | None = setting(kind.whole(0, 19), default=None)
    rlimits: RlimitSettings | None = setting(One(RlimitSettings), default=None)
    limit: JobLimitSettings | None = setting(One(JobLimitSettings), default=None)

    @property
    def resources(self) -> dict[str, Any]:
        """The limits of the process that are written here, as plain values."""
        found: dict[str, Any] = {} if self.nice is None else {"nice": self.nice}
        if self.rlimits is not None:
            found["rlimits"] = {key: getattr(self.rlimits, key) for key in self.rlimits.written}
        return found


class SinkSettings(Section):
    """An entry of `dlq.sinks`. `options` are its other keys, with `path` and `ca_file` made absolute; `key` is such as `dlq.sinks[0]`."""

    rest = "options"

    type: str = setting(kind.text, missing="the type of a sink, such as file")
    name: str = setting(kind.text, default="")
    options: dict[str, Any] = setting(given, default_factory=dict)
    key: str = setting(given, default="")

    @property
    def is_of_store(self) -> bool:
        """Whether a Kafka store has added it."""
        return self.key == KEY_OF_STORE

    @classmethod
    def completed(cls, values: dict[str, Any], place: Place) -> dict[str, Any]:
        options = dict(values["options"])
        for key in ("path", "ca_file"):
            if isinstance(options.get(key), str):
                options[key] = str(place.base / options[key])
        if values["type"] == KAFKA and "kafka" in options:
            with reporting(here := place.at("kafka")):
                options["kafka"] = client_settings(options["kafka"], here)
        return {"name": values["type"], **values, "options": options, "key": write_keys(place.path)}


class DlqSettings(Section):
    enabled: bool = setting(kind.flag, default=True)
    topic_suffix: str = setting(topic_suffix, default=".dlq")
    sinks: tuple[SinkSettings, ...] = setting(ListOf(SinkSettings), default=())

    def to_topics(self, store: KafkaSettings) -> DlqSettings:
        """Return these settings with the sink that publishes to the dead-letter topics of a Kafka store, behind all others."""
        if not self.enabled:
            return self
        options = store.sink_options(self.topic_suffix)
        sink = SinkSettings(type=KAFKA, name=DEAD_LETTER_TOPIC, options=options, key=KEY_OF_STORE)
        return self.replace(sinks=(*self.sinks, sink))

    @property
    def active(self) -> bool:
        return self.enabled and bool(self.sinks)

    @property
    def names(self) -> frozenset[str]:
        """The names of the sinks that dead letters go to."""
        return frozenset(sink.name for sink in self.sinks) if self.enabled else frozenset()


class ShutdownSettings(Section):
    grace: float = setting(kind.duration, default=30.0)


class RetentionSettings(Section):
    """The seconds for which a job is kept after it ended: 0 is not at all, and None is for ever."""

    succeeded: float | None = setting(kind.kept, default=86_400.0)
    cancelled: float | None = setting(kind.kept, default=7 * 86_400.0)
    failed: float | None = setting(kind.kept, default=30 * 86_400.0)


class LimitSettings(Section):
    payload: int = setting(kind.size, default=1_000_000)
    result: int = setting(kind.size, default=1_000_000)


class LogSettings(Section):
    level: str = setting(kind.one_of("debug", "info", "warning", "error"), default="info")
    format: str = setting(kind.one_of("text", "json"), default="text")


class HttpSettings(Section):
    """The HTTP server. `token` has to be sent with each request; without one, only programs of this machine may ask."""

    listen: kind.Address = setting(kind.address, missing="an address and a port, such as 127.0.0.1:8080")
    token: str | None = setting(kind.optional(kind.text), default=None)
    read_only: bool = setting(kind.flag, default=False)


class UnknownHandlerSettings(Section):
    grace: float = setting(kind.duration, default=3600.0)


class Settings(Section):
    """The whole config. `path` is its file, if there is one; relative paths are relative to `base`.

    `secrets` are texts in it that no output may contain.
    """

    store: StoreSettings = setting(One(StoreSettings), default=StoreSettings())
    plugins: PluginSettings = setting(One(PluginSettings), default=PluginSettings())
    workers: WorkerSettings = setting(One(WorkerSettings), default_factory=WorkerSettings)
    lease: LeaseSettings = setting(One(LeaseSettings), default=LeaseSettings())
    retry: RetrySettings = setting(One(RetrySettings), default=RetrySettings())
    queues: Mapping[str, QueueSettings] = setting(ByName(QueueSettings), default_factory=dict)
    handlers: Mapping[str, HandlerSettings] = setting(ByName(HandlerSettings), default_factory=dict)
    schedules: Mapping[str, ScheduleSettings] = setting(ByName(ScheduleSettings), default_factory=dict)
    dlq: DlqSettings = setting(One(DlqSettings), default=DlqSettings())
    shutdown: ShutdownSettings = setting(One(ShutdownSettings), default=ShutdownSettings())
    retention: RetentionSettings = setting(One(RetentionSettings), default=RetentionSettings())
    limits: LimitSettings = setting(One(LimitSettings), default=LimitSettings())
    log: LogSettings = setting(One(LogSettings), default=LogSettings())
    unknown_handler: UnknownHandlerSettings = setting(One(UnknownHandlerSettings), default=UnknownHandlerSettings())
    http: HttpSettings | None = setting(OneOrNone(HttpSettings), default=None)
    path: Path | None = setting(given, default=None)
    base: Path = setting(given, default_factory=lambda: absolute(Path()))
    secrets: frozenset[str] = setting(given, default=frozenset())

    @classmethod
    def completed(cls, values: dict[str, Any], place: Place) -> dict[str, Any]:
        values = {**values, "base": place.base}
        store = values.get("store", StoreSettings()).kafka
        if store is None:
            return values
        grace = UnknownHandlerSettings(grace=DEFAULT_GRACE)
        return {
            **values,
            "retry": values.get("retry", RetrySettings()).over(DEFAULT_RETRY),
            "unknown_handler": values.get("unknown_handler", grace).over(grace),
            "dlq": values.get("dlq", DlqSettings()).to_topics(store),
        }

    @property
    def store_file(self) -> Path | None:
        """The database file of a SQLite store."""
        if self.store.scheme != "sqlite":
            return None
        return self.base / (self.store.url or DEFAULT_STORE).removeprefix("sqlite:///")

    @property
    def variables(self) -> dict[str, str]:
        """The environment variable by which child processes find the same config in any folder."""
        return {} if self.path is None else {VARIABLE: str(self.base / self.path.name)}

    def retry_for(self, queue: str) -> RetrySettings:
        own = self.queues.get(queue)
        return own.retry.over(self.retry) if own else self.retry

    def queue_for(self, handler: str) -> str:
        settings = self.handlers.get(handler)
        return settings.queue if settings and settings.queue else DEFAULT_QUEUE

    def handler_settings(self, handler: str, queue: str, options: Mapping[str, Any]) -> HandlerSettings:
        """Return the settings of a handler for its jobs in a queue.

        `handlers:` overrides the `options` of the decorator, these override `queues:`, and `queues:` overrides all others.
        """
        retry, workers = self.retry_for(queue), self.workers
        general = HandlerSettings().replace(
            timeout=workers.timeout,
            max_retries=retry.max_retries,
            backoff=retry.backoff,
            heartbeat=workers.heartbeat,
            heartbeat_timeout=workers.heartbeat_timeout,
            soft_timeout=workers.soft_timeout,
            cancel_grace=workers.cancel_grace,
        )
        decorated = HandlerSettings(**{key: options[key] for key in HandlerSettings.settings if key in options})
        return self.handlers.get(handler, HandlerSettings()).over(decorated.over(general))

    def policy(self, handler: str, queue: str, found: Mapping[str, HandlerInfo]) -> Policy:
        """Return the policy of a handler's jobs in a queue; `found` are the handlers of the plugins."""
        settings = self.handler_settings(handler, queue, found[handler].options if handler in found else {})
        assert settings.max_retries is not None and settings.backoff is not None
        return Policy(settings.max_retries, settings.backoff.curve, settings.timeout, settings.heartbeat_timeout)


def absolute(path: Path) -> Path:
    """Return the absolute path. Raises ConfigError if `path` is relative and the current folder no longer exists."""
    try:
        return path.absolute()
    except OSError as error:
        raise ConfigError([f"current folder: {error.strerror}; expected one that exists, or absolute paths"]) from None


def path_of(text: str, base: Path) -> Path:
    """Return the path of an entry of `plugins.paths`, which need not exist. The `~` of an unknown user stays, as in a shell."""
    path = Path(text)
    with contextlib.suppress(RuntimeError):
        path = path.expanduser()
    return Path(os.path.normpath(base.absolute() / path))
