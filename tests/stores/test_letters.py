from __future__ import annotations

from tests.stores.shelf import TTL, dead, letters, make_dead, put, take_one

WANTED = frozenset({"file", "alert"})


def test_a_letter_is_the_job_as_people_see_it(store):
    (id,) = make_dead(store)
    (letter,) = letters(store)
    assert (letter.id, letter.tries, letter.accepted) == (id, 1, frozenset())
    assert letter.job == store.get(id)
    assert letter.job["dead_letter"] == "pending"


def test_a_claimed_letter_is_nobody_elses_until_its_claim_ends(shelf, store):
    make_dead(store)
    (first,) = letters(store)
    other = shelf.joined("two")
    assert letters(other) == []
    shelf.clock.step(TTL)
    (second,) = letters(other)
    assert (second.id, second.tries) == (first.id, 2)
    assert second.token > first.token


def test_the_oldest_go_first_and_no_more_than_asked_for(shelf, store):
    (old,) = make_dead(store)
    shelf.clock.step(1)
    (new,) = make_dead(store)
    assert [letter.id for letter in letters(store, 1)] == [old]
    assert [letter.id for letter in letters(store, 1)] == [new]


def test_delivered_once_all_sinks_have_it(shelf, store):
    (id,) = make_dead(store)
    claimed = letters(store)
    assert store.accepted(claimed, "file", WANTED) == []
    assert store.get(id)["dead_letter"] == "pending"
    assert store.remaining(None, None) == {"dead_letters": 1}
    assert store.accepted(claimed, "alert", WANTED) == []
    assert store.get(id)["dead_letter"] == "delivered"
    assert store.remaining(None, None) == {}
    shelf.clock.step(10 * TTL)
    assert letters(store) == []


def test_an_acceptance_repeated_is_success(store):
    make_dead(store)
    claimed = letters(store)
    for _ in range(2):
        assert store.accepted(claimed, "file", frozenset({"file"})) == []


def test_acceptance_is_remembered_by_sink(shelf, store):
    make_dead(store)
    store.accepted(letters(store), "file", WANTED)
    shelf.clock.step(TTL)
    (letter,) = letters(store)
    assert letter.accepted == {"file"}


def test_postponed_letters_come_again_later(shelf, store):
    make_dead(store)
    claimed = letters(store)
    assert store.postpone(claimed, 5.0) == []
    shelf.clock.step(5)
    assert [letter.tries for letter in letters(store)] == [2]


def test_another_sink_may_accept_what_one_has_postponed(store):
    make_dead(store)
    claimed = letters(store)
    store.postpone(claimed, 5.0)
    assert store.accepted(claimed, "alert", WANTED) == []


def test_whoever_lost_the_claim_says_nothing_any_more(shelf, store):
    (id,) = make_dead(store)
    old = letters(store)
    shelf.clock.step(TTL)
    letters(shelf.joined("two"))
    assert store.accepted(old, "file", WANTED) == [id]
    assert store.postpone(old, 5.0) == [id]


def test_a_job_that_dies_again_is_a_new_letter(store):
    (id,) = make_dead(store)
    old = letters(store)
    store.accepted(old, "file", WANTED)
    store.redrive([id], force=True)
    assert store.get(id)["dead_letter"] is None
    assert store.accepted(old, "alert", WANTED) == [id]
    store.settle([dead(take_one(store))])
    (letter,) = letters(store)
    assert (letter.accepted, letter.tries) == (frozenset(), 1)
    assert store.accepted(old, "alert", WANTED) == [id]


def test_no_letter_without_being_asked(store):
    make_dead(store, letter=False)
    put(store)
    assert letters(store) == []
