"""The facts that a supervisor knows of itself and that keep jobs from running: announced in its row, where commands find it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from supervisor import events
from supervisor.engine.committer import RetryDecider
from supervisor.engine.current_config import CurrentConfig
from supervisor.engine.dispatcher import Dispatcher
from supervisor.engine.shares import retries_limit
from supervisor.engine.store_writer import Purpose, Writer
from supervisor.engine.suspects import Suspects
from supervisor.engine.unknown_handlers import UnknownHandlers
from supervisor.stores.job_limits import name_of_groups, name_of_handler, name_of_queue
from supervisor.stores.problems import Problem
from supervisor.stores.protocol import Reports
from supervisor.text.printable import printable
from supervisor.text.redaction import Mask
from supervisor.text.units import iso
from supervisor.workers.interface import where_it_hangs
from supervisor.workers.pool import Pool
from supervisor.workers.slot import WorkerSlot
from supervisor.workers.worker_group import OTHERS

STARTING_SECONDS = 10.0
"""A worker that is not ready after so long is reported."""
MAX_PROBLEMS = 50
MAX_HANDLERS = 1000  # that are announced; more are left unknown
MAX_LIMITS = 200  # that are announced
MAX_MESSAGE = 500
REFUSED = "refused"
"""Of problems of a reload."""


@dataclass(eq=False)
class SelfReport:
    """Collects the fields of `stores.supervisors.ABOUT`. Problems that events report stay until another event ends them."""

    _config: CurrentConfig
    _pool: Pool
    _writer: Writer
    _dispatcher: Dispatcher
    _decider: RetryDecider
    _unknown_handlers: UnknownHandlers
    _suspects: Suspects
    _bus: events.Bus
    _ttl: float
    _now: Callable[[], float]
    failing_sinks: Mapping[str, str] = field(default_factory=dict)
    """The last error of each sink that refuses dead letters; the publisher keeps it."""
    limits_reached: Mapping[str, str] = field(default_factory=dict)
    """The limits that allowed no claim at the last one, and why; the fetcher keeps it."""
    limits_reached_until: Mapping[str, int] = field(default_factory=dict)
    schedules: Callable[[], Iterable[str]] = tuple
    """Returns the names of the schedules that fire here."""
    store: Reports | None = None
    """The store, if things happen in it that no call has caused."""
    _by_event: dict[tuple[str, str], Problem] = field(default_factory=dict)
    _last_exit: str = ""
    _slow: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for kind, react in self._reactions().items():
            self._bus.subscribe(react, kind)

    def about(self) -> dict[str, Any]:
        settings, shown = self._config.settings, self._shown()
        return {
            "queues": None if settings.workers.queues is None else sorted(settings.workers.queues),
            "groups": self._groups(),
            "handlers": sorted(self._config.handlers) if len(self._config.handlers) <= MAX_HANDLERS else None,
            "async_handlers": sorted(self._config.async_handlers)[:MAX_HANDLERS],
            "schedules": sorted(self.schedules())[:MAX_HANDLERS],
            "lease_ttl": self._ttl,
            "problems": [it._asdict() for it in self.problems()],
            "missing_handlers": self._unknown_handlers.missing()[:MAX_PROBLEMS],
            "held_retries": self._held_retries(),
            "spent_budgets": self._decider.spent_budgets(),
            "failing_sinks": {sink: shown(error) for sink, error in islice(self.failing_sinks.items(), MAX_PROBLEMS)},
            "runs_alone": self._suspects.alone,
            "limits": self._limits(),
            **({} if self.store is None else self.store.about()),
        }

    def problems(self) -> list[Problem]:
        of_store = () if self.store is None else self.store.problems()
        found = [*of_store, *self._plugins(), *self._by_event.values(), *self._workers(), *self._sinks()][:MAX_PROBLEMS]
        return self.masked(found)

    def masked(self, problems: Iterable[Problem]) -> list[Problem]:
        shown = self._shown()
        return [it._replace(message=shown(it.message)) for it in problems]

    def _shown(self) -> Callable[[str], str]:
        mask = Mask(self._config.settings.secrets)
        return lambda message: printable(mask(message))[:MAX_MESSAGE]

    def blocked(self) -> bool:
        """Return whether no job runs and none can start or end: the store is unavailable or refuses that, or workers fail to start."""
        if any(slot.sent for slot in self._pool.slots):
            return False
        refused = any(("store", purpose.text) in self._by_event for purpose in (Purpose.CLAIM, Purpose.SETTLE))
        fails = any(group.reforks.failing for group in self._pool.groups.values()) or any(
            map(self._is_slow_to_start, self._pool.slots)
        )
        return refused or self._writer.unavailable or (fails and not self._pool.ready_count())

    def limits_hold_back(self) -> bool:
        """Return whether the limit of a handler or a group allows no claim now. Jobs that are blocked may wait for that."""
        limits = self._config.job_limits
        if limits is None:
            return False
        names = [*map(name_of_handler, limits.handlers), *map(name_of_groups, limits.groups)]
        return any(name in self.limits_reached for name in names)

    def _is_slow_to_start(self, slot: WorkerSlot) -> bool:
        waits = slot.ready_at is None and slot.process.pid is not None
        return waits and self._now() - slot.started > STARTING_SECONDS

    def _held_retries(self) -> list[str]:
        """Return the queues that have as many retries in flight as `retry.max_in_flight` allows."""
        groups, group_of, retry_for = self._pool.groups, self._config.group_of, self._config.settings.retry_for
        limits = [
            (n, queue, retries_limit(retry_for(queue), groups[group_of.get(queue, OTHERS)].count))
            for queue, n in self._dispatcher.with_retries().items()
        ]
        return sorted(queue for n, queue, limit in limits if limit is not None and n >= limit)

    def _groups(self) -> list[dict[str, Any]]:
        configured = self._config.settings.workers.groups
        return [
            {
                "group": name or None,
                "queues": sorted(configured[name].queues) if name else None,
                "count": group.count,
                "min": group.size.min,
                "max": group.size.max,
            }
            for name, group in self._pool.groups.items()
        ]

    def _limits(self) -> list[dict[str, Any]]:
        settings, limits = self._config.settings, self._config.job_limits
        if limits is None:
            return []
        found = [("queue", it, settings.queues[it].limit, name_of_queue(it)) for it in limits.queues]
        found += [("groups", it, settings.queues[it].group_limit, name_of_groups(it)) for it in limits.groups]
        found += [("handler", it, settings.handlers[it].limit, name_of_handler(it)) for it in limits.handlers]
        return [
            {
                "of": of,
                "name": name,
                "limit": limit.text,
                "reached": self.limits_reached.get(limit_name),
                "until": iso(self.limits_reached_until.get(limit_name)),
            }
            for of, name, limit, limit_name in found[:MAX_LIMITS]
            if limit is not None
        ]

    def _plugins(self) -> list[Problem]:
        failed = [it for it in self._config.reports if it.error is not None]
        return [
            Problem(
                "plugin", events.PluginFailed(it.source, it.line, it.error or "", "").text, "correct it, and send HUP"
            )
            for it in failed
        ]

    def _sinks(self) -> list[Problem]:
        what = "repair it; they stay pending, and are offered again"
        failing = self.failing_sinks.items()
        return [Problem("sink", f"sink {sink} does not accept dead letters: {error}", what) for sink, error in failing]

    def _workers(self) -> list[Problem]:
        found = []
        if any(group.reforks.failing for group in self._pool.groups.values()):
            ready, count = self._pool.ready_count(), sum(group.count for group in self._pool.groups.values())
            message = f"workers fail as soon as they start ({ready} of {count} run); the last one {self._last_exit}"
            found.append(Problem("workers", message, "remove the cause; they are started again after a delay"))
        if self._pool.async_workers.reforks.failing:
            message = f"async workers fail as soon as they start; the last one {self._last_exit}"
            found.append(Problem("workers", message, "remove the cause; they are started again after a delay"))
        for slot in {slot.number: slot for slot in self._pool.slots}.values():  # one for each process
            if self._is_slow_to_start(slot):
                message = f"worker {slot.number} (pid {slot.process.pid}) {self._not_ready(slot)}"
                found.append(Problem("worker_start", message, _unstick(slot)))
        return found

    def _not_ready(self, slot: WorkerSlot) -> str:
        """Return what may keep a worker from being ready, and report it once."""
        where = where_it_hangs(slot.process.doing)
        message = f"is not ready after {STARTING_SECONDS:.0f}s and takes no jobs: {where}"
        if slot.number not in self._slow:
            self._slow = self._slow & {each.number for each in self._pool.slots} | {slot.number}
            slot.warn(f"{message}; {_unstick(slot)}")
        return message

    # problems that begin and end with events

    def _reactions(self) -> dict[type[Any], events.Subscriber]:
        return {
            events.StoreCallFailed: lambda it: self._begin("store", it.purpose, it.text, "remove the cause of the error"),
            events.StoreCallSucceeded: lambda it: self._end("store", it.purpose),
            events.ForkserverExited: lambda it: self._begin(
                "forkserver", "", f"the forkserver {it.how}: no worker can be started", "look at the log",
            ),
            events.ForkserverStarted: lambda _: self._end("forkserver", ""),
            events.ConfigRefused: self._refused,
            events.ConfigReloaded: self._reloaded,
            events.WorkerExited: self._worker_exited,
        }  # fmt: skip

    def _begin(self, kind: str, of: str, message: str, what_to_do: str) -> None:
        if len(self._by_event) < MAX_PROBLEMS or (kind, of) in self._by_event:
            self._by_event[kind, of] = Problem(kind, message, what_to_do)

    def _end(self, kind: str, of: str) -> None:
        self._by_event.pop((kind, of), None)

    def _refused(self, event: events.ConfigRefused) -> None:
        self._forget_refusal()
        self._begin(
            "plugin" if event.by_plugin else "config", REFUSED,
            f"the reload was refused, and the old configuration stays: {'; '.join(event.errors)}",
            "correct it, and send HUP again; supervisor check finds mistakes of the config and of imports, the log those of hooks",
        )  # fmt: skip

    def _forget_refusal(self) -> None:
        self._end("config", REFUSED)
        self._end("plugin", REFUSED)

    def _reloaded(self, event: events.ConfigReloaded) -> None:
        self._forget_refusal()
        self._end("restart", "")
        if event.needs_restart:
            message = f"a restart is needed for: {', '.join(event.needs_restart)}"
            self._begin("restart", "", message, "restart the supervisor")

    def _worker_exited(self, event: events.WorkerExited) -> None:
        if event.cause not in events.NORMAL_EXITS and event.job_id is None:
            self._last_exit = event.how


def _unstick(slot: WorkerSlot) -> str:
    return f"look where with: py-spy dump -p {slot.process.pid}, correct the plugin and restart"
