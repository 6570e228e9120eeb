"""The record of a job in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from supervisor.jobs import JobState, Lease, Policy, Tier
from supervisor.stores.extras import NO_EXTRAS, extras_text
from supervisor.stores.memory.other_records import DeadLetterRecord
from supervisor.stores.records import EnqueueRow, options_text, overlaid, own_max_retries
from supervisor.stores.shown import KeyHolder, Shown, job_dict
from supervisor.stores.workflows import WAITS


@dataclass(slots=True)
class JobRecord:
    id: int
    row: EnqueueRow
    due_at: int
    created_at: int
    state: JobState
    age: int
    tier: int = Tier.FRESH
    token: int = 0
    settled: int = 0
    owner: str | None = None
    lease_until: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    retries: int = 0
    expired_count: int = 0
    policy: Policy | None = None
    result: str | None = None
    errors: tuple[Mapping[str, Any], ...] = ()
    dead_letter: DeadLetterRecord | None = None
    progress: str | None = None
    progress_at: int | None = None
    log: str | None = None
    snoozes: int = 0
    snoozed_until: int | None = None
    holds_key: bool = False
    held_back: str | None = None
    """The line of a blocked job that a limit holds back: see `stores.job_limits.Line`."""
    links: Mapping[int, int] = field(default_factory=dict)
    """By parent, for a job that waits or has waited for others: see `stores.workflows`."""
    replaced_at: int | None = None
    may_expire: bool = True

    @property
    def dead_letter_state(self) -> str | None:
        return None if self.dead_letter is None else self.dead_letter.state

    @property
    def key(self) -> str | None:
        return None if self.row.extras is None else self.row.extras.key

    @property
    def after(self) -> tuple[int, ...]:
        return () if self.row.extras is None else self.row.extras.after

    @property
    def waits_for_parents(self) -> bool:
        return WAITS in self.links.values()

    @property
    def group(self) -> str | None:
        return None if self.row.extras is None else self.row.extras.group

    @property
    def expires_at(self) -> int | None:
        extras = self.row.extras
        since = self.created_at if self.replaced_at is None else self.replaced_at
        return None if extras is None or extras.expires is None else since + extras.expires

    @property
    def missing_sinks(self) -> list[str]:
        record = self.dead_letter
        return sorted(record.owed - record.accepted) if record is not None and record.state == "pending" else []

    def lease(self) -> Lease:
        row, options, policy = self.row, options_text(self.row), self.policy or Policy()
        return Lease(
            self.id, self.token, row.handler, row.queue, row.payload, row.headers, self.retries, row.priority, self.tier,
            self.due_at, self.created_at, policy if options is None else overlaid(policy, options),
            self.expired_count,
        )  # fmt: skip

    @property
    def on_failure(self) -> str:
        return (self.row.extras or NO_EXTRAS).on_failure

    def shown(self, key_holder: KeyHolder | None = None) -> dict[str, Any]:
        row, options = self.row, options_text(self.row)
        most = own_max_retries(options, self.policy)
        return job_dict(Shown(
            self.id, row.handler, row.payload, row.queue, row.priority, self.state.value, self.retries, most, self.due_at,
            self.created_at, self.started_at, self.finished_at, self.result, row.headers, self.errors, self.dead_letter_state,
            self.missing_sinks, self.expired_count, self.owner, self.lease_until, self.progress, self.progress_at, self.log,
            None if row.extras is None else extras_text(row.extras), self.expires_at, key_holder,
            self.snoozes, self.snoozed_until, options,
        ))  # fmt: skip
