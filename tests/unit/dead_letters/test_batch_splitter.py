"""How letters are offered: whatever is bad among them, the good ones get through, and a dead sink is called a few times only."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from supervisor.dead_letters.batch_splitter import FRUITLESS_AT_FIRST, MAX_FRUITLESS, BatchSplitter
from supervisor.stores.records import DeadLetter

COUNT = 100


def dead_letters(count: int) -> list[DeadLetter]:
    return [DeadLetter(id, 1, 1, frozenset(), {"id": id}) for id in range(count)]


def offer(parts: BatchSplitter, raises: Callable[[list[int]], bool]) -> list[list[int]]:
    """The parts as ids, to a sink that takes all of a part or raises."""
    offered = []
    while part := parts.next():
        ids = [dead_letter.id for dead_letter in part]
        offered.append(ids)
        if raises(ids):
            parts.note_raised(part, "413")
        else:
            parts.note(part, frozenset(ids))
    return offered


def test_a_sink_that_is_well_is_offered_all_at_once() -> None:
    parts = BatchSplitter(dead_letters(COUNT), 0)
    assert offer(parts, lambda ids: False) == [[*range(COUNT)]]
    assert (parts.left, parts.refused) == ([], [])


def test_a_sink_that_failed_and_is_well_again_is_offered_a_part_and_then_ever_more() -> None:
    assert offer(BatchSplitter(dead_letters(8), 3), lambda ids: False) == [[0], [1, 2], [3, 4, 5, 6], [7]]


def test_a_sink_that_goes_down_meanwhile_is_given_up() -> None:
    accepted: list[int] = []
    calls = offer(BatchSplitter(dead_letters(COUNT), 7), lambda ids: bool(accepted) or accepted.append(1) is not None)
    assert len(calls) == 1 + MAX_FRUITLESS


@pytest.mark.parametrize("bad", [0, 1, 49, 50, 99])
def test_one_bad_letter_stands_alone_in_the_end(bad: int) -> None:
    parts = BatchSplitter(dead_letters(COUNT), 0)
    calls = offer(parts, lambda ids: bad in ids)
    assert [dead_letter.id for dead_letter in parts.refused] == [dead_letter.id for dead_letter in parts.left] == [bad]
    assert [bad] in calls and len(calls) <= 15


@pytest.mark.parametrize("failures", [0, 1, 3, 7, 1000])
def test_a_dead_sink_is_called_a_few_times_only(failures: int) -> None:
    parts = BatchSplitter(dead_letters(COUNT), failures)
    assert len(offer(parts, lambda ids: True)) == FRUITLESS_AT_FIRST
    assert len(parts.left) == COUNT


def test_what_a_sink_leaves_out_is_not_offered_in_halves() -> None:
    parts = BatchSplitter(dead_letters(4), 0)
    assert parts.note(parts.next(), frozenset({0, 1, 3})) == [it for it in dead_letters(4) if it.id != 2]
    assert (parts.next(), [dead_letter.id for dead_letter in parts.refused]) == ([], [2])


@pytest.mark.parametrize("bad", [2, 10, 20, 50, 80, 99])
def test_among_many_bad_letters_the_good_ones_are_found_in_the_end(bad: int) -> None:
    """Round by round, each time first those that have not been offered yet."""
    waiting, failures = dead_letters(COUNT), 0
    wrong = set(Random(bad).sample(range(COUNT), bad))
    for _ in range(50):
        parts = BatchSplitter(waiting, failures)
        offer(parts, lambda ids: not wrong.isdisjoint(ids))
        failures = max(0, failures - 1) if parts.accepted else failures + 1
        waiting = [dead_letter for dead_letter in parts.left if dead_letter.id not in parts.offered] + parts.refused
    assert {dead_letter.id for dead_letter in waiting} == wrong
