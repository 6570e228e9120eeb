"""A job that waits for others goes on once they have ended: the way in which each has ended decides how."""

from __future__ import annotations

import pytest

from supervisor.config.settings import RetentionSettings
from supervisor.errors import InvalidJob, RowRefused
from supervisor.jobs import JobState
from supervisor.parents import PARENTS
from supervisor.stores.extras import Extras
from supervisor.stores.problems import problems
from supervisor.stores.records import EnqueueRow
from supervisor.text.strict_json import decode
from tests.stores.factories import again, dead, promote, put, release, states, success, take, take_one

WITHOUT_KAFKA = "a partition has no jobs that wait for others"
KINDS = [("cancel", "cancelled"), ("run", "ready"), ("wait", "blocked")]


def jobs(store, n):
    return store.enqueue([EnqueueRow("mail", "{}") for _ in range(n)])


def child(store, after, on_parent_failed="cancel", **options):
    (id,) = store.enqueue([row(after, on_parent_failed, **options)])
    return id


def row(after, on_parent_failed="cancel", key=None, **options):
    extras = Extras(after=tuple(after), on_parent_failed=on_parent_failed, key=key)
    return EnqueueRow("mail", "{}", extras=extras, **options)


def run(store, id, end=success, **how):
    """End this job, which is ready, and give the others back."""
    leases = {lease.id: lease for lease in take(store, 1000)}
    mine = leases.pop(id)
    assert store.settle([end(mine, **how), *map(release, leases.values())]) == []
    return mine


def given(store, id):
    """The results of the parents with which this job starts."""
    leases = {lease.id: lease for lease in take(store, 1000)}
    store.settle([*map(release, leases.values())])
    return decode(leases[id].headers)[PARENTS]


def cause(store, id):
    return store.get(id)["errors"][-1]["message"]


# --- the ends of parents


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_the_status_names_a_parent_that_others_wait_for_in_vain(store, end):
    a, other = jobs(store, 2)
    first, last = child(store, [a, other], "wait"), child(store, [a], "wait")
    child(store, [a])
    child(store, [a], "run")
    assert store.stats()["stuck"] == []
    run(store, a, dead) if end == "failed" else store.cancel([a])
    found = {"kind": "parent_failed", "job_id": a, "handler": "mail", "state": end, "key": None}
    assert store.stats()["stuck"] == [{**found, "child": first, "waiting": 2}]
    (problem,) = [it for it in problems(store.stats()) if it.kind == "parent_failed"]
    how = "has failed" if end == "failed" else "was cancelled"
    assert problem.message == f"job {a} (mail) {how}, and 2 jobs wait until it has succeeded, such as job {first}"
    assert f"supervisor jobs retry {a}" in problem.what_to_do
    store.cancel([first])
    assert store.stats()["stuck"] == [{**found, "child": last, "waiting": 1}]
    store.retry([a], force=True)
    assert store.stats()["stuck"] == []


def test_a_job_waits_until_all_of_its_parents_have_succeeded(store):
    a, b = jobs(store, 2)
    c = child(store, [a, b])
    assert states(store, [a, b, c]) == ["ready", "ready", "blocked"]
    run(store, a)
    assert states(store, [a, b, c]) == ["succeeded", "ready", "blocked"]
    store.newly_ready()
    run(store, b)
    assert store.newly_ready() == {"default"}
    assert take_one(store).id == c


@pytest.mark.parametrize(("on_parent_failed", "state"), KINDS)
@pytest.mark.parametrize("end", ["fail", "cancel", "before"])
def test_what_a_job_does_if_a_parent_ends_without_success(store, on_parent_failed, state, end):
    (a,) = jobs(store, 1)
    c = None if end == "before" else child(store, [a], on_parent_failed)
    if end == "cancel":
        store.cancel([a])
    else:
        run(store, a, dead)
    if end == "before":
        c = child(store, [a], on_parent_failed)
    assert states(store, [c]) == [state]


def test_a_retry_of_a_parent_is_waited_for(factory, store):
    (a,) = jobs(store, 1)
    c = child(store, [a])
    run(store, a, again, delay=5.0)
    assert states(store, [a, c]) == ["scheduled", "blocked"]
    factory.clock.step(5)
    promote(store, 10)
    run(store, a)
    assert states(store, [a, c]) == ["succeeded", "ready"]


