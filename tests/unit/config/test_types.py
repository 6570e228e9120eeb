from __future__ import annotations

import pytest

from supervisor.config.types import limit


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
