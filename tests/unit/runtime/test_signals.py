"""The request to end a supervisor."""

from __future__ import annotations

from supervisor.runtime.signals import StopRequest


def test_the_first_signal_counts_as_the_first_however_the_end_was_requested() -> None:
    stop = StopRequest()
    stop.request("drained")
    stop.on_signal("SIGTERM")
    assert stop.reason == "drained" and not stop.forced.is_set()
    stop.on_signal("SIGTERM")
    assert stop.forced.is_set()