def test_a_cancelled_job_says_which_parent_was_the_cause(store):
    a, b = jobs(store, 2)
    c, d = store.enqueue([row([a, b]), row([-1])])
    run(store, b, dead)
    assert states(store, [c, d]) == ["cancelled", "cancelled"]
    assert cause(store, c) == f"its parent, job {b}, failed"
    assert cause(store, d) == f"its parent, job {c}, was cancelled"
    assert [error["cause"] for error in store.get(c)["errors"]] == ["parent_failed"]
    run(store, a)
    assert states(store, [c, d]) == ["cancelled", "cancelled"]


def test_a_job_that_goes_on_all_the_same_waits_for_the_others(store):
    a, b = jobs(store, 2)
    c = child(store, [a, b], "run")
    run(store, a, dead)
    assert states(store, [c]) == ["blocked"]
    run(store, b)
    assert states(store, [c]) == ["ready"]


def test_parents_that_have_all_succeeded_before_are_not_waited_for(store):
    a, b = jobs(store, 2)
    run(store, a)
    run(store, b)
    c = child(store, [a, b])
    assert states(store, [c]) == ["ready"]


@pytest.mark.parametrize("gone", [False, True])
def test_a_parent_that_does_not_exist_is_refused(store, gone):
    (a,) = jobs(store, 1)
    missing = a if gone else a + 100
    if gone:
        store.delete([a])
    with pytest.raises(RowRefused, match=f"after: there is no job {missing}") as caught:
        store.enqueue([EnqueueRow("mail", "{}"), row([missing])])
    assert isinstance(caught.value, InvalidJob)
    assert [job["id"] for job in store.list_jobs()] == [a][gone:]


@pytest.mark.parametrize(
    ("on_parent_failed", "state"), [("cancel", "cancelled"), ("run", "ready"), ("wait", "cancelled")]
)
def test_a_parent_that_is_deleted_is_waited_for_no_longer(store, on_parent_failed, state):
    (a,) = jobs(store, 1)
    c = child(store, [a], on_parent_failed)
    store.delete([a])
    assert states(store, [c]) == [state]
    if state == "cancelled":
        assert cause(store, c) == f"its parent, job {a}, was deleted"


def test_a_job_is_given_no_results_of_parents_that_were_deleted(store):
    """Whether they had ended or not, and whether another parent ends later."""
    waits, done, failed, last = jobs(store, 4)
    one, all_of_them = child(store, [waits], "run"), child(store, [waits, done, failed, last], "run")
    run(store, done, result="1")
    run(store, failed, dead)
    store.delete([waits, done, failed], force=True)
    assert given(store, one) == {"ids": [waits], "failed": [waits], "results": [None]}
    run(store, last, result="2")
    gone = [waits, done, failed]
    assert given(store, all_of_them) == {"ids": [*gone, last], "failed": gone, "results": [None, None, None, "2"]}


def test_a_failed_parent_that_is_deleted_can_not_be_waited_for(store):
    (a,) = jobs(store, 1)
    c = child(store, [a], "wait")
    run(store, a, dead)
    store.delete([a], force=True)
    assert states(store, [c]) == ["cancelled"]


def test_a_child_can_be_cancelled_and_deleted(store):
    (a,) = jobs(store, 1)
    c, d, e = child(store, [a]), child(store, [a]), child(store, [a])
    assert store.cancel([c]).changed == {c: JobState.BLOCKED}
    assert store.delete([d]).changed == {d: JobState.BLOCKED}
    run(store, a)
    assert states(store, [c, e]) == ["cancelled", "ready"]


def test_an_outcome_that_comes_too_late_lets_nothing_go_on(factory, store):
    (a,) = jobs(store, 1)
    c = child(store, [a])
    lease = take_one(store)
    other = factory.joined("two")
    factory.clock.step(3600)
    (expired,) = other.expired_leases(10)
    other.recover([release(expired.lease)._replace(seen=expired.deadline)])
    assert store.settle([success(lease)]) == [lease.id]
    assert states(store, [c]) == ["blocked"]


