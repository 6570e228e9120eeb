"""The operator's verbs: each changes what it may in batches, and says what it refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from supervisor.jobs import JobState
from supervisor.stores.codes import CANCELLED, DEAD_LETTERS, READY, SCHEDULED, STATES
from supervisor.stores.records import (
    NO_SUCH_JOB,
    OperatorResult,
    refuse_cancel,
    refuse_delete,
    refuse_redrive,
    refuse_retry,
)

BATCH = 1000


class Target(NamedTuple):
    id: int
    state: int
    queue: str
    tier: int
    dead_letter: int | None


class OperatorCommands:
    """What is left to the store: to find the targets, and to change them as they are told."""

    def transaction(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def count(self, state: int, queue: str, tier: int, n: int = 1) -> None:
        raise NotImplementedError

    def notify(self) -> None:
        raise NotImplementedError

    def find_dead(self, after: int, limit: int) -> Sequence[int]:
        """Ids of jobs that are dead letters, ascending."""
        raise NotImplementedError

    def find_targets(self, ids: Sequence[int]) -> list[Target]:
        """Those of these jobs that there are; nobody else changes them before this transaction ends."""
        raise NotImplementedError

    def make_cancelled(self, ids: Sequence[int]) -> None:
        raise NotImplementedError

    def make_due(self, ids: Sequence[int]) -> None:
        raise NotImplementedError

    def make_fresh(self, ids: Sequence[int]) -> None:
        """Ready as if just enqueued, behind everything that waits; a letter of theirs is withdrawn."""
        raise NotImplementedError

    def remove(self, ids: Sequence[int]) -> None:
        raise NotImplementedError

    def cancel(self, ids: Sequence[int]) -> OperatorResult:
        return self._do(ids, refuse_cancel, self._cancel)

    def retry(self, ids: Sequence[int]) -> OperatorResult:
        return self._do(ids, refuse_retry, self._retry)

    def redrive(self, ids: Sequence[int] | None, force: bool = False) -> OperatorResult:
        return self._do(ids, lambda state, dead_letter: refuse_redrive(state, dead_letter, force), self._redrive)

    def delete(self, ids: Sequence[int], force: bool = False) -> OperatorResult:
        return self._do(ids, lambda state, dead_letter: refuse_delete(state, dead_letter, force), self.delete_targets)

    def purge(self, force: bool = False) -> OperatorResult:
        return self._do(None, lambda state, dead_letter: refuse_delete(state, dead_letter, force), self.delete_targets)

    def _do(
        self,
        ids: Sequence[int] | None,
        refuse: Callable[[JobState, str | None], str | None],
        change: Callable[[list[Target]], None],
    ) -> OperatorResult:
        """Change the jobs that `refuse` has nothing to say against; without ids, all that are dead letters."""
        done: list[int] = []
        refused: dict[int, str] = {}
        for batch in self._dead() if ids is None else _batches(ids):
            with self.transaction():
                targets = {target.id: target for target in self.find_targets(batch)}
                why = dict.fromkeys(batch, NO_SUCH_JOB) | {
                    id: refuse(STATES[target.state], DEAD_LETTERS[target.dead_letter or 0])
                    for id, target in targets.items()
                }
                changed = [id for id, reason in why.items() if reason is None]
                if changed:
                    change([targets[id] for id in changed])
            done += changed
            refused |= {id: reason for id, reason in why.items() if reason is not None}
        self.notify()
        return done, refused

    def _dead(self) -> Iterator[Sequence[int]]:
        last = 0
        while batch := self.find_dead(last, BATCH):
            yield batch
            last = batch[-1]

    def _cancel(self, targets: list[Target]) -> None:
        self._recount(targets, CANCELLED)
        self.make_cancelled(_ids(targets))

    def _retry(self, targets: list[Target]) -> None:
        waiting = [target for target in targets if target.state == SCHEDULED]
        self._recount(waiting, READY)
        self.make_due(_ids(waiting))
        self._redrive([target for target in targets if target.state != SCHEDULED])

    def _redrive(self, targets: list[Target]) -> None:
        if targets:
            self._recount(targets, READY, tier=0)
            self.make_fresh(_ids(targets))

    def delete_targets(self, targets: list[Target]) -> None:
        self._recount(targets, None)
        self.remove(_ids(targets))

    def _recount(self, targets: Iterable[Target], state: int | None, tier: int | None = None) -> None:
        for (old, queue, old_tier), n in Counter((it.state, it.queue, it.tier) for it in targets).items():
            self.count(old, queue, old_tier, -n)
            if state is not None:
                self.count(state, queue, old_tier if tier is None else tier, n)


def _ids(targets: Iterable[Target]) -> list[int]:
    return [target.id for target in targets]


def _batches(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), BATCH):
        yield ids[start : start + BATCH]
