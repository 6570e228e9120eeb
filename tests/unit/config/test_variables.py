"""Variables in scalars: defaults as in a shell, and values that are percent-encoded where a URL needs it."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.config.contradictions import url_problem
from supervisor.config.loading import load
from supervisor.config.variables import expand

VALUES = {
    "A": "a",
    "EMPTY": "",
    "B": "b}",
    "PASSWORD": 'p@/#%: \u00e9"w',
    "LOGIN": "me:p/w",
    "URL": "x://me:p%2Fw@host/d",
}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("${A:-x}", "a"),
        ("${EMPTY:-x}", "x"),
        ("[${EMPTY}]", "[]"),
        ("${NONE:-}", ""),
        ("${NONE:-${EMPTY:-${B}}}.", "b}."),
        ("${A:-${NONE}}", "a"),
        ("${NONE:-<${A}${A}>}}", "<aa>}"),
        ("$${A} ${NONE:-$${A}}", "${A} ${A}"),
        ("$$ $A {} ${NONE:-$}", "$$ $A {} $"),
    ],
)
def test_variables_and_their_defaults_are_replaced_as_in_a_shell(text: str, expanded: str) -> None:
    assert expand(text, VALUES, []) == expanded


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("x://me:${PASSWORD}@host/d", "x://me:p%40%2F%23%25%3A%20%C3%A9%22w@host/d"),
        ("x://${PASSWORD}:${NONE:-a/b}@host", "x://p%40%2F%23%25%3A%20%C3%A9%22w:a%2Fb@host"),
        ("x://${LOGIN}@host/d", "x://me:p%2Fw@host/d"),
        ("x://host/d?key=${LOGIN}&k2=-${LOGIN}", "x://host/d?key=me%3Ap%2Fw&k2=-me%3Ap%2Fw"),
        ("${URL}", VALUES["URL"]),
        ("${URL}?sslmode=${A}", VALUES["URL"] + "?sslmode=a"),
        ("x://${LOGIN}/d", "x://me:p/w/d"),
        ("x://host/${LOGIN}?${LOGIN}", "x://host/me:p/w?me:p/w"),
        ("Bearer ${LOGIN}@host", "Bearer me:p/w@host"),
        ("x://a\0b:${LOGIN}@host", "x://a\0b:me%3Ap%2Fw@host"),
    ],
)
def test_a_value_in_the_login_or_the_query_of_a_url_is_encoded(text: str, expanded: str) -> None:
    assert expand(text, VALUES, []) == expanded


@pytest.mark.parametrize("password", ["pw/Secret9x", "pw@Secret9x", "pw#?Secret9x", "pw%zzSecret9x", "a [:]Secret9x"])
def test_a_password_may_have_any_character_and_stays_a_secret(write: Any, password: str) -> None:
    settings = load(write("store: postgresql://jobs:${PASSWORD}@db/jobs"), {"PASSWORD": password})
    assert settings.store.shown == "postgresql://jobs:***@db/jobs"
    assert password in settings.secrets


CUT = ["pw/Secret9x", "pw@Secret9x", "pw%zzSecret9x", "pw/@Secret9x", "12/Secret9x", "pw Secret9x", "12/x?Secret9x"]


@pytest.mark.parametrize("password", CUT)
def test_a_whole_url_that_cuts_its_password_is_refused_and_no_part_is_shown(write: Any, password: str) -> None:
    url = f"postgresql://jobs:{password}@db/jobs"
    with pytest.raises(Exception, match="write @ / : % and spaces as") as refused:
        load(write("store: ${URL}"), {"URL": url})
    assert "Secret9x" not in str(refused.value)
    assert "Secret9x" not in refused.value.settings.store.shown  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///db?host=/run/a@b", "postgres://", "postgresql://u:p@h1:1,h2:2,[::1]:5/x?a=b&c=d%20e",
        "postgresql://u:p?w#x@h/db?", "postgresql://u@/postgres?host=/tmp/x", "postgresql://%2Frun%2Fx/db",
    ],
)  # fmt: skip
def test_a_url_that_libpq_reads_is_accepted(url: str) -> None:
    assert url_problem(url) is None


def test_a_long_url_is_checked_in_time_that_grows_with_its_length() -> None:
    for part in ("a,", "a:1,", "%20", "?a=b&", "@", "["):
        url_problem("postgresql://" + part * 100_000 + " ")