def test_a_transaction_that_fails_leaves_links_as_they_were(store):
    (a,) = jobs(store, 1)
    c, d = child(store, [a]), child(store, [a], "run")
    lease = take_one(store)
    with pytest.raises(RuntimeError), store.transaction():
        store.settle([dead(lease)])
        raise RuntimeError
    assert states(store, [a, c, d]) == ["in_flight", "blocked", "blocked"]
    store.settle([success(lease)])
    assert states(store, [a, c, d]) == ["succeeded", "ready", "ready"]


def test_a_job_that_goes_on_all_the_same_does_so_behind_one_that_was_cancelled(store):
    (a,) = jobs(store, 1)
    b, c = store.enqueue([row([a]), row([-1], "run")])
    run(store, a, dead)
    assert states(store, [b, c]) == ["cancelled", "ready"]
    assert given(store, c)["failed"] == [b]


def test_a_parent_whose_supervisor_was_lost_may_fail_too(factory, store):
    (a,) = jobs(store, 1)
    c, d = child(store, [a]), child(store, [a], "run")
    take_one(store)
    other = factory.joined("two")
    factory.clock.step(3600)
    (expired,) = other.expired_leases(10)
    assert other.recover([dead(expired.lease)._replace(seen=expired.deadline)]) == []
    assert states(store, [a, c, d]) == ["failed", "cancelled", "ready"]


# --- when a job goes on


def test_a_job_that_is_due_later_is_scheduled_then(factory, store):
    (a,) = jobs(store, 1)
    c = child(store, [a], delay=10.0)
    store.newly_ready()
    run(store, a)
    assert states(store, [c]) == ["scheduled"]
    assert store.newly_ready() == {"default"}, "so that somebody looks when it is due"
    factory.clock.step(10)
    promote(store, 10)
    assert take_one(store).id == c


def test_a_job_that_was_due_meanwhile_is_ready_then(factory, store):
    (a,) = jobs(store, 1)
    c = child(store, [a], delay=10.0)
    factory.clock.step(20)
    run(store, a)
    assert states(store, [c]) == ["ready"]


def test_a_job_waits_for_its_key_once_its_parents_have_ended(store):
    (holder,) = store.enqueue([row([], key="k")])
    (a,) = jobs(store, 1)
    c = child(store, [a], key="k")
    (later,) = store.enqueue([row([], key="k")])
    run(store, a)
    assert states(store, [holder, c, later]) == ["ready", "blocked", "blocked"]
    run(store, holder)
    assert states(store, [c, later]) == ["ready", "blocked"]


def test_a_job_that_waits_for_parents_holds_no_key(store):
    (a,) = jobs(store, 1)
    c = child(store, [a], key="k")
    (other,) = store.enqueue([row([], key="k")])
    assert states(store, [c, other]) == ["blocked", "ready"]
    run(store, other)
    assert states(store, [c]) == ["blocked"]
    run(store, a)
    assert states(store, [c]) == ["ready"]


# --- batches


def test_parents_of_the_same_batch_are_named_by_their_place(store):
    ids = store.enqueue([EnqueueRow("mail", "{}"), EnqueueRow("mail", "{}"), row([-1, -2]), row([-3])])
    assert states(store, ids) == ["ready", "ready", "blocked", "blocked"]
    assert store.get(ids[2])["after"] == ids[:2]
    for id, left in zip(ids, (["ready", "blocked", "blocked"], ["ready", "blocked"], ["ready"], []), strict=True):
        run(store, id)
        assert states(store, ids)[-len(left) or 4 :] == left
    assert states(store, ids) == ["succeeded"] * 4


def test_many_children_of_one_job(store):
    (a,) = jobs(store, 1)
    ids = store.enqueue([row([a]) for _ in range(2000)])
    run(store, a)
    assert store.counts_by_state(ids) == {"ready": 2000}


def test_many_parents_of_one_job(store):
    ids = jobs(store, 500)
    c = child(store, ids)
    while leases := take(store, 100):
        assert c not in {lease.id for lease in leases} or store.counts_by_state(ids) == {"succeeded": 500}
        store.settle([success(lease) for lease in leases])
    assert states(store, [c]) == ["succeeded"]


