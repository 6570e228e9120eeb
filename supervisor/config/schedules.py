"""The section of one schedule, in `schedules:` and in the options of @handler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supervisor.config import types as kind
from supervisor.config.section import InvalidSection, Place, Section, setting
from supervisor.jobs import MAX_TAGS
from supervisor.parents import PARENTS
from supervisor.schedules.fire_times import MICROSECONDS, Cron, Every, Timing, checked_cron, zone_of
from supervisor.schedules.policy import NAME, TIME
from supervisor.text.names import did_you_mean
from supervisor.text.strict_json import MAX_INTEGER, decode, encode

ONE_TIMING = "expected either cron or every"
KEY_NEEDED = "expected key with it"
MIN_INTERVAL = 1.0  # seconds
MAX_BYTES = 1_000_000_000
"""Of a payload; `limits.payload` is the limit that holds."""


def _cron(value: Any, place: Place | None) -> str:
    return checked_cron(kind.text(value, place))


def _interval(value: Any, place: Place | None) -> float:
    seconds = kind.duration(value, place)
    if seconds < MIN_INTERVAL:
        raise ValueError(f"expected a duration of at least {MIN_INTERVAL:g}s")
    return seconds


def _timezone(value: Any, place: Place | None) -> str:
    name = kind.text(value, place)
    try:
        zone_of(name)
    except ValueError:
        from zoneinfo import available_timezones

        zones = available_timezones()
        hint = did_you_mean(name, zones) if zones else "; it has none, so install the package tzdata"
        raise ValueError(f"expected a time zone of this system, such as Europe/Berlin{hint}") from None
    return name


def _payload(value: Any, place: Place | None) -> Any:
    encode(value, limit=MAX_BYTES)
    return value


def _tags(value: Any, place: Place | None) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_TAGS:
        raise ValueError(f"expected a list of at most {MAX_TAGS} texts")
    return tuple(dict.fromkeys(kind.queue_name(each, place) for each in value))


def _headers(value: Any, place: Place | None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("expected a mapping")
    for name, setter in {NAME: "the schedule", TIME: "the schedule", PARENTS: "the store"}.items():
        if name in value:
            raise ValueError(f"expected other names: {name} is set by {setter}")
    headers: dict[str, Any] = decode(encode(dict(value), limit=MAX_BYTES, what="headers"), "headers")
    return headers


class ScheduleSettings(Section):
    """One schedule: either a cron expression in a time zone, or an interval in seconds."""

    handler: str = setting(kind.queue_name, missing="the name of a handler")
    cron: str | None = setting(_cron, default=None)
    every: float | None = setting(_interval, default=None)
    timezone: str = setting(_timezone, default="UTC")
    payload: Any = setting(_payload, default=None)
    queue: str | None = setting(kind.optional(kind.queue_name), default=None)
    priority: int | None = setting(kind.optional(kind.whole(-MAX_INTEGER - 1, MAX_INTEGER)), default=None)
    jitter: float | None = setting(kind.limit, default=None)
    on_missed: str = setting(kind.one_of("skip", "once", "all"), default="once")
    overlap: str = setting(kind.one_of("allow", "skip"), default="allow")
    key: str | None = setting(kind.optional(kind.queue_name), default=None)
    on_failure: str = setting(kind.one_of("pass", "hold"), default="pass")
    group: str | None = setting(kind.optional(kind.queue_name), default=None)
    tags: tuple[str, ...] = setting(_tags, default=())
    expires: float | None = setting(kind.limit, default=None)
    headers: Mapping[str, Any] = setting(_headers, default_factory=dict)

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if not self.has_one_timing:
            raise InvalidSection(ONE_TIMING)
        if self.lacks_key:
            raise InvalidSection(f"on_failure: {KEY_NEEDED}")

    @property
    def has_one_timing(self) -> bool:
        return (self.cron is None) != (self.every is None)

    @property
    def lacks_key(self) -> bool:
        return self.on_failure != "pass" and self.key is None

    @property
    def timing(self) -> Timing:
        if self.cron is not None:
            return Cron(self.cron, self.timezone)
        return Every(round((self.every or MIN_INTERVAL) * MICROSECONDS))


def of_handler(name: str, written: Any) -> ScheduleSettings:
    """Return the schedule that @handler has for the handler `name`: a cron expression, or a mapping with the keys of
    `schedules.<name>` but for `handler`. Raises a ValueError that names the key."""
    if isinstance(written, str):
        written = {"cron": written}
    if not isinstance(written, dict):
        raise ValueError(f"schedule: expected a cron expression or a mapping, got {written!r:.80}")
    if "handler" in written:
        raise ValueError("schedule.handler: unknown key; the handler is the one below @handler")
    try:
        return ScheduleSettings(handler=name, **{str(key): value for key, value in written.items()})
    except ValueError as error:
        text = str(error)
        raise ValueError(f"schedule: {text}" if text == ONE_TIMING else f"schedule.{text}") from None
