from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.stores.kafka.offsets import MAX_METADATA, VERSION, Metadata, Offsets, done_ranges

OFFSETS = st.integers(0, 60)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("fetch"), st.integers(0, 3)),  # with so many offsets without a record before it
        st.tuples(st.just("done"), st.integers(0, 20)),
        st.tuples(st.just("end"), st.integers(0, 3)),
        st.tuples(st.just("again"), st.integers(0, 20)),
    ),
    max_size=60,
)


class Run:
    """A partition that is read from an offset on, and what was done with it."""

    def __init__(self, offsets: Offsets, at: int) -> None:
        self.offsets, self.at = offsets, at
        self.fetched: list[int] = []
        self.undone: list[int] = []
        self.skipped: list[int] = []

    def take(self, steps: Sequence[tuple[str, int]]) -> Run:
        for step, n in steps:
            getattr(self, step)(n)
            self.check()
        return self

    def fetch(self, gap: int) -> None:
        self.at += gap
        runs = self.offsets.fetched(self.at)
        self.fetched.append(self.at)
        (self.undone if runs else self.skipped).append(self.at)
        self.at += 1

    def done(self, n: int) -> None:
        if self.undone:
            self.offsets.done(self.undone.pop(n % len(self.undone)))

    def end(self, gap: int) -> None:
        self.at += gap
        self.offsets.reached_end(self.at)

    def again(self, n: int) -> None:
        if self.fetched:
            assert not self.offsets.fetched(self.fetched[n % len(self.fetched)])

    def check(self) -> None:
        committable = self.offsets.committable
        assert committable == min(self.undone, default=self.offsets.position)
        assert self.offsets.undone == len(self.undone)


@given(st.none() | OFFSETS, STEPS)
def test_the_committable_offset_is_the_first_undone_one_whatever_happens(position, steps):
    Run(Offsets(position), position or 0).take(steps)


def restarted(offsets: Offsets) -> Offsets:
    committed = offsets.committable
    assert committed is not None
    return Offsets(committed, done_ranges(committed, offsets.metadata().text))


@given(OFFSETS, STEPS, STEPS, st.integers(0, 40))
def test_a_restart_runs_the_undone_records_and_no_other(first, steps, more, read):
    """Also if the partition changes hands again before all that was done has been read."""
    run = Run(Offsets(first), first).take([*steps, ("end", 0)])
    undone, log = set(run.undone), list(run.fetched)
    offsets = restarted(run.offsets)
    start = offsets.position
    assert start is not None
    again = [offset for offset in log if offset >= start]
    ran = {offset for offset in again[:read] if offsets.fetched(offset)}
    assert ran == undone & set(again[:read])
    ended = {offset for offset in ran if offset % 2}
    for offset in ended:
        offsets.done(offset)
    third = restarted(offsets)
    start = third.position
    assert start is not None
    assert {offset for offset in log if offset >= start and third.fetched(offset)} == undone - ended


def test_nothing_is_committed_of_a_partition_that_is_not_known():
    offsets = Offsets()
    assert (offsets.committable, offsets.metadata()) == (None, Metadata("", True))
    assert offsets.fetched(7)
    assert offsets.committable == 7


def test_an_offset_without_a_record_is_done_once_a_later_one_was_fetched_or_the_end_reached():
    offsets = Offsets(5)
    assert offsets.committable == 5
    offsets.fetched(8)
    assert offsets.committable == 8
    offsets.reached_end(12)
    assert offsets.committable == 8
    offsets.done(8)
    assert offsets.committable == 12
    offsets.reached_end(10)
    assert offsets.committable == 12


def test_metadata_that_is_too_long_has_the_lowest_of_the_done_offsets_and_says_so():
    offsets = Offsets(0)
    for offset in range(20_000):
        offsets.fetched(offset)
    draw = random.Random(1)
    done = sorted(draw.sample(range(1, 20_000), 10_000))
    for offset in done:
        offsets.done(offset)
    text, complete = offsets.metadata()
    assert not complete
    assert MAX_METADATA / 4 < len(text) <= MAX_METADATA
    kept = [offset for begin, end in done_ranges(0, text) for offset in range(begin, end)]
    assert kept == done[: len(kept)] and len(kept) > 1000
    assert offsets.metadata(limit=len(VERSION)) == ("", False)


def test_ten_thousand_records_of_a_hundred_keys_fit_into_the_metadata():
    """One slow key holds the commit back, all others go on."""
    offsets = Offsets(10**9)
    for offset in range(10**9, 10**9 + 10_000):
        offsets.fetched(offset)
    for offset in range(10**9, 10**9 + 10_000):
        if offset % 100 != 17:
            offsets.done(offset)
    text, complete = offsets.metadata()
    assert complete and len(text) < 200
    assert sum(end - begin for begin, end in done_ranges(offsets.committable, text)) == 9_900 - 17


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "",
        "x",
        "another program",
        VERSION,
        f"{VERSION}!",
        f"{VERSION}QUJD",
        f"{VERSION}\u20ac",
        VERSION[:-2],
        "{}",
    ],
)
def test_metadata_of_another_program_means_nothing(metadata):
    assert done_ranges(5, metadata) == []


@given(st.text(max_size=100) | st.binary(max_size=60).map(lambda data: VERSION + data.decode("latin-1")))
def test_no_metadata_is_an_error(metadata):
    for begin, end in done_ranges(5, metadata):
        assert 5 <= begin <= end
