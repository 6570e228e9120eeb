from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.stores.kafka.partitions import Assignment, Lines, Partition, Record, line_of

KEYS = st.lists(st.sampled_from([None, b"", b"a", b"b", b"c"]), max_size=40)


def record(partition, offset, key=None, ordering="key", value=b"{}", headers=()):
    line = line_of(ordering, partition, key)
    return Record(partition.number << 20 | offset, partition, offset, None, key, value, headers, line)


def assigned(*numbers, records=100, size=10_000):
    assignment = Assignment(records, size)
    for number in numbers:
        assignment.partitions["t", number] = Partition("t", number, number + 1)
    return assignment, [assignment.partitions["t", number] for number in numbers]


def fetch(assignment, partition, offset, key=None, **options):
    assert partition.offsets.fetched(offset)
    return assignment.add(record(partition, offset, key, **options))


def test_records_of_a_key_share_a_line_in_their_partition_only():
    one, other = Partition("t", 0, 1), Partition("t", 1, 2)
    assert line_of("key", one, b"a") == line_of("key", one, b"a")
    assert len({line_of("key", *each) for each in ((one, b"a"), (one, b"b"), (one, b""), (other, b"a"))}) == 4
    assert line_of("key", one, None) is line_of("unordered", one, b"a") is None
    assert line_of("partition", one, None) == line_of("partition", one, b"a") != line_of("partition", other, None)


@given(KEYS, st.lists(st.integers(0, 10), max_size=40), st.sampled_from(["key", "partition", "unordered"]))
def test_a_line_runs_one_at_a_time_in_order_and_all_records_run(keys, picks, ordering):
    lines, partition = Lines(), Partition("t", 0, 1)
    records = [record(partition, offset, key, ordering) for offset, key in enumerate(keys)]
    may_run = [each for each in records if lines.add(each)]
    ran = defaultdict(list)
    for pick in [*picks, *[0] * len(records)]:
        if may_run:
            assert len({each.line for each in may_run if each.line}) == sum(each.line is not None for each in may_run)
            each = may_run.pop(pick % len(may_run))
            ran[each.line].append(each.offset)
            if (following := lines.done(each)) is not None:
                may_run.append(following)
    assert sorted(offset for offsets in ran.values() for offset in offsets) == list(range(len(keys)))
    assert all(offsets == sorted(offsets) for line, offsets in ran.items() if line is not None)
    assert not list(lines.waiting()) and not lines._waiting


def test_records_without_a_key_wait_for_none():
    assignment, (partition,) = assigned(0)
    assert [fetch(assignment, partition, offset, key) for offset, key in enumerate([b"a", None, b"a", None, b"b"])] == [
        True, True, False, True, True,
    ]  # fmt: skip


def test_a_dropped_partition_leaves_nothing_and_the_others_as_they_are():
    assignment, (one, other) = assigned(0, 1)
    for offset in range(4):
        fetch(assignment, one, offset, b"a")
        fetch(assignment, other, offset, b"a")
    first = min(assignment.records)
    dropped = assignment.drop([one])
    assert [each.offset for each in dropped] == [0, 1, 2, 3]
    assert {each.partition for each in assignment.records.values()} == {other}
    assert list(assignment.partitions.values()) == [other]
    assert assignment.done(first) is None, "it is of no assigned partition"
    following = assignment.done(other.number << 20)
    assert following is not None and (following.partition, following.offset) == (other, 1)
    assert [each.offset for each in assignment.lines.waiting()] == [2, 3]


def test_a_partition_that_is_assigned_again_is_not_dropped_with_its_earlier_assignment():
    assignment, (old,) = assigned(0)
    new = assignment.partitions["t", 0] = Partition("t", 0, 2)
    assignment.drop([old])
    assert list(assignment.partitions.values()) == [new]


def test_what_is_done_is_no_longer_in_the_buffer():
    assignment, (partition, _) = assigned(0, 1, records=8, size=400)
    assert assignment.fullness(partition) == 0
    fetch(assignment, partition, 0, b"key", value=b"x" * 40, headers=[("name", b"123"), ("n", None)])
    assert partition.bytes == 3 + 40 + 7 + 1
    assert assignment.fullness(partition) == 51 / 200
    fetch(assignment, partition, 1, value=None)
    fetch(assignment, partition, 2, value=b"")
    assert assignment.fullness(partition) == 3 / 4
    for id in list(assignment.records):
        assignment.done(id)
    assert (partition.bytes, assignment.fullness(partition)) == (0, 0)


@pytest.mark.parametrize("numbers, fullness", [((0,), 0.5), ((0, 1), 1.0), (range(8), 4.0)])
def test_the_buffer_is_shared_equally(numbers, fullness):
    assignment, (partition, *_) = assigned(*numbers, records=8)
    for offset in range(4):
        fetch(assignment, partition, offset)
    assert assignment.fullness(partition) == fullness


def test_no_record_is_fetched_while_the_metadata_of_a_commit_is_full():
    assignment, (partition,) = assigned(0)
    partition.metadata_full = True
    assert assignment.fullness(partition) > 1


def test_the_records_of_an_assignment_have_tokens_of_their_own():
    assert Partition("t", 0, 1).token < Partition("t", 0, 1).token + 1000 < Partition("t", 0, 2).token
