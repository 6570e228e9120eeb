"""In any order of enqueues and claims, groups that have jobs waiting get their shares of what is claimed.

`SUPERVISOR_MODEL_EXAMPLES` is how many histories are tried of each store, and a third as many on PostgreSQL.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.config.settings import RetentionSettings
from supervisor.stores.extras import Extras
from supervisor.stores.protocol import Store
from supervisor.stores.records import EnqueueRow
from tests.stores.factories import FACTORIES, promote, success, take

EXAMPLES = int(os.environ.get("SUPERVISOR_MODEL_EXAMPLES", "30"))
SHARES = {"a": 1.0, "b": 1.0, "c": 3.0, "d": 2.5}
GROUPS = (*SHARES, None)
MAX_AHEAD = 3.0
"""Rounds."""

Act = tuple[str, str | None, int]
acts = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.sampled_from(GROUPS), st.integers(1, 30)),
        st.tuples(st.just("later"), st.sampled_from(GROUPS), st.integers(1, 10)),
        st.tuples(st.just("claim"), st.none(), st.integers(1, 25)),
        st.tuples(st.sampled_from(["prune", "promote", "other queue"]), st.none(), st.integers(1, 5)),
    ),
    min_size=5,
    max_size=40,
)


class Fairness:
    """Compares what each two groups have got since both of them have had jobs waiting, in rounds."""

    def __init__(self) -> None:
        self._waiting: Counter[str | None] = Counter()
        self._got: dict[tuple[str | None, str | None], Counter[str | None]] = {}

    def ready(self, group: str | None, n: int) -> None:
        self._waiting[group] += n

    def claimed(self, group: str | None) -> None:
        for pair in combinations(GROUPS, 2):
            if all(self._waiting[each] for each in pair):
                got = self._got.setdefault(pair, Counter())
                got[group] += 1
                ahead = abs(got[pair[0]] / SHARES.get(pair[0] or "", 1) - got[pair[1]] / SHARES.get(pair[1] or "", 1))
                assert ahead <= MAX_AHEAD, (pair, dict(got))
            else:
                self._got.pop(pair, None)
        self._waiting[group] -= 1


def rows(group: str | None, n: int, **options: object) -> list[EnqueueRow]:
    extras = None if group is None else Extras(group=group)
    return [EnqueueRow("mail", "{}", extras=extras, **options) for _ in range(n)]  # type: ignore[arg-type]


class History:
    def __init__(self, kind: str, folder: str) -> None:
        self.factory = FACTORIES[kind](Path(folder))
        self.store: Store = self.factory.joined("one")
        self.store.set_group_shares({"default": SHARES}, None)
        self._groups: dict[int, str | None] = {}
        self._later: list[str | None] = []
        self._fairness = Fairness()
        self.enqueue("a", 1)  # so that those without a group take turns from the start
        self.claim(1)

    def enqueue(self, group: str | None, n: int) -> None:
        self._groups |= dict.fromkeys(self.store.enqueue(rows(group, n)), group)
        self._fairness.ready(group, n)

    def later(self, group: str | None, n: int) -> None:
        self._groups |= dict.fromkeys(self.store.enqueue(rows(group, n, delay=5.0)), group)
        self._later += [group] * n

    def promote(self) -> None:
        self.factory.clock.step(5)
        assert promote(self.store, 1000) == len(self._later)
        for group in self._later:
            self._fairness.ready(group, 1)
        self._later.clear()

    def claim(self, n: int) -> None:
        leases = take(self.store, n)
        for lease in leases:
            self._fairness.claimed(self._groups[lease.id])
        assert self.store.settle([success(lease) for lease in leases]) == []

    def run(self, act: str, group: str | None, n: int) -> None:
        if act == "prune":
            self.store.prune(RetentionSettings(succeeded=0.0), n)
        elif act == "promote":
            self.promote()
        elif act == "other queue":
            self.store.enqueue(rows("a", n, queue="other") + rows(None, n, queue="other"))
        else:
            getattr(self, act)(*((group, n) if group is not None or act != "claim" else (n,)))


@pytest.mark.parametrize("kind", FACTORIES)
def test_every_group_gets_its_share(kind: str) -> None:
    @settings(
        max_examples=EXAMPLES // 3 if kind == "postgresql" else EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(acts)
    def run(history: list[Act]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            it = History(kind, folder)
            try:
                for act in history:
                    it.run(*act)
            finally:
                it.factory.close()

    run()
