"""YAML -> validated Settings, with every default in one place.

`Settings()` is all defaults. Durations are seconds and sizes bytes, whatever unit they were written in. A mapping written
for one queue or handler holds what was written there (`model_fields_set`) and is laid over the general one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from supervisor.config import types as kind
from supervisor.config.diagnostics import (
    HEARTBEAT_EXPECTED,
    LEASE_EXPECTED,
    OPEN_BOOKS,
    heartbeat_too_seldom,
)
from supervisor.errors import ConfigError
from supervisor.handlers import HandlerInfo
from supervisor.jobs import Backoff, Policy
from supervisor.text.redaction import without_secrets
from supervisor.text.units import parse_duration, parse_limit

DEFAULT_QUEUE = "default"
VARIABLE = "SUPERVISOR_CONFIG"


class Section(BaseModel):
    """A mapping of known keys. In YAML nothing at all, as under a heading whose keys are commented out, is empty."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    built: ClassVar[frozenset[str]] = frozenset()  # fields that are not keys of the file

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        if not kind.from_yaml(info):
            return value
        value = {} if value is None else value
        return cls.from_yaml(value, info.context)

    @classmethod
    def from_yaml(cls, value: Any, context: Any) -> Any:
        return value


class StoreSettings(Section):
    """`url`, or for a store that a plugin brings under a name, `type`; `options` are the other keys written beside it."""

    built = frozenset({"options"})

    url: kind.OptionalText = "sqlite:///jobs.db"
    type: kind.OptionalText = None
    options: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def from_yaml(cls, value: Any, context: Any) -> Any:
        if not isinstance(value, dict):
            return {"url": kind.expect_text(value)}
        named = {key: part for key, part in value.items() if key in ("url", "type")}
        rest = {key: part for key, part in value.items() if key not in named}
        return {**({"url": None} if named else {}), **named, "options": rest}

    @property
    def scheme(self) -> str:
        """What the store is opened by: the URL's scheme, or `type`."""
        return self.url.partition(":")[0] if self.url else self.type or ""

    @property
    def shown(self) -> str:
        """The URL for a person to read, without what is secret in it."""
        if not self.url:
            return self.type or ""
        return self.url if self.scheme in OPEN_BOOKS else without_secrets(self.url)


class PluginSettings(Section):
    paths: kind.PluginPaths = ("plugins",)
    import_timeout: kind.Duration = 30.0
    allow_writable_by_others: kind.Flag = False

    @classmethod
    def from_yaml(cls, value: Any, context: Any) -> Any:
        return {"paths": value} if isinstance(value, list) else value


class WorkerSettings(Section):
    count: kind.Workers = Field(default_factory=lambda: len(os.sched_getaffinity(0)))
    queues: kind.QueueNames = None
    timeout: kind.Limit = 300.0
    heartbeat: kind.Duration = 1.0
    heartbeat_timeout: kind.Limit = 30.0
    max_jobs: kind.OptionalPositive = None
    max_memory: kind.SizeLimit = None
    start: kind.StartMethod = "fork"


class LeaseSettings(Section):
    ttl: kind.Duration = 30.0


class BackoffSettings(Section):
    base: kind.Duration = 0.5
    factor: kind.Factor = 2.0
    max: kind.Duration = 30.0
    jitter: kind.Jitter = "full"

    def over(self, under: Backoff) -> Backoff:
        """What was written here laid over another curve."""
        return under._replace(**{name: getattr(self, name) for name in self.model_fields_set})


class BudgetSettings(Section):
    limit: kind.Positive
    per: kind.Duration


