"""Groups of jobs in one queue take turns, each by its shares, so that the jobs of one do not bury those of another."""

from __future__ import annotations

from collections import Counter

import pytest

from supervisor.config.settings import RetentionSettings
from supervisor.jobs import JobState
from supervisor.stores.extras import Extras
from supervisor.stores.records import EnqueueRow
from tests.stores.factories import IN_SQL, again, dead, promote, release, success, take, take_one

WITHOUT_KAFKA = "the order of records is that of their topic"


def grouped(store, group, n=1, key=None, **options):
    """Enqueue `n` jobs of the group, or of none if it is None; return their ids."""
    extras = None if group is key is None else Extras(group=group, key=key)
    return store.enqueue([EnqueueRow("mail", "{}", extras=extras, **options) for _ in range(n)])


def groups_of(store, leases):
    return "".join(store.get(lease.id)["group"] or "-" for lease in leases)


def order(store, limit=100, **options):
    """Claim jobs, and return their groups in order."""
    return groups_of(store, take(store, limit, **options))


def prune(store):
    store.prune(RetentionSettings(), 1000)


@pytest.mark.parametrize("groups", ["ab", "abcdefgh"])
def test_groups_take_turns(store, groups):
    for group in groups:
        grouped(store, group, 3)
    assert order(store) == groups * 3


def test_the_jobs_of_a_group_stay_in_order(store):
    ids = grouped(store, "a", 3) + grouped(store, "b", 3) + grouped(store, "a", 2)
    taken = [lease.id for lease in take(store)]
    assert taken == [ids[at] for at in (0, 3, 1, 4, 2, 5, 6, 7)]


def test_a_group_that_comes_late_starts_at_once(store):
    grouped(store, "a", 1000)
    take(store, 100)
    grouped(store, "b", 5)
    assert order(store, 12) == "ababababab" + "aa"


def test_a_group_whose_jobs_are_enqueued_one_by_one_has_no_more_than_its_turns(store):
    grouped(store, "a", 100)
    found = ""
    for _ in range(10):
        grouped(store, "b")
        found += order(store, 2)
    assert found == "ab" * 10


def test_many_groups_in_one_batch(store):
    rows = [EnqueueRow("mail", "{}", extras=Extras(group=group)) for group in "aaabbbcc" * 2]
    store.enqueue(rows)
    assert order(store) == "abc" * 4 + "ab" * 2


def test_a_group_with_more_shares_has_more_jobs_in_each_round(store):
    store.set_group_shares({"default": {"a": 3.0}}, None)
    grouped(store, "a", 9)
    grouped(store, "b", 3)
    assert order(store) == "aaab" * 3


def test_shares_are_those_of_the_queue_and_of_the_time_when_a_job_becomes_ready(store):
    store.set_group_shares({"other": {"a": 3.0}, "default": {"a": 2.0}}, None)
    grouped(store, "a", 2)
    store.set_group_shares({}, frozenset({"default"}))
    grouped(store, "a", 2)
    grouped(store, "b", 3)
    assert order(store) == "aababab"
    grouped(store, "a", 4, queue="other")
    grouped(store, "b", 1, queue="other")
    assert order(store, queue="other") == "aaaba"


def test_an_idle_group_has_no_credit_for_its_idle_time(store):
    grouped(store, "b", 1)
    grouped(store, "a", 100)
    take(store, 61)
    grouped(store, "b", 10)
    assert order(store, 20) == "ab" * 10


def test_a_group_is_not_punished_for_what_it_did_before(store):
    grouped(store, "a", 100)
    take(store, 100)
    grouped(store, "b", 5)
    grouped(store, "a", 5)
    assert order(store) == "ba" * 5


@pytest.mark.parametrize("pruned", [False, True])
def test_all_groups_start_level_once_nothing_waits(store, pruned):
    grouped(store, "a", 30)
    grouped(store, "b", 3)
    take(store, 100)
    if pruned:
        prune(store)
    for group in "cba":
        grouped(store, group, 3)
    assert order(store) == "cba" * 3


