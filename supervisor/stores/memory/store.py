"""The memory store: the protocol in plain Python, for tests and for jobs that need not outlive their process."""

from __future__ import annotations

import time
from collections.abc import Callable

from supervisor.stores.limited_claims import LimitedClaims
from supervisor.stores.memory.dead_letters import DeadLetterQueue
from supervisor.stores.memory.job_limits import LimitRows
from supervisor.stores.memory.links import Links
from supervisor.stores.memory.operator import OperatorChanges
from supervisor.stores.memory.ownership import Ownership
from supervisor.stores.memory.queries import Queries
from supervisor.stores.memory.queue import Queue
from supervisor.stores.memory.schedules import ScheduleTable
from supervisor.stores.memory.settle import Settles
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.operator_commands import BatchedCommands
from supervisor.stores.schedules import StoredSchedules


class MemoryStore:
    """Implements `supervisor.stores.protocol.Store`: its methods are those of its parts, which share one state. With the `state`
    of another store it has the same jobs, for another owner or client; otherwise `clock` returns seconds since the epoch."""

    url = "memory://"

    def __init__(self, clock: Callable[[], float] = time.time, state: MemoryState | None = None) -> None:
        self.state = state = state or MemoryState(clock)
        owner = Ownership(state)
        links = Links(state)
        queue, settles = Queue(state, owner, links), Settles(state, owner, links)
        limited = LimitedClaims(LimitRows(state, queue), state.transaction)
        self.allowance, self.claim_limited = limited.allowance, limited.claim_limited
        self.release_held = limited.release_held
        dead_letters, queries = DeadLetterQueue(state, owner), Queries(state, owner)
        commands = BatchedCommands(OperatorChanges(state, links), state.transaction, owner.notify)
        self.transaction, self.enqueue, self.notify = state.transaction, queue.enqueue, owner.notify
        self.join, self.leave, self.announce = owner.join, owner.leave, owner.announce
        self.watch_owners, self.expired_leases = owner.watch_owners, settles.expired_leases
        self.notification_fd, self.clear_notifications = owner.notification_fd, owner.clear_notifications
        self.look, self.claim, self.paused, self.make_due = queue.look, queue.claim, queue.paused, queue.make_due
        self.newly_ready, self.set_group_shares = links.newly_ready, links.groups.set_shares
        self.settle, self.recover, self.extend = settles.settle, settles.recover, settles.extend
        self.held, self.leases, self.keep_reports = settles.held, settles.leases, settles.keep_reports
        self.snoozes = settles.snoozes
        self.claim_dead_letters, self.postpone = dead_letters.claim_dead_letters, dead_letters.postpone
        self.mark_accepted, self.clock = dead_letters.mark_accepted, state.clock
        self.stats, self.remaining = queries.stats, queries.remaining
        self.get, self.list_jobs = queries.get, queries.list_jobs
        self.counts_by_state = queries.counts_by_state
        self.get_many, self.ended, self.oldest_ready = queries.get_many, queries.ended, queries.oldest_ready
        self.find_jobs, self.failures, self.sinks = queries.find_jobs, queries.failures, queries.sinks
        self.cancel, self.retry, self.redrive = commands.cancel, commands.retry, commands.redrive
        self.move = commands.move
        self.delete, self.purge, self.prune = commands.delete, commands.purge, commands.prune
        self.pause, self.repair, self.drop_sink = commands.pause, queries.repair, commands.drop_sink
        schedules = StoredSchedules(ScheduleTable(state), state.transaction, queue.enqueue)
        self.schedules, self.change_schedules = schedules.schedules, schedules.change_schedules

    def close(self) -> None:
        pass
