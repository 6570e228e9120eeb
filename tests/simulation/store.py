"""A store with faults: unavailable, slow, failing half way, or losing its answer after the commit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from supervisor.errors import RowRefused, StoreUnavailable
from supervisor.jobs import Cause, Kind, Outcome

if TYPE_CHECKING:
    from tests.simulation.owner import Owner

NOTIFICATION_FD = 1
WATCHED = ("claim", "claim_limited", "settle", "recover", "claim_dead_letters", "mark_accepted")


class FaultyStore:
    """Wraps a real store. The checks see each commit."""

    def __init__(self, inner: Any, owner: Owner) -> None:
        self._inner = inner
        self._owner = owner
        self._done: list[tuple[str, Any, Any]] = []
        self._fails_in: int | None = None
        self.unavailable_until = 0.0
        for name in WATCHED:
            setattr(self, name, self._watched(name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _watched(self, name: str) -> Any:
        call = getattr(self._inner, name)

        def watched(*arguments: Any) -> Any:
            self._step()
            if name == "settle":
                self._refuse(arguments[0])
            result = call(*arguments)
            if name == "claim_limited":
                self._done.append(("claim", arguments, result.leases))
            else:
                self._done.append((name, arguments, result))
            return result

        return watched

    def _step(self) -> None:
        if self._fails_in is not None:
            self._fails_in -= 1
            if self._fails_in < 0:
                raise StoreUnavailable("simulated: failed half way")

    def _refuse(self, outcomes: Sequence[Outcome]) -> None:
        """A release is refused only for a while; until then it is kept."""
        world = self._owner.world
        for outcome in outcomes:
            taken = (outcome.failure and outcome.failure.cause is Cause.REFUSED) or (
                outcome.kind is Kind.RELEASED and not world.stormy
            )
            if outcome.lease.id in world.cursed and not taken:
                raise RowRefused("simulated: this row can't be stored")

    @contextlib.contextmanager
    def transaction(self, *, single: bool = False, brief: bool = False) -> Iterator[None]:
        world = self._owner.world
        lot = world.random.random() if world.stormy else 1.0
        odds = world.odds
        self._done.clear()
        if world.clock.now < self.unavailable_until or lot < odds.refused:
            raise StoreUnavailable("simulated: unavailable")
        self._fails_in = world.random.randint(0, 2) if lot < odds.half_way else None
        try:
            with self._inner.transaction(single=single, brief=brief):
                yield
                if self._fails_in is not None:
                    raise StoreUnavailable("simulated: failed at its end")
        finally:
            self._fails_in = None
        self._check_commit()
        if odds.half_way <= lot < odds.lost:
            world.checks.unanswered(self._done)
            raise StoreUnavailable("simulated: the answer was lost")

    def _check_commit(self) -> None:
        """A broken promise must not be taken for a refusal of the store."""
        try:
            self._owner.world.checks.committed(self._owner, self._done)
        except Exception as error:
            self._owner.loop.faults.insert(0, error)
            raise

    # notifications go through the world

    def notification_fd(self) -> int:
        return NOTIFICATION_FD

    def clear_notifications(self) -> None:
        pass

    def notify(self) -> None:
        self._owner.world.notify(but=self._owner)