class RetrySettings(Section):
    max_retries: kind.MaxRetries = 3
    curve: BackoffSettings = Field(default_factory=BackoffSettings, alias="backoff")
    fetch_ratio: kind.Share = Fraction(1, 5)
    burst: kind.Positive = 16
    max_in_flight: kind.MaxInFlight = "half"
    urgent: kind.Priority = 100
    budget: BudgetSettings | None = None
    adaptive: kind.Flag = False

    @model_validator(mode="before")
    @classmethod
    def _shorthands(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value = dict(value)
        if value.get("budget") == "none":
            value["budget"] = None
        if isinstance(value.get("backoff"), Backoff):
            value["backoff"] = BackoffSettings(**value["backoff"]._asdict())
        return value

    @property
    def backoff(self) -> Backoff:
        return self.curve.over(Backoff())

    def over(self, under: RetrySettings) -> RetrySettings:
        """What was written here laid over other settings; of a backoff, key by key."""
        written = {name: getattr(self, name) for name in self.model_fields_set}
        if "curve" in written:
            merged = self.curve.over(under.backoff)
            written["curve"] = BackoffSettings(**merged._asdict())
        return under.model_copy(update=written)


class QueueSettings(Section):
    retry: RetrySettings = Field(default_factory=RetrySettings)


class HandlerSettings(Section):
    """Overrides for one handler; what was not written comes from the decorator, then the queue, then the general keys."""

    timeout: kind.Limit = None
    max_retries: kind.OptionalMaxRetries = None
    backoff: BackoffSettings | None = None
    heartbeat: kind.OptionalDuration = None
    heartbeat_timeout: kind.Limit = None
    queue: kind.OptionalText = None


class SinkSettings(Section):
    """One entry of `dlq.sinks`; `key` is its place there, for messages. A text `path` among its options is absolute."""

    built = frozenset({"options", "key"})

    type: kind.Text
    name: kind.Text
    options: dict[str, Any] = Field(default_factory=dict)
    key: str = ""


class DlqSettings(Section):
    enabled: kind.Flag = True
    sinks: tuple[SinkSettings, ...] = ()

    @classmethod
    def from_yaml(cls, value: Any, context: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("sinks"), list):
            entries = enumerate(value["sinks"])
            return {**value, "sinks": [_sink(entry, index, context["base"]) for index, entry in entries]}
        return value

    @property
    def active(self) -> bool:
        return self.enabled and bool(self.sinks)


class ShutdownSettings(Section):
    grace: kind.Duration = 30.0


class RetentionSettings(Section):
    succeeded: kind.Kept = 86_400.0
    cancelled: kind.Kept = 7 * 86_400.0
    failed: kind.Kept = 30 * 86_400.0


class LimitSettings(Section):
    payload: kind.Size = 1_000_000
    result: kind.Size = 1_000_000


class LogSettings(Section):
    level: kind.LogLevel = "info"
    format: kind.LogFormat = "text"


class UnknownHandlerSettings(Section):
    grace: kind.Duration = 3600.0


class Schema(Section):
    """The keys of the file."""

    store: StoreSettings = Field(default_factory=StoreSettings)
    plugins: PluginSettings = Field(default_factory=PluginSettings)
    workers: WorkerSettings = Field(default_factory=WorkerSettings)
    lease: LeaseSettings = Field(default_factory=LeaseSettings)
    retry: RetrySettings = Field(default_factory=RetrySettings)
    queues: Mapping[str, QueueSettings] = Field(default_factory=dict)
    handlers: Mapping[str, HandlerSettings] = Field(default_factory=dict)
    dlq: DlqSettings = Field(default_factory=DlqSettings)
    shutdown: ShutdownSettings = Field(default_factory=ShutdownSettings)
    retention: RetentionSettings = Field(default_factory=RetentionSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    unknown_handler: UnknownHandlerSettings = Field(default_factory=UnknownHandlerSettings)

    @classmethod
    def from_yaml(cls, value: Any, context: Any) -> Any:
        if isinstance(value, dict):
            return {key: {} if part is None and key in ("queues", "handlers") else part for key, part in value.items()}
        return value


class Settings(Schema):
    """Everything configured. `path` is the file it came from, if any; relative paths are relative to `base`.

    `secrets` are texts of it that must not be written anywhere.
    """

    built = frozenset({"path", "base", "secrets"})

    path: Path | None = None
    base: Path = Field(default_factory=lambda: absolute(Path()))
    secrets: frozenset[str] = Field(default=frozenset(), repr=False)

    @property
    def variables(self) -> dict[str, str]:
        """By which other programs find the same file, wherever they run."""
        return {} if self.path is None else {VARIABLE: str(self.base / self.path.name)}

    def retry_for(self, queue: str) -> RetrySettings:
        own = self.queues.get(queue)
        return own.retry.over(self.retry) if own else self.retry

    def queue_for(self, handler: str) -> str:
        settings = self.handlers.get(handler)
        return settings.queue if settings and settings.queue else DEFAULT_QUEUE

    def policy(self, handler: str, queue: str, written: Mapping[str, HandlerInfo]) -> Policy:
        """What bounds a job: `handlers:`, then the decorator's options, then `queues:`, then `retry:` and `workers:`."""
        retry = self.retry_for(queue)
        options = written[handler].options if handler in written else {}
        here = self.handlers.get(handler, _NOTHING)
        backoff = _decorated(options).over(retry.backoff)
        return Policy(
            max_retries=_first(here, "max_retries", options.get("max_retries", retry.max_retries)),
            backoff=here.backoff.over(backoff) if here.backoff else backoff,
            timeout=_first(here, "timeout", _option_limit(options, "timeout", self.workers.timeout)),
            heartbeat_timeout=_first(
                here, "heartbeat_timeout", _option_limit(options, "heartbeat_timeout", self.workers.heartbeat_timeout)
            ),
        )

    def heartbeat_problems(self, info: HandlerInfo) -> list[str]:
        """What contradicts itself in the heartbeat that holds for a handler, as far as its @handler has a part in it."""
        here = self.handlers.get(info.name, _NOTHING)
        decorated = {
            key: info.options[key] for key in HEARTBEAT_EXPECTED if key in info.options.keys() - here.model_fields_set
        }
        heartbeat = here.heartbeat or parse_duration(info.options.get("heartbeat", self.workers.heartbeat))
        limit = self.policy(info.name, DEFAULT_QUEUE, {info.name: info}).heartbeat_timeout
        found: list[tuple[str, str]] = []
        if decorated and heartbeat_too_seldom(heartbeat, limit):
            key = next(iter(decorated))
            found.append((key, HEARTBEAT_EXPECTED[key]))
        if "heartbeat" in decorated and heartbeat_too_seldom(heartbeat, self.lease.ttl):
            found.append(("heartbeat", LEASE_EXPECTED))
        return [f"handler {info.name!r}: {key}: {expected}, got {decorated[key]}" for key, expected in found]


_NOTHING = HandlerSettings()


def _first(settings: HandlerSettings, name: str, otherwise: Any) -> Any:
    return getattr(settings, name) if name in settings.model_fields_set else otherwise


def _option_limit(options: Mapping[str, Any], name: str, otherwise: float | None) -> float | None:
    return parse_limit(options[name]) if name in options else otherwise


def _decorated(options: Mapping[str, Any]) -> BackoffSettings:
    return BackoffSettings(**options.get("backoff", {}))


def _sink(entry: Any, index: int, base: Path) -> Any:
    if not isinstance(entry, dict):
        return entry
    options = {key: value for key, value in entry.items() if key not in ("type", "name")}
    if isinstance(options.get("path"), str):
        options["path"] = str(base / options["path"])
    named = {"name": entry.get("type", "sink")} | {key: entry[key] for key in ("type", "name") if key in entry}
    return {**named, "options": options, "key": f"dlq.sinks[{index}]"}


# --- reading the file


def absolute(path: Path) -> Path:
    """Raises ConfigError if it starts at a current folder that is gone."""
    try:
        return path.absolute()
    except OSError as error:
        raise ConfigError([f"current folder: {error.strerror}; expected one that exists, or absolute paths"]) from None


def path_of(text: str, base: Path) -> Path:
    """Where an entry of `plugins.paths` is looked for; it need not be there. The `~` of a user that doesn't exist stays, as in
    a shell."""
    path = Path(text)
    with contextlib.suppress(RuntimeError):
        path = path.expanduser()
    return Path(os.path.normpath(base.absolute() / path))
