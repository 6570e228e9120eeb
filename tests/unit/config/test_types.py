from __future__ import annotations

import pytest

from supervisor.config.types import limit, shares


class Anything:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_a_value_that_is_equal_to_none_is_not_none() -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        limit(Anything(), None)


def test_none_is_no_limit() -> None:
    assert limit("none", None) is None
    assert limit(None, None) is None
    assert limit("1s", None) == 1.0


def test_groups_have_shares_by_name() -> None:
    assert shares({"tenant:7": 3, "tenant:8": 1.5}, None) == {"tenant:7": 3.0, "tenant:8": 1.5}


@pytest.mark.parametrize(
    "wrong", [3, {"": 1}, {7: 1}, {"a": 0.5}, {"a": 1001}, {"a": True}, {"a": "2"}, {"a": float("nan")}]
)
def test_other_shares_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="expected a mapping of names to numbers from 1 to 1000"):
        shares(wrong, None)
