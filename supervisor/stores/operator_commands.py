"""The operator's commands, the same for every store: each changes jobs in batches, and returns those that it refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple, Protocol

from supervisor.config.settings import RetentionSettings
from supervisor.jobs import JobState
from supervisor.stores.codes import (
    CANCELLED,
    DEAD_LETTERS,
    DELIVERED,
    FAILED,
    PENDING,
    READY,
    SCHEDULED,
    STATES,
    SUCCEEDED,
)
from supervisor.stores.records import OperatorResult, Place, PruneRun, microseconds
from supervisor.stores.sinks import Sinks, missing_sinks, sinks_of, sinks_text

BATCH = 1000
PASSED_AT_ONCE = 2000
"""Jobs that one call of `prune` looks at: of any number the dead letters may be pending, which keeps them in the store."""
BEFORE_ALL: Place = (-(2**63), -(2**63))
BEHIND_ALL: Place = (2**63 - 1, 2**63 - 1)
NO_SUCH_JOB = "no such job"

Refusal = Callable[[JobState, str | None], str | None]
"""A function of a job's state and its dead letter ("pending", "delivered" or None): the reason to refuse a command, or None."""


class Target(NamedTuple):
    """A job that a command is about; `state` and `dead_letter` are codes: see `codes`."""

    id: int
    state: int
    queue: str
    tier: int
    dead_letter: int | None


class OperatorChanges(Protocol):
    """The part of the commands that each store does in its own way, always inside a transaction."""

    def find_dead(self, after: int, limit: int) -> Sequence[int]:
        """Return the first ids above `after` of jobs that are dead letters, ascending. No transaction is needed."""

    def page_end(self, state: int, age: int, after: Place, size: int) -> Place | None:
        """Return the place of the last of `size` jobs that ended in `state` at least `age` microseconds ago, behind `after`, or
        None if there are fewer."""

    def forget_groups(self, limit: int) -> None:
        """Remove the positions of groups that no longer count, of `limit` groups at most."""

    def find_past(self, state: int, age: int, after: Place, until: Place, limit: int) -> Sequence[int]:
        """Return ids of such jobs between these places, without jobs with a pending dead letter, failed jobs that hold their keys, and parents
        of jobs that are blocked, have failed, or were cancelled because of a parent: these get their results, now or after a redrive."""

    def find_targets(self, ids: Sequence[int]) -> list[Target]:
        """Return the jobs that exist among `ids`; nobody else can change them before this transaction ends."""

    def count(self, state: int, queue: str, tier: int, n: int = 1) -> None:
        """Add `n` to the count of these jobs."""

    def make_cancelled(self, ids: Sequence[int]) -> None: ...

    def make_due(self, ids: Sequence[int]) -> None: ...

    def retake_unique_keys(self, ids: Sequence[int]) -> Mapping[int, str]:
        """Give their unique keys to these ended jobs, which are to run again. Return why some may not."""

    def prune_unique_keys(self, limit: int) -> None:
        """Forget up to `limit` unique keys that were taken for a time, which is over."""

    def make_fresh(self, ids: Sequence[int]) -> None:
        """Make the jobs ready as if just enqueued, behind all jobs that wait, and withdraw their dead letters."""

    def set_queue(self, ids: Sequence[int], before: Collection[str], queue: str) -> None:
        """Put the jobs, which are in the queues `before`, into another queue, and count them there."""

    def remove(self, ids: Sequence[int]) -> None:
        """Delete the jobs with their attempts and dead letters, and subtract them from the counts."""

    def pending_lists(self) -> Iterable[tuple[str, str]]:
        """The pairs of `owed` and `accepted` of pending dead letters."""

    def running_sinks(self) -> Sinks:
        """The sinks of running supervisors."""

    def set_owed(self, before: tuple[str, str], owed: str, state: int, limit: int) -> int:
        """Change up to `limit` pending dead letters with the pair `before`; returns how many."""

    def set_paused(self, queue: str, paused: bool) -> None: ...


