"""Keys of the config that contradict each other, though each is right by itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from supervisor.config.diagnostics import Contradiction, Findings, touches
from supervisor.config.document import Keys
from supervisor.config.kafka import KAFKA
from supervisor.config.kafka_contradictions import kafka_contradictions
from supervisor.config.retries import NO_FACTOR, BackoffSettings
from supervisor.config.schedules_in_force import handler_schedule_problem, schedule_contradictions
from supervisor.config.settings import DEFAULT_QUEUE, CountSettings, Settings
from supervisor.handlers import HandlerInfo
from supervisor.text.names import did_you_mean

_POSTGRES = {"schema": str, "listen": (True, False)}
STORE_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "sqlite": {"synchronous": ("full", "normal")},
    "memory": {},
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
}
"""The other keys of `store:` by scheme, each with the values that it takes, or `str` for any text."""

STORE_SUFFIXES = ("", "-wal", "-shm", "-journal", "-queue.lock", "-write.lock", ".notify")
"""The suffixes of all files of a SQLite store, to append to the name of the database file."""

_CHARACTER = r"(?:[^@/%\s]|%[0-9a-fA-F]{2})"
_PAIR = r"[^@=&%\s]++=(?:[^=&%\s]|%[0-9a-fA-F]{2})*+"
_HOST = r"(?:\[[^@/\]\s]*\]|(?:[^@/?:,%\[\]\s]|%[0-9a-fA-F]{2})*+)(?::[0-9]*+)?"
_POSTGRES_URL = re.compile(
    rf"(?:{_CHARACTER}*+@)?{_HOST}(?:,{_HOST})*+(?:/(?:[^@/?%\s]|%[0-9a-fA-F]{{2}})*+)?(?:\?(?:{_PAIR}(?:&{_PAIR})*+)?)?"
)
"""The rest of a URL that libpq reads without cutting a password in two: its errors then show no part of one."""

HEARTBEAT_EXPECTED = {
    "heartbeat": "expected at most half of its heartbeat_timeout",
    "heartbeat_timeout": "expected at least twice its heartbeat",
}
"""The keys of one handler that may contradict each other, each with the expectation that the message then has."""

SOFT_EXPECTED = {
    "soft_timeout": "expected less than its timeout",
    "timeout": "expected more than its soft_timeout",
}

MIN_TOKEN = 16
"""Characters of a token that can't be guessed."""

LEASE_EXPECTED = "expected at most half of lease.ttl"


def add_contradictions(findings: Findings, settings: Settings) -> None:
    """Add the contradictions between keys that have no other problem."""
    wrong = [problem.path for problem in findings.problems]
    checks = _store, _heartbeats, _soft_timeouts, _memory, _groups, _backoffs, _sinks, _sink_files, _http
    for check in (*checks, kafka_contradictions, schedule_contradictions):
        for found in check(settings):
            if not any(touches(path, wrong) for path in (found.path, *found.involved)):
                findings.wrong(found.path, found.message, secret=found.secret)


def _store(settings: Settings) -> Iterator[Contradiction]:
    store, path = settings.store, ("store",)
    if (store.url is None) == (store.type is None):
        yield Contradiction(path, "expected either url or type" + (", not both" if store.url else ""))
        return
    if store.url is not None and (problem := url_problem(store.url)):
        yield Contradiction(path, problem, secret=True)
    if store.scheme in STORE_OPTIONS:
        for key, value in store.options.items():
            if problem := _option_problem(store.scheme, key, value):
                yield Contradiction((*path, key), problem)


def _option_problem(scheme: str, key: str, value: Any) -> str | None:
    choices = STORE_OPTIONS[scheme].get(key)
    if choices is None:
        return f"unknown key{did_you_mean(key, [*STORE_OPTIONS[scheme], 'url', 'type']) or f' for {scheme}'}"
    if choices is str:
        return None if isinstance(value, str) and value else "expected text"
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return None
    return f"expected {' or '.join(str(choice).lower() for choice in choices)}"


def url_problem(url: str) -> str | None:
    """Return what was expected instead of this URL of a store, or None if the URL is right."""
    scheme, separator, rest = url.partition("://")
    if scheme == KAFKA:
        return "expected no URL for Kafka, but a mapping with type: kafka, bootstrap, group and topics"
    if not separator or not scheme or not _is_url(url):
        return "expected a URL such as sqlite:///jobs.db"
    if scheme == "sqlite" and (not rest.startswith("/") or rest.endswith("/")):
        return "expected sqlite:///relative/file.db or sqlite:////absolute/file.db"
    if scheme == "sqlite" and "=" in rest.partition("?")[2]:  # would be part of the file's name, and have no effect
        return f"expected no options in the URL of a file; write {' or '.join(STORE_OPTIONS[scheme])} beside it"
    if scheme in ("postgresql", "postgres") and _POSTGRES_URL.fullmatch(rest) is None:
        return (
            "expected a URL such as postgresql://user@host/database; in its user and its password write @ / : % and spaces as "
            "%40 %2F %3A %25 and %20, or let ${NAME} stand for the password, whose value is then encoded"
        )
    return None


