"""Names of handlers and queues in a config that are probably misspelt: no single key is wrong by itself."""

from __future__ import annotations

import re
from collections.abc import Collection

from supervisor.config.schedules_in_force import schedule_warnings
from supervisor.config.settings import DEFAULT_QUEUE, Settings
from supervisor.text.names import did_you_mean


def name_warnings(settings: Settings, handlers: Collection[str]) -> list[str]:
    """Return a warning for each doubtful name; `handlers` are those of the plugins."""
    return [*unknown_handlers(settings, handlers), *doubtful_queues(settings), *schedule_warnings(settings, handlers)]


def unknown_handlers(settings: Settings, handlers: Collection[str]) -> list[str]:
    topics = settings.store.kafka.topics if settings.store.kafka else {}
    return [
        *(
            f"{_file(settings)}: handlers.{name}: no plugin has this handler{did_you_mean(name, handlers)}"
            for name in settings.handlers
            if name not in handlers
        ),
        *(
            f"{_file(settings)}: store.topics.{topic}: no plugin has the handler {name}{did_you_mean(name, handlers)}"
            for topic, name in topics.items()
            if name is not None and name not in handlers
        ),
    ]


def doubtful_queues(settings: Settings) -> list[str]:
    """Return a warning for each queue of a handler that is not served here, and for each queue that one key alone names and that
    is similar to a queue of other keys, or to one that is served. Jobs may be enqueued in queues that the config does not name, so others
    are not reported."""
    file = _file(settings)
    served = settings.workers.queues or frozenset()
    of_handlers = {name: handler.queue for name, handler in settings.handlers.items() if handler.queue}
    of_groups = {queue: name for name, group in settings.workers.groups.items() for queue in group.queues}
    routed, configured = {*of_handlers.values()}, settings.queues.keys()
    only_served = sorted(served - routed - configured - of_groups.keys())
    only_configured = sorted(configured - routed - served - of_groups.keys())
    only_grouped = sorted(of_groups.keys() - routed - configured - served)
    return [
        *(
            f"{file}: handlers.{name}.queue: no worker here serves queue {queue!r}"
            + (did_you_mean(queue, served) or "; another supervisor has to, or add it to workers.queues")
            for name, queue in of_handlers.items()
            if served and queue not in served
        ),
        *(
            f"{file}: workers.queues: no other key names queue {queue!r}{hint}"
            for queue in only_served
            if (hint := _hint(queue, {DEFAULT_QUEUE, *configured} - served))
        ),
        *(
            f"{file}: workers.groups.{of_groups[queue]}.queues: no other key names queue {queue!r}{hint}"
            for queue in only_grouped
            if (hint := _hint(queue, {DEFAULT_QUEUE, *configured, *routed} - of_groups.keys()))
        ),
        *(
            f"{file}: queues.{queue}: no other key names this queue{hint}"
            for queue in only_configured
            if (
                hint := _hint(
                    queue, ({DEFAULT_QUEUE, *routed, *of_groups} - configured) | (served & (configured | routed))
                )
            )
        ),
    ]


def named_queues(settings: Settings) -> set[str]:
    """Return the queues that keys of the config name."""
    of_handlers = {handler.queue for handler in settings.handlers.values() if handler.queue}
    of_schedules = {schedule.queue for schedule in settings.schedules.values() if schedule.queue}
    of_groups = (group.queues for group in settings.workers.groups.values())
    topics = settings.store.kafka.topics if settings.store.kafka else ()
    return {
        DEFAULT_QUEUE,
        *settings.queues,
        *(settings.workers.queues or ()),
        *of_handlers,
        *of_schedules,
        *topics,
    }.union(*of_groups)


def _hint(queue: str, others: Collection[str]) -> str:
    """Return a hint at a similar name that is not in use itself. Names that differ in numbers only are not meant to be the same."""
    if queue == DEFAULT_QUEUE:
        return ""
    return did_you_mean(queue, [other for other in others if _without_digits(other) != _without_digits(queue)])


def _without_digits(name: str) -> str:
    return re.sub(r"\d+", "", name)


def _file(settings: Settings) -> str:
    return str(settings.path or "config")
