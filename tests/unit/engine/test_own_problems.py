"""The problems of a supervisor at this moment, which its row in the store may not have."""

from __future__ import annotations

from supervisor.engine.own_problems import STALLED_SECONDS
from supervisor.events import ConfigRefused, ConfigReloaded
from tests.unit.virtual import Virtual


def kinds(here: Virtual) -> list[str]:
    return [problem.kind for problem in here.engine.problems()]


def test_a_claim_without_an_answer_is_a_problem_after_a_time() -> None:
    here = Virtual()
    here.engine.serve(here.backend)
    here.backend.forked[0].come_up()
    here.writer.eager = False
    here.engine.fetcher.notify()
    here.loop.advance(STALLED_SECONDS)
    assert kinds(here) == []
    here.loop.advance(0.5)
    assert kinds(here) == ["claims"]
    here.writer.step()
    assert kinds(here) == []


def test_jobs_that_may_not_start_are_a_problem_and_an_end_is_none() -> None:
    here = Virtual()
    here.serve()
    here.engine.leases.checked_since_gap = False
    here.notify()
    here.loop.advance(STALLED_SECONDS / 2)
    here.notify()
    here.loop.advance(STALLED_SECONDS)
    assert kinds(here) == ["claims"]
    here.engine.leases.checked_since_gap = True
    here.notify()
    assert kinds(here) == []
    here.engine.leases.checked_since_gap = False
    here.notify()
    here.loop.advance(STALLED_SECONDS + 1)
    here.engine.fetcher.close()
    assert kinds(here) == []


def test_a_store_that_is_unavailable_or_silent_is_a_problem() -> None:
    here = Virtual()
    here.writer.asked_at = here.loop.time()
    assert kinds(here) == []
    here.loop.advance(STALLED_SECONDS + 1)
    (problem,) = here.engine.problems()
    assert (problem.kind, problem.message) == ("store", "the store has not answered for 3s")
    here.writer.unavailable = True
    (problem,) = here.engine.problems()
    assert problem.message == "the store is unavailable: it is locked"


def test_a_refused_reload_is_of_the_kind_of_its_cause_until_the_next_one() -> None:
    here = Virtual()
    here.bus.emit(ConfigRefused(("p.py:3: SyntaxError",), by_plugin=True))
    assert kinds(here) == ["plugin"]
    here.bus.emit(ConfigRefused(("workers.count: expected 1 or more",)))
    assert kinds(here) == ["config"]
    here.bus.emit(ConfigReloaded((), ()))
    assert kinds(here) == []


def test_the_row_is_written_more_often_while_somebody_asks() -> None:
    here = Virtual()

    def written(seconds: int) -> int:
        stamps = set()
        for _ in range(seconds):
            here.loop.advance(1.0)
            here.engine.announce("running")
            stamps.add(here.store.stats()["supervisors"][0]["seen_at"])
        return len(stamps)

    written(1)
    assert written(9) == 1
    here.engine.problems()
    assert written(8) == 4
