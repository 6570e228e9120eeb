"""The settings and plugins in force, and the events that report which plugins were loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from supervisor.config.contradictions import handler_problems
from supervisor.config.job_limits import JobLimitSettings
from supervisor.config.misspelt import name_warnings
from supervisor.config.schedules_in_force import misfit_texts, schedules_of
from supervisor.config.settings import Settings
from supervisor.config.without_effect import without_effect
from supervisor.events import Bus, ConfigWarning, PluginFailed, PluginLoaded, PluginWarning
from supervisor.handlers import HandlerInfo
from supervisor.jobs import Outcome
from supervisor.plugins.reports import SourceReport, nothing_served
from supervisor.stores.job_limits import JobLimits, Limit
from supervisor.stores.records import Resolve, microseconds
from supervisor.workers.async_workers import AsyncOptions

MAX_POLICIES = 1000
_ANY_OTHER_QUEUE = ""
"""No queue has this name. Queues without settings of their own, of which there may be thousands, share their policies."""


class CurrentConfig:
    """The settings and plugins that this supervisor uses. A reload, or a new forkserver, replaces them.

    `resolve` returns the policy of a handler in a queue, and may be called from any thread. It is the same function until
    something is replaced: stores drop the policies that they have cached when it changes.
    """

    settings: Settings
    resolve: Resolve

    def __init__(self, settings: Settings, reports: Sequence[SourceReport]) -> None:
        self.reports: Sequence[SourceReport] = ()
        self.handlers: Mapping[str, HandlerInfo] = {}
        self.replace(settings, reports)

    def replace(self, settings: Settings, reports: Sequence[SourceReport]) -> None:
        handlers = {info.name: info for report in reports for info in report.handlers}
        self.settings, self.reports, self.handlers = settings, list(reports), handlers
        self.schedules = schedules_of(settings, handlers)
        self.group_of = {queue: name for name, it in settings.workers.served_groups.items() for queue in it.queues}
        self.async_handlers = frozenset(name for name, info in handlers.items() if info.is_async)
        self.job_limits = job_limits(settings)
        of_own_settings = lru_cache(MAX_POLICIES)(lambda handler, queue: settings.policy(handler, queue, handlers))
        own = settings.queues
        self.resolve = lambda handler, queue: of_own_settings(handler, queue if queue in own else _ANY_OTHER_QUEUE)

    @property
    def async_options(self) -> AsyncOptions:
        options = self.settings.workers.async_
        workers = options.count if self.async_handlers else 0
        return AsyncOptions(workers, options.concurrency, options.cancel_grace)

    def cancel_grace(self, handler: str) -> float | None:
        """Return the seconds for which a cancelled job of the handler may tidy up; None if its worker is killed at once."""
        options = self.handlers[handler].options if handler in self.handlers else {}
        settings, workers = self.settings, self.settings.workers
        if handler in self.async_handlers:
            settings = settings.replace(workers=workers.replace(cancel_grace=workers.async_.cancel_grace))
        return settings.handler_settings(handler, _ANY_OTHER_QUEUE, options).cancel_grace

    def newly_broken(self, reports: Sequence[SourceReport]) -> tuple[str, ...]:
        """Return the plugin files that are served now and have an error in `reports`, each as "file:line: error"."""
        served = {report.source for report in self.reports if report.error is None}
        return tuple(
            f"{report.source}:{report.line or ''}: {report.error}"
            for report in reports
            if report.error is not None and report.source in served
        )


def job_limits(settings: Settings) -> JobLimits | None:
    """Return the limits of queues, handlers and groups; None if there are none."""
    queues = _limits({name: it.limit for name, it in settings.queues.items()})
    handlers = _limits({name: it.limit for name, it in settings.handlers.items()})
    groups = _limits({name: it.group_limit for name, it in settings.queues.items()})
    return JobLimits(queues, handlers, groups) if queues or handlers or groups else None


def _limits(found: Mapping[str, JobLimitSettings | None]) -> dict[str, Limit]:
    return {name: _limit(it) for name, it in found.items() if it is not None and it.text}


def _limit(settings: JobLimitSettings) -> Limit:
    claims, per = settings.rate or (None, 0.0)
    return Limit(settings.running, claims, microseconds(per))


def freed_queues(limits: JobLimits, outcomes: Sequence[Outcome]) -> frozenset[str]:
    """Return the queues in which jobs that a limit holds back may go on after these outcomes."""
    return frozenset(it.lease.queue for it in outcomes if limits.counts(it.lease.queue, it.lease.handler))


def emit_config_events(
    bus: Bus, reports: Sequence[SourceReport], settings: Settings, misfits: Sequence[Sequence[str]] = ()
) -> None:
    """Report the plugins of a start or a reload, the names in the config that don't fit them, settings without effect, and the payloads
    of schedules that their handlers refuse (`misfits`)."""
    emit_plugin_events(bus, reports, settings)
    if nothing := nothing_served(reports, settings):
        bus.emit(PluginWarning(*nothing))
    handlers = [info for report in reports for info in report.handlers]
    of_names = name_warnings(settings, {info.name for info in handlers})
    for warning in (*of_names, *without_effect(settings, handlers), *misfit_texts(misfits)):
        bus.emit(ConfigWarning(warning))


def emit_plugin_events(bus: Bus, reports: Sequence[SourceReport], settings: Settings) -> None:
    for report in reports:
        if report.error is not None:
            bus.emit(PluginFailed(report.source, report.line, report.error, report.traceback))
        if report.error is None or report.handlers:
            names = tuple(info.name for info in report.handlers)
            bus.emit(PluginLoaded(report.source, names, report.hooks))
        problems = [problem for info in report.handlers for problem in handler_problems(settings, info)]
        for warning in (*report.warnings, *problems):
            bus.emit(PluginWarning(report.source, warning))
