"""Mistakes in the settings of librdkafka that are found before the brokers are asked."""

from __future__ import annotations

import pytest

from supervisor.errors import StoreError
from supervisor.stores.kafka.client_check import is_cooperative, require_settings
from tests.stores.simulated_kafka import kafka_settings


def check(**kafka):
    require_settings(
        kafka_settings({"orders": "order"}, kafka={key.replace("_", "."): it for key, it in kafka.items()})
    )


def test_the_group_protocol_of_kafka_4_is_allowed_without_the_settings_that_it_does_not_have():
    check(group_protocol="consumer")
    with pytest.raises(StoreError, match=r"partition\.assignment\.strategy"):
        check(group_protocol="consumer", partition_assignment_strategy="range")


@pytest.mark.parametrize(
    ("kafka", "expected"),
    [
        ({}, True),
        ({"group.protocol": "consumer"}, True),
        ({"group.protocol": "classic"}, True),
        ({"partition.assignment.strategy": "range,roundrobin"}, False),
    ],
)
def test_which_groups_take_single_partitions(kafka, expected):
    assert is_cooperative(kafka) is expected


def test_a_file_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"ssl\.ca\.location: no such file: .*ca\.pem; see the list"):
        check(security_protocol="SSL", ssl_ca_location=f"{tmp_path}/ca.pem")