class BatchedCommands:
    """Implements `supervisor.stores.protocol.OperatorCommands` with the changes of one store: one commit for each batch."""

    def __init__(
        self,
        changes: OperatorChanges,
        transaction: Callable[[], AbstractContextManager[None]],
        notify: Callable[[], None],
    ) -> None:
        self._changes, self._transaction, self._notify = changes, transaction, notify

    def cancel(self, ids: Sequence[int], *, only: Collection[JobState] | None = None) -> OperatorResult:
        return self._change(ids, _if_still(only, refuse_cancel), self._cancel)

    def retry(
        self, ids: Sequence[int], force: bool = False, *, only: Collection[JobState] | None = None
    ) -> OperatorResult:
        return self._change(ids, _if_still(only, partial(refuse_retry, force=force)), self._retry)

    def redrive(
        self, ids: Sequence[int] | None, force: bool = False, *, only: Collection[JobState] | None = None
    ) -> OperatorResult:
        return self._change(ids, _if_still(only, partial(refuse_redrive, force=force)), self._redrive)

    def delete(
        self, ids: Sequence[int], force: bool = False, *, only: Collection[JobState] | None = None
    ) -> OperatorResult:
        return self._change(ids, _if_still(only, partial(refuse_delete, force=force)), self._delete)

    def move(self, ids: Sequence[int], queue: str, *, only: Collection[JobState] | None = None) -> OperatorResult:
        return self._change(ids, _if_still(only, refuse_move), lambda targets: self._move(targets, queue))

    def purge(self, force: bool = False, ids: Sequence[int] | None = None) -> OperatorResult:
        return self._change(ids, partial(refuse_purge, force=force), self._delete)

    def drop_sink(self, sink: str) -> int:
        dropped = 0
        while waiting := self._waiting_for(sink):  # again, since a supervisor may have claimed some meanwhile
            dropped += sum(self._drop(sink, *lists) for lists in waiting)
        self._notify()
        return dropped

    def _waiting_for(self, sink: str) -> list[tuple[str, str]]:
        with self._transaction():
            return [lists for lists in self._changes.pending_lists() if sink in missing_sinks(*lists)]

    def _drop(self, sink: str, owed: str, accepted: str) -> int:
        left, has, dropped, changed = sinks_of(owed) - {sink}, sinks_of(accepted), 0, BATCH
        while changed == BATCH:
            with self._transaction():
                # Some sink must have it: otherwise it is owed to those of now.
                its = left if left or has else self._changes.running_sinks() - {sink}
                state = PENDING if its - has else DELIVERED
                changed = self._changes.set_owed((owed, accepted), sinks_text(its), state, BATCH)
            dropped += changed
        return dropped

    def pause(self, queue: str, paused: bool) -> None:
        with self._transaction():
            self._changes.set_paused(queue, paused)
        self._notify()

    def prune(self, retention: RetentionSettings, limit: int, run: PruneRun | None = None) -> int:
        run = run or PruneRun()
        kept = ((SUCCEEDED, retention.succeeded), (CANCELLED, retention.cancelled), (FAILED, retention.failed))
        pruned, run.more = 0, False
        with self._transaction():
            self._changes.prune_unique_keys(limit)
            self._changes.forget_groups(limit)
            for state, seconds in kept:
                after = run.passed.get(state, BEFORE_ALL)
                if seconds is None or after == BEHIND_ALL:
                    continue
                if pruned < limit:
                    age = microseconds(seconds)
                    until = self._changes.page_end(state, age, after, PASSED_AT_ONCE) or BEHIND_ALL
                    ids = self._changes.find_past(state, age, after, until, limit - pruned)
                    if ids:
                        self._delete(self._changes.find_targets(ids))
                    pruned += len(ids)
                    run.passed[state] = after = until if pruned < limit else after
                run.more |= after != BEHIND_ALL
        return pruned

    def _change(
        self, ids: Sequence[int] | None, refusal: Refusal, change: Callable[[list[Target]], Mapping[int, str]]
    ) -> OperatorResult:
        """Change those of `ids`, or of all dead letters if it is None, for which `refusal` returns no reason. `change` returns the
        reasons for which it has not changed some of them."""
        result = OperatorResult({}, {})
        for batch in self._dead() if ids is None else _batches(ids):
            with self._transaction():
                targets = {target.id: target for target in self._changes.find_targets(batch)}
                reasons = dict.fromkeys(batch, NO_SUCH_JOB) | {
                    id: refusal(STATES[target.state], DEAD_LETTERS[target.dead_letter or 0])
                    for id, target in targets.items()
                }
                if allowed := [targets[id] for id, reason in reasons.items() if reason is None]:
                    reasons.update(change(allowed))
                changed = [id for id, reason in reasons.items() if reason is None]
            result.changed.update({id: STATES[targets[id].state] for id in changed})
            result.refused.update({id: reason for id, reason in reasons.items() if reason is not None})
        self._notify()
        return result

    def _dead(self) -> Iterator[Sequence[int]]:
        last = 0
        while batch := self._changes.find_dead(last, BATCH):
            yield batch
            last = batch[-1]

    def _cancel(self, targets: list[Target]) -> Mapping[int, str]:
        self._recount(targets, CANCELLED)
        self._changes.make_cancelled(_ids(targets))
        return {}

    def _retry(self, targets: list[Target]) -> Mapping[int, str]:
        waiting = [target for target in targets if target.state == SCHEDULED]
        self._recount(waiting, READY)
        self._changes.make_due(_ids(waiting))
        return self._redrive([target for target in targets if target.state != SCHEDULED])

    def _redrive(self, targets: list[Target]) -> Mapping[int, str]:
        refused = self._changes.retake_unique_keys(_ids(targets)) if targets else {}
        if targets := [target for target in targets if target.id not in refused]:
            self._recount(targets, READY, tier=0)
            self._changes.make_fresh(_ids(targets))
        return refused

    def _move(self, targets: list[Target], queue: str) -> Mapping[int, str]:
        self._changes.set_queue(_ids(targets), {target.queue for target in targets}, queue)
        return {}

    def _delete(self, targets: list[Target]) -> Mapping[int, str]:
        self._changes.remove(_ids(targets))
        return {}

    def _recount(self, targets: Iterable[Target], state: int, tier: int | None = None) -> None:
        for (old, queue, old_tier), n in Counter((it.state, it.queue, it.tier) for it in targets).items():
            self._changes.count(old, queue, old_tier, -n)
            self._changes.count(state, queue, old_tier if tier is None else tier, n)


