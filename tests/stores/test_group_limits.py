"""The limit of each group in a queue: as those of queues and handlers, and no claim looks at the groups that have no room."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from supervisor.config.settings import RetentionSettings
from supervisor.stores.extras import Extras
from supervisor.stores.job_limits import JobLimits, Limit
from supervisor.stores.records import EnqueueRow, Waiting
from tests.stores.factories import IN_SQL, ON_POSTGRESQL, again, dead, promote, release, states, success, take
from tests.stores.test_limits import MINUTE, claim, ids_of, waiting

WITHOUT_KAFKA = "its config refuses limits"
TWO = Limit(running=2)
RATE = Limit(claims=2, per=MINUTE)


def groups(limit=TWO, queue="default", handlers=None):
    return JobLimits({}, handlers or {}, {queue: limit})


def put(store, group, n=1, handler="mail", queue="default", **options):
    row = EnqueueRow(handler, "{}", queue=queue, extras=None if group is None else Extras(group=group), **options)
    return store.enqueue([row] * n)


def end(store, claimed, outcome=success):
    assert store.settle([outcome(lease) for lease in claimed.leases]) == []


def test_each_group_has_its_own_limit(factory, store):
    a, b = put(store, "a", 5), put(store, "b", 5)
    plain = put(store, None, 3)
    first = claim(store, groups(), 20)
    assert {*ids_of(first)} == {*a[:2], *b[:2], *plain}
    assert claim(store, groups(), 20).leases == []
    assert states(store, a) == ["in_flight"] * 2 + ["blocked"] * 3
    end(store, first)
    assert {*ids_of(claim(store, groups(), 20))} == {*a[2:4], *b[2:4]}
    factory.check()


@pytest.mark.parametrize("outcome", [success, release, again, dead])
def test_every_outcome_gives_a_place_back(store, outcome):
    a = put(store, "a", 3)
    first = claim(store, groups())
    assert claim(store, groups()).leases == []
    end(store, first, outcome)
    assert a[2] in [*ids_of(claim(store, groups(Limit(running=3))))]


def test_all_jobs_of_many_groups_run_in_the_end(factory, store):
    ids = [id for n in range(60) for id in put(store, f"group {n % 20}", 3)]
    done = []
    for _ in range(200):
        claimed = claim(store, groups(Limit(running=1)), 7)
        done += ids_of(claimed)
        end(store, claimed)
        if len(done) == len(ids):
            break
    assert sorted(done) == ids
    assert store.remaining(None, None) == {}
    factory.check()


def test_the_limit_holds_over_all_supervisors_and_lost_leases(factory, store):
    a = put(store, "a", 4)
    other = factory.joined("two")
    assert ids_of(claim(store, groups())) == a[:2]
    assert claim(other, groups()).leases == []
    factory.clock.step(31)
    assert claim(other, groups()).leases == [], "a lease that has expired counts until it is recovered"
    expired = other.expired_leases(100)
    other.recover([release(it.lease)._replace(seen=it.deadline) for it in expired]) if expired else None
    factory.check()


def test_a_rate_of_groups_is_exact_and_says_when_it_goes_on(factory, store):
    a, b = put(store, "a", 5), put(store, "b", 1)
    limits = groups(RATE)
    first = claim(store, limits, 20)
    assert {*ids_of(first)} == {*a[:2], *b}
    end(store, first)
    assert claim(store, limits, 20).leases == []
    allowance = store.allowance(limits, None)
    assert allowance.next_claim == pytest.approx(60)
    assert allowance.reached == {"groups of default": "rate"}
    factory.clock.step(59)
    assert claim(store, limits, 20).leases == []
    factory.clock.step(1)
    assert waiting(store, limits) == {"default": Waiting(2, 0)}
    assert ids_of(claim(store, limits, 20)) == a[2:4]
    factory.check()


@IN_SQL
def test_claims_that_count_no_longer_are_forgotten(factory, store):
    put(store, "a"), put(store, "b")
    end(store, claim(store, groups(RATE)))
    factory.clock.step(60)
    put(store, "c")
    end(store, claim(store, groups(RATE)))
    store.prune(RetentionSettings(), 100)
    names = [name for (name,) in factory.sql("select name from {s}.limits order by name")]
    assert names == ['group ["default","c"]']


def test_a_group_at_its_limit_holds_up_no_others(store):
    put(store, "a", 500)
    first = claim(store, groups(), 10)
    b = put(store, "b", 2)
    plain = put(store, None)
    assert {*ids_of(claim(store, groups(), 10))} == {*b, *plain}
    assert claim(store, groups(), 10).leases == []
    assert waiting(store, groups()) == {}
    end(store, first)
    assert waiting(store, groups()) == {"default": Waiting(2, 0)}


def test_groups_of_other_queues_have_no_limit(store):
    ids = put(store, "a", 4, queue="other")
    assert ids_of(claim(store, groups(), 10, queue="other")) == ids


def test_a_job_keeps_to_the_limits_of_its_handler_and_its_group(factory, store):
    limits = groups(TWO, handlers={"mail": Limit(running=3)})
    a = put(store, "a", 4)
    b = put(store, "b", 4)
    done = []
    for _ in range(50):
        claimed = claim(store, limits, 10)
        taken = ids_of(claimed)
        assert len(taken) <= 3 and len({*taken} & {*a}) <= 2 and len({*taken} & {*b}) <= 2
        done += taken
        end(store, claimed)
        factory.check()
        if len(done) == 8:
            break
    assert sorted(done) == [*a, *b]


def test_one_job_that_ends_lets_one_go_on(store):
    a = put(store, "a", 4)
    first = claim(store, groups(), 10)
    assert claim(store, groups(), 10).leases == []
    store.settle([success(first.leases[0])])
    assert ids_of(claim(store, groups(), 10)) == [a[2]]
    assert claim(store, groups(), 10).leases == []


def test_a_raised_limit_lets_those_that_are_held_back_go_on(store):
    a = put(store, "a", 6)
    claim(store, groups(), 10)
    assert claim(store, groups(), 10).leases == []
    assert ids_of(claim(store, groups(Limit(running=5)), 10)) == a[2:5]


def test_a_new_limit_counts_the_jobs_that_are_in_flight(store):
    put(store, "a", 6)
    take(store, 2)
    assert claim(store, groups(), 10).leases == []
    assert len(claim(store, groups(Limit(running=3)), 10).leases) == 1


def test_jobs_are_released_once_their_queue_has_no_limit_of_groups(factory, store):
    a = put(store, "a", 5)
    claim(store, groups(), 10)
    claim(store, groups(), 10)
    assert store.release_held(groups(), None, 10) == frozenset()
    assert store.release_held(None, frozenset(["other"]), 10) == frozenset()
    assert store.release_held(None, None, 2) == {"default"}
    assert store.release_held(JobLimits({}, {"mail": TWO}), None, 10) == {"default"}
    assert store.release_held(None, None, 10) == frozenset()
    assert states(store, a[2:]) == ["ready"] * 3
    factory.check()


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_a_job_that_is_held_back_can_be_cancelled_and_deleted(factory, store, how):
    _, _, third, fourth = put(store, "a", 4)
    first = claim(store, groups(), 10)
    claim(store, groups(), 10)
    getattr(store, how)([third])
    end(store, first)
    assert ids_of(claim(store, groups(), 10)) == [fourth]
    factory.check()


@pytest.mark.parametrize("limits", [groups(queue="other"), groups()])
def test_a_job_that_is_held_back_can_be_moved_to_another_queue(factory, store, limits):
    a = put(store, "a", 4)
    claim(store, groups(), 10)
    claim(store, groups(), 10)
    assert states(store, a[2:]) == ["blocked"] * 2
    assert store.move(a[2:], "other").refused == {}
    found = []
    for _ in range(5):
        store.release_held(limits, None, 10)
        claimed = claim(store, limits, 10, queue="other")
        found += ids_of(claimed)
    assert found == a[2:]
    factory.check()


def test_retries_of_a_group_are_held_back_too_and_stay_retries(factory, store):
    a = put(store, "a", 4)
    end(store, claim(store, groups(Limit(running=4)), 10), lambda lease: again(lease, delay=1.0))
    factory.clock.step(1)
    promote(store, 10)
    first = claim(store, groups(), 10)
    assert len(first.leases) == 2 and {it.tier for it in first.leases} == {1}
    assert claim(store, groups(), 10).leases == []
    end(store, first)
    second = claim(store, groups(), 10)
    assert sorted(ids_of(first) + ids_of(second)) == a and {it.tier for it in second.leases} == {1}
    factory.check()


def test_a_paused_queue_keeps_what_is_held_back(store):
    a = put(store, "a", 3)
    first = claim(store, groups(), 10)
    claim(store, groups(), 10)
    end(store, first)
    store.pause("default", True)
    assert waiting(store, groups()) == {}
    store.pause("default", False)
    assert ids_of(claim(store, groups(), 10)) == a[2:]


def test_no_more_jobs_are_claimed_than_can_be_started(store):
    put(store, "a", 2), put(store, "b", 2)
    plain = put(store, None, 2)
    claimed = claim(store, groups(), 10, room=1)
    assert len({*ids_of(claimed)} - {*plain}) == 1
    assert len(claim(store, groups(), 10, room=5).leases) >= 3


def test_jobs_are_not_held_back_only_since_no_worker_is_idle(store):
    """They keep their places among the others."""
    ids = put(store, "a", 3)
    found = claim(store, groups(), 10, room=0)
    assert (found.leases, found.held.total()) == ([], 0)
    assert states(store, ids) == ["ready"] * 3
    assert ids_of(claim(store, groups(), 10, room=5)) == ids[:2]


def test_a_claim_reads_a_limited_number_of_groups(store):
    """The others are claimed from by the next one."""
    ids = [id for n in range(150) for id in put(store, f"group {n}")]
    first = claim(store, groups(), 150, room=1000)
    second = claim(store, groups(), 150, room=1000)
    assert (ids_of(first), ids_of(second)) == (ids[:100], ids[100:])


def test_names_with_spaces_are_not_mixed_up(store):
    limits = JobLimits({}, {}, {"a": Limit(running=1), "a b": Limit(running=1)})
    one, two = put(store, "b c", 2, queue="a"), put(store, "c", 2, queue="a b")
    first = claim(store, limits, queue="a")
    second = claim(store, limits, queue="a b")
    assert (ids_of(first), ids_of(second)) == (one[:1], two[:1])
    end(store, first)
    assert (ids_of(claim(store, limits, queue="a b")), ids_of(claim(store, limits, queue="a"))) == ([], one[1:])


def test_a_transaction_that_fails_leaves_the_limits_as_they_were(factory, store):
    limits = groups(Limit(running=3, claims=3, per=MINUTE))
    a = put(store, "a", 5)
    with pytest.raises(RuntimeError), store.transaction():
        claim(store, limits, 2)
        claim(store, limits)
        raise RuntimeError
    assert states(store, a) == ["ready"] * 5
    assert ids_of(claim(store, limits)) == a[:3]
    factory.check()


def test_held_back_jobs_of_many_groups_go_on_in_turn(factory, store):
    """They are more than one claim looks at."""
    for n in range(250):
        put(store, f"group {n}", 2)
    limits, leases = groups(Limit(running=1)), []
    while (claimed := claim(store, limits, 250, room=1000)).leases or claimed.held or claimed.more:
        leases += claimed.leases
    assert len(leases) == 250 and store.remaining(None, None) == {"in_flight": 250, "blocked": 250}
    store.settle([success(lease) for lease in leases])
    done, claims = [], 0
    while len(done) < 250:
        claimed, claims = claim(store, limits, 250, room=1000), claims + 1
        done += ids_of(claimed)
        end(store, claimed)
    assert claims <= 15
    assert store.remaining(None, None) == {}
    factory.check()


def test_others_are_found_behind_many_groups_that_have_no_room(store):
    limits = groups(Limit(running=1))
    for n in range(250):
        put(store, f"group {n}")
    while claim(store, limits, 250, room=1000).leases:
        pass
    for n in range(250):
        put(store, f"group {n}", priority=1)
    other = put(store, "other")
    claims = [claim(store, limits, 50, room=1000)]
    while claims[-1].more:
        claims.append(claim(store, limits, 50, room=1000))
    assert [id for it in claims for id in ids_of(it)] == other


def test_a_part_that_is_released_leaves_the_rest_to_the_limit(store):
    """A supervisor without the limit releases two jobs, and one with the limit goes on with the others."""
    ids = put(store, "a", 6)
    end(store, claim(store, groups(RATE)))
    claim(store, groups(RATE))
    assert states(store, ids[2:]) == ["blocked"] * 4
    assert store.release_held(None, None, 2) == {"default"}
    end(store, claim(store, JobLimits({}, {"other": TWO})))
    assert states(store, ids) == ["succeeded"] * 4 + ["blocked"] * 2
    put(store, "b", 3)
    assert store.release_held(None, None, 1) == {"default"}
    assert states(store, ids[4:]) == ["ready", "blocked"]


def test_what_is_left_by_a_release_goes_on_under_the_limit(factory, store):
    ids = put(store, "a", 6)
    end(store, claim(store, groups(RATE)))
    claim(store, groups(RATE))
    store.release_held(None, None, 2)
    store.cancel(ids[2:4])
    factory.clock.step(60)
    assert ids_of(claim(store, groups(RATE))) == ids[4:]


def test_a_limit_that_supervisors_raise_in_turn_applies_at_once(factory, store):
    """The first one has read the new config, and the second one closes lines by the old one before it reads it too."""
    other = factory.joined("two")
    low, high = groups(Limit(running=1)), groups(Limit(running=5))
    ids = put(store, "a", 6)
    for own in (store, other):
        claim(own, low)
    store.allowance(high, None)
    claim(other, low)
    assert ids_of(claim(other, high)) == ids[1:5]


@pytest.mark.parametrize("limit", [TWO, RATE])
def test_a_clock_that_is_set_back_stops_no_line_for_longer_than_the_rate(factory, store, limit):
    ids = put(store, "a", 6)
    first = claim(store, groups(limit))
    claim(store, groups(limit))
    end(store, first)
    store.allowance(groups(limit), None)
    factory.clock.step(-3600)
    claims = [claim(store, groups(limit)) for _ in range(2)]
    assert [id for it in claims for id in ids_of(it)][:2] == ids[2:4]


def test_a_group_goes_on_though_more_than_a_hundred_others_are_at_their_limits(store):
    limits = groups(Limit(running=1))
    for n in range(130):
        put(store, f"group {n}", 2)
    leases = []
    while (claimed := claim(store, limits, 200, room=1000)).leases or claimed.held or claimed.more:
        leases += claimed.leases
    (last,) = [lease for lease in leases if store.get(lease.id)["group"] == "group 129"]
    store.settle([success(last)])
    (lease,) = claim(store, limits, 200, room=1000).leases
    assert store.get(lease.id)["group"] == "group 129"


def test_queues_at_their_own_limit_keep_no_line_of_another_from_going_on(store):
    names = [f"q{n}" for n in range(6)]
    of_groups = dict.fromkeys(names, Limit(running=1))
    for name in names:
        for n in range(30):
            put(store, f"group {n}", 2, queue=name)
        leases, limits = [], JobLimits({}, {}, of_groups)
        while (claimed := claim(store, limits, 100, queue=name, room=1000)).leases or claimed.held or claimed.more:
            leases += claimed.leases
        store.settle([success(lease) for lease in leases])
    for name in names[:5]:
        put(store, None, 30, queue=name)
        assert len(take(store, 30, queue=name)) == 30
    limits = JobLimits(dict.fromkeys(names[:5], Limit(running=30)), {}, of_groups)
    assert len(claim(store, limits, 20, queue="q5", room=1000).leases) >= 10


@ON_POSTGRESQL
def test_a_held_back_job_that_another_session_has_locked_makes_no_claim_go_on(factory, store):
    put(store, "a", 3)
    first = claim(store, groups(Limit(running=1)))
    assert claim(store, groups(Limit(running=1))).held.total() == 2
    end(store, first)
    with closing(psycopg.connect(factory.server.url)) as session:
        session.execute(f'select from "{factory.schema}".jobs where id > 1 for update')
        found = claim(store, groups(Limit(running=1)))
        assert (found.leases, found.more, found.busy) == ([], False, True)


@ON_POSTGRESQL
@pytest.mark.parametrize("committed", [True, False])
def test_a_job_that_is_moved_into_a_line_as_that_is_closed_is_not_lost(factory, store, committed):
    """The line is open and has no jobs; the move is not seen when these are counted."""
    limits = JobLimits({}, {}, {"default": RATE, "q": RATE})
    other = factory.joined("two")
    put(store, "g", 1, queue="q")
    end(store, claim(store, limits, queue="q"))
    ids = put(store, "g", 3)
    end(store, claim(store, limits))
    claim(store, limits)
    assert states(store, ids[2:]) == ["blocked"]
    with other.transaction():
        other.move(ids[2:], "q")
        if not committed:
            claim(store, limits, queue="q")
    for _ in range(3):
        factory.clock.step(61)
        claimed = claim(store, limits, queue="q")
        if claimed.leases:
            break
    assert ids_of(claimed) == ids[2:]