@pytest.mark.parametrize("on_parent_failed", ["cancel", "wait"])
def test_a_long_chain_is_cancelled(store, on_parent_failed):
    ids = store.enqueue([EnqueueRow("mail", "{}"), *[row([-1 - n]) for n in range(3000)]])
    last = child(store, [ids[-1]], on_parent_failed)
    run(store, ids[0], dead)
    assert store.counts_by_state(ids[1:]) == {"cancelled": 3000}
    assert states(store, [last]) == ["cancelled" if on_parent_failed == "cancel" else "blocked"]
    store.retry([ids[0]], force=True)
    assert store.counts_by_state([*ids, last]) == {"ready": 1, "blocked": 3001}


# --- redrives


def test_a_parent_that_is_run_again_lets_a_job_go_on_that_still_waits(store):
    (a,) = jobs(store, 1)
    c = child(store, [a], "wait")
    run(store, a, dead)
    store.redrive([a], force=True)
    assert states(store, [a, c]) == ["ready", "blocked"]
    run(store, a)
    assert states(store, [a, c]) == ["succeeded", "ready"]


def test_nothing_promises_that_a_blocked_job_runs(store):
    (a,) = jobs(store, 1)
    c = child(store, [a], "wait")
    run(store, a, dead, dead_letter=False)
    reason = "blocked: it waits for another job or for a limit, which supervisor jobs show names"
    assert store.retry([c]).refused == store.redrive([c]).refused == {c: reason}


def test_jobs_that_were_cancelled_because_of_a_parent_wait_again_when_it_is_run_again(store):
    a, b = jobs(store, 2)
    c, d, e = store.enqueue([row([a, b]), row([-1]), row([-2])])
    run(store, a, dead)
    assert states(store, [c, d, e]) == ["cancelled"] * 3
    store.redrive([a], force=True)
    assert states(store, [a, c, d, e]) == ["ready", "blocked", "blocked", "blocked"]
    for id in (a, b, c, d, e):
        run(store, id)
    assert states(store, [a, b, c, d, e]) == ["succeeded"] * 5


def test_a_job_with_two_failed_parents_waits_until_both_are_run_again(store):
    a, b = jobs(store, 2)
    c, d = store.enqueue([row([a, b]), row([-1])])
    run(store, a, dead)
    run(store, b, dead)
    store.redrive([a], force=True)
    assert states(store, [c, d]) == ["cancelled"] * 2
    assert cause(store, c) == f"its parent, job {b}, failed"
    store.redrive([b], force=True)
    assert states(store, [c, d]) == ["blocked"] * 2


def test_a_job_that_was_cancelled_by_hand_stays_cancelled_when_its_parent_is_run_again(store):
    (a,) = jobs(store, 1)
    c = child(store, [a])
    store.cancel([c])
    run(store, a, dead)
    store.redrive([a], force=True)
    assert states(store, [c]) == ["cancelled"]


def test_a_job_that_is_run_again_waits_for_parents_that_are_going_to_run(store):
    (a,) = jobs(store, 1)
    c = child(store, [a])
    store.cancel([c])
    store.retry([c])
    assert states(store, [c]) == ["blocked"]
    run(store, a)
    assert states(store, [c]) == ["ready"]


def test_a_cancelled_job_that_is_run_again_by_hand_does_not_wait_for_a_failed_parent(store):
    (a,) = jobs(store, 1)
    c = child(store, [a])
    run(store, a, dead)
    store.retry([c])
    assert states(store, [c]) == ["ready"]
    assert given(store, c)["failed"] == [a]


def test_all_jobs_of_a_workflow_can_be_run_again_at_once(store):
    ids = store.enqueue([EnqueueRow("mail", "{}"), row([-1]), row([-2])])
    for id in ids:
        run(store, id)
    store.retry(ids, force=True)
    assert states(store, ids) == ["ready", "blocked", "blocked"]


def test_a_parent_that_runs_again_is_waited_for_again_by_a_job_that_has_not_started(store):
    a, b = jobs(store, 2)
    c = child(store, [a, b], "run")
    run(store, a, dead)
    store.redrive([a], force=True)
    run(store, b)
    assert states(store, [c]) == ["blocked"]
    run(store, a)
    assert states(store, [c]) == ["ready"]


# --- results


