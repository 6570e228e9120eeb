"""The tokens and budgets of retries survive a reload; those of queues that come and go are forgotten."""

from __future__ import annotations

from fractions import Fraction

import pytest

from supervisor.config.retries import RetrySettings
from supervisor.config.settings import Settings
from supervisor.engine.committer import MAX_BUDGETS, RetryDecider
from supervisor.engine.current_config import CurrentConfig
from supervisor.engine.fairness import MAX_BUFFERS, QueueBuffer, QueueBuffers
from supervisor.engine.shares import TokenBucket
from supervisor.jobs import Cause, Failure, Kind, Lease, Outcome, Policy, Tier
from supervisor.stores.records import Waiting


def lease(id: int, tier: Tier = Tier.FRESH, queue: str = "default", priority: int = 0) -> Lease:
    return Lease(id, 1, "work", queue, "null", None, int(tier), priority, tier, 0, 0, Policy())


class Decider:
    """Decides on failed jobs at a time that the test sets."""

    def __init__(self, **retry: object) -> None:
        self.now = 0.0
        self.config = CurrentConfig(Settings(retry=retry), [])
        self.buffers = QueueBuffers(self.config)
        self.retries = RetryDecider(self.config, self.buffers, lambda: 1.0, lambda: self.now)

    def delay(self, queue: str = "default") -> float:
        failed = Outcome(lease(1, queue=queue), Kind.FAILED, failure=Failure(Cause.EXCEPTION))
        return self.retries.decide(failed).delay

    def reload(self, **retry: object) -> None:
        self.config.replace(Settings(retry=retry), [])


def test_retries_get_no_more_than_their_share_however_often_the_settings_are_reloaded() -> None:
    config = CurrentConfig(Settings(retry={"burst": 4, "fetch_ratio": 0.2}), [])
    buffers = QueueBuffers(config)
    buffers.add([lease(id) for id in range(100)] + [lease(100 + id, Tier.RETRY) for id in range(100)])
    started = []
    for n in range(25):
        if n % 5 == 4:
            config.replace(Settings(retry={"burst": 4, "fetch_ratio": 0.2}), [])
            buffers.reconfigure()
        started.append(next(buffers.of("default").in_turn()))
    assert 0 < sum(job.tier == Tier.RETRY for job in started) <= 4 + 25 // 5


def test_a_bucket_keeps_its_tokens_under_other_settings_and_a_full_one_stays_full() -> None:
    bucket = TokenBucket(Fraction(1, 5), 8)
    bucket.reconfigure(Fraction(1, 3), 16)
    assert bucket.allowance(100) == 16 + 100 // 3
    for _ in range(6):
        bucket.spend()
    bucket.reconfigure(Fraction(1, 2), 100)
    assert bucket.allowance(0) == 0
    assert [bucket.allowance(count) for count in (10, 40)] == [10, 10 + 40 // 2]
    bucket.reconfigure(Fraction(1, 2), 3)
    assert bucket.allowance(40) == 3 + 40 // 2


def test_a_reload_moves_jobs_to_the_tier_of_their_priority_and_keeps_them_in_order() -> None:
    buffer = QueueBuffer(RetrySettings(urgent=100))
    buffer.add([lease(1, priority=50), lease(2), lease(3, Tier.RETRY)])
    buffer.reconfigure(RetrySettings(urgent=50))
    assert [job.id for job in buffer.urgent] == [1]
    buffer.reconfigure(RetrySettings(urgent=100))
    assert ([job.id for job in buffer.fresh], [job.id for job in buffer.retries]) == ([1, 2], [3])


def test_a_retry_reclaimed_after_a_reload_has_its_token_refunded() -> None:
    buffer = QueueBuffer(RetrySettings(burst=1))
    buffer.add([lease(1), lease(2, Tier.RETRY)])
    retry = next(buffer.in_turn())
    buffer.reconfigure(RetrySettings(burst=1))
    buffer.requeue([retry])
    assert next(buffer.in_turn()) == retry


def test_a_retry_budget_survives_a_reload() -> None:
    decider = Decider(budget={"limit": 1, "per": 60})
    assert decider.delay() == 0.5
    decider.reload(budget={"limit": 1, "per": 60})
    assert decider.delay() == 30.0
    decider.reload(budget={"limit": 2, "per": 60})
    assert [decider.delay(), decider.delay()] == [0.5, 30.0]


def test_delays_grow_with_the_ready_jobs_of_their_queue_while_the_settings_say_so() -> None:
    decider = Decider(adaptive=True)
    decider.buffers.note_left_in_store({"default": Waiting(7, 3), "other": Waiting(500, 0)})
    assert (decider.delay(), decider.delay("empty")) == (1.0, 0.5)
    decider.reload(adaptive=False)
    assert decider.delay() == 0.5


@pytest.mark.parametrize("pause", [0.0, 1.0])
def test_the_budgets_of_queues_that_come_and_go_are_forgotten(pause: float) -> None:
    decider = Decider(budget={"limit": 1, "per": 60})
    for n in range(3 * MAX_BUDGETS):
        decider.delay(f"queue-{n}")
        decider.now += pause
        assert len(decider.retries._budgets) <= MAX_BUDGETS


def test_a_budget_that_is_spent_is_not_forgotten_for_the_sake_of_those_whose_window_has_passed() -> None:
    decider = Decider(budget={"limit": 1, "per": 60})
    for n in range(MAX_BUDGETS - 1):
        decider.delay(f"queue-{n}")
    decider.now = 60.0
    assert decider.delay("spent") == 0.5
    assert decider.delay("another") == 0.5
    assert decider.delay("spent") == 30.0


def test_empty_queues_are_forgotten_and_one_with_spent_tokens_last() -> None:
    buffers = QueueBuffers(CurrentConfig(Settings(), []))
    buffers.add([lease(1, Tier.RETRY, "spent"), lease(2, queue="spent")])
    list(buffers.of("spent").in_turn())
    tokens = buffers.of("spent").tokens.allowance(100)
    for n in range(3 * MAX_BUFFERS):
        buffers.note_left_in_store({f"queue-{n}": Waiting(1, 0)})
        assert len(buffers.by_queue) <= MAX_BUFFERS + 1
    assert buffers.of("spent").tokens.allowance(100) == tokens
