"""The order of dispatch: retries first, never more than their share; neither tier starves the other."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.retries import RetrySettings
from supervisor.config.settings import QueueSettings, Settings
from supervisor.engine.current_config import CurrentConfig
from supervisor.engine.fairness import QueueBuffer, QueueBuffers
from supervisor.engine.shares import share_out
from supervisor.jobs import Lease, Policy, Tier

RATIOS = st.fractions(Fraction(1, 50), 1, max_denominator=50)


def job(id: int, tier: Tier = Tier.FRESH, priority: int = 0) -> Lease:
    return Lease(id, 1, f"job{id}", "default", "null", None, int(tier), priority, tier, 0, 0, Policy())


def buffer(ratio: Fraction = Fraction(1, 5), burst: int = 16) -> QueueBuffer:
    return QueueBuffer(RetrySettings(fetch_ratio=ratio, burst=burst, urgent=100))


def order(waiting: QueueBuffer) -> list[Lease]:
    taken = []
    while (lease := next(waiting.in_turn(), None)) is not None:
        taken.append(lease)
    return taken


def test_two_due_retries_go_before_three_waiting_jobs() -> None:
    waiting = buffer()
    names = {1: "A1", 2: "C5", 3: "A2", 4: "A3", 5: "B1"}
    waiting.add([job(3), job(4), job(5)])
    waiting.add([job(1, Tier.RETRY), job(2, Tier.RETRY)])
    assert [names[lease.id] for lease in order(waiting)] == ["A1", "C5", "A2", "A3", "B1"]


def test_urgent_jobs_go_ahead_of_retries() -> None:
    waiting = buffer()
    waiting.add([job(1, Tier.RETRY), job(2, priority=100), job(3)])
    assert [lease.id for lease in order(waiting)] == [2, 1, 3]


@given(RATIOS, st.integers(1, 30), st.integers(0, 200))
def test_a_lone_retry_is_next_whatever_went_before(ratio: Fraction, burst: int, before: int) -> None:
    waiting = buffer(ratio, burst)
    waiting.add(job(i) for i in range(before + 50))
    for _ in range(before):
        next(waiting.in_turn(), None)
    waiting.add([job(1000, Tier.RETRY)])
    taken = next(waiting.in_turn(), None)
    assert taken is not None and taken.id == 1000


@given(RATIOS, st.integers(1, 20), st.integers(1, 120), st.integers(1, 120))
def test_of_any_window_retries_have_at_most_their_ratio_plus_the_burst(
    ratio: Fraction, burst: int, retries: int, fresh: int
) -> None:
    waiting = buffer(ratio, burst)
    waiting.add(job(i) for i in range(fresh))
    waiting.add(job(1000 + i, Tier.RETRY) for i in range(retries))
    dispatched: list[int] = []
    while waiting.fresh and waiting.retries:
        lease = next(waiting.in_turn(), None)
        assert lease is not None
        dispatched.append(lease.tier)
    for start in range(0, len(dispatched), 7):
        for end in range(start + 1, len(dispatched) + 1):
            window = dispatched[start:end]
            assert sum(window) <= burst + ratio * len(window)
            assert len(window) - sum(window) >= (1 - ratio) * len(window) - burst


@given(RATIOS, st.integers(2, 20))
def test_a_storm_of_retries_gets_its_share(ratio: Fraction, burst: int) -> None:
    """With a burst of 1 the cap cuts the fractions off, so the share is then one in every ceil(1 / ratio)."""
    waiting = buffer(ratio, burst)
    waiting.add(job(i) for i in range(1000))
    waiting.add(job(10_000 + i, Tier.RETRY) for i in range(1000))
    window = [next(waiting.in_turn(), None) for _ in range(500)]
    retries = sum(lease.tier for lease in window if lease is not None)
    assert retries >= ratio * 500 - 1


def test_with_a_ratio_of_one_all_retries_go_first() -> None:
    waiting = buffer(Fraction(1), burst=1)
    waiting.add(job(i) for i in range(50))
    waiting.add(job(1000 + i, Tier.RETRY) for i in range(50))
    assert [lease.tier for lease in order(waiting)] == [1] * 50 + [0] * 50


@given(st.integers(0, 30), st.integers(0, 30), RATIOS, st.integers(1, 5))
def test_neither_tier_waits_while_the_other_is_empty(fresh: int, retries: int, ratio: Fraction, burst: int) -> None:
    waiting = buffer(ratio, burst)
    waiting.add(job(i) for i in range(fresh))
    waiting.add(job(1000 + i, Tier.RETRY) for i in range(retries))
    taken = order(waiting)
    assert len(taken) == fresh + retries
    for tier in Tier:
        ids = [lease.id for lease in taken if lease.tier == tier]
        assert ids == sorted(ids)


def test_retries_spend_no_token_while_no_fresh_job_waits() -> None:
    waiting = buffer(burst=2)
    waiting.add(job(i, Tier.RETRY) for i in range(100))
    assert len(order(waiting)) == 100
    waiting.add([job(200), job(300, Tier.RETRY)])
    assert [lease.id for lease in order(waiting)] == [300, 200]


def test_fresh_jobs_left_in_the_store_count_as_waiting() -> None:
    waiting = buffer(Fraction(1, 10), burst=1)
    waiting.fresh_in_store = 1
    waiting.add([job(1, Tier.RETRY), job(2, Tier.RETRY)])
    assert waiting.fresh_waits
    assert [lease.id for lease in order(waiting)] == [1]


def test_fresh_jobs_go_first_while_retries_have_their_share_of_workers() -> None:
    waiting = buffer()
    waiting.add([job(1, Tier.RETRY), job(2)])
    taken = next(waiting.in_turn(retries_allowed=False), None)
    assert taken is not None and taken.id == 2


def test_requeued_jobs_are_first_in_their_tiers_in_order() -> None:
    waiting = buffer()
    waiting.add([job(5), job(6)])
    waiting.requeue([job(1), job(2)])
    assert [lease.id for lease in order(waiting)] == [1, 2, 5, 6]


def test_a_requeued_retry_spends_one_token_in_all() -> None:
    waiting = buffer()
    waiting.add([job(n) for n in range(3000)])
    waiting.add([job(n, Tier.RETRY) for n in range(3000, 4000)])
    started = []
    for _ in range(500):
        in_turn = waiting.in_turn()
        frame = [next(in_turn) for _ in range(10)]
        started += frame[:2]
        waiting.requeue(frame[2:])
    assert sum(lease.tier == Tier.RETRY for lease in started) in range(
        216, 219
    )  # requeued jobs add no more to the tokens


@given(st.integers(0, 100), st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50)), st.integers(0, 10))
def test_queues_share_the_whole_capacity_equally(capacity: int, waiting: dict[str, int], turn: int) -> None:
    shares = share_out(capacity, waiting, turn)
    assert sum(shares.values()) == min(capacity, sum(waiting.values()))
    assert all(share <= waiting[queue] for queue, share in shares.items())
    hungry = [shares.get(queue, 0) for queue, n in waiting.items() if shares.get(queue, 0) < n]
    assert not hungry or max(shares.values(), default=0) <= min(hungry) + 1


@pytest.mark.parametrize(("turn", "shares"), [(0, {"b": 1, "c": 1}), (2, {"c": 1, "d": 1}), (3, {"d": 1, "b": 1})])
def test_the_odd_jobs_are_shared_out_in_turn_among_the_queues_that_have_some(turn: int, shares: dict[str, int]) -> None:
    assert share_out(2, {"a": 0, "b": 5, "c": 5, "d": 5}, turn) == shares


def test_without_a_turn_the_first_queues_get_the_odd_jobs() -> None:
    assert [*share_out(2, {"d": 5, "a": 0, "c": 5, "b": 5}, None).items()] == [("d", 1), ("c", 1)]


@pytest.mark.parametrize("queues", [500, 2000])
def test_a_frame_looks_at_no_more_buffers_than_it_has_jobs(monkeypatch: pytest.MonkeyPatch, queues: int) -> None:
    buffers = QueueBuffers(CurrentConfig(Settings(), []))
    buffers.add([job(n)._replace(queue=f"queue-{n}") for n in range(queues)])
    looks = []
    length = QueueBuffer.__len__
    monkeypatch.setattr(QueueBuffer, "__len__", lambda self: looks.append(1) or length(self))
    taken = []
    while len(buffers):
        frame = [*islice(buffers.in_turn(2, Counter), 50)]
        buffers.dispatched(len(frame))
        taken += frame
    assert {lease.id for lease in taken} == set(range(queues))
    assert len(looks) < 3 * queues


def test_each_frame_begins_with_the_next_queue() -> None:
    buffers = QueueBuffers(CurrentConfig(Settings(), []))
    buffers.add([job(n)._replace(queue="abc"[n % 3]) for n in (0, 3, 6, 1, 4, 7, 2, 5, 8)])
    firsts = []
    for _ in range(5):
        frame = [*islice(buffers.in_turn(2, Counter), 1)]
        buffers.dispatched(1)
        firsts.append(frame[0].queue)
    assert firsts == ["a", "b", "c", "a", "b"]


def test_a_frame_passes_the_turn_from_the_queue_that_it_began_with() -> None:
    """Not from one that was in front of it, and had no jobs any more."""
    buffers = QueueBuffers(CurrentConfig(Settings(), []))
    buffers.add([job(n)._replace(queue="abc"[n % 3]) for n in (0, 3, 6, 1, 4, 7, 2, 5, 8)])
    buffers.take_queue("a")
    firsts = []
    for _ in range(4):
        frame = [*islice(buffers.in_turn(2, Counter), 1)]
        buffers.dispatched(1)
        firsts.append(frame[0].queue)
    assert firsts == ["b", "c", "b", "c"]


def test_queues_without_settings_of_their_own_share_the_policies_of_handlers() -> None:
    settings = Settings(queues={"slow": QueueSettings(retry=RetrySettings(max_retries=7))})
    resolve = CurrentConfig(settings, []).resolve
    assert resolve("mail", "a") is resolve("mail", "b")
    assert [resolve("mail", queue).max_retries for queue in ("slow", "a")] == [7, 3]
