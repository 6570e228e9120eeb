from __future__ import annotations

import pytest

from tests.stores.factories import TTL, StoreFactory, dead, dead_letters, make_dead, put, take, take_one


@pytest.fixture
def store(factory: StoreFactory):
    return factory.joined("one", "file", "alert")


def test_a_dead_letter_is_the_job_as_people_see_it(factory, store):
    (id,) = make_dead(store)
    (dead_letter,) = dead_letters(store)
    assert (dead_letter.id, dead_letter.tries, dead_letter.accepted) == (id, 1, frozenset())
    record = {"record": dead_letter.job["record"]} if factory.dead_letters_have_records else {}
    assert dead_letter.job == {**store.get(id), **record}
    assert dead_letter.job["dead_letter"] == "pending"


def test_a_claimed_dead_letter_is_offered_to_nobody_else_until_its_claim_ends(factory, store):
    make_dead(store)
    (first,) = dead_letters(store)
    other = factory.joined("two")
    assert dead_letters(other) == []
    factory.clock.step(TTL)
    (second,) = dead_letters(other)
    assert (second.id, second.tries) == (first.id, 2)
    assert second.token > first.token


def test_a_dead_letter_that_one_of_two_sinks_has_is_offered_to_nobody_else_until_its_claim_ends(factory):
    """The supervisor that has claimed it is publishing it to the other sink."""
    one, two = factory.joined("one", "file", "mail"), factory.joined("two", "file", "mail")
    make_dead(one)
    assert one.mark_accepted(dead_letters(one), "file") == []
    assert dead_letters(two) == []
    factory.clock.step(TTL)
    assert [dead_letter.accepted for dead_letter in dead_letters(two)] == [{"file"}]


def test_the_oldest_dead_letters_are_claimed_first_and_no_more_than_the_limit(factory, store):
    (old,) = make_dead(store)
    factory.clock.step(1)
    (new,) = make_dead(store)
    assert [dead_letter.id for dead_letter in dead_letters(store, 1)] == [old]
    assert [dead_letter.id for dead_letter in dead_letters(store, 1)] == [new]


def test_a_dead_letter_is_delivered_once_all_sinks_have_it(factory, store):
    (id,) = make_dead(store)
    claimed = dead_letters(store)
    assert store.mark_accepted(claimed, "file") == []
    assert store.get(id)["dead_letter"] == "pending"
    assert store.remaining(None, None) == {"dead_letters": 1}
    assert store.mark_accepted(claimed, "alert") == []
    assert store.get(id)["dead_letter"] == "delivered"
    assert store.remaining(None, None) == {}
    factory.clock.step(10 * TTL)
    assert dead_letters(store) == []


def test_a_repeated_acceptance_is_success(store):
    make_dead(store)
    claimed = dead_letters(store)
    for _ in range(2):
        assert store.mark_accepted(claimed, "file") == []


def test_an_acceptance_is_kept_for_each_sink(factory, store):
    make_dead(store)
    store.mark_accepted(dead_letters(store), "file")
    factory.clock.step(TTL)
    (dead_letter,) = dead_letters(store)
    assert dead_letter.accepted == {"file"}


def test_postponed_dead_letters_are_offered_again_later_and_not_before(factory, store):
    make_dead(store)
    claimed = dead_letters(store)
    assert store.postpone(claimed, 5.0) == []
    factory.clock.step(4.999)
    assert dead_letters(store) == []
    factory.clock.step(0.001)
    assert [dead_letter.tries for dead_letter in dead_letters(store)] == [2]


def test_a_sink_may_accept_a_dead_letter_that_another_has_postponed(store):
    make_dead(store)
    claimed = dead_letters(store)
    store.postpone(claimed, 5.0)
    assert store.mark_accepted(claimed, "alert") == []


def test_an_owner_that_lost_its_claim_changes_nothing(factory, store):
    (id,) = make_dead(store)
    old = dead_letters(store)
    factory.clock.step(TTL)
    dead_letters(factory.joined("two"))
    assert store.mark_accepted(old, "file") == [id]
    assert store.postpone(old, 5.0) == [id]


def test_a_job_that_fails_for_good_again_is_a_new_dead_letter(store):
    (id,) = make_dead(store)
    old = dead_letters(store)
    store.mark_accepted(old, "file")
    store.redrive([id], force=True)
    assert store.get(id)["dead_letter"] is None
    assert store.mark_accepted(old, "alert") == [id]
    store.settle([dead(take_one(store))])
    assert store.mark_accepted(old, "alert") == [id], "before the next claim too"
    (dead_letter,) = dead_letters(store)
    assert (dead_letter.accepted, dead_letter.tries) == (frozenset(), 1)
    assert store.mark_accepted(old, "alert") == [id]


def test_a_failed_job_is_a_dead_letter_only_if_its_outcome_asks_for_it(store):
    make_dead(store, dead_letter=False)
    put(store)
    assert dead_letters(store) == []


