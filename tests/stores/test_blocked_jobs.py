"""A drain leaves blocked jobs out that wait for jobs which are due after its horizon."""

from __future__ import annotations

import pytest

from supervisor.runtime import blocked_jobs as looking
from supervisor.runtime.blocked_jobs import blocked_jobs, why_blocked
from supervisor.stores.extras import Extras
from supervisor.stores.records import EnqueueRow
from tests.stores.factories import again, make_dead, put, take_one

WITHOUT_KAFKA = "a partition has no jobs that wait for others"


def after(store, *parents, key=None, how="cancel", **options):
    extras = Extras(after=parents, key=key, on_parent_failed=how)
    (id,) = store.enqueue([EnqueueRow("mail", "{}", extras=extras, **options)])
    return id


def test_jobs_that_wait_for_jobs_due_later_are_apart(store):
    latest = store.clock() + 60.0
    soon, late, holder, running = *put(store, delay=30.0), *put(store, delay=90.0), after(store, key="k"), *put(store)
    store.settle([again(take_one(store), 90.0)])
    assert take_one(store).id == running
    of_soon, of_late, of_both = after(store, soon), after(store, late), after(store, late, running)
    of_running, of_key, in_line = after(store, running), after(store, key="k"), after(store, of_late)
    elsewhere = after(store, late, queue="other")
    behind = [of_late, of_both, of_key, in_line]
    assert blocked_jobs(store, frozenset({"default"}), latest) == (behind, [of_soon, of_running])
    assert blocked_jobs(store, None, latest) == ([*behind, elsewhere], [of_soon, of_running])
    store.pause("default", True)
    assert blocked_jobs(store, None, latest) == ([elsewhere], [])
    store.pause("default", False)
    assert blocked_jobs(store, None, None).after_horizon == []
    store.retry([holder])
    assert blocked_jobs(store, frozenset({"default"}), latest) == (
        [of_late, of_both, in_line], [of_soon, of_running, of_key],
    )  # fmt: skip


def test_the_reason_of_one_is_named(store):
    (parent,) = make_dead(store, dead_letter=False)
    ended, waits = put(store)[0], after(store, parent, how="wait")
    status = store.stats()
    assert why_blocked(store, [ended, waits], status) == (
        f"job {waits} (mail) is blocked: its parent, job {parent} (mail), has failed: run that again with: "
        f"supervisor jobs retry {parent}, or cancel this job with: supervisor jobs cancel {waits}"
    )
    assert why_blocked(store, [ended, 999], status) == why_blocked(store, [], status) == ""


def test_too_many_jobs_are_not_looked_at(store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "MAX_LOOKED_AT", 2)
    (late,) = put(store, delay=90.0)
    ids = [after(store, late), after(store, late)]
    assert blocked_jobs(store, None, store.clock()) == (ids, [])
    ids.append(after(store, late))
    assert blocked_jobs(store, None, store.clock()) == ([], ids)
