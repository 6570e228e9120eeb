"""The request to end a supervisor."""

from __future__ import annotations

import pytest

from supervisor.runtime.signals import DRAIN, FORCE, REPEATED, SAME, SAME_SECONDS, StopRequest


def test_the_first_signal_counts_as_the_first_however_the_end_was_requested() -> None:
    stop = StopRequest()
    stop.request("drained")
    assert stop.on_signal("SIGTERM", 0.0) == DRAIN
    assert stop.reason == "drained" and not stop.forced.is_set()
    assert stop.on_signal("SIGTERM", SAME_SECONDS) == FORCE
    assert stop.forced.is_set()


def test_the_same_signal_within_a_moment_counts_as_one_with_the_first() -> None:
    stop = StopRequest()
    stop.on_signal("SIGTERM", 10.0)
    for passed in (0.0, 0.5, 0.99):
        assert stop.on_signal("SIGTERM", 10.0 + passed * SAME_SECONDS) == SAME
        assert not stop.forced.is_set()
    assert stop.on_signal("SIGTERM", 10.0 + SAME_SECONDS) == FORCE, (
        "the moment begins with the first, not with the last"
    )
    assert stop.on_signal("SIGTERM", 10.0) == FORCE


@pytest.mark.parametrize(("first", "second"), [("SIGTERM", "SIGINT"), ("SIGINT", "SIGTERM"), ("SIGINT", "SIGQUIT")])
def test_another_signal_counts_at_once(first: str, second: str) -> None:
    stop = StopRequest()
    stop.on_signal(first, 10.0)
    assert stop.on_signal(second, 10.0) == FORCE
    assert stop.forced.is_set() and stop.reason == first


def test_the_signal_of_the_limit_of_cpu_time_which_the_kernel_repeats_forces_nothing() -> None:
    stop = StopRequest()
    assert [stop.on_signal("SIGXCPU", now) for now in (10.0, 12.0, 14.0)] == [DRAIN, REPEATED, REPEATED]
    assert not stop.forced.is_set()
    assert stop.on_signal("SIGTERM", 15.0) == FORCE