def test_the_priority_comes_before_the_turn(store):
    grouped(store, "a", 4)
    grouped(store, "b", 2)
    grouped(store, "a", 2, priority=5)
    grouped(store, "b", 2, priority=5)
    assert order(store) == "abab" + "ababaa"


def test_what_is_done_at_one_priority_takes_no_turn_at_another(store):
    grouped(store, "a", 50, priority=5)
    take(store, 50)
    grouped(store, "b", 2)
    grouped(store, "a", 2)
    grouped(store, "c", 2)
    assert order(store) == "bacbac"


def test_jobs_without_a_group_are_one_group_more(store):
    grouped(store, "a", 4)
    grouped(store, None, 3)
    grouped(store, "b", 3)
    assert order(store) == "a-ba-ba-ba"


def test_single_jobs_and_batches_without_a_group_take_turns_too(store):
    grouped(store, "a", 300)
    for _ in range(2):
        grouped(store, None)
    grouped(store, None, 200)
    assert order(store, 8) == "a-a-a-a-"


def test_jobs_that_wait_since_before_the_first_group_keep_their_order(store):
    before = grouped(store, None, 10)
    grouped(store, "a", 3)
    grouped(store, None, 2)
    leases = take(store)
    assert groups_of(store, leases) == "-a-a-a----"
    rest = take(store)
    assert groups_of(store, rest) == "-----"
    assert [lease.id for lease in (*leases, *rest)][:5:2] == before[:3]


def test_a_batch_of_jobs_with_and_without_a_group(store):
    rows = [EnqueueRow("mail", "{}", extras=extras) for extras in (None, Extras(group="a"), None, Extras(group="a"))]
    store.enqueue(rows)
    assert order(store) == "-a-a"


def test_queues_have_turns_of_their_own(store):
    for queue in ("x", "y"):
        grouped(store, "a", 100, queue=queue)
    take(store, 50, queue="x")
    for queue in ("x", "y"):
        grouped(store, "b", 2, queue=queue)
    assert order(store, 5, queue="x") == order(store, 5, queue="y") == "ababa"
    grouped(store, None, 3, queue="z")
    assert order(store, queue="z") == "---"


def test_a_job_for_later_takes_its_turn_when_it_is_due(factory, store):
    grouped(store, "b", 3, delay=10.0)
    grouped(store, "a", 100)
    take(store, 50)
    factory.clock.step(10)
    assert promote(store, 10) == 3
    grouped(store, "c", 2)
    assert order(store, 8) == "bacbacba"


def test_groups_take_turns_though_all_their_jobs_were_for_later(factory, store):
    for group in "ab":
        grouped(store, group, 3, delay=10.0)
    factory.clock.step(10)
    promote(store, 10)
    assert order(store) == "ababab"


def test_a_plain_job_for_later_takes_a_turn_when_it_is_due(factory, store):
    grouped(store, None, 3, delay=10.0)
    grouped(store, "a", 100)
    take(store, 50)
    factory.clock.step(10)
    promote(store, 10)
    assert order(store, 8) == "-a-a-aaa"


def test_a_job_that_is_made_due_by_hand_takes_its_turn_then(store):
    ids = grouped(store, "b", 2, delay=10.0)
    grouped(store, "a", 100)
    take(store, 50)
    store.retry(ids)
    assert order(store, 5) == "babaa"


def test_retries_keep_to_their_own_tier(factory, store):
    grouped(store, "a", 3)
    grouped(store, "b", 3)
    store.settle([again(lease, delay=5.0) for lease in take(store, 2)])
    factory.clock.step(5)
    promote(store, 10)
    assert order(store, retries_first=1) == "a" + "abab" + "b"


def test_a_released_job_keeps_its_turn(store):
    grouped(store, "a", 5)
    grouped(store, "b", 5)
    first, *_ = leases = take(store, 4)
    store.settle([release(first), *map(success, leases[1:])])
    assert take_one(store).id == first.id
    assert order(store) == "ababab"


