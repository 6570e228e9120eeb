"""How many jobs a claim asks for, of which queue and tier."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.config.settings import Settings
from supervisor.engine.claim_planner import Demand
from supervisor.jobs import Policy
from supervisor.stores.records import ClaimRequest, Waiting


def demand(capacity: int, turn: int = 0, with_retries: dict[str, int] | None = None, **settings: Any) -> Demand:
    """The demand of a supervisor with one worker that has buffered nothing."""
    return Demand(
        capacity, turn, Settings(**settings), lambda handler, queue: Policy(), tokens={}, buffered={},
        workers=1, with_retries=with_retries or {}, large=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("waiting", "with_retries", "expected"),
    [
        (Waiting(100, 100), {}, ClaimRequest("q", 50, 16 + 10, 50, 100)),
        (Waiting(0, 100), {}, ClaimRequest("q", 50, 50, 50, 100)),
        (Waiting(100, 100), {"q": 1}, ClaimRequest("q", 50, 0, 0, 100)),
        (Waiting(0, 100), {"q": 1}, ClaimRequest("q", 50, 50, 50, 100)),
        (Waiting(100, 100), {"other": 1}, ClaimRequest("q", 50, 16 + 10, 50, 100)),
        (Waiting(3, 0), {}, ClaimRequest("q", 3, 0, 0, 100)),
    ],
)
def test_a_claim_asks_for_as_many_retries_as_there_are_tokens_for(
    waiting: Waiting, with_retries: dict[str, int], expected: ClaimRequest
) -> None:
    assert demand(50, with_retries=with_retries).requests({"q": waiting}) == [expected]


def test_if_a_look_shows_a_part_of_the_queues_the_first_ones_have_their_turn() -> None:
    waiting = {queue: Waiting(5, 0) for queue in "cdab"}
    assert [request.queue for request in demand(2, 3).requests(waiting, more=True)] == ["c", "d"]


@pytest.mark.parametrize("turn", [0, 1])
def test_a_queue_whose_retries_have_their_share_is_claimed_fresh_jobs_and_no_retry(turn: int) -> None:
    waiting = {"full": Waiting(1, 100), "other": Waiting(5, 0)}
    limited = demand(6, turn, with_retries={"full": 1}, queues={"full": {"retry": {"max_in_flight": 1}}})
    assert sorted(limited.requests(waiting)) == [
        ClaimRequest("full", 1, 0, 0, 100),
        ClaimRequest("other", 5, 0, 0, 100),
    ]
