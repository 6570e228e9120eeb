"""The schedules of a configuration and its plugins, and the mistakes and warnings about them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from supervisor.config.diagnostics import Contradiction
from supervisor.config.document import Keys
from supervisor.config.schedules import KEY_NEEDED, MAX_BYTES, ONE_TIMING, ScheduleSettings, of_handler
from supervisor.config.settings import DEFAULT_QUEUE, Settings
from supervisor.handlers import HandlerInfo
from supervisor.schedules.policy import Schedule
from supervisor.text.names import did_you_mean
from supervisor.text.strict_json import NotJSON, encode
from supervisor.text.units import format_duration

NOT_ON_KAFKA = "expected no schedule with a Kafka store, which keeps none: enqueue from cron, or use another store"


def schedules_of(settings: Settings, handlers: Mapping[str, HandlerInfo]) -> dict[str, Schedule]:
    """Return the schedules by name: those of the config, and those of handlers whose name no schedule of the config has."""
    decorated = {
        name: of_handler(name, info.options["schedule"])
        for name, info in handlers.items()
        if "schedule" in info.options and name not in settings.schedules
    }
    return {name: _schedule(name, it, settings, handlers) for name, it in {**settings.schedules, **decorated}.items()}


def _schedule(name: str, it: ScheduleSettings, settings: Settings, handlers: Mapping[str, HandlerInfo]) -> Schedule:
    options = handlers[it.handler].options if it.handler in handlers else {}
    queue = it.queue or settings.handler_settings(it.handler, DEFAULT_QUEUE, options).queue or DEFAULT_QUEUE
    priority = options.get("priority", 0) if it.priority is None else it.priority
    payload = encode(it.payload, limit=MAX_BYTES)
    return Schedule(
        name, it.handler, it.timing, payload, queue, priority, it.jitter or 0.0, it.on_missed, it.overlap,
        it.key, it.on_failure, it.group, it.tags, it.expires, it.headers or None,
    )  # fmt: skip


def configured_payloads(settings: Settings) -> dict[str, tuple[str, str]]:
    """Return the handler and the payload, in JSON, of each schedule of the config."""
    return {name: (it.handler, encode(it.payload, limit=MAX_BYTES)) for name, it in settings.schedules.items()}


def misfit_texts(misfits: Iterable[Sequence[str]]) -> list[str]:
    """Return a text for each payload of a schedule that its handler refuses: (schedule, handler, the reason)."""
    return [f"schedule {name!r}: handler {handler!r}: {message}" for name, handler, message in misfits]


def schedule_contradictions(settings: Settings) -> Iterator[Contradiction]:
    for name, it in settings.schedules.items():
        path: Keys = ("schedules", name)
        if not it.has_one_timing:
            yield Contradiction(
                path, ONE_TIMING + (", not both" if it.cron else ""), ((*path, "cron"), (*path, "every"))
            )
        if it.lacks_key:
            yield Contradiction((*path, "on_failure"), KEY_NEEDED, ((*path, "key"),))
        for key, problem in _too_large(settings, it):
            yield Contradiction((*path, key), problem, (("limits", "payload"),), secret=True)
    if settings.schedules and settings.store.kafka is not None:
        yield Contradiction(("schedules",), NOT_ON_KAFKA, (("store",),))


def _too_large(settings: Settings, it: ScheduleSettings) -> Iterator[tuple[str, str]]:
    """Yield the keys whose values are larger than the limit of a payload, with the problem."""
    for key in ("payload", "headers"):
        try:
            encode(getattr(it, key), limit=settings.limits.payload, what=key)
        except NotJSON as error:
            yield key, str(error)


def handler_schedule_problem(settings: Settings, info: HandlerInfo) -> str | None:
    """Return what is wrong with the schedule of a decorator, though it is right by itself."""
    if "schedule" not in info.options:
        return None
    if settings.store.kafka is not None:
        return NOT_ON_KAFKA
    too_large = _too_large(settings, of_handler(info.name, info.options["schedule"]))
    return next((problem for _, problem in too_large), None)


def schedule_warnings(settings: Settings, handlers: Collection[str]) -> Iterator[str]:
    """Yield a warning for each schedule of the config that enqueues jobs for nobody, or has a key without effect."""
    file = str(settings.path or "config")
    served = settings.workers.queues
    for name, it in settings.schedules.items():
        where = f"{file}: schedules.{name}"
        if it.handler not in handlers:
            hint = did_you_mean(it.handler, handlers)
            yield f"{where}.handler: no plugin has the handler {it.handler!r}{hint}; its jobs wait until one has it"
        if it.queue is not None and served is not None and it.queue not in served:
            yield f"{where}.queue: no worker here serves queue {it.queue!r}; another supervisor has to, or add it to workers.queues"
        if it.every is not None and "timezone" in it.written:
            yield f"{where}.timezone: it has no effect beside every"
        if it.jitter is not None and it.has_one_timing and it.jitter > (shortest := it.timing.shortest_interval()):
            yield (
                f"{where}.jitter: it is longer than the {format_duration(shortest)} between two fire times, so jobs may come in another "
                "order than their fire times, and several at once"
            )
        if it.jitter is not None and it.expires is not None and it.expires <= it.jitter:
            yield f"{where}.expires: it is not longer than jitter, so jobs that are due later than that never run"