def _if_still(only: Collection[JobState] | None, refusal: Refusal) -> Refusal:
    """Return the refusal of jobs that are in no state of `only`, and otherwise that of `refusal`."""
    if only is None:
        return refusal
    text = f"not {next(iter(only))} any more, but {{}}" if len(only) == 1 else "{} by now"
    return lambda state, dead_letter: (
        refusal(state, dead_letter) if state in only else text.format(state.value.replace("_", " "))
    )


def refuse_cancel(state: JobState, dead_letter: str | None) -> str | None:
    return f"already {state.value}" if state.terminal else None


def refuse_retry(state: JobState, dead_letter: str | None, force: bool) -> str | None:
    if state is JobState.SCHEDULED:
        return None
    if state is JobState.SUCCEEDED and not force:
        return "succeeded: its work is done (--force to do it again)"
    return _refuse_unended(state) or _refuse_pending(dead_letter, force)


def refuse_redrive(state: JobState, dead_letter: str | None, force: bool) -> str | None:
    if state.terminal and dead_letter is None:
        return f"{state.value}, not a dead letter (supervisor jobs retry runs an ended job again)"
    return _refuse_unended(state) or _refuse_pending(dead_letter, force)


def refuse_delete(state: JobState, dead_letter: str | None, force: bool) -> str | None:
    return "in flight: cancel it first" if state is JobState.IN_FLIGHT else _refuse_pending(dead_letter, force)


def refuse_move(state: JobState, dead_letter: str | None) -> str | None:
    if state is JobState.IN_FLIGHT:
        return "in flight: it ends in its queue"
    return f"already {state.value}" if state.terminal else None


def refuse_purge(state: JobState, dead_letter: str | None, force: bool) -> str | None:
    shown = state.value.replace("_", " ")
    return f"{shown}, not a dead letter" if dead_letter is None else _refuse_pending(dead_letter, force)


def _refuse_unended(state: JobState) -> str | None:
    if state is JobState.BLOCKED:
        return "blocked: it waits for another job or for a limit, which supervisor jobs show names"
    return None if state.terminal else f"{state.value.replace('_', ' ')}: it is going to run anyway"


def _refuse_pending(dead_letter: str | None, force: bool) -> str | None:
    if dead_letter == "pending" and not force:
        return "its dead letter is pending: not every sink has it yet (--force to do it all the same)"
    return None


def _ids(targets: Iterable[Target]) -> list[int]:
    return [target.id for target in targets]


def _batches(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), BATCH):
        yield ids[start : start + BATCH]
