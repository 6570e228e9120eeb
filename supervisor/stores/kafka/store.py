"""The Kafka store: a consumer group whose records are jobs, in the memory of the supervisor that has their partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

from supervisor.config.kafka import KafkaSettings
from supervisor.config.settings import DlqSettings
from supervisor.jobs import JobState
from supervisor.kafka.events import GroupEvent
from supervisor.stores.kafka.consumer import GroupConsumer
from supervisor.stores.kafka.dead_letters import DeadLetters
from supervisor.stores.kafka.description import description, obstacles
from supervisor.stores.kafka.group import Group
from supervisor.stores.kafka.limits import DONE, NOWHERE, unsupported
from supervisor.stores.kafka.partitions import Assignment
from supervisor.stores.kafka.producing import Producing
from supervisor.stores.kafka.queries import KafkaQueries
from supervisor.stores.kafka.state import KafkaState
from supervisor.stores.limited_claims import LimitedClaims
from supervisor.stores.memory.job_limits import LimitRows
from supervisor.stores.memory.links import Links
from supervisor.stores.memory.operator import OperatorChanges
from supervisor.stores.memory.ownership import Ownership
from supervisor.stores.memory.queue import Queue
from supervisor.stores.memory.settle import Settles
from supervisor.stores.operator_commands import BatchedCommands
from supervisor.stores.problems import Problem
from supervisor.stores.records import Look, OperatorResult
from supervisor.stores.schedules import Change, ScheduleRow
from supervisor.stores.sinks import Sinks

P = ParamSpec("P")
R = TypeVar("R")

LEAVE = 5.0
"""Seconds, at most, for the last commit and for leaving the group."""


class KafkaStore:
    """Implements `supervisor.stores.protocol.Store`, `Reports` and `Limited`. A supervisor joins; a program that has not joined sees what the
    brokers know of the group, and can enqueue. `clock` returns seconds since the epoch."""

    limits: ClassVar[Mapping[str, str]] = {call: limit.instead for call, limit in NOWHERE.items()}

    def __init__(self, settings: KafkaSettings, clock: Callable[[], float] = time.time) -> None:
        self.url = settings.shown
        self._settings = settings
        self._emit: Callable[[GroupEvent], None] = lambda event: None
        self._consumer: GroupConsumer | None = None
        self._group: Group | None = None
        self._producing = Producing(settings)
        assignment = Assignment(settings.buffer.records, settings.buffer.size)
        topics, header, value = settings.topics, settings.handler_header, settings.value
        self.state = state = KafkaState(assignment, topics, header, value, clock=clock)
        self._owner = owner = Ownership(state)
        state.on_ready = owner.notify_self
        links = Links(state)
        self._queue = queue = Queue(state, owner, links)
        settles, dead_letters = Settles(state, owner, links), DeadLetters(state, owner)
        self._queries = queries = KafkaQueries(state, owner, self._has_joined)
        self._commands = commands = BatchedCommands(OperatorChanges(state, links), state.transaction, owner.notify)
        self.enqueue, self.transaction, self.clock = self._producing.enqueue, state.transaction, state.clock
        self.notify, self.announce, self.watch_owners = owner.notify, owner.announce, owner.watch_owners
        self.notification_fd, self.clear_notifications = owner.notification_fd, owner.clear_notifications
        self.claim, self.paused, self.make_due = queue.claim, queue.paused, queue.make_due
        self.newly_ready, self.set_group_shares = links.newly_ready, links.groups.set_shares
        limited = LimitedClaims(LimitRows(state, queue), state.transaction)  # unused: the config refuses limits
        self.allowance, self.claim_limited = limited.allowance, limited.claim_limited
        self.release_held = limited.release_held
        self.settle, self.recover, self.extend = settles.settle, settles.recover, settles.extend
        self.held, self.leases, self.keep_reports = settles.held, settles.leases, settles.keep_reports
        self.snoozes = settles.snoozes
        self.expired_leases, self.repair, self.prune = settles.expired_leases, queries.repair, commands.prune
        self.claim_dead_letters, self.postpone = dead_letters.claim_dead_letters, dead_letters.postpone
        self.mark_accepted, self.sinks = dead_letters.mark_accepted, self._inside("sinks", queries.sinks)
        self.remaining = self._inside("remaining", queries.remaining)
        self.oldest_ready = self._inside("oldest_ready", queries.oldest_ready)
        self.get, self.get_many = self._inside("get", queries.get), self._inside("get_many", queries.get_many)
        self.ended = self._inside("ended", queries.ended)
        self.counts_by_state = self._inside("counts_by_state", queries.counts_by_state)
        self.list_jobs = self._inside("list_jobs", queries.list_jobs)
        self.find_jobs = self._inside("find_jobs", queries.find_jobs)
        self.failures = self._inside("failures", queries.failures)
        self.cancel, self.pause = self._inside("cancel", commands.cancel), self._inside("pause", commands.pause)

    def _inside(self, name: str, call: Callable[P, R]) -> Callable[P, R]:
        """Return the call as programs may make it: only in the supervisor that has the jobs."""

        @wraps(call)
        def guarded(*arguments: P.args, **named: P.kwargs) -> R:
            if not self._has_jobs:
                raise unsupported(name)
            return call(*arguments, **named)

        return guarded

    @property
    def _has_jobs(self) -> bool:
        """Whether this is the store of a supervisor, also if that has left."""
        return self._owner.name is not None or self._consumer is not None

    def _has_joined(self) -> bool:
        return self._consumer is not None and self._consumer.membership.joined

    # a supervisor

    def report_to(self, emit: Callable[[GroupEvent], None]) -> None:
        self._emit = emit

    def problems(self) -> list[Problem]:
        return [] if self._consumer is None else self._consumer.problems()

    def about(self) -> dict[str, Any]:
        return {} if self._consumer is None else {"partitions": self._consumer.figures.rows()}

    def join(self, owner: str, host: str, pid: int, sinks: Sinks = frozenset()) -> int | None:
        if self._consumer is None:
            self._consumer = GroupConsumer(self._settings, self.state, lambda event: self._emit(event))
            self.state.require_available = self._consumer.connection.require
        self._consumer.connection.require_topics()
        self._owner.join(owner, host, pid, sinks)
        return None

    def look(self, served: frozenset[str] | None, limit: int, stay: bool = False) -> Look:
        """At the first look a worker is ready: only now join the group, so that a supervisor that can't start takes no partition."""
        if self._consumer is not None:
            self._consumer.start()
        return self._queue.look(served, limit, stay)

    def leave(self) -> None:
        """Commit what is done, and leave the group."""
        self._stop()
        self._owner.leave()

    def _stop(self) -> None:
        if self._consumer is not None:
            self._consumer.stop(LEAVE)

    # programs and people

    def stats(self) -> dict[str, Any]:
        return self._queries.stats() if self._has_jobs else self.group.stats()

    def describe(self, dlq: DlqSettings) -> list[str]:
        return description(self._settings, dlq, self.group)

    def obstacles(self) -> list[str]:
        return obstacles(self.group)

    @property
    def group(self) -> Group:
        if self._group is None:
            self._group = Group(self._settings)
        return self._group

    def retry(
        self, ids: Sequence[int], force: bool = False, *, only: Collection[JobState] | None = None
    ) -> OperatorResult:
        """Make scheduled jobs due now. Others are refused: the record of one that has ended is done."""
        retry = self._inside("retry", self._commands.retry)
        with self.state.lock:
            ended = {id for id in ids if (job := self.state.jobs.get(id)) is not None and job.state.terminal}
            changed, refused = retry([id for id in ids if id not in ended], force, only=(JobState.SCHEDULED,))
        return OperatorResult(changed, {**refused, **dict.fromkeys(sorted(ended), DONE)})

    def redrive(
        self, ids: Sequence[int] | None, force: bool = False, *, only: Collection[JobState] | None = None
    ) -> OperatorResult:
        raise unsupported("redrive")

    def delete(
        self, ids: Sequence[int], force: bool = False, *, only: Collection[JobState] | None = None
    ) -> OperatorResult:
        raise unsupported("delete")

    def move(self, ids: Sequence[int], queue: str, *, only: Collection[JobState] | None = None) -> OperatorResult:
        raise unsupported("move")

    def purge(self, force: bool = False, ids: Sequence[int] | None = None) -> OperatorResult:
        raise unsupported("purge")

    def drop_sink(self, sink: str) -> int:
        raise unsupported("drop_sink")

    def schedules(self) -> list[ScheduleRow]:
        raise unsupported("schedules")

    def change_schedules(self, names: Sequence[str], change: Change, *, wait: bool = False) -> list[list[int]]:
        raise unsupported("change_schedules")

    def close(self) -> None:
        self._stop()
        self._producing.close()
        if self._group is not None:
            self._group.close()
