from __future__ import annotations

from supervisor.stores.postgres.claim_cursor import LOOKED_EVERY, PASSED_MANY, ClaimCursors


def test_a_floor_holds_for_a_while_and_longer_if_it_saves_more() -> None:
    claim_cursors = ClaimCursors()
    row = [0] * 13 + [77]
    claim_cursors.note("a", [row] * PASSED_MANY)
    assert claim_cursors.of("a", 100, 0.0) is None
    claim_cursors.looked("a", 0.001, 10.0)
    assert claim_cursors.of("a", 100, 10.0 + LOOKED_EVERY - 0.01) == (0, 77)
    assert claim_cursors.of("a", 0, 10.0) is None, "all of it is urgent"
    assert claim_cursors.of("b", 100, 10.0) is None
    assert claim_cursors.of("a", 100, 10.0 + LOOKED_EVERY) is None
    claim_cursors.looked("a", 0.1, 20.0)
    assert claim_cursors.of("a", 100, 20.9) == (0, 77)
    claim_cursors.forget()
    assert claim_cursors.of("a", 100, 20.9) is None
