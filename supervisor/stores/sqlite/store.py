"""The SQLite store: one file, any number of clients and supervisors on one machine, nothing else to install."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from supervisor.stores.fencing import RandomPart, random_part
from supervisor.stores.limited_claims import LimitedClaims
from supervisor.stores.operator_commands import BatchedCommands
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
from supervisor.stores.sqlite.recovery import Recovery
from supervisor.stores.sqlite.repair import Repair
from supervisor.stores.sqlite.settle import Settles
from supervisor.stores.sqlite.transfer import Transfer

DEFAULT_LIMITS = SqliteLimits()


class SqliteStore:
    """Implements `supervisor.stores.protocol.Store`, and `Transferable`: its methods are those of its parts, which share one
    connection. `clock` returns seconds since the epoch."""

    def __init__(
        self, path: Path, *, create: bool = False, synchronous: str = "full", clock: Callable[[], float] = time.time,
        limits: SqliteLimits = DEFAULT_LIMITS, random_part: RandomPart = random_part,
    ) -> None:  # fmt: skip
        self.connection = connection = Connection(path, create=create, clock=clock, limits=limits)
        self.path = connection.path
        self.url, folder = f"sqlite:///{self.path}", beside(self.path, ".notify")
        bring_up(connection, synchronous, folder)
        self.notifier, self.owner_lock = notifier, lock = Notifier(folder), OwnerLock(folder)
        policies, owner = Policies(connection), Ownership(connection, lock, notifier, random_part)
        links = Links(connection)
        queue = Queue(connection, policies, owner, notifier, links)
        limited = LimitedClaims(LimitRows(connection, queue.claim_ready, queue.paused), connection.transaction)
        connection.on_rollback(limited.forget)
        self.allowance, self.claim_limited = limited.allowance, limited.claim_limited
        self.release_held = limited.release_held
        settles = Settles(connection, policies, owner, links)
        recovery = Recovery(connection, policies, owner, lock)
        queries = Queries(connection, policies, owner, lock)
        dead_letters = DeadLetterQueue(connection, queries, owner)
        commands = BatchedCommands(OperatorChanges(connection, queries, links), connection.transaction, notifier.notify)
        transfer = Transfer(self.url, connection, policies, queries)
        self.transaction, self.close = connection.transaction, connection.close
        self.enqueue, self.notify, self.paused = queue.enqueue, notifier.notify, queue.paused
        self.make_due, self.oldest_ready = queue.make_due, Oldest(connection).oldest_ready
        self.join, self.leave, self.announce = owner.join, owner.leave, owner.announce
        self.watch_owners, self.expired_leases = recovery.watch_owners, recovery.expired_leases
        self.notification_fd, self.clear_notifications = notifier.fd, notifier.clear
        self.look, self.claim, self.held, self.leases = queue.look, queue.claim, settles.held, settles.leases
        self.newly_ready = links.newly_ready
        self.settle, self.recover, self.extend = settles.settle, settles.recover, settles.extend
        self.keep_reports = settles.keep_reports
        self.claim_dead_letters, self.postpone = dead_letters.claim_dead_letters, dead_letters.postpone
        self.mark_accepted, self.clock, self.stats = dead_letters.mark_accepted, clock, queries.stats
        self.remaining, self.get, self.list_jobs = queries.remaining, queries.get, queries.list_jobs
        self.get_many, self.ended = queries.get_many, queries.ended
        self.find_jobs, self.failures, self.sinks = queries.find_jobs, queries.failures, queries.sinks
        self.cancel, self.retry, self.redrive = commands.cancel, commands.retry, commands.redrive
        self.delete, self.purge = commands.delete, commands.purge
        self.prune, self.pause, self.repair = commands.prune, commands.pause, Repair(connection, links).repair
        self.drop_sink = commands.drop_sink
        self.place, self.transfer_record, self.reopen = transfer.place, transfer.transfer_record, transfer.reopen
        self.close_for_transfer, self.note_arrival = transfer.close_for_transfer, transfer.note_arrival
        self.sizes, self.export, self.counted = transfer.sizes, transfer.export, transfer.counted
        self.last_id, self.import_jobs = transfer.last_id, transfer.import_jobs
        self.has_received = transfer.has_received
