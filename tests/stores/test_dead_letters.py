from __future__ import annotations

from tests.stores.factories import TTL, dead, dead_letters, make_dead, put, take_one

WANTED = frozenset({"file", "alert"})


def test_a_dead_letter_is_the_job_as_people_see_it(store):
    (id,) = make_dead(store)
    (dead_letter,) = dead_letters(store)
    assert (dead_letter.id, dead_letter.tries, dead_letter.accepted) == (id, 1, frozenset())
    assert dead_letter.job == store.get(id)
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


def test_the_oldest_dead_letters_are_claimed_first_and_no_more_than_the_limit(factory, store):
    (old,) = make_dead(store)
    factory.clock.step(1)
    (new,) = make_dead(store)
    assert [dead_letter.id for dead_letter in dead_letters(store, 1)] == [old]
    assert [dead_letter.id for dead_letter in dead_letters(store, 1)] == [new]


def test_a_dead_letter_is_delivered_once_all_sinks_have_it(factory, store):
    (id,) = make_dead(store)
    claimed = dead_letters(store)
    assert store.mark_accepted(claimed, "file", WANTED) == []
    assert store.get(id)["dead_letter"] == "pending"
    assert store.remaining(None, None) == {"dead_letters": 1}
    assert store.mark_accepted(claimed, "alert", WANTED) == []
    assert store.get(id)["dead_letter"] == "delivered"
    assert store.remaining(None, None) == {}
    factory.clock.step(10 * TTL)
    assert dead_letters(store) == []


def test_a_repeated_acceptance_is_success(store):
    make_dead(store)
    claimed = dead_letters(store)
    for _ in range(2):
        assert store.mark_accepted(claimed, "file", frozenset({"file"})) == []


def test_an_acceptance_is_kept_for_each_sink(factory, store):
    make_dead(store)
    store.mark_accepted(dead_letters(store), "file", WANTED)
    factory.clock.step(TTL)
    (dead_letter,) = dead_letters(store)
    assert dead_letter.accepted == {"file"}


def test_postponed_dead_letters_are_offered_again_later(factory, store):
    make_dead(store)
    claimed = dead_letters(store)
    assert store.postpone(claimed, 5.0) == []
    factory.clock.step(5)
    assert [dead_letter.tries for dead_letter in dead_letters(store)] == [2]


def test_a_sink_may_accept_a_dead_letter_that_another_has_postponed(store):
    make_dead(store)
    claimed = dead_letters(store)
    store.postpone(claimed, 5.0)
    assert store.mark_accepted(claimed, "alert", WANTED) == []


def test_an_owner_that_lost_its_claim_changes_nothing(factory, store):
    (id,) = make_dead(store)
    old = dead_letters(store)
    factory.clock.step(TTL)
    dead_letters(factory.joined("two"))
    assert store.mark_accepted(old, "file", WANTED) == [id]
    assert store.postpone(old, 5.0) == [id]


def test_a_job_that_fails_for_good_again_is_a_new_dead_letter(store):
    (id,) = make_dead(store)
    old = dead_letters(store)
    store.mark_accepted(old, "file", WANTED)
    store.redrive([id], force=True)
    assert store.get(id)["dead_letter"] is None
    assert store.mark_accepted(old, "alert", WANTED) == [id]
    store.settle([dead(take_one(store))])
    (dead_letter,) = dead_letters(store)
    assert (dead_letter.accepted, dead_letter.tries) == (frozenset(), 1)
    assert store.mark_accepted(old, "alert", WANTED) == [id]


def test_a_failed_job_is_a_dead_letter_only_if_its_outcome_asks_for_it(store):
    make_dead(store, dead_letter=False)
    put(store)
    assert dead_letters(store) == []
