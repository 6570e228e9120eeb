"""The transfer of all jobs that still matter into a store of another kind: as they were, and never in both stores or in neither."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from supervisor.errors import StoreError, StoreUnavailable
from supervisor.jobs import Backoff, JobState, Kind, Outcome, Progress
from supervisor.parents import PARENTS
from supervisor.schedules.policy import ScheduleState
from supervisor.stores import transfer
from supervisor.stores.extras import ExistingId, Extras
from supervisor.stores.job_limits import JobLimits, Limit
from supervisor.stores.job_reports import JobReport, log_text, progress_text
from supervisor.stores.postgres.limits import PostgresLimits
from supervisor.stores.records import EnqueueRow
from supervisor.stores.schedules import ScheduleChange
from supervisor.stores.transfer import TransferLimits, TransferRecord, transfer_jobs, undo_transfer
from supervisor.text.strict_json import decode
from tests.stores.factories import (
    FACTORIES,
    PostgresFactory,
    StoreFactory,
    again,
    dead,
    dead_letters,
    make_dead,
    promote,
    put,
    release,
    states,
    success,
    take,
    take_one,
)
from tests.stores.test_limits import claim

WAYS = [("sqlite", "postgresql"), ("postgresql", "sqlite")]


@pytest.fixture(params=WAYS, ids="-to-".join)
def factories(request, tmp_path) -> Iterator[tuple[StoreFactory, StoreFactory]]:
    both = []
    for place, kind in enumerate(request.param):
        (folder := tmp_path / str(place)).mkdir()
        both.append(FACTORIES[kind](folder))
    yield tuple(both)
    for factory in both:
        factory.close()


@pytest.fixture
def source(factories):
    return factories[0].joined("one", "file", "web")


@pytest.fixture
def target(factories, source):
    store = factories[1].open()
    factories[1].clock.now = factories[0].clock.now
    return store


def left_alone(source):
    source.leave()
    return source


def opened_with(factory, **limits):
    """Open a store; if it is one of PostgreSQL, under these limits."""
    if isinstance(factory, PostgresFactory):
        factory.limits = PostgresLimits(**limits)
    return factory.open()


def jobs_of(store):
    return [*store.list_jobs(limit=10_000)][::-1]


def filled(factories, source):
    """Put jobs of every kind into the source; returns those that are to be transferred."""
    put(source, "ended", "gone")
    ended, gone = take(source)
    source.settle([success(ended, '"fine"')])
    source.cancel([gone.id])
    make_dead(source, "plain", dead_letter=False)
    _, half, delivered = make_dead(source, "pending", "half", "delivered")
    for dead_letter in dead_letters(source):
        if dead_letter.id in (half, delivered):
            source.mark_accepted([dead_letter], "file")
        if dead_letter.id == delivered:
            source.mark_accepted([dead_letter], "web")
    put(source, "old", "retry", "due", queue="again")
    old, *others = take(source, queue="again")
    source.settle([release(old)])
    source.keep_reports([JobReport(others[0].id, others[0].token, progress_text(1, Progress(1, 2, "é")), None)])
    source.keep_reports([JobReport(others[1].id, others[1].token, None, log_text(1, 3, ["a", "\x1b"]))])
    for lease, delay in zip(others, (50.0, 5.0), strict=True):
        source.settle([again(lease, delay, stderr="tail", host="there", pid=7)])
    put(source, "twice", queue="twice")
    for line in ("one", "two"):
        source.settle([again(lease, 0.0, stderr=line) for lease in take(source, queue="twice")])
        promote(source, 10)
    put(source, "first", headers='{"a": "\u00e9\\u0000"}')
    put(source, "options", max_retries=7, timeout=1.5, backoff=Backoff(1.0, 4.0, 60.0, "none"), queue="post")
    put(source, "urgent", priority=100)
    put(source, "later", delay=60.0, priority=-5)
    put(source, "snoozed", queue="snoozed")
    (lease,) = take(source, queue="snoozed")
    source.settle([Outcome(lease, Kind.SNOOZED, state=JobState.SCHEDULED, delay=60.0)])
    source.pause("post", True)
    factories[0].clock.step(10)
    promote(source, 10)
    return [job for job in jobs_of(source) if job["state"] not in ("succeeded", "cancelled")]


def test_every_job_is_as_it_was(factories, source, target):
    wanted = filled(factories, source)
    assert {job["state"] for job in wanted} == {"ready", "scheduled", "failed"}
    report = transfer_jobs(left_alone(source), target)
    assert jobs_of(target) == wanted
    assert target.paused() == {"post"}
    assert report == (
        {
            state: sum(job["state"] == state.value for job in wanted)
            for state in (JobState.BLOCKED, JobState.READY, JobState.SCHEDULED, JobState.FAILED)
        },
        1,
        {JobState.SUCCEEDED: 1, JobState.CANCELLED: 1},
        False,
    )
    factories[1].check()
    assert jobs_of(source)[2:] == wanted, "the source keeps its rows"


def test_jobs_that_a_limit_holds_back_are_ready_in_the_other_store(factories, source, target):
    limits = JobLimits({}, {"mail": Limit(claims=1, per=60_000_000)})
    ids = source.enqueue([row(), row(), row(key="a"), row(key="a")])
    for _ in range(2):
        leases = claim(source, limits).leases
        source.settle([success(lease) for lease in leases])
    assert [source.get(id)["state"] for id in ids] == ["succeeded", *["blocked"] * 3]
    transfer_jobs(left_alone(source), target)
    assert [target.get(id)["state"] for id in ids[1:]] == ["ready", "ready", "blocked"]


def test_schedules_go_on_where_they_were(factories, source, target):
    state = ScheduleState("nightly ä", "report", "cron 0 3 * * * UTC", 5, 7, "enqueued", True, 12)
    for store in (source, target):
        store.change_schedules([state.name], lambda now, rows: [ScheduleChange(rows[state.name].state)], wait=True)
    source.change_schedules([state.name], lambda now, rows: [ScheduleChange(state)], wait=True)
    source.change_schedules(["other"], lambda now, rows: [ScheduleChange(rows["other"].state)], wait=True)
    transfer_jobs(left_alone(source), target)
    assert target.schedules() == source.schedules()
    assert target.schedules()[0].state == state


def test_transferred_jobs_go_on_where_they_were(factories, source, target):
    filled(factories, source)
    transfer_jobs(left_alone(source), target)
    target.join("two", "host", 1, frozenset({"web"}))
    assert put(target, "new")[0] > max(job["id"] for job in jobs_of(source))
    target.pause("post", False)
    (lease,) = take(target, queue="post")
    assert (lease.policy.max_retries, lease.policy.timeout, lease.policy.backoff.factor) == (7, 1.5, 4.0)
    assert [lease.handler for lease in take(target)] == ["urgent", "first", "new"]
    again = take(target, queue="again")
    assert [(lease.handler, lease.attempt, lease.token) for lease in again] == [("due", 2, 2), ("old", 1, 2)]
    factories[1].clock.step(31)  # the source's claims of dead letters have ended
    claimed = dead_letters(target)
    assert {it.job["handler"]: it.accepted for it in claimed} == {"half": {"file"}, "pending": set()}
    target.mark_accepted(claimed, "web")
    waiting = {it.job["handler"]: target.get(it.id)["missing_sinks"] for it in claimed}
    assert waiting == {"half": [], "pending": ["file"]}, "they are still owed to the sinks of the source"
    target.leave()


def test_lists_and_failures_that_another_program_wrote_stop_no_transfer(factories, source, target):
    (id,) = make_dead(source)
    factories[0].sql("update {s}.attempts set record = 'x'")
    factories[0].sql("""update {s}.dead_letters set owed = '["a", 7, "b\\u0007"]', accepted = ' [ ]'""")
    transfer_jobs(left_alone(source), target)
    job = target.get(id)
    assert (job["missing_sinks"], job["errors"][0]["message"]) == (["a"], "x")


def test_ids_are_never_given_again(factories, source, target):
    ids = put(source, "a", "b", "c")
    source.delete(ids)
    transfer_jobs(left_alone(source), target)
    assert put(target) == [ids[-1] + 1]


def test_a_redriven_job_stays_behind_all_that_waited(factories, source, target):
    (dead_one,) = make_dead(source)
    (waiting,) = put(source)
    source.redrive([dead_one], force=True)
    transfer_jobs(left_alone(source), target)
    target.join("two", "host", 1)
    (new,) = put(target)
    assert [lease.id for lease in take(target)] == [waiting, dead_one, new]
    target.leave()


def test_jobs_are_transferred_in_batches_of_limited_size(factories, source, target, monkeypatch):
    exported = []
    export = source.export
    monkeypatch.setattr(source, "export", lambda ids: exported.append(len(ids)) or export(ids))
    put(source, *["mail"] * 20)
    source.enqueue([EnqueueRow("large", f'"{mark * n}"') for mark, n in (("x", 200), ("y", 60))])
    wanted = jobs_of(source)
    transfer_jobs(left_alone(source), target, TransferLimits(jobs=7, characters=100))
    assert jobs_of(target) == wanted
    assert exported == [7, 7, 6, 1, 1]


# --- refused transfers


def test_a_source_in_use_is_refused(factories, source, target):
    put(source)
    with pytest.raises(StoreError, match=r"in use by a supervisor \(host pid 4711\); stop it first"):
        transfer_jobs(source, target)
    assert jobs_of(target) == [] and put(source)


def test_jobs_in_flight_are_refused(factories, source, target):
    put(source)
    take(source)
    factories[0].kill(source)
    again_open = factories[0].open()
    with pytest.raises(StoreError, match="1 job is in flight, of a supervisor that was lost; `supervisor run --drain`"):
        transfer_jobs(again_open, target)
    assert put(again_open)


def test_a_store_with_jobs_is_refused_and_the_source_is_as_before(factories, source, target):
    put(source)
    put(target)
    with pytest.raises(StoreError, match="has jobs already; expected an empty store"):
        transfer_jobs(left_alone(source), target)
    assert put(source) and len(jobs_of(target)) == 1


def test_a_closed_store_is_refused_as_a_target_even_for_no_jobs(factories, source, target):
    """Otherwise both would be closed, and each would name the other as its target."""
    transfer_jobs(left_alone(source), target)
    with pytest.raises(
        StoreError, match=r"it is closed, since its own jobs were transferred to .*; expected an empty store"
    ):
        transfer_jobs(target, source)
    assert put(target)
    with pytest.raises(StoreError, match="were transferred to"):
        put(source)


def test_the_same_store_is_refused(factories, source):
    with pytest.raises(StoreError, match="are the same store"):
        transfer_jobs(source, factories[0].open())


def test_a_closed_store_names_its_target_in_every_error(factories, source, target):
    source.enqueue([EnqueueRow("mail", "{}", extras=Extras(unique="a"))])
    client = factories[0].open()
    transfer_jobs(left_alone(source), target)
    for act in (
        lambda: put(client),
        lambda: put(client, *["many"] * 300),
        lambda: client.join("late", "host", 1),
        lambda: client.cancel([1]),
        lambda: client.enqueue([EnqueueRow("mail", "{}", extras=Extras(unique="a"))]),
        lambda: factories[0].open().join("later", "host", 1),
    ):
        with pytest.raises(StoreError, match=r"its jobs were transferred to .*: set store in the config"):
            act()
    assert len(jobs_of(client)) == 1, "it can still be read"


# --- jobs that have to do with others


def row(handler="mail", delay=None, **extras):
    return EnqueueRow(handler, "{}", delay=delay, extras=Extras(**extras))


def test_after_a_copy_every_blocked_job_gets_its_turn_in_order(factories, source, target):
    keys = [f"key {n % 7}" for n in range(60)]
    ids = source.enqueue([row(key=key, on_failure="hold" if n % 5 == 0 else "pass") for n, key in enumerate(keys)])
    (later,) = source.enqueue([row(key="key 1", delay=60.0)])
    outcomes = [success, dead, lambda lease: again(lease, 5.0), release]
    source.settle([outcomes[n % 4](lease) for n, lease in enumerate(take(source, 7))])
    before = {job["id"]: job for job in jobs_of(source) if job["state"] not in ("succeeded", "cancelled")}
    report = transfer_jobs(left_alone(source), target)
    assert report.jobs[JobState.BLOCKED] == sum(job["state"] == "blocked" for job in before.values())
    assert {job["id"]: job for job in jobs_of(target)} == before
    target.join("two", "host", 1)
    factories[1].clock.step(61)
    order = {}
    for _ in range(200):
        promote(target, 100)
        for lease in take(target, 100):
            order.setdefault(target.get(lease.id)["key"], []).append(lease.id)
            target.settle([success(lease)])
        held = [job["id"] for job in jobs_of(target) if job["state"] == "failed"]
        if not target.remaining(None, None):
            break
        target.redrive([id for id in held if target.remaining(None, None).get("ready", 0) == 0], force=True)
    assert target.remaining(None, None).keys() <= {"dead_letters", "dead_letters_for_other_sinks"}
    assert {job["state"] for job in jobs_of(target)} <= {"succeeded", "failed"}
    in_order = {id for id in ids if id in before and before[id]["state"] != "failed"}
    for key, found in order.items():
        assert (mine := [id for id in found if id in in_order]) == sorted(mine), key
    assert in_order | {later} <= {id for found in order.values() for id in found}
    factories[1].check()


def test_groups_take_turns_after_a_copy_though_their_jobs_are_for_later(factories, source, target):
    many = source.enqueue([row(group="a", delay=5.0) for _ in range(4)])
    (one,) = source.enqueue([row(group="b", delay=5.0)])
    transfer_jobs(left_alone(source), target)
    target.join("two", "host", 1)
    factories[1].clock.step(5)
    promote(target, 100)
    assert [lease.id for lease in take(target)] == [many[0], one, *many[1:]]
    factories[1].check()


def test_jobs_that_wait_for_others_are_copied_with_their_links(factories, source, target):
    done, bad, waits = source.enqueue([EnqueueRow("mail", "{}")] * 3)
    leases = {lease.id: lease for lease in take(source, 3)}
    source.settle([success(leases[done], result="1"), dead(leases[bad]), release(leases[waits])])
    after = [(done, waits), (bad, waits), (bad,), (-1,)]
    hows = ["cancel", "run", "wait", "cancel"]
    extras = [Extras(after=parents, on_parent_failed=how) for parents, how in zip(after, hows, strict=True)]
    ids = source.enqueue([EnqueueRow("mail", "{}", extras=each) for each in extras])
    transfer_jobs(left_alone(source), target)
    target.join("two", "host", 1)
    assert states(target, [waits, *ids]) == ["ready", *["blocked"] * 4]
    target.settle([success(take_one(target))])
    assert states(target, ids) == ["ready", "ready", "blocked", "blocked"]
    target.settle([success(lease) for lease in take(target, 2)])
    target.redrive([bad], force=True)
    target.settle([success(lease) for lease in take(target, 2)])
    assert states(target, ids) == ["succeeded", "succeeded", "ready", "succeeded"]


def test_a_workflow_goes_on_in_the_copy_with_the_results_of_its_parents(factories, source, target):
    first, second, done = source.enqueue([EnqueueRow("mail", "{}")] * 3)
    (child,) = source.enqueue([row(after=(first, second))])
    for lease in take(source, 3):
        source.settle([success(lease, result='"1"') if lease.id != second else release(lease)])
    wanted = {job["id"]: job for job in jobs_of(source) if job["id"] != done}
    report = transfer_jobs(left_alone(source), target)
    assert report.jobs[JobState.SUCCEEDED] == 1
    assert report.left == {JobState.SUCCEEDED: 1}, "nobody needs its result"
    assert {job["id"]: job for job in jobs_of(target)} == wanted
    target.join("two", "host", 1)
    target.settle([success(take_one(target), result='"2"')])
    lease = take_one(target)
    assert lease.id == child
    assert decode(lease.headers)[PARENTS] == {"ids": [first, second], "failed": [], "results": ['"1"', '"2"']}
    factories[1].check()


def test_a_redrive_in_the_copy_takes_along_the_jobs_that_were_cancelled(factories, source, target):
    good, bad, gone = source.enqueue([EnqueueRow("mail", "{}")] * 3)
    (child,) = source.enqueue([row(after=(good, bad))])
    (last,) = source.enqueue([row(after=(child,))])
    (waits,) = source.enqueue([row(after=(gone,), on_parent_failed="wait")])
    leases = {lease.id: lease for lease in take(source, 3)}
    source.settle([success(leases[good], result="1"), dead(leases[bad]), release(leases[gone])])
    source.cancel([gone])
    source.cancel(put(source, "by hand"))
    ids = [good, bad, gone, child, last, waits]
    before = ["succeeded", "failed", "cancelled", "cancelled", "cancelled", "blocked"]
    assert states(source, ids) == before
    report = transfer_jobs(left_alone(source), target)
    assert report.jobs[JobState.CANCELLED] == 3
    assert report.left == {JobState.CANCELLED: 1}
    assert states(target, ids) == before
    target.join("two", "host", 1)
    target.redrive([bad], force=True)
    target.retry([gone])
    assert states(target, ids) == ["succeeded", "ready", "ready", "blocked", "blocked", "blocked"]
    for _ in range(3):
        target.settle([success(lease, result="2") for lease in take(target)])
    assert states(target, ids) == ["succeeded"] * 6
    factories[1].check()


def test_a_failed_job_gets_the_results_of_its_parents_again_in_the_copy(factories, source, target):
    (first,) = put(source)
    (child,) = source.enqueue([row(after=(first,))])
    source.settle([success(take_one(source), result="1")])
    source.settle([dead(take_one(source))])
    transfer_jobs(left_alone(source), target)
    target.join("two", "host", 1)
    target.redrive([child], force=True)
    assert decode(take_one(target).headers)[PARENTS]["results"] == ["1"]


def test_a_key_without_a_holder_is_passed_on(factories, source, target):
    _, second = source.enqueue([row(key="a"), row(key="a")])
    factories[0].sql("delete from {s}.key_holders")
    transfer_jobs(left_alone(source), target)
    assert {job["id"]: job["state"] for job in jobs_of(target)}.get(second) == "ready"


def test_unique_keys_are_taken_along(factories, source, target):
    minute = 60_000_000
    (ended,) = source.enqueue([row(unique="once", unique_while=minute)])
    (done,) = source.enqueue([row(unique="done")])
    source.settle([success(lease) for lease in take(source)])
    (waits,) = source.enqueue([row(unique="waits", unique_while="waiting", delay=5.0)])
    source.enqueue([row(unique=f"many {n}") for n in range(30)])
    report = transfer_jobs(left_alone(source), target, TransferLimits(jobs=7))
    assert report.jobs[JobState.READY] == 30
    assert target.enqueue([row(unique="waits"), row(unique="once")]) == [waits, ended]
    assert (
        len({*target.enqueue([row(unique=f"many {n}") for n in range(30)])} & {job["id"] for job in jobs_of(target)})
        == 30
    )
    (new,) = target.enqueue([row(unique="done")])
    assert new > done and not isinstance(new, ExistingId)
    factories[1].clock.step(61)
    assert not isinstance(target.enqueue([row(unique="once")])[0], ExistingId)


def test_jobs_still_expire_after_a_copy(factories, source, target):
    minute = 60_000_000
    (started,) = source.enqueue([row("started", expires=minute)])
    source.settle([again(take(source)[0], delay=120.0)])
    (waits,) = source.enqueue([row(expires=minute, tags=("a", "b"))])
    wanted = jobs_of(source)
    transfer_jobs(left_alone(source), target)
    assert jobs_of(target) == wanted
    factories[1].clock.step(60)
    assert [job.id for job in target.look(None, 10).expired] == [waits]
    assert target.get(started)["state"] == "scheduled"


# --- killed at any moment


class Killed(BaseException):
    pass


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("whose", "step"), [("source", "close_for_transfer"), ("source", "paused"), ("target", "import_jobs")]
)
def test_an_interrupted_transfer_is_finished_by_the_same_call(
    factories, source, target, monkeypatch, whose, step, when
):
    make_dead(source, "c")
    put(source, "a", "b")
    wanted = jobs_of(source)
    owner = source if whose == "source" else target
    act = getattr(owner, step)

    def dies(*arguments):
        if when == "after":
            act(*arguments)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, step, dies)
        patch.setattr(
            transfer, "_has_received_after_all", lambda *arguments: False
        )  # a killed process does nothing more
        transfer_jobs(left_alone(source), target)
    first, second = factories[0].open(), factories[1].open()
    closed, there = first.transfer_record() is not None, len(jobs_of(second))
    assert there == (3 if (step, when) == ("import_jobs", "after") else 0)
    assert closed or not there, "never in both"
    for before in (there > 0, True):
        assert transfer_jobs(first, second).before is before
        assert jobs_of(second) == wanted
    with pytest.raises(StoreError, match="were transferred to"):
        put(first)


def test_a_commit_whose_answer_is_lost_is_looked_for(factories, source, target, monkeypatch):
    put(source)
    import_jobs = target.import_jobs

    def lost(*arguments):
        import_jobs(*arguments)
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(target, "import_jobs", lost)
    assert transfer_jobs(left_alone(source), target).jobs[JobState.READY] == 1
    assert source.transfer_record() is not None and len(jobs_of(target)) == 1


def test_a_source_stays_closed_while_it_is_unknown_where_its_jobs_are(factories, source, target, monkeypatch):
    put(source)

    def unavailable(*arguments):
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(target, "import_jobs", unavailable)
        patch.setattr(target, "has_received", unavailable)
        with pytest.raises(StoreUnavailable, match="stays closed: repeat the command to finish the transfer"):
            transfer_jobs(left_alone(source), target)
    with pytest.raises(StoreError, match="were transferred to"):
        put(source)
    transfer_jobs(source, target)
    assert len(jobs_of(target)) == 1


def test_a_transfer_that_fails_half_way_leaves_nothing_in_the_target(factories, source, target, monkeypatch):
    put(source, "a", "b")
    export = source.export

    def fails(ids):
        if ids != [1]:
            raise StoreError("disk on fire")
        return export(ids)

    monkeypatch.setattr(source, "export", fails)
    with pytest.raises(StoreError, match="disk on fire"):
        transfer_jobs(left_alone(source), target, TransferLimits(jobs=1))
    assert jobs_of(target) == [] and source.transfer_record() is None
    monkeypatch.undo()
    assert put(source) == [3]
    transfer_jobs(source, target)
    assert len(jobs_of(target)) == 3


def test_a_source_on_its_way_elsewhere_is_refused(factories, source, target):
    put(source)
    left_alone(source).close_for_transfer(TransferRecord("x", "postgresql://elsewhere", "elsewhere"))
    with pytest.raises(StoreError, match="were transferred, or are being transferred, to postgresql://elsewhere"):
        transfer_jobs(source, target)


def test_a_source_that_was_reopened_meanwhile_is_not_transferred(factories, source, target, monkeypatch):
    put(source)
    export = source.export

    def reopened(ids):
        other = factories[0].open()
        other.reopen(other.transfer_record())
        return export(ids)

    monkeypatch.setattr(source, "export", reopened)
    monkeypatch.setattr(transfer, "_has_received_after_all", lambda *arguments: False)
    with pytest.raises(StoreError, match="opened it again meanwhile; nothing was transferred"):
        transfer_jobs(left_alone(source), target)
    assert jobs_of(target) == []


# --- undone


@pytest.fixture
def cut_short(factories, source, target):
    """The transfer record of a source that was closed by a process that has been killed since."""
    make_dead(source, "dead")
    put(source, "a", "b")
    transfer_record = TransferRecord("x", target.url, target.place())
    left_alone(source).close_for_transfer(transfer_record)
    return transfer_record


def test_an_interrupted_transfer_is_undone(factories, source, target, cut_short):
    before = jobs_of(source)
    undo_transfer(source, target, cut_short)
    assert source.transfer_record() is None
    assert jobs_of(source) == before and jobs_of(target) == []
    source.join("one", "host", 1)
    assert [lease.handler for lease in take(source)] == ["a", "b"] and put(source) == [4]
    source.settle([success(lease) for lease in take(source)])
    source.reopen(cut_short)  # whose answer was lost
    source.settle([release(lease) for lease in source.leases([2, 3])])
    source.leave()
    assert transfer_jobs(source, target).jobs[JobState.READY] == 2
    factories[0].check()


def test_a_transfer_that_has_arrived_is_not_undone(factories, source, target, cut_short):
    target.import_jobs(cut_short, [source.export([1, 2, 3])], 3, frozenset())
    with pytest.raises(StoreError, match="its jobs are in "):
        undo_transfer(factories[0].open(), factories[1].open(), cut_short)
    with pytest.raises(StoreError, match="were transferred to"):
        put(source)


def test_only_the_target_of_a_transfer_can_show_whether_it_has_arrived(source, target, cut_short):
    source.reopen(cut_short)
    source.close_for_transfer(transfer_record := TransferRecord("y", target.url, "on a server of the same name"))
    with pytest.raises(StoreError, match=r"are being transferred, to .*; .* is not that store"):
        undo_transfer(source, target, transfer_record)
    assert source.transfer_record() == transfer_record


@pytest.mark.parametrize(
    "again", [transfer_jobs, lambda source, target: undo_transfer(source, target, source.transfer_record())]
)
def test_a_transfer_that_has_arrived_once_is_neither_repeated_nor_undone(factories, source, target, again):
    """Though the target has been made anew since, and has no record of it."""
    put(source)
    transfer_jobs(left_alone(source), target)
    target.delete([1])
    factories[1].sql("delete from {s}.transfers_in")
    with pytest.raises(StoreError, match=r"had arrived in .*, which has no record of them any more"):
        again(source, target)
    assert source.transfer_record() is not None and jobs_of(target) == []


def test_another_store_with_the_same_url_gets_nothing(factories, source, target):
    """A URL does not always show which store it leads to: the host or the schema may be another one."""
    put(source)
    left_alone(source).close_for_transfer(TransferRecord("x", target.url, "elsewhere"))
    with pytest.raises(StoreError, match=r"are being transferred, to .* is not that store"):
        transfer_jobs(source, target)
    assert jobs_of(target) == []


def test_another_transfer_is_not_undone(source, cut_short):
    with pytest.raises(StoreError, match="another process is transferring its jobs to "):
        source.reopen(cut_short._replace(id="older"))
    assert source.transfer_record() == cut_short


def test_an_undo_waits_while_the_jobs_are_being_imported(factories, source, target, cut_short):
    """By a process that was taken for dead, and is in the middle of it."""

    def batches():
        yield source.export([1, 2])
        with pytest.raises(StoreUnavailable):
            undo_transfer(factories[0].open(), opened_with(factories[1], lock_milliseconds=100), cut_short)
        yield source.export([3])

    target.import_jobs(cut_short, batches(), 3, frozenset())
    assert source.transfer_record() == cut_short and len(jobs_of(target)) == 3


def test_no_job_is_imported_between_the_check_and_the_reopening(factories, source, target, cut_short, monkeypatch):
    reopen, late = source.reopen, opened_with(factories[1], lock_milliseconds=100)

    def meanwhile(transfer_record):
        with pytest.raises(StoreUnavailable):
            late.import_jobs(transfer_record, [], 3, frozenset())
        reopen(transfer_record)

    monkeypatch.setattr(source, "reopen", meanwhile)
    undo_transfer(source, target, cut_short)
    assert source.transfer_record() is None and not target.has_received(cut_short)


def test_a_process_that_was_taken_for_dead_finds_its_transfer_undone(factories, source, target, cut_short, monkeypatch):
    import_jobs = target.import_jobs

    def late(*arguments):
        undo_transfer(factories[0].open(), factories[1].open(), cut_short)
        import_jobs(*arguments)

    monkeypatch.setattr(target, "import_jobs", late)
    with pytest.raises(StoreError, match="opened it again meanwhile; nothing was transferred"):
        transfer_jobs(source, target)
    assert source.transfer_record() is None and jobs_of(target) == []


def test_a_process_that_was_taken_for_dead_undoes_no_other_transfer(factories, source, target, cut_short, monkeypatch):
    newer = cut_short._replace(id="newer")

    def late(*arguments):
        other = factories[0].open()
        other.reopen(cut_short)
        other.close_for_transfer(newer)
        raise StoreError("disk full")

    monkeypatch.setattr(target, "import_jobs", late)
    with pytest.raises(StoreError, match="another process is transferring its jobs to "):
        transfer_jobs(source, target)
    assert source.transfer_record() == newer


def test_of_two_transfers_at_once_one_is_refused(factories, source, target, monkeypatch):
    put(source)
    first = TransferRecord("x", target.url, target.place())
    close = left_alone(source).close_for_transfer

    def late(transfer_record):
        factories[0].open().close_for_transfer(first)
        close(transfer_record)

    monkeypatch.setattr(source, "close_for_transfer", late)
    with pytest.raises(StoreError, match="another process is transferring its jobs to "):
        transfer_jobs(source, target)
    assert source.transfer_record() == first and jobs_of(target) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_undo_is_called_again(factories, source, target, cut_short, monkeypatch, when):
    reopen = source.reopen

    def dies(transfer_record):
        if when == "after":
            reopen(transfer_record)
        raise Killed

    monkeypatch.setattr(source, "reopen", dies)
    with pytest.raises(Killed):
        undo_transfer(source, target, cut_short)
    first, second = factories[0].open(), factories[1].open()
    assert (first.transfer_record() is None) == (when == "after")
    undo_transfer(first, second, cut_short)
    assert put(first) == [4] and jobs_of(second) == []


def test_ranges_of_ids_without_a_job_to_transfer_are_skipped(factories, source, target):
    source.delete(put(source, *["gone"] * 10))
    put(source, "a")
    source.delete(put(source, *["gone"] * 10))
    put(source, "b")
    left_alone(source)
    transfer_jobs(opened_with(factories[0], id_range=3), target)
    assert [job["handler"] for job in jobs_of(target)] == ["a", "b"]
