"""Jobs are found by a filter, in pages that look at a bounded number of jobs and have the place where they stopped."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from supervisor.jobs import Cause, JobState
from supervisor.stores.records import EnqueueRow
from supervisor.stores.search import JobFilter, SearchLimits
from tests.stores.factories import again, dead, dead_letters, make_dead, promote, put, release, success, take, take_one


def found(store, limit=100, before=None, limits=None, **where):
    return store.find_jobs(JobFilter(**where), before=before, limit=limit, limits=limits or SearchLimits()).ids


def write(store, payload, n=1, **options):
    return store.enqueue([EnqueueRow("mail", payload, **options)] * n)


def failed(lease, **known):
    outcome = dead(lease)
    return outcome._replace(failure=replace(outcome.failure, **known))


def all_pages(store, limit, limits=None, **where):
    """Return the ids of all pages, and how many pages were needed."""
    ids, before, pages = [], None, 0
    while pages == 0 or before is not None:
        page = store.find_jobs(JobFilter(**where), before=before, limit=limit, limits=limits or SearchLimits())
        assert [job["id"] for job in page.jobs] == page.ids and len(page.ids) <= limit
        ids, before, pages = ids + page.ids, page.next, pages + 1
    return ids, pages


def in_each_state(store):
    """Return the ids of a job in each state, by state."""
    ids = dict(zip(("succeeded", "failed", "cancelled", "in_flight", "ready"), put(store, *["mail"] * 5), strict=True))
    (ids["scheduled"],) = put(store, delay=50.0)
    store.cancel([ids["cancelled"]])
    leases = {lease.id: lease for lease in take(store, 3)}
    store.settle([success(leases[ids["succeeded"]]), dead(leases[ids["failed"]])])
    return ids


def test_jobs_are_found_by_state(store):
    for state, id in in_each_state(store).items():
        page = store.find_jobs(JobFilter(JobState(state)))
        assert [job["id"] for job in page.jobs] == [id]
        assert page[2:] == (None, 1, True)


def test_jobs_are_found_by_all_that_the_filter_has(store):
    (mail,) = put(store, "mail", queue="post")
    put(store, "mail")
    put(store, "scan", queue="post")
    assert found(store, queue="post", handler="mail") == [mail]
    assert found(store, queue="post", handler="mail", state=JobState.READY) == [mail]
    assert found(store, queue="post", handler="mail", state=JobState.FAILED) == []
    assert found(store, queue="other", state=JobState.READY) == []


@pytest.mark.parametrize("state", [None, JobState.READY])
def test_jobs_are_found_by_the_time_of_their_creation(factory, store, state):
    times, ids = [], []
    for _ in range(4):
        times.append(factory.clock.microseconds)
        ids += put(store)
        factory.clock.step(3600)
    first, second, third, fourth = ids
    assert found(store, state=state, since=times[2]) == [fourth, third]
    assert found(store, state=state, until=times[2]) == [second, first]
    assert found(store, state=state, since=times[1], until=times[3]) == [third, second]
    assert found(store, state=state, since=times[3] + 1) == []
    assert found(store, state=state, until=times[0]) == []


def test_ended_jobs_are_found_by_the_time_of_their_creation(factory, store):
    first, second = put(store), (factory.clock.step(3600), put(store))[1]
    at = factory.clock.microseconds
    factory.clock.step(3600)
    store.settle([success(lease) for lease in take(store)])
    assert found(store, state=JobState.SUCCEEDED, since=at) == second
    assert found(store, state=JobState.SUCCEEDED, until=at) == first
    assert found(store, state=JobState.SUCCEEDED, since=at, until=at) == []


def test_a_job_is_found_although_the_clock_was_set_back_before_it_was_created(factory, store):
    put(store)
    factory.clock.step(100)
    at, before = factory.clock.microseconds, put(store)
    factory.clock.step(-4)
    behind = put(store)
    factory.clock.step(100)
    put(store)
    assert found(store, until=at) == [*behind, before[0] - 1]


@pytest.mark.parametrize("where", [{}, {"state": JobState.READY}, {"queue": "default", "handler": "mail"}])
def test_pages_have_each_job_once(store, where):
    ids = put(store, *["mail"] * 7)
    assert all_pages(store, 3, **where) == (ids[::-1], 3)
    assert all_pages(store, 7, **where) == (ids[::-1], 1)


def test_pages_of_ended_jobs_have_each_job_once_in_the_order_in_which_they_ended(factory, store):
    ids = put(store, *["mail"] * 6)
    leases = {lease.id: lease for lease in take(store)}
    order = [ids[3], ids[0], ids[5], ids[1], ids[2], ids[4]]
    for n, id in enumerate(order):
        store.settle([success(leases[id])])
        if n % 2:  # two end at the same time
            factory.clock.step(1)
    expected = [ids[4], ids[2], ids[5], ids[1], ids[3], ids[0]]
    assert all_pages(store, 2, state=JobState.SUCCEEDED)[0] == expected
    assert all_pages(store, 5, state=JobState.SUCCEEDED) == (expected, 2)


def test_the_next_page_goes_on_behind_a_job_that_has_changed_since(store):
    ids = make_dead(store, *"abcd")[::-1]
    page = store.find_jobs(JobFilter(JobState.FAILED), limit=2)
    assert page.ids == ids[:2]
    store.redrive([page.ids[-1]], force=True)
    assert found(store, state=JobState.FAILED, before=page.next) == ids[2:]


def test_new_jobs_do_not_shift_the_next_page(store):
    ids = put(store, *["mail"] * 4)[::-1]
    page = store.find_jobs(JobFilter(), limit=2)
    put(store, *["mail"] * 4)
    assert found(store, before=page.next) == ids[2:]


@pytest.mark.parametrize("state", [None, JobState.FAILED])
def test_a_page_looks_at_so_many_jobs_and_the_next_goes_on_from_there(factory, store, state):
    if not factory.durable:
        pytest.skip("all jobs are in memory")
    wanted = make_dead(store, "wanted", dead_letter=False)
    make_dead(store, *["other"] * 10, dead_letter=False)
    limits = SearchLimits(looked=4)
    page = store.find_jobs(JobFilter(state, handler="wanted"), limits=limits)
    assert (page.ids, page.searched, page.complete) == ([], 4, False)
    assert all_pages(store, 100, limits, state=state, handler="wanted") == (wanted, 3)
    assert all_pages(store, 100, limits, state=state, handler="wanted", text="no") == (wanted, 3)
    assert len(all_pages(store, 3, limits, state=state)[0]) == 11


@pytest.mark.parametrize("few", [0, 100])
def test_pages_of_each_state_have_each_job_once_whether_few_or_many_have_it(store, few):
    scheduled = put(store, *["mail"] * 5, delay=50.0)
    pending = make_dead(store, *["dead"] * 5)
    ready = put(store, *["mail"] * 5)
    put(store, *["mail"] * 5, queue="other")
    limits = SearchLimits(few=few)
    assert all_pages(store, 2, limits, state=JobState.SCHEDULED) == (scheduled[::-1], 3)
    assert all_pages(store, 2, limits, state=JobState.READY, queue="default") == (ready[::-1], 3)
    assert all_pages(store, 2, limits, dead_letter="pending") == (pending[::-1], 3)
    assert all_pages(store, 2, limits, dead_letter="any", handler="dead") == (pending[::-1], 3)


def test_dead_letters_are_found_by_their_state(store):
    delivered, pending = make_dead(store, "a", "b")
    make_dead(store, "c", dead_letter=False)
    store.mark_accepted([each for each in dead_letters(store) if each.id == delivered], "file")
    assert found(store, dead_letter="pending") == [pending]
    assert found(store, dead_letter="delivered") == [delivered]
    assert found(store, dead_letter="any") == [pending, delivered]
    assert found(store, dead_letter="any", handler="a") == [delivered]


def test_dead_letters_are_found_by_the_sink_that_they_wait_for(factory):
    store = factory.joined("one", "file", 'a "quoted" one')
    both, half = make_dead(store, "a", "b")
    store.mark_accepted([each for each in dead_letters(store) if each.id == half], "file")
    assert found(store, dead_letter="pending", sink="file") == [both]
    assert found(store, dead_letter="pending", sink='a "quoted" one') == [half, both]
    assert found(store, dead_letter="pending", sink="quoted") == found(store, dead_letter="pending", sink="fil") == []


def test_a_text_is_searched_in_payloads_headers_and_errors(store):
    (payload,) = write(store, '{"name": "Kitten"}')
    (headers,) = write(store, "{}", headers='{"from": "kitten \\"}"}')
    long = write(store, '"' + "x" * 5000 + 'kitten"}')
    (error,) = put(store, queue="other")
    lease = take(store, queue="other")[0]
    store.settle([failed(lease, message='the "Kitten"} was not tabby')])
    for text in ("kitten", "KITTEN"):
        assert found(store, text=text) == [error, *long, headers, payload]
    assert found(store, text='ten"}') == [error, *long, payload]
    assert found(store, text="tabby") == found(store, text="kitten", queue="other") == [error]
    assert found(store, text="no such cat") == []


def test_only_a_to_z_match_in_either_case(store):
    (job,) = write(store, '"Ärger"')
    assert found(store, text="ÄRGER") == [job]
    assert found(store, text="ärger") == []


def test_a_search_stops_after_so_many_jobs_and_goes_on_from_there(store):
    old = write(store, '"kitten"')
    write(store, '"dog"', n=10)
    limits = SearchLimits(searched=4, batch=3)
    page = store.find_jobs(JobFilter(text="kitten"), limits=limits)
    assert (page.ids, page.searched, page.complete) == ([], 4, False)
    assert all_pages(store, 100, limits, text="kitten") == (old, 3)
    assert store.find_jobs(JobFilter(text="kitten")).complete


def test_a_search_looks_only_at_jobs_that_pass_the_rest_of_the_filter(store):
    (wanted,) = write(store, '"kitten"', queue="pets")
    write(store, '"kitten"', n=10)
    page = store.find_jobs(JobFilter(queue="pets", text="kitten"), limits=SearchLimits(searched=2))
    assert (page.ids, page.searched, page.complete) == ([wanted], 1, True)


def test_a_page_of_a_search_ends_at_its_limit(store):
    ids = write(store, '"kitten"', n=5)[::-1]
    page = store.find_jobs(JobFilter(text="kitten"), limit=2)
    assert (page.ids, page.searched, page.complete) == (ids[:2], 2, True)
    assert all_pages(store, 2, text="kitten")[0] == ids


def test_a_search_stops_after_so_many_characters(store):
    write(store, '"' + "x" * 1000 + '"', n=10)
    page = store.find_jobs(JobFilter(text="kitten"), limits=SearchLimits(characters=1500, batch=1, searched=3))
    assert page.searched in (2, 3) and not page.complete


def test_a_cursor_of_another_filter_is_refused(store):
    cursors = ("", "x", "-1", "1.2.3", "1" * 40, "1.", "0x1")
    refused = [
        *product((JobFilter(), JobFilter(JobState.FAILED)), cursors),
        (JobFilter(), "1.1"),
        (JobFilter(JobState.FAILED), "1"),
    ]
    for where, cursor in refused:
        with pytest.raises(ValueError, match="the `next` of a page with the same filter"):
            store.find_jobs(where, before=cursor)


def test_failures_are_grouped_by_handler_and_error(factory, store):
    def fail(handler, **known):
        (id,) = put(store, handler)
        store.settle([failed(take_one(store), **known)])
        factory.clock.step(1)
        return id

    put(store, "unfailed")
    store.settle([success(take_one(store))])
    fail("mail", type="KeyError", message="'a'")
    newest = fail("mail", type="KeyError", message="'b'")
    other = fail("mail", type="OSError", message='"no"\n')
    crash = fail("mail", cause=Cause.CRASH, type="", message="exit code 1")
    scan = fail("scan", type="KeyError", message="'c'")
    groups = store.failures(10)
    assert [
        (it["handler"], it["type"], it["cause"], it["count"], it["example_id"], it["message"]) for it in groups
    ] == [
        ("mail", "KeyError", "exception", 2, newest, "'b'"),
        ("scan", "KeyError", "exception", 1, scan, "'c'"),
        ("mail", "", "crash", 1, crash, "exit code 1"),
        ("mail", "OSError", "exception", 1, other, '"no"\n'),
    ]
    assert [it["last_at"] for it in groups] == [store.get(it["example_id"])["finished_at"] for it in groups]
    assert store.failures(1) == groups[:1]
    assert [it["example_id"] for it in store.failures(10, among=2)] == [scan, crash]


def test_jobs_are_found_by_their_last_error(store):
    twice, other, crashed, never = put(store, *"abcd")
    leases = {lease.id: lease for lease in take(store)}
    known = {"type": "TimeoutError", "message": 'no answer of "smtp1"'}
    store.settle([again(leases[twice], 0.0), failed(leases[other], type="KeyError", message="'smtp1'")])
    store.settle([failed(leases[crashed], cause=Cause.CRASH, type="", message="its worker was killed")])
    store.settle([release(leases[never])])
    promote(store, 10)
    (retry,) = [lease for lease in take(store) if lease.id == twice]
    store.settle([failed(retry, **known)])
    assert found(store, error="SMTP1") == [other, twice]
    assert found(store, error="timeouterror: no answer") == found(store, error='of "smtp1"') == [twice]
    assert found(store, error="crash") == [crashed]
    assert found(store, error="ValueError") == [], "that was an earlier error"
    assert found(store, error="smtp1", handler="b", state=JobState.FAILED) == [other]
    assert found(store, error="smtp1", text="timeout") == [twice]
    assert found(store, error="traceback") == []


def test_pages_of_a_search_by_error_have_each_job_once(store):
    ids = make_dead(store, *["mail"] * 5)
    put(store, *["mail"] * 5)
    limits = SearchLimits(searched=3, batch=2)
    assert all_pages(store, 2, limits, error="valueerror")[0] == ids[::-1]
    assert all_pages(store, 2, limits, error="valueerror", dead_letter="any")[0] == ids[::-1]
