"""Settings that are right by themselves and have no effect beside others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from supervisor.config.settings import DEFAULT_QUEUE, Settings
from supervisor.handlers import HandlerInfo
from supervisor.text.names import did_you_mean
from supervisor.text.units import format_duration

SMALLEST_WORKER = 10_000_000
"""Bytes: every worker has more memory than this when it starts."""


def without_effect(settings: Settings, handlers: Iterable[HandlerInfo]) -> Iterator[str]:
    """Yield a warning for each such setting; `handlers` are those of the plugins."""
    file = f"{settings.path or 'config'}: "
    for warning in (*_general(settings), *_kafka(settings), *_heartbeat_timeouts(settings)):
        yield file + warning
    for info in handlers:
        own = settings.handlers.get(info.name)
        if "heartbeat_timeout" in info.options and (own is None or "heartbeat_timeout" not in own.written):
            resolved = settings.handler_settings(info.name, DEFAULT_QUEUE, info.options)
            for text in _too_long(resolved.heartbeat_timeout, resolved.timeout):
                yield f"{info.file}:{info.line}: handler {info.name!r}: heartbeat_timeout: {text}"


def _general(settings: Settings) -> Iterator[str]:
    workers, dlq = settings.workers, settings.dlq
    if dlq.sinks and not dlq.enabled:
        yield "dlq.sinks: they get no dead letters, since dlq.enabled is false"
    if workers.max_memory is not None and workers.max_memory < SMALLEST_WORKER:
        yield (
            f"workers.max_memory: {workers.max_memory / 1e6:g}MB is less than any worker has at its start, so each is replaced as soon "
            "as it has grown a little; write at least 64MB"
        )
    yield from _groups(settings)
    sizes = workers.sizes
    most = max(sizes, key=lambda name: sizes[name].max)
    by_queue = {queue: name for name, group in workers.served_groups.items() for queue in group.queues}
    for key, group, retry in (
        ("", most, settings.retry),
        *((f"queues.{name}.", by_queue.get(name, ""), it.retry) for name, it in settings.queues.items()),
    ):
        limit, count = retry.max_in_flight, sizes[group].max
        if "max_in_flight" in retry.written and isinstance(limit, int) and limit > count > 0:
            of = f"workers.groups.{group}.count" if group else "workers.count"
            yield f"{key}retry.max_in_flight: {limit} is more than {of} ({count}), so retries may have all workers"


def _kafka(settings: Settings) -> Iterator[str]:
    """Yield the keys that have no effect on a Kafka store, or on any other."""
    store, dlq = settings.store.kafka, settings.dlq
    if "topic_suffix" in dlq.written and (store is None or not dlq.enabled):
        why = "the store is not of type kafka" if store is None else "dlq.enabled is false"
        yield f"dlq.topic_suffix: it has no effect, since {why}"
    if store is None:
        return
    if "result" in settings.limits.written:
        yield "limits.result: it has no effect, since results are not kept"
    if "ttl" in settings.lease.written:
        yield "lease.ttl: it has no effect, since others get the partitions of a lost supervisor after session.timeout.ms"
    for key in sorted(settings.retention.written):
        yield f"retention.{key}: it has hardly an effect: supervisors keep only the newest jobs that failed or were cancelled, in memory"
    if "payload" in settings.limits.written:
        yield "limits.payload: it is a limit for jobs that are enqueued here, and none for the records of other programs"
    for key, retry in (("", settings.retry), *((f"queues.{name}.", it.retry) for name, it in settings.queues.items())):
        if "urgent" in retry.written and retry.urgent > 0:
            yield f"{key}retry.urgent: it has no effect, since all records have priority 0"
    for queue, it in settings.queues.items():
        if it.group_shares:
            yield f"queues.{queue}.group_shares: it has no effect, since records have no groups"
    for queue in settings.queues.keys() - store.topics.keys():
        yield f"queues.{queue}: it has no effect, since store.topics has no such topic{did_you_mean(queue, store.topics)}"


def _groups(settings: Settings) -> Iterator[str]:
    workers = settings.workers
    for name, group in workers.groups.items():
        left_out = sorted(group.queues - (workers.queues or group.queues))
        what = "its workers are not started" if name not in workers.served_groups else "its workers get no job of them"
        if left_out:
            yield f"workers.groups.{name}.queues: workers.queues leaves out {', '.join(left_out)}, so {what}"
    if "count" in workers.written and not workers.sizes[""].max:
        yield "workers.count: groups have all queues of workers.queues, so no other workers are started"


def _heartbeat_timeouts(settings: Settings) -> Iterator[str]:
    workers = settings.workers
    if "heartbeat_timeout" in workers.written:
        for text in _too_long(workers.heartbeat_timeout, workers.timeout):
            yield f"workers.heartbeat_timeout: {text}"
    for name, handler in settings.handlers.items():
        if "heartbeat_timeout" in handler.written:
            timeout = handler.timeout if "timeout" in handler.written else workers.timeout
            for text in _too_long(handler.heartbeat_timeout, timeout):
                yield f"handlers.{name}.heartbeat_timeout: {text}"


def _too_long(heartbeat_timeout: float | None, timeout: float | None) -> Iterator[str]:
    if heartbeat_timeout is not None and timeout is not None and heartbeat_timeout > timeout:
        yield (
            f"{format_duration(heartbeat_timeout)} has no effect, since the timeout of {format_duration(timeout)} ends the job before"
        )
