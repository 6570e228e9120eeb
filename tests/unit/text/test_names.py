from __future__ import annotations

import pytest

from supervisor.text.names import MAX_NAME, is_name


@pytest.mark.parametrize("name", ["mail", "a", "grün und blau", "x" * MAX_NAME])
def test_printable_text_is_a_name(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("value", ["", " mail", "mail\u2003", "a\nb", "\udcff", "x" * (MAX_NAME + 1), None, 5, b"mail"])
def test_any_other_value_is_no_name(value: object) -> None:
    assert not is_name(value)