def test_a_released_job_sets_no_group_back(store):
    grouped(store, "a", 100)
    first, *_ = take(store, 60)
    grouped(store, "b", 2)
    assert order(store, 4) == "abab"
    store.settle([release(first)])
    grouped(store, "c", 10)
    found = order(store, 5)
    assert found[0] == "a" and found[1:].count("c") == 2


def test_a_redriven_job_takes_a_new_turn(store):
    (first,) = grouped(store, "b")
    store.settle([dead(take_one(store))])
    grouped(store, "a", 100)
    take(store, 50)
    grouped(store, "b", 2)
    store.redrive([first], force=True)
    assert order(store, 7) == "ababbaa", "in the third round it is the oldest job"


def test_a_job_that_waits_for_its_key_takes_its_turn_once_it_has_the_key(store):
    grouped(store, "b", 3, key="k")
    grouped(store, "a", 100)
    lease, *_ = take(store, 50)
    store.settle([success(lease)])
    assert order(store, 4) == "baaa"


@pytest.mark.parametrize("end", ["cancel", "delete"])
@pytest.mark.parametrize("group", ["a", None])
def test_jobs_that_are_cancelled_or_deleted_take_no_turn(store, end, group):
    store.set_group_shares({"default": {"a": 2.0}}, None)
    grouped(store, "b", 100)
    ids = grouped(store, group, 60)
    grouped(store, group, 2, priority=-1)
    getattr(store, end)(ids)
    grouped(store, group, 4)
    assert order(store, 8) == ("baabaabb" if group else "b-b-b-b-")


def test_jobs_that_are_moved_take_turns_in_their_new_queue(factory, store):
    ids = grouped(store, "a", 20, queue="other") + grouped(store, None, 20, queue="other")
    grouped(store, "b", 100)
    take(store, 50)
    grouped(store, "c", 40, queue="other")
    store.move(ids, "default")
    assert sorted(order(store, 9)) == sorted("ab-" * 3)
    grouped(store, "a", 3, queue="other")
    assert order(store, 6, queue="other") == "cacaca", "there those of a have had no turn"
    factory.check()


def test_a_job_that_is_cancelled_while_it_runs_has_had_its_turn(store):
    grouped(store, "a", 50)
    grouped(store, "b", 50)
    taken = take(store, 40)
    store.cancel([lease.id for lease in taken if store.get(lease.id)["group"] == "a"])
    assert order(store, 6) == "ababab"
    grouped(store, "a", 1)
    grouped(store, "b", 1)
    assert order(store, 100)[-2:] == "ab"


def test_a_job_with_a_key_takes_one_turn(store):
    grouped(store, "a", 20)
    for key in "klmn":
        grouped(store, "b", key=key)
    assert order(store, 8) == "abababab"


def test_jobs_with_parents_take_their_turns_once_these_have_ended(store):
    (parent,) = store.enqueue([EnqueueRow("mail", "{}", queue="parents")])
    children = [EnqueueRow("mail", "{}", extras=Extras(group="b", after=(parent,))) for _ in range(3)]
    store.enqueue(children)
    grouped(store, "a", 100)
    take(store, 50)
    store.settle([success(lease) for lease in take(store, queue="parents")])
    assert order(store, 6) == "bababa"
    store.enqueue(children)
    assert order(store, 6) == "ababab"


def test_jobs_that_expire_take_no_turn(factory, store):
    grouped(store, "a", 100)
    store.enqueue([EnqueueRow("mail", "{}", extras=Extras(group="b", expires=1_000_000)) for _ in range(30)])
    factory.clock.step(2)
    store.look(None, 100)
    grouped(store, "b", 3)
    assert order(store, 6) == "ababab"


def test_a_job_that_is_replaced_again_and_again_takes_one_turn(store):
    grouped(store, "a", 100)
    again_and_again = Extras(group="b", unique="u", on_conflict="replace")
    for _ in range(20):
        store.enqueue([EnqueueRow("mail", "{}", extras=again_and_again)])
    grouped(store, "b", 3)
    assert order(store, 8) == "abababab"


