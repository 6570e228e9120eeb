"""The arithmetic of limits: exact numbers of jobs, within any time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from supervisor.config.loading import load
from supervisor.engine.current_config import job_limits
from supervisor.stores.job_limits import (
    MAX_TIMES,
    RATE,
    RUNNING,
    Allowance,
    JobLimits,
    Limit,
    Use,
    claimed,
    left,
    next_claim,
    times_of,
)
from supervisor.stores.records import ClaimRequest, Waiting

SECOND = 1_000_000


@pytest.mark.parametrize(
    "limit", [Limit(claims=7, per=10 * SECOND), Limit(claims=2000, per=10 * SECOND), Limit(claims=3, per=7)]
)
def test_never_more_are_claimed_within_any_time_and_almost_as_many_as_allowed(limit: Limit) -> None:
    choice, use, now = random.Random(3), Use(), 1_700_000_000 * SECOND
    claims: list[tuple[int, int]] = []
    began = now
    while now < began + 50 * limit.per:
        number, _ = left(use, limit, now)
        if number:
            n = choice.randint(1, number)
            use = Use(0, claimed(use, limit, now, n))
            claims.append((now, n))
            now += choice.choice((0, 1, limit.per // 50, limit.per // 3))
        else:
            wait = next_claim(use, limit, now)
            assert wait > 0
            assert left(use, limit, now + wait - 1)[0] == 0
            now += wait
            assert left(use, limit, now)[0] > 0
        assert len(use.times) <= min(limit.claims or 0, 2 * MAX_TIMES)
    for at, _ in claims:
        assert limit.claims is not None
        assert sum(n for when, n in claims if at <= when < at + limit.per) <= limit.claims
    assert sum(n for _, n in claims) > 25 * (limit.claims or 0)


def test_a_lower_rate_counts_the_claims_that_were_made_under_the_one_before() -> None:
    use = Use(0, [(0, 4), (5, 4)])
    assert left(use, Limit(claims=3, per=10), 9) == (0, RATE)
    assert next_claim(use, Limit(claims=3, per=10), 9) == 6
    assert left(use, Limit(claims=6, per=10), 11) == (2, RATE)


def test_the_tighter_part_of_a_limit_decides() -> None:
    both = Limit(running=3, claims=5, per=10)
    assert left(Use(2, [(0, 1)]), both, 0) == (1, RUNNING)
    assert left(Use(0, [(0, 4)]), both, 0) == (1, RATE)
    assert left(Use(7), both, 0) == (0, RUNNING)


@pytest.mark.parametrize("text", ["", "null", "7", "[[1]]", "[1, 2]", '{"a": 1}', "[[null, 1]]", '[["x", 1]]'])
def test_times_that_another_program_has_written_do_not_stop_claims(text: str) -> None:
    assert times_of(text) == []


def test_waiting_jobs_are_those_that_the_limits_allow() -> None:
    limits = JobLimits({"mail": Limit(running=2)}, {"report": Limit(running=5)})
    allowance = Allowance(limits, {"queue mail": Use(1)}, 0)
    allowance.lines = {("report", "other", 0): 4, ("report", "mail", 1): 3}
    waiting = allowance.claimable({"mail": Waiting(9, 0), "free": Waiting(3, 3)})
    assert waiting == {"mail": Waiting(1, 1), "free": Waiting(3, 3), "other": Waiting(4, 0)}
    requests = [ClaimRequest(queue, 10, 0, 10, 100) for queue in ("mail", "free")]
    assert [(it.queue, it.limit) for it in allowance.asked(requests, 5)] == [("mail", 1), ("free", 10)]
    assert [(it.queue, it.limit) for it in allowance.asked(requests, 0)] == [("free", 10)]


def test_a_config_without_limits_has_none(tmp_path: Path) -> None:
    def limits_of(text: str) -> JobLimits | None:
        (tmp_path / "supervisor.yaml").write_text(text)
        return job_limits(load(tmp_path / "supervisor.yaml", {}))

    assert limits_of("queues: {q: {limit: {running: none}}}\nhandlers: {h: {}}") is None
    assert limits_of("queues: {q: {limit: {running: 2, rate: 100/1m}}}") == JobLimits(
        {"q": Limit(2, 100, 60 * SECOND)}, {}
    )