def test_without_sinks_a_failed_job_is_a_delivered_dead_letter_that_can_be_run_again(factory):
    store = factory.open()
    store.join("one", "host", 4711)
    ids = make_dead(store, "a", "b")
    for _ in range(2):
        assert [(it["id"], it["dead_letter"], it["missing_sinks"]) for it in store.list_jobs(dead_letter="any")] == [
            (id, "delivered", []) for id in reversed(ids)
        ]
        assert store.remaining(None, None) == {}
        assert store.redrive(None)[0]
        store.settle([dead(lease) for lease in take(store)])
    assert dead_letters(factory.joined("two")) == [], "it was owed to nobody"
    assert store.purge()[0]
    assert list(store.list_jobs()) == []
    factory.check()


def missing(store, id):
    return store.get(id)["missing_sinks"]


def without_sinks(factory):
    store = factory.open()
    store.join("none", "host", 4711)
    return store


def test_a_dead_letter_of_a_supervisor_without_sinks_is_owed_to_those_of_all_others(factory, store):
    other = factory.joined("two", "web")
    (id,) = make_dead(without_sinks(factory))
    assert (store.get(id)["dead_letter"], missing(store, id)) == ("pending", ["alert", "file", "web"])
    claimed = dead_letters(store)
    store.mark_accepted(claimed, "file")
    store.mark_accepted(claimed, "alert")
    assert other.mark_accepted(dead_letters(other), "web") == []
    assert store.get(id)["dead_letter"] == "delivered"


@pytest.mark.parametrize("ends", ["leave", "stall"])
def test_a_dead_letter_that_a_supervisor_without_sinks_recovers_is_owed_to_those_of_the_owner(factory, store, ends):
    put(store)
    lease = take_one(store)
    recovering = without_sinks(factory)
    store.leave() if ends == "leave" else factory.clock.step(TTL + 1)
    (expired,) = recovering.expired_leases(10)
    assert recovering.recover([dead(lease)._replace(seen=expired.deadline)]) == []
    assert (recovering.get(lease.id)["dead_letter"], missing(recovering, lease.id)) == ("pending", ["alert", "file"])
    other = factory.joined("two", "alert", "file")
    assert [it.id for it in dead_letters(other)] == [lease.id]


def test_a_sink_that_only_the_supervisor_of_the_job_has_is_waited_for(factory, store):
    """Two supervisors share the store, and the other one has not got the sink yet."""
    (id,) = make_dead(store)
    assert missing(store, id) == ["alert", "file"]
    other = factory.joined("two", "file")
    assert other.mark_accepted(dead_letters(other), "file") == []
    assert (store.get(id)["dead_letter"], missing(store, id)) == ("pending", ["alert"])
    assert dead_letters(other) == [], "it has nothing to do for it"
    (claimed,) = dead_letters(store)
    assert (claimed.accepted, claimed.tries) == ({"file"}, 2)
    assert store.mark_accepted([claimed], "alert") == []
    assert (store.get(id)["dead_letter"], missing(store, id)) == ("delivered", [])


def test_a_dead_letter_is_owed_to_the_sinks_of_each_supervisor_that_claims_it(factory, store):
    (id,) = make_dead(factory.joined("two", "file"))
    assert missing(store, id) == ["file"]
    claimed = dead_letters(store)
    store.mark_accepted(claimed, "file")
    assert (store.get(id)["dead_letter"], missing(store, id)) == ("pending", ["alert"])


def test_dead_letters_that_only_sinks_of_others_lack_hold_up_nothing(factory, store):
    other = factory.joined("two", "file")
    waiting = make_dead(store, *["mail"] * 20)
    for _ in range(2):
        other.mark_accepted(dead_letters(other), "file")
    factory.clock.step(TTL)
    (new,) = make_dead(other)
    assert [dead_letter.id for dead_letter in dead_letters(other, 5)] == [new]
    assert other.remaining(None, None) == {"dead_letters": 1, "dead_letters_for_other_sinks": 20}
    assert store.remaining(None, None) == {"dead_letters": 21}
    assert [dead_letter.id for dead_letter in dead_letters(store, 30)] == waiting


def test_the_oldest_is_claimed_first_whichever_sinks_have_it(factory, store):
    other = factory.joined("two", "file")
    first, second, third = (make_dead(by)[0] for by in (other, store, other))
    claimed = dead_letters(other)
    other.mark_accepted([it for it in claimed if it.id == second], "file")
    for at, id in enumerate((third, second, first)):
        other.postpone([it for it in claimed if it.id == id], float(at))
    factory.clock.step(3)
    assert [dead_letter.id for dead_letter in dead_letters(store)] == [third, second, first]


def test_only_dead_letters_that_the_named_sinks_lack_are_claimed(factory, store):
    first, second = make_dead(store, "a", "b")
    claimed = dead_letters(store)
    store.mark_accepted([it for it in claimed if it.id == first], "file")
    store.postpone(claimed, 0.0)
    assert [it.id for it in store.claim_dead_letters(10, TTL, frozenset({"file"}))] == [second]
    assert [it.id for it in store.claim_dead_letters(10, TTL, frozenset({"alert"}))] == [first]
    assert missing(store, second) == ["alert", "file"]


