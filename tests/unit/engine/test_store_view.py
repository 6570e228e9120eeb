"""The fetcher's view of the store after notifications, claims and changes of workers."""

from __future__ import annotations

from supervisor.engine.store_view import Change, Claimable, StoreView


def after_claim(*, brought: bool = False, left: bool = False) -> StoreView:
    view = StoreView()
    view.claim_begins()
    view.claim_ended(brought=brought, left=left)
    return view


def test_a_claim_that_left_nothing_is_followed_by_none() -> None:
    assert after_claim(brought=True).claimable is Claimable.NONE


def test_a_claim_that_brought_jobs_and_left_some_is_followed_by_another() -> None:
    assert after_claim(brought=True, left=True).claimable is Claimable.POSSIBLE


def test_jobs_that_a_limit_holds_off_are_claimed_once_a_worker_has_changed() -> None:
    view = after_claim(left=True)
    assert view.claimable is Claimable.HELD_OFF
    view.worker_changed()
    assert view.claimable is Claimable.POSSIBLE


def test_a_worker_that_changes_during_a_claim_counts_after_it() -> None:
    view = StoreView()
    view.claim_begins()
    view.worker_changed()
    view.claim_ended(brought=False, left=True)
    assert view.claimable is Claimable.POSSIBLE


def test_a_notification_during_a_claim_counts_after_it() -> None:
    view = StoreView()
    view.claim_begins()
    view.notified()
    view.claim_ended(brought=False, left=False)
    assert (view.claimable, view.change) == (Claimable.POSSIBLE, Change.NOTIFIED)


def test_a_job_that_came_due_is_not_forgotten_by_a_later_notification() -> None:
    view = StoreView()
    view.notified(Change.CAME_DUE)
    view.notified()
    assert view.change is Change.CAME_DUE


def test_released_jobs_are_not_claimed_before_a_worker_has_changed() -> None:
    view = after_claim()
    view.released()
    assert view.claimable is Claimable.HELD_OFF
