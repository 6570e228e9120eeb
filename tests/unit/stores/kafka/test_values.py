from __future__ import annotations

import json
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.stores.kafka.values import (
    TOMBSTONE,
    created_at,
    handler_of,
    headers_of,
    payload_of,
    raw_record,
)
from supervisor.stores.limits import MAX_TIME
from supervisor.text.strict_json import NO_VALUE, NotJSON, decode

HEADERS = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=6)
PLACE = {"topic": "orders", "partition": 3, "offset": 7}


def headers(own=(), key=None, timestamp=None):
    return json.loads(headers_of(own, **PLACE, key=key, timestamp=timestamp))


@pytest.mark.parametrize(
    "kind, value, payload",
    [
        ("json", b'{"a": 1}', '{"a": 1}'),
        ("json", "\u20ac".encode(), "\u20ac"),
        ("text", b"", '""'),
        ("text", b'a"\x00\n\xc3\xa9', '"a\\"\\u0000\\n\u00e9"'),
        ("bytes", b"", '""'),
        ("bytes", b"\x00\xff", '"AP8="'),
    ],
)
def test_a_value_is_the_payload(kind, value, payload):
    assert payload_of(value, kind) == payload


@pytest.mark.parametrize("kind", ["json", "text", "bytes"])
def test_a_tombstone_is_rejected_with_its_reason(kind):
    assert payload_of(None, kind) == TOMBSTONE
    with pytest.raises(NotJSON, match="a tombstone: the record has no value"):
        decode(payload_of(None, kind))


@pytest.mark.parametrize(
    "value", [b"", b"\xff", b"{", b"1 2", b"NaN", b"\xef\xbb\xbf{}", b"1\x00", b'"\x00"', b"1" * 30]
)
def test_a_value_that_is_no_json_is_rejected(value):
    with pytest.raises(NotJSON):
        decode(payload_of(value, "json"))


def test_a_value_that_is_not_utf8_is_rejected_with_the_place_of_the_error():
    for kind in ("json", "text"):
        with pytest.raises(NotJSON, match=r"not UTF-8: .*can't decode byte 0xff in position 1"):
            decode(payload_of(b"a\xff", kind))


@given(st.binary(max_size=50))
def test_texts_and_bytes_keep_every_value_that_they_can_hold(value):
    assert b64decode(decode(payload_of(value, "bytes"))) == value
    payload = payload_of(value, "text")
    try:
        expected = value.decode()
    except UnicodeDecodeError:
        assert payload.startswith(NO_VALUE)
    else:
        assert decode(payload) == expected


def test_headers_are_texts_and_the_last_of_a_name_counts():
    own = [("a", b"1"), ("b", None), ("a", b"2"), ("c", b"\xff"), ("d", b"")]
    assert headers(own, key=b"\x00", timestamp=5) == {
        "a": "2", "b": None, "c": {"base64": "/w=="}, "d": "",
        "kafka.topic": "orders", "kafka.partition": 3, "kafka.offset": 7, "kafka.key": "AA==", "kafka.timestamp": 5,
    }  # fmt: skip


def test_a_record_can_not_feign_its_place():
    own = [("kafka.topic", b"other"), ("kafka.offset", b"0"), ("kafka.key", b"x")]
    assert headers(own) == headers()
    assert headers()["kafka.key"] is headers()["kafka.timestamp"] is None


@given(HEADERS, st.none() | st.binary(max_size=20), st.none() | st.integers(1, 2**63 - 1), st.none() | st.binary())
def test_no_record_is_an_error(own, key, timestamp, value):
    """An error would end the consumer, at the same record each time."""
    decode(headers_of(own, topic="t", partition=0, offset=2**42, key=key, timestamp=timestamp), "headers")
    assert handler_of(own, "handler")
    for kind in ("json", "text", "bytes"):
        payload_of(value, kind).encode()
    assert 0 <= created_at(timestamp, 5) <= MAX_TIME
    json.dumps(raw_record(**PLACE, epoch=1, timestamp=timestamp, key=key, value=value, headers=own))


@pytest.mark.parametrize(
    "own, handler",
    [
        ([("handler", b"mail")], "mail"),
        ([("handler", b"mail"), ("handler", b"scan")], "scan"),
        ([("handler", b"mail"), ("handler", None), ("handler", b"")], "mail"),
        ([("handler", b"\xffmail")], "\\xffmail"),
        ([("handler", b"a\x00b")], "a\\x00b"),
        ([("Handler", b"mail")], "(no header 'handler')"),
        ([], "(no header 'handler')"),
    ],
)
def test_the_last_header_that_names_a_handler_counts(own, handler):
    assert handler_of(own, "handler") == handler


@pytest.mark.parametrize(
    "timestamp, expected",
    [
        (None, 42),
        (0, 0),
        (1, 1000),
        (-1, 42),
        (MAX_TIME // 1000, MAX_TIME // 1000 * 1000),
        (2**63 - 1, 42),
        (2**51, 42),
    ],
)
def test_a_time_that_no_store_could_keep_is_now(timestamp, expected):
    assert created_at(timestamp, 42) == expected


def test_a_dead_letter_has_key_value_and_headers_as_they_were():
    own = [("a", b"\xff"), ("a", None), ("b", b"")]
    assert raw_record(**PLACE, epoch=2, timestamp=9, key=b"", value=b"\x00", headers=own) == {
        **PLACE, "epoch": 2, "timestamp": 9, "key": "", "value": "AA==",
        "headers": [["a", "/w=="], ["a", None], ["b", ""]],
    }  # fmt: skip