def test_a_supervisor_without_sinks_claims_nothing(factory, store):
    make_dead(store)
    other = factory.open()
    other.join("two", "host", 4711)
    assert dead_letters(other) == []
    assert other.remaining(None, None) == {"dead_letters_for_other_sinks": 1}


def test_a_job_that_fails_again_elsewhere_is_owed_to_the_sinks_there(factory, store):
    (id,) = make_dead(store)
    store.redrive([id], force=True)
    assert missing(store, id) == []
    other = factory.joined("two", "web")
    other.settle([dead(take_one(other))])
    assert missing(store, id) == ["web"]


def test_the_status_has_the_sinks_of_supervisors_and_those_that_dead_letters_wait_for(factory, store):
    make_dead(store, "a", "b")
    other = factory.joined("two", "file")
    other.mark_accepted(dead_letters(other), "file")
    assert other.stats()["sinks"] == [
        {"sink": "alert", "pending": 2, "supervisors": 1}, {"sink": "file", "pending": 0, "supervisors": 2},
    ]  # fmt: skip
    store.leave()
    assert other.stats()["sinks"] == [
        {"sink": "alert", "pending": 2, "supervisors": 0}, {"sink": "file", "pending": 0, "supervisors": 1},
    ]  # fmt: skip


def test_a_sink_that_is_dropped_is_waited_for_no_longer(factory, store):
    other = factory.joined("two", "file")
    half, whole, theirs = (make_dead(by)[0] for by in (store, store, other))
    claimed = dead_letters(other)
    other.mark_accepted([it for it in claimed if it.id == half], "file")
    assert other.drop_sink("alert") == 2
    assert [store.get(id)["dead_letter"] for id in (half, whole, theirs)] == ["delivered", "pending", "pending"]
    assert [missing(store, id) for id in (half, whole, theirs)] == [[], ["file"], ["file"]]
    assert other.mark_accepted(claimed, "file") == []
    assert [store.get(id)["dead_letter"] for id in (half, whole, theirs)] == ["delivered"] * 3
    assert other.drop_sink("alert") == 0


def test_a_dead_letter_is_never_delivered_to_no_sink_at_all(factory, store):
    (id,) = make_dead(store)
    other = factory.joined("two", "web")
    store.leave()
    assert (other.drop_sink("alert"), other.drop_sink("file")) == (1, 1)
    assert (other.get(id)["dead_letter"], missing(other, id)) == ("pending", ["web"])
    other.mark_accepted(dead_letters(other), "web")
    assert other.get(id)["dead_letter"] == "delivered"


def test_a_pending_dead_letter_always_waits_for_a_sink_that_can_be_dropped(factory, store):
    (id,) = make_dead(store)
    other = factory.joined("two", "web")
    store.leave()
    for sink in ("alert", "file"):
        other.drop_sink(sink)
    other.leave()
    last = without_sinks(factory)
    assert last.stats()["sinks"] == [{"sink": "web", "pending": 1, "supervisors": 0}]
    assert last.drop_sink("web") == 1
    assert last.get(id)["dead_letter"] == "delivered"
    assert last.delete([id]).refused == {}


@pytest.mark.parametrize("others", [0, 1])
def test_the_last_sink_that_is_dropped_delivers_where_no_running_supervisor_has_a_sink(factory, store, others):
    (id,) = make_dead(store)
    put(store)
    take_one(store)
    store.leave()  # its lease keeps its row
    other = without_sinks(factory)
    dropped = [other.drop_sink("alert")]
    assert (other.get(id)["dead_letter"], missing(other, id)) == ("pending", ["file"])
    for _ in range(others):
        factory.joined("two", "web")
    dropped.append(other.drop_sink("file"))
    assert (other.get(id)["dead_letter"], dropped) == ("pending" if others else "delivered", [1, 1])
    assert other.remaining(None, None).get("dead_letters_for_other_sinks", 0) == others


def test_a_sink_is_dropped_from_any_number_of_dead_letters(factory, store):
    ids = make_dead(store, *["mail"] * 1000)
    ids += make_dead(store, *["mail"] * 1000)
    assert store.drop_sink("alert") == 2000
    assert {missing(store, id)[0] for id in ids} == {"file"}


def test_a_sink_is_dropped_from_a_dead_letter_that_another_supervisor_claims_at_this_moment(factory, store):
    (id,) = make_dead(store)
    changes = store.drop_sink.__self__._changes
    with store.transaction():
        lists = changes.pending_lists()
    found = iter([lists])
    pending_lists = changes.pending_lists
    changes.pending_lists = lambda: next(found, None) or pending_lists()
    assert len(dead_letters(factory.joined("two", "web"))) == 1
    assert store.drop_sink("alert") == 1
    assert missing(store, id) == ["file", "web"]


def test_an_acceptance_and_a_drop_of_the_last_other_sink_deliver_in_either_order(factory, store):
    first, second = make_dead(store, "a", "b")
    claimed = dead_letters(store)
    store.mark_accepted([it for it in claimed if it.id == first], "file")
    store.drop_sink("alert")
    store.mark_accepted([it for it in claimed if it.id == second], "file")
    assert [store.get(id)["dead_letter"] for id in (first, second)] == ["delivered"] * 2
