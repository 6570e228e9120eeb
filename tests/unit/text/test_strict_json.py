from __future__ import annotations

import datetime
import json
from collections import OrderedDict
from decimal import Decimal
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.text.printable import printable
from supervisor.text.strict_json import MAX_DEPTH, NotJSON, decode, encode

LIMIT = 1_000_000

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


def nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


@given(values)
def test_a_json_value_comes_back_unchanged_and_others_read_the_same(value):
    text = encode(value, limit=LIMIT)
    assert decode(text) == value
    assert json.loads(text) == value


def test_tuples_are_lists():
    assert encode((1, (2,)), limit=LIMIT) == "[1,[2]]"


class UserText(str):
    pass


class Half(float):
    def __repr__(self) -> str:
        return "half"


class Pair(NamedTuple):
    one: object
    two: object


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Half(0.5), "0.5"),
        ({"a": [Half(0.5)]}, '{"a":[0.5]}'),
        (Pair(1, Pair("two", Half(3))), '[1,["two",3.0]]'),
        (OrderedDict(a=UserText("b")), '{"a":"b"}'),
    ],
)
def test_subclasses_of_json_types_are_encoded_as_these_types(value, text):
    assert encode(value, limit=LIMIT) == text


async def unawaited() -> None:
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [{"b": {1}}]}, r"^result\.a\[0\]\.b: set is not JSON$"),
        ([0, {"a b": Half("nan")}], r"^result\[1\]\['a b'\]: nan is not a finite number$"),
        ({"a": Pair(1, {2: 3})}, r"^result\.a\[1\]: key 2 is not text$"),
        ({"a": (n for n in ())}, r"^result\.a: a generator is not JSON: nobody iterated over it$"),
    ],
)
def test_the_place_of_a_value_that_is_not_json_is_named(value, message):
    with pytest.raises(NotJSON, match=message):
        encode(value, limit=LIMIT, what="result")


def test_a_coroutine_as_a_result_was_not_awaited():
    coroutine = unawaited()
    with pytest.raises(NotJSON, match=r"^result: a coroutine is not JSON: nobody awaited it$"):
        encode(coroutine, limit=LIMIT, what="result")
    coroutine.close()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "nan is not a finite number"),
        ([float("inf")], "inf is not a finite number"),
        ({"a": -float("inf")}, "not a finite number"),
        (2**63, "not a 64-bit integer"),
        (-(2**63) - 1, "not a 64-bit integer"),
        (10**400, "not a 64-bit integer"),
        ({1: "a"}, "key 1 is not text"),
        ({None: "a"}, "key None is not text"),
        (b"bytes", "bytes is not JSON"),
        ({"a", "b"}, "set is not JSON"),
        (Decimal("1.5"), "Decimal is not JSON"),
        (datetime.datetime(2030, 1, 1), "datetime is not JSON"),
        (type("bool", (), {"__module__": "numpy"})(), r"numpy\.bool is not JSON"),
        (object(), "object is not JSON"),
        ("\ud800", "not JSON"),
        ({"\udfff": 1}, "not JSON"),
        (nested(MAX_DEPTH + 1), "nested deeper than 100"),
        (nested(100_000), "nested deeper than 100"),
    ],
)
def test_a_value_that_is_not_json_is_refused(value, why):
    with pytest.raises(NotJSON, match=why) as refused:
        encode(value, limit=LIMIT, what="result")
    assert str(refused.value).startswith(("result: ", "result[0]: ", "result.a: "))


def test_a_value_that_contains_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(NotJSON, match="nested deeper"):
        encode(loop, limit=LIMIT)


def test_a_value_that_is_shared_again_and_again_is_not_walked_through_to_its_end():
    shared: list[object] = []
    for _ in range(16):
        shared = [shared, shared]
    with pytest.raises(NotJSON, match=r"^payload: more than 1000 values, expected at most 1000 bytes of JSON$"):
        encode(shared, limit=1000)


def test_the_deepest_and_the_largest_value_are_encoded():
    assert decode(encode(nested(MAX_DEPTH), limit=LIMIT)) == nested(MAX_DEPTH)
    assert encode("é", limit=4) == '"é"'
    with pytest.raises(NotJSON, match="4 bytes of JSON, expected at most 3"):
        encode("é", limit=3)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1", "nul", "NaN", "Infinity", "[1,]", "'a'", '{"a":1,}', '"\\ud800"', "\ufeff1", b"\xff", "1 2",
     "[" * 101 + "]" * 101, "[" * 5_000_000, "[" * 1000 + "1" * 19 + "]" * 1000, "9223372036854775808", "1e999", "123456789012345678901234567890",
     '{"a": [-9223372036854775809]}', b"[18446744073709551616]", "1" * 5000],
    ids=lambda text: repr(text)[:20],
)  # fmt: skip
def test_text_that_is_not_strict_json_is_refused(text):
    with pytest.raises(NotJSON, match="payload: "):
        decode(text)


def test_long_numbers_may_be_json():
    assert decode("[-9223372036854775808, 9223372036854775807]") == [-(2**63), 2**63 - 1]
    assert decode('{"1234567890123456789012": 0.1234567890123456789012}') == {
        "1234567890123456789012": 0.1234567890123456789012
    }
    assert decode("12345678901234567890.0") == 12345678901234567890.0


def test_null_is_json():
    assert decode("null") is None


@pytest.mark.parametrize(
    ("text", "shown"), [("a\x00b", "a\\x00b"), ("\udcff", "\\udcff"), ("é\n\t✓", "é\n\t✓"), ("", "")]
)
def test_printable_text_has_its_control_characters_escaped(text, shown):
    assert printable(text) == shown


@given(st.text(st.characters(codec=None)))
def test_every_store_takes_printable_text(text):
    shown = printable(text)
    assert "\x00" not in shown
    assert decode(encode(shown, limit=LIMIT)) == shown
