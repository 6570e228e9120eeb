"""The memory of the limits and sessions is bounded, however many addresses ask."""

from __future__ import annotations

import pytest

from supervisor.http.rates import Rates, Requests, WrongTokens, group
from supervisor.http.sessions import MAX_SESSIONS, Sessions


def test_the_address_not_seen_for_longest_is_forgotten() -> None:
    requests = Requests(Rates(requests_at_once=2, max_addresses=3), lambda: 0.0)
    for address in "abcabd":
        assert requests.wait(address) == 0.0
    assert len(requests) == 3
    assert requests.wait("a") > 0.0 and requests.wait("c") == 0.0
    wrong = WrongTokens(Rates(wrong_tokens=1, max_addresses=3), lambda: 0.0)
    for address in "abcad":
        wrong.wrong(address)
    assert len(wrong) == 3
    assert wrong.wait("a") == 2.0 and wrong.wait("b") == 0.0


def test_a_wrong_token_is_forgotten_after_a_time() -> None:
    now = 0.0
    wrong = WrongTokens(Rates(wrong_tokens=2, forget_after=600), lambda: now)
    wrong.wrong("a")
    now = 601.0
    wrong.wrong("a")
    assert wrong.wait("a") == 0.0
    for _ in range(5000):
        wrong.wrong("a")
    assert wrong.wait("a") == 60.0


def test_the_oldest_session_ends_when_there_are_too_many() -> None:
    now = 0.0
    sessions = Sessions(lambda: now)
    first, second, *_ = [sessions.open() for _ in range(MAX_SESSIONS + 1)]
    assert len(sessions) == MAX_SESSIONS and not sessions.is_open(first) and sessions.is_open(second)
    now = 13 * 3600
    sessions.open()
    assert len(sessions) == 1 and not sessions.is_open(second)
    sessions.close("\ud800 never opened")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8::1", "2001:0db8:0000:0000::/64"),
        ("fe80::1%eth0", "fe80:0000:0000:0000::/64"),
        ("no address", "no address"),
    ],
)
def test_addresses_that_one_client_can_choose_from_are_one(address: str, expected: str) -> None:
    assert group(address) == expected