def _is_url(url: str) -> bool:
    try:
        urlsplit(url)
    except ValueError:
        return False
    return True


def _heartbeats(settings: Settings) -> Iterator[Contradiction]:
    workers, ttl = settings.workers, settings.lease.ttl
    general: tuple[Keys, Keys] = (("workers", "heartbeat"), ("workers", "heartbeat_timeout"))
    if _is_too_seldom(workers.heartbeat, workers.heartbeat_timeout):
        yield Contradiction(general[0], "expected at most half of workers.heartbeat_timeout", general[1:])
    if _is_too_seldom(workers.heartbeat, ttl):
        yield Contradiction(("lease", "ttl"), "expected at least twice workers.heartbeat", general[:1])
    for name, handler in settings.handlers.items():
        if not HEARTBEAT_EXPECTED.keys() & handler.written:
            continue
        own: Keys = ("handlers", name)
        resolved = settings.handler_settings(name, DEFAULT_QUEUE, {})
        if _is_too_seldom(resolved.heartbeat, resolved.heartbeat_timeout):
            key, other = ("heartbeat", "heartbeat_timeout") if handler.heartbeat else ("heartbeat_timeout", "heartbeat")
            yield Contradiction((*own, key), HEARTBEAT_EXPECTED[key], (*general, (*own, other)))
        if _is_too_seldom(resolved.heartbeat, ttl):
            yield Contradiction((*own, "heartbeat"), LEASE_EXPECTED, (("lease", "ttl"),))


def _soft_timeouts(settings: Settings) -> Iterator[Contradiction]:
    workers = settings.workers
    general: tuple[Keys, Keys] = (("workers", "soft_timeout"), ("workers", "timeout"))
    if _is_too_late(workers.soft_timeout, workers.timeout):
        yield Contradiction(general[0], "expected less than workers.timeout", general[1:])
    for name, handler in settings.handlers.items():
        own = [key for key in SOFT_EXPECTED if key in handler.written]
        resolved = settings.handler_settings(name, DEFAULT_QUEUE, {})
        if own and _is_too_late(resolved.soft_timeout, resolved.timeout):
            others = [("handlers", name, key) for key in own[1:]]
            yield Contradiction(("handlers", name, own[0]), SOFT_EXPECTED[own[0]], (*general, *others))


def _is_too_late(soft_timeout: float | None, timeout: float | None) -> bool:
    return soft_timeout is not None and timeout is not None and soft_timeout >= timeout


def _memory(settings: Settings) -> Iterator[Contradiction]:
    workers, soft = settings.workers, ("workers", "max_memory")
    if workers.max_memory and workers.max_memory_hard and workers.max_memory_hard <= workers.max_memory:
        yield Contradiction(("workers", "max_memory_hard"), "expected more than workers.max_memory", (soft,))


def _groups(settings: Settings) -> Iterator[Contradiction]:
    workers = settings.workers
    counts: list[tuple[Keys, Any]] = [(("workers", "count"), workers.count)]
    first: dict[str, str] = {}
    for name, group in workers.groups.items():
        path: Keys = ("workers", "groups", name)
        counts.append(((*path, "count"), group.count))
        for queue in sorted(group.queues):
            if queue in first:
                message = f"expected each queue in one group only: {queue} is in workers.groups.{first[queue]} too"
                yield Contradiction((*path, "queues"), message, (("workers", "groups", first[queue], "queues"),))
            first.setdefault(queue, name)
    for path, count in counts:
        if isinstance(count, CountSettings) and count.min > count.max:
            yield Contradiction((*path, "min"), "expected at most its max", ((*path, "max"),))


