"""When nothing can be done: a drain ends once this has lasted for its grace."""

from __future__ import annotations

from supervisor.engine.self_report import STARTING_SECONDS
from tests.unit.virtual import Virtual


def test_a_worker_that_is_slow_to_start_blocks_only_once_it_may_hang() -> None:
    here = Virtual()
    here.engine.serve(here.backend)
    (process,) = here.backend.forked
    here.loop.advance(STARTING_SECONDS)
    assert not here.engine.blocked()
    here.loop.advance(1.0)
    assert here.engine.blocked()
    process.come_up()
    assert not here.engine.blocked()
