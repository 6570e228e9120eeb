from __future__ import annotations

from supervisor.stores.postgres.claim_cursor import LOOKED_EVERY, PASSED_MANY, Floors


def test_a_floor_holds_for_a_while_and_longer_if_it_saves_more() -> None:
    floors = Floors()
    row = [0] * 13 + [77]
    floors.note("a", [row] * PASSED_MANY)
    assert floors.of("a", 100, 0.0) is None
    floors.looked("a", 0.001, 10.0)
    assert floors.of("a", 100, 10.0 + LOOKED_EVERY - 0.01) == (0, 77)
    assert floors.of("a", 0, 10.0) is None, "all of it is urgent"
    assert floors.of("b", 100, 10.0) is None
    assert floors.of("a", 100, 10.0 + LOOKED_EVERY) is None
    floors.looked("a", 0.1, 20.0)
    assert floors.of("a", 100, 20.9) == (0, 77)
    floors.forget()
    assert floors.of("a", 100, 20.9) is None
