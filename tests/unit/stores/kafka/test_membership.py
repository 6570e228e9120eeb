"""Whether a supervisor has the partitions that its group gives it."""

from __future__ import annotations

import logging

import pytest

from supervisor.stores.kafka.membership import Membership
from tests.stores.factories import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def partitions():
    return []


@pytest.fixture
def membership(clock, partitions):
    made = Membership("mail", lambda: bool(partitions), settle=15.0, late=60.0, now=clock)
    made.wait()
    return made


def test_a_group_that_gives_partitions_is_joined(membership, partitions):
    assert not membership.joined
    partitions.append("orders/0")
    membership.assigned()
    assert membership.joined


def test_an_assignment_without_partitions_counts_once_others_could_have_given_some_up(membership, clock):
    membership.assigned()
    assert not membership.joined
    clock.step(10.0)
    membership.assigned()
    assert not membership.joined
    clock.step(5.0)
    assert membership.joined
    clock.step(60.0)
    assert not membership.problems()


def test_a_supervisor_that_has_given_up_all_partitions_is_not_joined_until_it_is_given_some(
    membership, partitions, clock
):
    partitions.append("orders/0")
    membership.assigned()
    clock.step(100.0)
    membership.wait()
    partitions.clear()
    assert not membership.joined
    membership.assigned()
    clock.step(15.0)
    assert membership.joined


def test_a_group_that_gives_nothing_is_logged_once_for_each_wait(membership, clock, caplog):
    with caplog.at_level(logging.WARNING, "supervisor"):
        membership.report_if_late()
        assert not caplog.messages
        clock.step(61.0)
        membership.report_if_late()
        membership.report_if_late()
        assert len(caplog.messages) == 1
        assert caplog.messages[0].startswith("the group mail has given no partition for 61s: look at ")
        membership.wait()
        clock.step(61.0)
        membership.report_if_late()
        assert len(caplog.messages) == 2


def test_a_partition_that_is_read_anew_is_no_wait_for_the_group(membership, partitions, clock):
    membership.assigned()
    partitions.append("orders/0")
    membership.wait()
    clock.step(100.0)
    assert not membership.problems() and membership.joined