def test_a_transaction_that_fails_leaves_the_turns_as_they_were(store):
    grouped(store, "a", 10)
    with pytest.raises(RuntimeError), store.transaction():
        grouped(store, "b", 5)
        take(store, 4)
        grouped(store, "b", 5)
        raise RuntimeError
    grouped(store, "b", 3)
    assert order(store, 7) == "abababa"


def test_a_paused_queue_keeps_its_turns(store):
    grouped(store, "a", 20)
    store.pause("default", True)
    grouped(store, "b", 2)
    store.pause("default", False)
    assert order(store, 5) == "ababa"


INSERT = "insert into {s}.jobs(handler, payload, priority) values ('mail', '{}', 0)"


@IN_SQL
def test_jobs_that_another_program_inserts_take_turns(factory, store):
    for _ in range(2):
        factory.sql(INSERT)
    assert order(store) == "--"
    grouped(store, "a", 100)
    take(store, 50)
    for _ in range(3):
        factory.sql(INSERT)
    assert order(store, 7) == "a-a-a-a"


@IN_SQL
def test_a_job_that_another_program_moves_takes_a_turn_in_its_new_queue(factory, store):
    ids = grouped(store, "b", 2, queue="other") + grouped(store, None, 2, queue="other")
    grouped(store, "a", 100)
    take(store, 50)
    for id in ids:
        factory.sql(f"update {{s}}.jobs set queue = 'default' where id = {id}")
    assert sorted(order(store, 6)) == sorted("b-a" * 2)
    factory.check()


@IN_SQL
def test_jobs_that_another_program_moves_or_deletes_take_no_turn(factory, store):
    grouped(store, "b", 100)
    first, *_ = grouped(store, "a", 30), grouped(store, None, 30)
    factory.sql("update {s}.jobs set queue = 'other' where id > 130")
    factory.sql(f"delete from {{s}}.jobs where id >= {first[0]} and id <= {first[-1]}")
    grouped(store, "a", 2)
    grouped(store, None, 2)
    assert order(store, 7) == "ba-ba-b"


def test_groups_that_are_idle_are_forgotten(factory, store):
    store.enqueue([EnqueueRow("mail", "{}", extras=Extras(group=f"tenant {n}")) for n in range(300)])
    grouped(store, "a", 5)
    leases = take(store, 303)
    grouped(store, "b", 1)
    prune(store)
    assert sizes(factory, store) == (1, 2), "of a, which has jobs, and of b"
    assert order(store) == "aba"
    store.settle([success(lease) for lease in leases])
    prune(store)
    assert sizes(factory, store) == (0, 0)


def test_idle_groups_are_forgotten_some_at_a_time(factory, store):
    store.enqueue([EnqueueRow("mail", "{}", extras=Extras(group=f"tenant {n}")) for n in range(300)])
    take(store, 300)
    store.prune(RetentionSettings(), 100)
    assert sizes(factory, store)[1] == 200


def sizes(factory, store):
    """Return the number of queues that have turns, and of groups that have a position."""
    if not factory.durable:
        return len(store.state.turns), sum(len(turns.positions) for turns in store.state.turns.values())
    return tuple(n for ((n,),) in (factory.sql(f"select count(*) from {{s}}.{it}") for it in ("turns", "job_groups")))


def test_every_group_of_a_thousand_has_its_turn(store):
    names = [f"tenant {n}" for n in range(1000)]
    store.enqueue([EnqueueRow("mail", "{}", extras=Extras(group="large")) for _ in range(3000)])
    for name in names[:3]:
        grouped(store, name, 2)
    store.enqueue([EnqueueRow("mail", "{}", extras=Extras(group=name)) for name in names[3:]])
    claimed = Counter(store.get(lease.id)["group"] for lease in take(store, 1010))
    assert claimed["large"] < 20 and len(claimed) == 1001


def test_the_states_of_grouped_jobs_are_those_of_others(factory, store):
    ids = grouped(store, "a", 3)
    store.cancel(ids[:1])
    store.delete(ids[1:2])
    assert order(store) == "a"
    assert store.get(ids[0])["state"] == JobState.CANCELLED
    factory.check()
