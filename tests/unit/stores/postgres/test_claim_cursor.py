from __future__ import annotations

from supervisor.stores.postgres.claim_cursor import (
    MAX_QUEUES,
    MIN_PASSED,
    WHOLE,
    WHOLE_EVERY,
    ClaimCursors,
    Position,
)


def claimed(*, first: int, last: int, queue: str = "a") -> ClaimCursors:
    """A cursor that has moved to the age `first`, after a claim up to `last`."""
    cursors = ClaimCursors()
    cursors.claimed(queue, MIN_PASSED, Position(0, last))
    cursors.move(queue, Position(0, first))
    return cursors


def test_a_cursor_is_valid_for_a_while_and_longer_if_it_saves_more() -> None:
    cursors = claimed(first=77, last=80)
    assert cursors.position("a", 100, 0.0) is WHOLE
    cursors.looked_at_whole("a", 0.001, 10.0)
    assert cursors.position("a", 100, 10.0 + WHOLE_EVERY - 0.01) == (0, 77)
    assert cursors.position("a", 0, 10.0) is WHOLE, "all of it is urgent"
    assert cursors.position("b", 100, 10.0) is WHOLE
    assert cursors.position("a", 100, 10.0 + WHOLE_EVERY) is WHOLE
    cursors.looked_at_whole("a", 0.1, 20.0)
    assert cursors.position("a", 100, 20.9) == (0, 77)
    cursors.reset()
    assert cursors.position("a", 100, 20.9) is WHOLE


def test_a_cursor_moves_once_enough_jobs_were_claimed_behind_it() -> None:
    cursors = claimed(first=77, last=80)
    assert cursors.to_move(["a"]) == {}
    cursors.claimed("a", MIN_PASSED - 1, Position(0, 90))
    assert cursors.to_move(["a"]) == {}
    cursors.claimed("a", 1, Position(0, 95))
    assert cursors.to_move(["a"]) == {"a": (0, 77)}
    cursors.looked_at_whole("a", 0.0, 0.0)
    cursors.move("a", None)
    assert cursors.position("a", 100, 0.0) == (0, 95), "nothing is ready, so nothing is passed over"
    cursors.claimed("a", MIN_PASSED, Position(5, 200))
    assert cursors.to_move(["a"]) == {"a": (5, WHOLE.age)}, "of another priority nothing is known"


def test_a_cursor_moves_back_to_a_job_that_was_claimed_in_front_of_it() -> None:
    cursors = claimed(first=77, last=80)
    cursors.looked_at_whole("a", 0.0, 0.0)
    cursors.claimed("a", 1, Position(3, 8))
    assert cursors.position("a", 100, 0.0) == (0, 77)
    cursors.claimed("a", 1, Position(0, 8))
    assert cursors.position("a", 100, 0.0) == (0, 8)


def test_cursors_of_queues_that_are_gone_are_forgotten() -> None:
    cursors = ClaimCursors()
    for number in range(3 * MAX_QUEUES):
        cursors.claimed(str(number), 1, Position(0, 1))
        assert len(cursors._cursors) <= MAX_QUEUES
