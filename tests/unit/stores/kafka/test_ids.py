from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config import kafka as config
from supervisor.stores.kafka.ids import MAX_OFFSET, MAX_PARTITIONS, MAX_TOPICS, Place, job_id, place_of, topic_numbers

PLACES = st.builds(
    Place, st.integers(1, MAX_TOPICS), st.integers(0, MAX_PARTITIONS - 1), st.integers(0, MAX_OFFSET)
)  # fmt: skip
NAMES = st.lists(st.text("abcdefgh.-_", min_size=1, max_size=8), unique=True, max_size=60)


@given(PLACES)
def test_a_place_is_found_by_its_id_which_every_store_can_keep(place):
    id = job_id(place)
    assert place_of(id) == place
    assert 0 < id < 2**63


@given(PLACES, PLACES)
def test_no_two_places_share_an_id(one, other):
    assert (job_id(one) == job_id(other)) == (one == other)


@given(PLACES, PLACES)
def test_ids_of_a_partition_are_in_the_order_of_its_offsets(one, other):
    later = other._replace(topic=one.topic, partition=one.partition)
    assert (job_id(one) < job_id(later)) == (one.offset < later.offset)


@pytest.mark.parametrize("partition, offset", [(MAX_PARTITIONS, 0), (0, MAX_OFFSET + 1), (2**31 - 1, 2**63 - 1)])
def test_a_place_that_has_no_id_is_refused(partition, offset):
    with pytest.raises(ValueError, match="expected a partition below 4096 and an offset up to 4398046511103"):
        job_id(Place(1, partition, offset))


@given(NAMES, st.randoms())
def test_topics_have_numbers_of_their_own_that_do_not_depend_on_their_order(names, draw):
    numbers = topic_numbers(names)
    assert len(set(numbers.values())) == len(names)
    assert all(1 <= number <= MAX_TOPICS for number in numbers.values())
    shuffled = list(names)
    draw.shuffle(shuffled)
    assert topic_numbers(shuffled) == numbers


def test_numbers_last_from_one_run_to_the_next():
    assert topic_numbers(["orders", "mails"]) == {"mails": 248, "orders": 342}


def test_as_many_topics_as_a_config_may_have_have_numbers():
    names = [f"topic-{n}" for n in range(config.MAX_TOPICS)]
    assert len(set(topic_numbers(names).values())) == config.MAX_TOPICS == MAX_TOPICS
