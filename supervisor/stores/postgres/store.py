"""The PostgreSQL store: supervisors and clients on any number of machines share one queue, in a schema of its own."""

from __future__ import annotations

from supervisor.stores.fencing import RandomPart, random_part
from supervisor.stores.limited_claims import LimitedClaims
from supervisor.stores.operator_commands import BatchedCommands
from supervisor.stores.postgres.claim import Claims
from supervisor.stores.postgres.claim_cursor import ClaimCursors
from supervisor.stores.postgres.connection import Connection
from supervisor.stores.postgres.counts import Counts
from supervisor.stores.postgres.dead_letters import DeadLetterQueue
from supervisor.stores.postgres.driver import Address
from supervisor.stores.postgres.enqueue import Enqueues
from supervisor.stores.postgres.job_limits import LimitRows
from supervisor.stores.postgres.limits import DEFAULT_LIMITS, PostgresLimits
from supervisor.stores.postgres.links import Links
from supervisor.stores.postgres.migrations import bring_up
from supervisor.stores.postgres.notifier import Notifier
from supervisor.stores.postgres.oldest import Oldest
from supervisor.stores.postgres.operator import OperatorChanges
from supervisor.stores.postgres.owner_lock import OwnerLock
from supervisor.stores.postgres.ownership import Ownership
from supervisor.stores.postgres.queries import Queries
from supervisor.stores.postgres.recovery import Recovery
from supervisor.stores.postgres.repair import Repair
from supervisor.stores.postgres.rights import Rights
from supervisor.stores.postgres.row_locks import RowLocks
from supervisor.stores.postgres.schedules import ScheduleTable
from supervisor.stores.postgres.settle import Settles
from supervisor.stores.postgres.transfer import Transfer
from supervisor.stores.schedules import StoredSchedules


class _Parts:
    """The parts of a store, which share one connection."""

    def __init__(
        self, connection: Connection, lock: OwnerLock, limits: PostgresLimits, random_part: RandomPart
    ) -> None:
        self.locks, self.counts = RowLocks(connection, limits.skip_locked_seconds), Counts(connection)
        self.cursors, self.notifier, self.links = ClaimCursors(), Notifier(connection), Links(connection)
        self.owner = owner = Ownership(connection, self.locks, lock, self.notifier, random_part)
        self.enqueues = Enqueues(connection, self.counts, limits.sent_characters)
        self.claims = Claims(connection, self.counts, self.cursors, owner, self.links, limits.claim_bytes)
        self.limited = LimitedClaims(
            LimitRows(connection, self.counts, self.claims.claim_ready, self.claims.paused), connection.transaction
        )
        connection.on_rollback(self.limited.forget)
        self.settles = Settles(connection, self.counts, self.locks, owner, self.links)
        self.recovery = Recovery(connection, self.locks, owner)
        self.queries = Queries(connection, self.counts, owner)
        self.dead_letters = DeadLetterQueue(connection, self.locks, self.queries, owner, limits.claim_bytes)
        changes = OperatorChanges(connection, self.counts, self.locks, self.queries, self.links)
        self.commands = BatchedCommands(changes, connection.transaction, self.notifier.notify)
        self.transfer = Transfer(connection, self.counts, self.queries, self.links, limits.id_range)
        self.repair = Repair(connection, self.counts, self.links)
        self.schedules = StoredSchedules(ScheduleTable(connection), connection.transaction, self.enqueues.enqueue)


class PostgresStore:
    """Implements `supervisor.stores.protocol.Store`, `WithRights`, and `Transferable`: its methods are those of its parts. Without `listen` nothing is left in the session from one transaction to the next, so that the store works behind
    a transaction-mode pooler; then it is never notified."""

    def __init__(
        self, url: str, *, schema: str = "supervisor", listen: bool = True, create: bool = False,
        limits: PostgresLimits = DEFAULT_LIMITS, random_part: RandomPart = random_part,
    ) -> None:  # fmt: skip
        self.connection = connection = Connection(Address(url, listen=listen, limits=limits), schema)
        self.url = connection.url
        self.owner_lock = OwnerLock(f"{self.url} {schema}")
        bring_up(connection, create=create)
        parts = _Parts(connection, self.owner_lock, limits, random_part)
        self.row_locks, self.claim_cursors, self.notifier = parts.locks, parts.cursors, parts.notifier
        notifier, owner, claims, settles = parts.notifier, parts.owner, parts.claims, parts.settles
        queries, dead_letters, commands, transfer = parts.queries, parts.dead_letters, parts.commands, parts.transfer
        self.allowance, self.claim_limited = parts.limited.allowance, parts.limited.claim_limited
        self.release_held = parts.limited.release_held
        self.transaction, self.close, self.database = connection.transaction, connection.close, transfer.database
        self.enqueue, self.notify, self.paused = parts.enqueues.enqueue, notifier.notify, claims.paused
        self.make_due, self.keep_reports, self.snoozes = claims.make_due, settles.keep_reports, settles.snoozes
        self.newly_ready, self.failures = parts.links.newly_ready, queries.failures
        self.set_group_shares = parts.links.groups.set_shares
        self.join, self.leave, self.announce = owner.join, owner.leave, owner.announce
        self.watch_owners, self.expired_leases = parts.recovery.watch_owners, parts.recovery.expired_leases
        self.notification_fd, self.clear_notifications, self.sinks = notifier.fd, notifier.clear, queries.sinks
        self.look, self.claim, self.held, self.leases = claims.look, claims.claim, settles.held, settles.leases
        self.settle, self.recover, self.extend = settles.settle, settles.recover, settles.extend
        self.claim_dead_letters, self.postpone = dead_letters.claim_dead_letters, dead_letters.postpone
        self.mark_accepted, self.clock, self.stats = dead_letters.mark_accepted, queries.clock, queries.stats
        self.remaining, self.get = queries.remaining, queries.get
        self.list_jobs, self.find_jobs = queries.list_jobs, queries.find_jobs
        self.get_many, self.ended, self.counts_by_state = queries.get_many, queries.ended, queries.counts_by_state
        self.cancel, self.retry, self.redrive = commands.cancel, commands.retry, commands.redrive
        self.move, self.delete, self.purge = commands.move, commands.delete, commands.purge
        self.drop_sink, self.oldest_ready = commands.drop_sink, Oldest(connection).oldest_ready
        self.prune, self.pause, self.repair = commands.prune, commands.pause, parts.repair.repair
        self.place, self.transfer_record, self.reopen = transfer.place, transfer.transfer_record, transfer.reopen
        self.close_for_transfer, self.note_arrival = transfer.close_for_transfer, transfer.note_arrival
        self.sizes, self.export, self.unique_keys = transfer.sizes, transfer.export, transfer.unique_keys
        self.counted, self.counted_needed = transfer.counted, transfer.counted_needed
        self.last_id, self.import_jobs = transfer.last_id, transfer.import_jobs
        self.schedules, self.change_schedules = parts.schedules.schedules, parts.schedules.change_schedules
        self.has_received, self.missing_rights = transfer.has_received, Rights(connection).missing_rights
