from __future__ import annotations

from supervisor.text.suggestions import did_you_mean, did_you_mean_or_all

KNOWN = ["timeout", "heartbeat", "queue"]


def test_the_nearest_name_is_suggested() -> None:
    assert did_you_mean("timout", KNOWN) == ", did you mean 'timeout'?"
    assert did_you_mean("colour", KNOWN) == ""


def test_a_common_prefix_makes_no_names_alike() -> None:
    hooks = ["supervisor_events", "supervisor_run"]
    assert did_you_mean("supervisor_evens", hooks, prefix="supervisor_") == ", did you mean 'supervisor_events'?"
    assert did_you_mean("supervisor_of_the_world", hooks, prefix="supervisor_") == ""


def test_all_names_are_listed_if_none_is_near() -> None:
    assert did_you_mean_or_all("timout", KNOWN) == ", did you mean 'timeout'?"
    assert did_you_mean_or_all("colour", KNOWN) == "; expected one of timeout, heartbeat, queue"
    assert did_you_mean_or_all("colour", []) == ""
