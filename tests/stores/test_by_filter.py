"""Commands on all jobs that match a filter, in batches, whatever happens to the jobs meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.errors import StoreUnavailable
from supervisor.jobs import JobState
from supervisor.stores import by_filter
from supervisor.stores.by_filter import COMMANDS, DELETE_WAITING, EMPTY, change_all, find_all, move_to
from supervisor.stores.extras import Extras
from supervisor.stores.records import EnqueueRow
from supervisor.stores.search import JobFilter
from tests.stores.factories import (
    IN_SQL,
    dead,
    dead_letters,
    make_dead,
    promote,
    put,
    state_of,
    states,
    success,
    take,
    take_one,
)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(by_filter, "BATCH", 3)
    monkeypatch.setattr(by_filter, "PAGE", 3)
    monkeypatch.setattr(by_filter, "LIMITS", replace(by_filter.LIMITS, searched=4, batch=2))


IN_SQL_AND_MEMORY = pytest.mark.parametrize("factory", ["memory", "sqlite", "postgresql"], indirect=True)


def asking(store):
    return lambda question: question(store)


def change(store, command, limit=None, force=False, **where):
    """Change the jobs that match, and return the number that was changed, and why others were not."""
    found = find_all(asking(store), COMMANDS[command], JobFilter(**where), limit)
    changed, left = change_all(asking(store), COMMANDS[command], JobFilter(**where), found, force=force)
    assert changed + sum(left.values()) == len(found.jobs)
    return changed, dict(left)


def test_unfinished_jobs_are_cancelled(store, factory):
    ids = put(store, *["mail"] * 8)
    others = put(store, *["scan"] * 2)
    ended = list(take(store, 2))
    store.settle([success(ended[0]), dead(ended[1])])
    running = take_one(store)
    assert change(store, "cancel", handler="mail") == (6, {})
    assert state_of(store, running.id) == "cancelled"
    assert states(store, others) == ["ready"] * 2
    assert states(store, ids[1:2]) == ["failed"]
    assert change(store, "cancel", handler="mail") == (0, {})
    factory.check()


@IN_SQL
def test_only_failed_jobs_are_retried_unless_a_state_is_given(store, factory):
    put(store, *["mail"] * 3)
    succeeded, failed, cancelled = take(store)
    store.settle([success(succeeded), dead(failed, dead_letter=False)])
    store.cancel([cancelled.id])
    (later,) = put(store, delay=60.0)
    assert change(store, "retry", queue="default") == (1, {})
    assert states(store, [succeeded.id, failed.id, cancelled.id, later]) == [
        "succeeded", "ready", "cancelled", "scheduled",
    ]  # fmt: skip
    assert change(store, "retry", state=JobState.SCHEDULED) == (1, {})
    refused = {"succeeded: its work is done (--force to do it again)": 1}
    assert change(store, "retry", state=JobState.SUCCEEDED) == (0, refused)
    assert change(store, "retry", state=JobState.SUCCEEDED, force=True) == (1, {})
    factory.check()


@IN_SQL
def test_they_run_in_the_order_in_which_they_were_enqueued(store):
    ids = make_dead(store, *["mail"] * 8, dead_letter=False)
    assert change(store, "retry", error="valueerror") == (8, {})
    assert [lease.id for lease in take(store)] == ids


@IN_SQL
def test_a_job_that_fails_again_meanwhile_is_retried_once(store):
    ids = make_dead(store, *["mail"] * 7, dead_letter=False)
    command, where, rounds = COMMANDS["retry"], JobFilter(error="no"), []
    found = find_all(asking(store), command, where, None)

    def fail_again(result):
        rounds.append(list(result.changed))
        store.settle([dead(lease, dead_letter=False) for lease in take(store)])

    assert change_all(asking(store), command, where, found, each=fail_again) == (7, {})
    assert rounds == [ids[:3], ids[3:6], ids[6:]]
    assert states(store, ids) == ["failed"] * 7


@IN_SQL
def test_jobs_that_have_left_their_state_are_left_alone(store, factory):
    ids = make_dead(store, *["mail"] * 4, dead_letter=False)
    command, where = COMMANDS["delete"], JobFilter(queue="default")
    found = find_all(asking(store), command, where, None)
    store.retry(ids[:2])
    assert change_all(asking(store), command, where, found) == (2, {"not failed any more, but ready": 2})
    assert states(store, ids[:2]) == ["ready"] * 2
    factory.check()


def test_a_job_that_starts_meanwhile_is_cancelled_unless_its_state_was_asked_for(store):
    first, second = put(store, "a", "b")
    command = COMMANDS["cancel"]
    found = {
        name: find_all(asking(store), command, JobFilter(handler=name, state=state), None)
        for name, state in (("a", None), ("b", JobState.READY))
    }
    take(store)
    assert change_all(asking(store), command, JobFilter(handler="a"), found["a"]) == (1, {})
    left = {"not ready any more, but in flight": 1}
    assert change_all(asking(store), command, JobFilter(handler="b", state=JobState.READY), found["b"]) == (0, left)
    assert states(store, [first, second]) == ["cancelled", "in_flight"]


@IN_SQL
def test_running_jobs_are_not_deleted(store, factory):
    put(store, *["mail"] * 3)
    running = take_one(store)
    assert change(store, "delete", handler="mail") == (2, {})
    assert state_of(store, running.id) == "in_flight"
    factory.check()


@IN_SQL
def test_dead_letters_are_redriven_and_purged_and_no_other_job(store, factory):
    store.leave()
    store = factory.joined("two", "file")
    pending, *delivered = make_dead(store, *["mail"] * 5)
    store.mark_accepted([each for each in dead_letters(store) if each.id in delivered], "file")
    plain = make_dead(store, "mail", dead_letter=False)
    why = "its dead letter is pending: not every sink has it yet (--force to do it all the same)"
    assert change(store, "redrive", limit=1, handler="mail", dead_letter="delivered") == (1, {})
    assert state_of(store, delivered[-1]) == "ready"
    assert change(store, "purge", error="ValueError") == (3, {why: 1})
    assert change(store, "purge", error="ValueError", force=True) == (1, {})
    assert store.get(pending) is None
    assert states(store, [delivered[-1], *plain]) == ["ready", "failed"]
    factory.check()


@IN_SQL
def test_a_dead_letter_that_runs_again_meanwhile_is_not_purged(store):
    (id,) = make_dead(store)
    found = find_all(asking(store), COMMANDS["purge"], JobFilter(queue="default"), None)
    store.redrive([id], force=True)
    left = {"ready, not a dead letter": 1}
    assert change_all(asking(store), COMMANDS["purge"], JobFilter(), found, force=True) == (0, left)
    assert store.purge(force=True, ids=[id]).refused == {id: "ready, not a dead letter"}


def test_the_limit_takes_the_newest(store):
    ids = put(store, *["mail"] * 8)
    assert change(store, "cancel", limit=5, handler="mail") == (5, {})
    assert states(store, ids) == ["ready"] * 3 + ["cancelled"] * 5


@IN_SQL_AND_MEMORY
def test_it_is_known_before_which_are_left_alone(store):
    (done,) = put(store)
    store.settle([success(take_one(store))])
    first, *others = make_dead(store, *["mail"] * 4)
    store.mark_accepted([each for each in dead_letters(store) if each.id == first], "file")
    plain = make_dead(store, "mail", dead_letter=False)

    def refused(name, force=False, **where):
        return [*find_all(asking(store), COMMANDS[name], JobFilter(**where), None, force=force).refused]

    assert sorted(refused("retry", error="no")) == others
    assert sorted(refused("delete", handler="mail")) == others
    assert sorted(refused("redrive")) == sorted(refused("purge")) == others
    assert refused("retry", state=JobState.SUCCEEDED) == [done]
    for name in ("retry", "delete", "redrive", "purge"):
        assert refused(name, force=True) == []
    assert refused("cancel") == []
    assert change(store, "retry", error="no")[0] == len([first, *plain])


def test_the_number_is_known_before_anything_is_changed(store):
    put(store, *["mail"] * 5)
    take(store, 2)
    seen = []
    found = find_all(asking(store), COMMANDS["cancel"], JobFilter(), None, lambda n, of: seen.append((n, of)))
    assert found.text == "5 jobs (3 ready, 2 in flight)"
    assert seen[-1] == (5, None)
    change_all(asking(store), COMMANDS["cancel"], JobFilter(), found, report=lambda n, of: seen.append((n, of)))
    assert seen[-2:] == [(3, 5), (5, 5)]


def test_a_call_may_be_repeated_while_the_store_is_unavailable(store):
    ids = put(store, *["mail"] * 7)
    failures = [True, False] * 20

    def ask(question):
        answer = question(store)
        if failures.pop():  # its answer was lost
            return question(store)
        return answer

    found = find_all(ask, COMMANDS["cancel"], JobFilter(handler="mail"), None)
    changed, left = change_all(ask, COMMANDS["cancel"], JobFilter(handler="mail"), found)
    assert changed + sum(left.values()) == 7
    assert states(store, ids) == ["cancelled"] * 7


def test_an_error_leaves_the_rest_as_it_was(store):
    ids = put(store, *["mail"] * 5)
    command = COMMANDS["cancel"]
    found = find_all(asking(store), command, JobFilter(), None)
    calls = iter((store, None))

    def ask(question):
        if (opened := next(calls)) is None:
            raise StoreUnavailable("gone")
        return question(opened)

    with pytest.raises(StoreUnavailable):
        change_all(ask, command, JobFilter(), found)
    assert states(store, ids) == ["ready"] * 2 + ["cancelled"] * 3


ENDS = {"cancel": COMMANDS["cancel"], "empty": EMPTY, "delete": COMMANDS["delete"], "delete waiting": DELETE_WAITING}


@IN_SQL_AND_MEMORY
@pytest.mark.parametrize("name", ENDS)
def test_jobs_that_wait_for_others_that_match_are_ended_with_them(store, factory, name):
    """The batches are smaller than the number of jobs that wait for each other, so that the end of some would make others ready."""
    keyed = store.enqueue([EnqueueRow("mail", "{}", extras=Extras(key=f"k{n % 4}")) for n in range(16)])
    (parent,) = put(store, "mail")
    children = [
        store.enqueue([EnqueueRow("mail", "{}", extras=Extras(after=(parent,), on_parent_failed=how))])[0]
        for how in ("run", "wait", "cancel") * 2
    ]
    ids = [*keyed, parent, *children]
    blocked = [id for id in ids if state_of(store, id) == "blocked"]
    assert len(blocked) == 18
    freed = []

    def look(result):
        freed.extend(id for id in blocked if (store.get(id) or {}).get("state") == "ready")

    assert take_one(store).id == keyed[0]
    found = find_all(asking(store), ENDS[name], JobFilter(queue="default"), None)
    left = 23 if name == "cancel" else 22
    assert change_all(asking(store), ENDS[name], JobFilter(queue="default"), found, each=look) == (left, {})
    assert freed == []
    factory.check()


@IN_SQL_AND_MEMORY
@pytest.mark.parametrize("name", ENDS)
def test_jobs_that_others_free_or_cancel_meanwhile_are_ended_all_the_same(store, factory, name):
    first, second = store.enqueue([EnqueueRow("mail", "{}", extras=Extras(key="k"))] * 2)
    (parent,) = put(store, "mail", queue="other")
    (child,) = store.enqueue([EnqueueRow("mail", "{}", extras=Extras(after=(parent,)))])
    found = find_all(asking(store), ENDS[name], JobFilter(queue="default"), None)
    store.settle([success(take_one(store))])
    store.cancel([parent])
    assert states(store, [first, second, child]) == ["succeeded", "ready", "cancelled"]
    changed, left = change_all(asking(store), ENDS[name], JobFilter(queue="default"), found)
    if "delete" in name:
        assert (changed, left) == (2, {"succeeded by now": 1})
        assert [store.get(id) for id in (second, child)] == [None, None]
    else:
        assert changed == 1
        assert sum(left.values()) == 2
        assert states(store, [second, child]) == ["cancelled"] * 2
    factory.check()


@IN_SQL
def test_a_job_that_is_run_again_meanwhile_is_not_deleted_nor_one_that_runs(store):
    (again,) = make_dead(store, dead_letter=False)
    (waits,) = put(store)
    found = find_all(asking(store), COMMANDS["delete"], JobFilter(queue="default"), None)
    assert take_one(store).id == waits
    store.retry([again])
    changed, left = change_all(asking(store), COMMANDS["delete"], JobFilter(queue="default"), found)
    assert (changed, left) == (0, {"in flight by now": 1, "not failed any more, but ready": 1})


@IN_SQL
def test_jobs_are_moved_that_are_due_meanwhile(store, factory):
    (id,) = put(store, delay=5.0)
    command = move_to("other")
    found = find_all(asking(store), command, JobFilter(queue="default"), None)
    factory.clock.step(6.0)
    promote(store, 10)
    assert change_all(asking(store), command, JobFilter(queue="default"), found) == (1, {})
    assert store.get(id)["queue"] == "other"
    factory.check()