def test_a_job_gets_the_results_of_its_parents_in_their_order(store):
    a, b, c = jobs(store, 3)
    d = child(store, [c, a, b], "run", headers='{"trace":"t"}')
    run(store, a, result='{"n":1}')
    run(store, c, result='"é\\u0000"')
    run(store, b, dead)
    assert given(store, d) == {"ids": [c, a, b], "failed": [b], "results": ['"é\\u0000"', '{"n":1}', None]}
    (lease,) = take(store)
    assert decode(lease.headers)["trace"] == "t"


@pytest.mark.parametrize("size", [10, 10_000])
def test_long_payloads_and_results_stay_whole(store, size):
    (a,) = jobs(store, 1)
    (c,) = store.enqueue([row([a])._replace(payload=f'"{"p" * size}"', headers=f'{{"h":"{"h" * size}"}}')])
    run(store, a, result=f'"{"r" * size}"')
    (lease,) = take(store)
    assert lease.id == c and lease.payload == f'"{"p" * size}"'
    headers = decode(lease.headers)
    assert headers["h"] == "h" * size and headers[PARENTS]["results"] == [f'"{"r" * size}"']


def test_results_that_are_too_large_together_are_left_out(store):
    a, b = jobs(store, 2)
    c = child(store, [a, b])
    for id in (a, b):
        run(store, id, result=f'"{"x" * 600_000}"')
    assert given(store, c) == {"ids": [a, b], "failed": [], "bytes": 1_200_004}


def test_a_retry_has_the_results_too(factory, store):
    (a,) = jobs(store, 1)
    c = child(store, [a])
    run(store, a, result="1")
    run(store, c, again, delay=0.0)
    promote(store, 10)
    assert given(store, c)["results"] == ["1"]


def test_jobs_without_parents_get_no_header(store):
    put(store)
    assert take_one(store).headers is None


def test_a_parent_is_not_pruned_while_a_job_waits_that_needs_its_result(factory, store):
    a, b = jobs(store, 2)
    c = child(store, [a, b])
    run(store, a, result="1")
    factory.clock.step(10 * 86_400)
    assert store.prune(RetentionSettings(), 100) == 0
    run(store, b)
    assert given(store, c)["results"] == ["1", None]
    assert store.prune(RetentionSettings(), 100) == 1
    assert store.get(a) is None


def test_a_parent_is_not_pruned_while_a_redrive_may_need_its_result(factory, store):
    a, b = jobs(store, 2)
    c = child(store, [a])
    d = child(store, [a, b])
    run(store, a, result="1")
    run(store, b, dead, dead_letter=False)
    run(store, c, dead, dead_letter=False)
    assert states(store, [a, b, c, d]) == ["succeeded", "failed", "failed", "cancelled"]
    factory.clock.step(5 * 86_400)
    assert store.prune(RetentionSettings(), 100) == 0
    store.retry([b, c])
    assert given(store, c)["results"] == ["1"]
    run(store, c)
    run(store, b, result="2")
    assert given(store, d)["results"] == ["1", "2"]
    run(store, d)
    factory.clock.step(5 * 86_400)
    assert store.prune(RetentionSettings(), 100) == 4


def test_a_failed_parent_is_not_pruned_while_a_job_waits_for_it(factory, store):
    (a,) = jobs(store, 1)
    c = child(store, [a], "wait")
    store.cancel([a])
    factory.clock.step(100 * 86_400)
    assert store.prune(RetentionSettings(), 100) == 0
    store.cancel([c])
    factory.clock.step(100 * 86_400)
    assert store.prune(RetentionSettings(), 100) == 2


def test_the_parents_and_children_of_a_job_are_shown(store):
    a, b = jobs(store, 2)
    c = child(store, [b, a])
    d = child(store, [c])
    run(store, b)
    job = store.get(c)
    assert job["parents"] == [
        {"id": b, "handler": "mail", "state": "succeeded", "waits": False},
        {"id": a, "handler": "mail", "state": "ready", "waits": True},
    ]
    assert job["children"] == [{"id": d, "handler": "mail", "state": "blocked", "waits": True}]
    assert (store.get(a)["parents"], [child["id"] for child in store.get(a)["children"]]) == ([], [c])
    store.delete([b])
    assert store.get(c)["parents"][0] == {"id": b, "handler": None, "state": None, "waits": False}
    assert store.counts_by_state([a, b, c, d]) == {"ready": 1, None: 1, "blocked": 2}
