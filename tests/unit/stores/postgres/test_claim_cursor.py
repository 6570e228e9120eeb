from __future__ import annotations

from supervisor.stores.postgres.claim_cursor import MIN_PASSED, WHOLE, WHOLE_EVERY, ClaimCursors


def test_a_cursor_is_valid_for_a_while_and_longer_if_it_saves_more() -> None:
    cursors = ClaimCursors()
    cursors.move("a", MIN_PASSED, 0, 77)
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
