"""The memory store is the model: whatever is done to both, SQLite says the same."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from supervisor.stores.base import Retention, Take
from tests.stores.shelf import TTL, MemoryShelf, SqliteShelf, again, dead, put, release, resolve, success

QUEUES = st.sampled_from(["a", "b"])
PICKS = st.lists(st.integers(0, 7), max_size=4)
RECOUNT = (
    "state, queue, tier, n",
    "(select state, queue, tier, count(*) as n from jobs group by state, queue, tier order by state, queue, tier)",
)
MAKE = {"success": success, "again": again, "dead": dead, "release": release}


class Model(RuleBasedStateMachine):
    @initialize()
    def open(self):
        self.folder = tempfile.TemporaryDirectory()
        self.shelves = [shelf(Path(self.folder.name)) for shelf in (MemoryShelf, SqliteShelf)]
        self.stores = [[shelf.joined("one"), shelf.joined("two")] for shelf in self.shelves]
        self.leases, self.letters = [], []

    def same(self, call, owner=0):
        memory, sqlite = [call(stores[owner]) for stores in self.stores]
        assert memory == sqlite
        return memory

    def pick(self, things, picks):
        return [things[index % len(things)] for index in dict.fromkeys(picks)] if things else []

    @rule(queue=QUEUES, priority=st.integers(0, 3), delay=st.sampled_from([None, 5.0]), n=st.integers(1, 3))
    def enqueue(self, queue, priority, delay, n):
        self.same(lambda store: put(store, *["mail"] * n, queue=queue, priority=priority, delay=delay))

    @rule(seconds=st.sampled_from([1.0, 6.0, 31.0]))
    def step(self, seconds):
        for shelf in self.shelves:
            shelf.clock.step(seconds)

    @rule(limit=st.integers(1, 4))
    def promote(self, limit):
        self.same(lambda store: store.promote(limit))

    @rule(owner=st.integers(0, 1), numbers=st.tuples(*[st.integers(0, 4)] * 3), urgent=st.integers(1, 4))
    def claim(self, owner, numbers, urgent):
        limit, first, most = numbers
        takes = [Take(queue, limit, first, most, urgent) for queue in ("a", "b")]
        self.leases += self.same(lambda store: store.claim(takes, TTL, resolve), owner)

    @rule(picks=PICKS, make=st.sampled_from(sorted(MAKE)), owner=st.integers(0, 1))
    def settle(self, picks, make, owner):
        outcomes = [MAKE[make](lease) for lease in self.pick(self.leases, picks)]
        assert len({id(outcome) for outcome in outcomes}) == len(outcomes)
        self.same(lambda store: sorted(store.settle(outcomes)), owner)

    @rule(picks=PICKS, started=PICKS, owner=st.integers(0, 1))
    def extend(self, picks, started, owner):
        leases, marks = self.pick(self.leases, picks), self.pick(self.leases, started)
        self.same(lambda store: store.extend(leases, TTL, marks), owner)

    @rule(owner=st.integers(0, 1), make=st.sampled_from([release, dead, again]))
    def recover(self, owner, make):
        lapsed = self.same(lambda store: sorted(store.lapsed(100)), owner)
        outcomes = [make(it.lease)._replace(seen=it.deadline) for it in lapsed]
        self.same(lambda store: sorted(store.recover(outcomes)), owner)

    @rule(limit=st.integers(1, 3))
    def claim_letters(self, limit):
        self.letters += self.same(lambda store: store.dead_letters(limit, TTL))

    @rule(picks=PICKS, sink=st.sampled_from(["x", "y"]))
    def accept(self, picks, sink):
        letters = self.pick(self.letters, picks)
        self.same(lambda store: store.accepted(letters, sink, frozenset({"x", "y"})))

    @rule(picks=PICKS)
    def postpone(self, picks):
        letters = self.pick(self.letters, picks)
        self.same(lambda store: store.postpone(letters, 3.0))

    @rule(verb=st.sampled_from(["cancel", "retry", "redrive", "delete"]), ids=st.lists(st.integers(1, 12), max_size=4))
    def change(self, verb, ids):
        self.same(lambda store: getattr(store, verb)(ids))

    @rule(force=st.booleans(), verb=st.sampled_from(["redrive", "purge"]))
    def change_all(self, force, verb):
        self.same(lambda store: store.redrive(None, force) if verb == "redrive" else store.purge(force))

    @rule(queue=QUEUES, paused=st.booleans())
    def pause(self, queue, paused):
        self.same(lambda store: store.pause(queue, paused))

    @rule()
    def prune(self):
        self.same(lambda store: store.prune(Retention(10.0, 20.0, 30.0), 100))

    @rule()
    def fail_half_way(self):
        for stores in self.stores:
            try:
                with stores[0].transaction():
                    put(stores[0], queue="a")
                    stores[0].claim([Take("a", 2, 2, 2, 9)], TTL, resolve)
                    raise ZeroDivisionError
            except ZeroDivisionError:
                pass

    @invariant()
    def agree(self):
        if not hasattr(self, "stores"):
            return
        self.same(lambda store: store.list_jobs(limit=1000))
        self.same(lambda store: store.stats()["queues"])
        self.same(lambda store: (store.waiting(None), store.remaining(None, 4.0), store.next_due()))
        for owner in (0, 1):
            self.same(lambda store: sorted(store.held()), owner)

    @invariant()
    def counts_are_what_a_recount_gives(self):
        if not hasattr(self, "stores"):
            return
        sqlite = self.stores[1][0]
        kept = sqlite.rows("state, queue, tier, n", "counts where n != 0 order by state, queue, tier")
        assert kept == sqlite.rows(*RECOUNT)

    def teardown(self):
        for shelf in getattr(self, "shelves", ()):
            shelf.close()
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
