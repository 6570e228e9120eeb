"""The SQLite store: one file, any number of clients and supervisors on one machine, nothing else to install."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from supervisor.stores.fencing import RandomPart, random_part
from supervisor.stores.limited_claims import LimitedClaims
from supervisor.stores.operator_commands import BatchedCommands
from supervisor.stores.schedules import StoredSchedules
from supervisor.stores.sqlite.connection import Connection, SqliteLimits
from supervisor.stores.sqlite.database_file import beside
from supervisor.stores.sqlite.dead_letters import DeadLetterQueue
from supervisor.stores.sqlite.job_limits import LimitRows
from supervisor.stores.sqlite.links import Links
from supervisor.stores.sqlite.migrations import bring_up
from supervisor.stores.sqlite.notifier import Notifier
from supervisor.stores.sqlite.oldest import Oldest
from supervisor.stores.sqlite.operator import OperatorChanges
from supervisor.stores.sqlite.owner_lock import OwnerLock
from supervisor.stores.sqlite.ownership import Ownership
from supervisor.stores.sqlite.policies import Policies
from supervisor.stores.sqlite.queries import Queries
from supervisor.stores.sqlite.queue import Queue
from supervisor.stores.sqlite.ready_claims import ReadyClaims
from supervisor.stores.sqlite.recovery import Recovery
from supervisor.stores.sqlite.repair import Repair
from supervisor.stores.sqlite.schedules import ScheduleTable
from supervisor.stores.sqlite.settle import Settles
from supervisor.stores.sqlite.transfer import Transfer

DEFAULT_LIMITS = SqliteLimits()


class _Parts:
    """The parts of a store, which share one connection."""

    def __init__(self, connection: Connection, url: str, folder: Path, random_part: RandomPart) -> None:
        self.notifier, self.owner_lock, self.links = Notifier(folder), OwnerLock(folder), Links(connection)
        self.policies = Policies(connection)
        self.owner = Ownership(connection, self.owner_lock, self.notifier, random_part)
        self.queue = Queue(connection, self.policies, self.owner, self.notifier, self.links)
        self.limited = LimitedClaims(
            LimitRows(connection, ReadyClaims(connection, self.queue).claim, self.queue.paused), connection.transaction
        )
        connection.on_rollback(self.limited.forget)
        self.settles = Settles(connection, self.policies, self.owner, self.links)
        self.recovery = Recovery(connection, self.policies, self.owner, self.owner_lock)
        self.queries = Queries(connection, self.policies, self.owner, self.owner_lock)
        self.dead_letters = DeadLetterQueue(connection, self.queries, self.owner)
        changes = OperatorChanges(connection, self.queries, self.links)
        self.commands = BatchedCommands(changes, connection.transaction, self.notifier.notify)
        self.transfer = Transfer(url, connection, self.policies, self.queries, self.links)
        self.schedules = StoredSchedules(ScheduleTable(connection), connection.transaction, self.queue.enqueue)


class SqliteStore:
    """Implements `supervisor.stores.protocol.Store`, and `Transferable`: its methods are those of its parts. `clock` returns seconds
    since the epoch."""

    def __init__(
        self, path: Path, *, create: bool = False, synchronous: str = "full", clock: Callable[[], float] = time.time,
        limits: SqliteLimits = DEFAULT_LIMITS, random_part: RandomPart = random_part,
    ) -> None:  # fmt: skip
        self.connection = connection = Connection(path, create=create, clock=clock, limits=limits)
        self.path = connection.path
        self.url, folder = f"sqlite:///{self.path}", beside(self.path, ".notify")
        bring_up(connection, synchronous, folder)
        parts = _Parts(connection, self.url, folder, random_part)
        queue, owner, settles, queries = parts.queue, parts.owner, parts.settles, parts.queries
        self.notifier, self.owner_lock = notifier, _ = parts.notifier, parts.owner_lock
        dead_letters, commands, transfer = parts.dead_letters, parts.commands, parts.transfer
        self.transaction, self.close, self.clock = connection.transaction, connection.close, clock
        self.allowance, self.claim_limited = parts.limited.allowance, parts.limited.claim_limited
        self.release_held = parts.limited.release_held
        self.enqueue, self.notify, self.paused = queue.enqueue, notifier.notify, queue.paused
        self.make_due, self.oldest_ready = queue.make_due, Oldest(connection).oldest_ready
        self.join, self.leave, self.announce = owner.join, owner.leave, owner.announce
        self.watch_owners, self.expired_leases = parts.recovery.watch_owners, parts.recovery.expired_leases
        self.notification_fd, self.clear_notifications = notifier.fd, notifier.clear
        self.look, self.claim, self.held, self.leases = queue.look, queue.claim, settles.held, settles.leases
        self.settle, self.recover, self.extend = settles.settle, settles.recover, settles.extend
        self.newly_ready, self.keep_reports = parts.links.newly_ready, settles.keep_reports
        self.snoozes, self.set_group_shares = settles.snoozes, parts.links.groups.set_shares
        self.claim_dead_letters, self.postpone = dead_letters.claim_dead_letters, dead_letters.postpone
        self.mark_accepted, self.stats = dead_letters.mark_accepted, queries.stats
        self.remaining, self.get, self.list_jobs = queries.remaining, queries.get, queries.list_jobs
        self.get_many, self.ended, self.counts_by_state = queries.get_many, queries.ended, queries.counts_by_state
        self.find_jobs, self.failures, self.sinks = queries.find_jobs, queries.failures, queries.sinks
        self.cancel, self.retry, self.redrive = commands.cancel, commands.retry, commands.redrive
        self.delete, self.purge, self.prune = commands.delete, commands.purge, commands.prune
        self.pause, self.move, self.drop_sink = commands.pause, commands.move, commands.drop_sink
        self.repair, self.schedules = Repair(connection, parts.links).repair, parts.schedules.schedules
        self.change_schedules = parts.schedules.change_schedules
        self.place, self.transfer_record, self.reopen = transfer.place, transfer.transfer_record, transfer.reopen
        self.close_for_transfer, self.note_arrival = transfer.close_for_transfer, transfer.note_arrival
        self.sizes, self.export = transfer.sizes, transfer.export
        self.counted, self.counted_needed = transfer.counted, transfer.counted_needed
        self.last_id, self.import_jobs = transfer.last_id, transfer.import_jobs
        self.has_received, self.unique_keys = transfer.has_received, transfer.unique_keys
