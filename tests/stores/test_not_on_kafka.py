"""The list of tests that do not run on a Kafka store has no name that no test has."""

from __future__ import annotations

import re
from pathlib import Path

from tests.stores.not_on_kafka import NOT_ON_KAFKA


def test_each_test_that_is_left_out_exists_and_has_one_reason():
    there = {
        name
        for file in Path(__file__).parent.glob("test_*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    left_out = [name.partition("[")[0] for names in NOT_ON_KAFKA.values() for name in names]
    assert sorted(left_out) == sorted({*left_out} & there)