def handler_problems(settings: Settings, info: HandlerInfo) -> list[str]:
    """Return a line for each contradiction that involves the handler's decorator or its function."""
    ignored = settings.handlers[info.name].written if info.name in settings.handlers else ()
    kept = {key: value for key, value in info.options.items() if key not in ignored}
    decorated = {key: kept[key] for key in HEARTBEAT_EXPECTED if key in kept}
    resolved = settings.handler_settings(info.name, DEFAULT_QUEUE, info.options)
    found: list[tuple[str, str]] = []
    if decorated and _is_too_seldom(resolved.heartbeat, resolved.heartbeat_timeout):
        key = next(iter(decorated))
        found.append((key, HEARTBEAT_EXPECTED[key]))
    if "heartbeat" in decorated and _is_too_seldom(resolved.heartbeat, settings.lease.ttl):
        found.append(("heartbeat", LEASE_EXPECTED))
    limits = [key for key in SOFT_EXPECTED if key in kept]
    if limits and _is_too_late(resolved.soft_timeout, resolved.timeout):
        found.append((limits[0], SOFT_EXPECTED[limits[0]]))
    problems = [f"handler {info.name!r}: {key}: {expected}, got {kept[key]}" for key, expected in found]
    if info.is_async and resolved.resources:
        key = next(iter(resolved.resources))
        problems.append(f"handler {info.name!r}: {key}: expected a plain function: async jobs share one process")
    if problem := handler_schedule_problem(settings, info):
        problems.append(f"handler {info.name!r}: schedule: {problem}")
    return problems


def _is_too_seldom(heartbeat: float | None, limit: float | None) -> bool:
    """Return whether fewer than two intervals of `heartbeat` fit into `limit`."""
    return heartbeat is not None and limit is not None and heartbeat > limit / 2


def _http(settings: Settings) -> Iterator[Contradiction]:
    http = settings.http
    if http is None:
        return
    if http.token is None and not http.listen.is_loopback:
        message = "expected http.token beside an address that other machines reach, or one such as 127.0.0.1:8080"
        yield Contradiction(("http", "listen"), message, (("http", "token"),))
    if http.token is not None and len(http.token) < MIN_TOKEN:
        yield Contradiction(("http", "token"), f"expected at least {MIN_TOKEN} characters", secret=True)


def _backoffs(settings: Settings) -> Iterator[Contradiction]:
    general: Keys = ("retry", "backoff")
    for path, written in _written_backoffs(settings):
        if written.has_needless_factor:
            yield Contradiction((*path, "exponential"), NO_FACTOR, ((*path, "factor"),))
    below = settings.retry.backoff
    curves = [(general, below)]
    curves += [(("queues", name, *general), queue.retry.backoff.over(below)) for name, queue in settings.queues.items()]
    curves += [
        (("handlers", name, "backoff"), handler.backoff.over(below))
        for name, handler in settings.handlers.items()
        if handler.backoff
    ]
    for path, curve in curves:
        if curve.base > curve.max and (path == general or curve != below):
            yield Contradiction((*path, "base"), "expected at most max of the same backoff", (general, (*path, "max")))


def _written_backoffs(settings: Settings) -> Iterator[tuple[Keys, BackoffSettings]]:
    yield ("retry", "backoff"), settings.retry.backoff
    for name, queue in settings.queues.items():
        yield ("queues", name, "retry", "backoff"), queue.retry.backoff
    for name, handler in settings.handlers.items():
        if handler.backoff is not None:
            yield ("handlers", name, "backoff"), handler.backoff


def _sinks(settings: Settings) -> Iterator[Contradiction]:
    first: dict[str, str] = {}
    for index, sink in sorted(enumerate(settings.dlq.sinks), key=lambda each: not each[1].is_of_store):
        if sink.name in first:
            message = f"a second sink named {sink.name} beside {first[sink.name]}: give it another name"
            yield Contradiction(("dlq", "sinks", index), message)
        first.setdefault(sink.name, sink.key)


def _sink_files(settings: Settings) -> Iterator[Contradiction]:
    """Find sinks that write to a file with another use: its contents and the dead letters would be lost."""
    used: dict[str | tuple[int, int], str] = {}
    if settings.store_file is not None:
        database = str(settings.store_file)
        for file in (_file_names(database + suffix) for suffix in STORE_SUFFIXES):
            used |= dict.fromkeys(file, "a file of the store")
    for index, sink in enumerate(settings.dlq.sinks):
        path = sink.options.get("path")
        if sink.type != "file" or not isinstance(path, str):
            continue
        names = _file_names(path)
        clash = next((used[name] for name in (*names, *_file_names(str(Path(path).parent))) if name in used), None)
        if clash is not None:
            yield Contradiction(
                ("dlq", "sinks", index, "path"), f"expected a file of its own, not {clash}", (("store",),)
            )
        used |= dict.fromkeys(names, f"that of {sink.key}")


def _file_names(path: str) -> list[str | tuple[int, int]]:
    """Return the real path and, if a file is there, its device and inode number, which hard links to it share."""
    try:
        real = os.path.realpath(path)
        there = os.stat(real)  # noqa: PTH116
    except ValueError:  # not a path, which is reported elsewhere
        return []
    except OSError:
        return [real]
    return [real, (there.st_dev, there.st_ino)]
