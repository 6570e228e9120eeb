"""Groups of jobs in one queue take turns, each by its shares, so that the jobs of one do not bury those of another."""

from __future__ import annotations

from supervisor.stores.extras import Extras
from supervisor.stores.records import EnqueueRow
from tests.stores.factories import take

WITHOUT_KAFKA = "the order of records is that of their topic"


def grouped(store, group, n=1, **options):
    """Enqueue `n` jobs of the group, or of none if it is None; return their ids."""
    extras = None if group is None else Extras(group=group)
    return store.enqueue([EnqueueRow("mail", "{}", extras=extras, **options) for _ in range(n)])


def groups_of(store, leases):
    return "".join(store.get(lease.id)["group"] or "-" for lease in leases)


def order(store, limit=100):
    """Claim jobs, and return their groups in order."""
    return groups_of(store, take(store, limit))


def test_groups_take_turns(store):
    for group in "abc":
        grouped(store, group, 3)
    assert order(store) == "abcabcabc"


def test_a_group_that_comes_late_starts_at_once(store):
    grouped(store, "a", 1000)
    take(store, 100)
    grouped(store, "b", 5)
    assert order(store, 12) == "ababababab" + "aa"
